"""Write docs/commands.md from the commands themselves.

    python docs/make_commands.py

The signatures of the commands are read, not the help as it is printed, so that the page does not
change with the width of a terminal or the version of Typer. ``tests/unit/test_docs.py`` checks that
the page is current.
"""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from maskwitness.cli import app

PAGE = Path(__file__).with_name("commands.md")
HEAD = """\
# Commands

<!-- Made by docs/make_commands.py from the commands' own help; do not edit. -->

Every command has `--help`. Where one takes `--json`, it prints one JSON object to standard output.
Progress goes to standard error, and only to a terminal. `maskwitness --version` prints the version.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it ran, and there is something to complain of |
| 2 | it was used wrongly, a file or a setting does not fit, or the system refused a file |
| 130 | it was interrupted |
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a command takes: an argument or an option."""

    names: tuple[str, ...]  # --output, -o; or DATASET
    placeholder: str  # what stands for the value; empty for a flag
    meaning: str
    default: str
    required: bool
    is_argument: bool


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands().items())])


def commands() -> dict[str, Callable[..., Any]]:
    """Return the functions of the commands by the commands' names, as they are typed."""
    found = _commands_of(app)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            below = _commands_of(group.typer_instance)
            found |= {f"{group.name} {name}": command for name, command in below.items()}
    return found


def _commands_of(group: typer.Typer) -> dict[str, Callable[..., Any]]:
    found = [command for command in group.registered_commands if command.callback]
    return {
        command.name or command.callback.__name__.replace("_", "-"): inspect.unwrap(
            command.callback
        )
        for command in found
        if command.callback is not None
    }


def parameters(command: Callable[..., Any]) -> list[Parameter]:
    """Return what a command takes, in the order of its signature."""
    hints = get_type_hints(command, include_extras=True)
    return [
        _parameter(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(command).parameters.items()
    ]


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    kind, info = get_args(hint)
    is_argument = isinstance(info, ArgumentInfo)
    if not isinstance(info, ArgumentInfo | OptionInfo):
        message = f"{name} has neither typer.Argument nor typer.Option"
        raise TypeError(message)
    own = [text for text in info.param_decls or () if text.startswith("-")]
    if isinstance(info.default, str):  # the first name of an option stands in this place
        own.insert(0, info.default)
    names = (name.upper(),) if is_argument else tuple(own) or (f"--{name.replace('_', '-')}",)
    text = str(info.help or "")
    told = re.search(r"\s*\[default: (.*)\]$", text)  # one that the program works out
    required = default is inspect.Parameter.empty or default is ...
    shown = "" if required or default is None or default is False else f"`{default}`"
    return Parameter(
        names=tuple(sorted(names, key=len, reverse=True)),
        placeholder=_placeholder(kind),
        meaning=text[: told.start()] if told else text,
        default=told[1] if told else shown,
        required=required,
        is_argument=is_argument,
    )


def _placeholder(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    (plain,) = [part for part in get_args(kind) or (kind,) if part is not NoneType]
    return {bool: "", int: "N", float: "X", Path: "PATH"}.get(plain, "TEXT")


def _section(name: str, command: Callable[..., Any]) -> str:
    taken = parameters(command)
    words = [p.names[0] if p.required else f"[{p.names[0]}]" for p in taken if p.is_argument] + [
        f"{p.names[0]} {p.placeholder}" for p in taken if p.required and not p.is_argument
    ]
    usage = " ".join(["maskwitness", name, *words, "[OPTIONS]"])
    rows = ["| | meaning | default |", "|---|---|---|", *map(_row, taken)]
    table = "\n".join(rows)
    return f"## {name}\n\n{inspect.getdoc(command)}\n\n```\n{usage}\n```\n\n{table}\n"


def _row(parameter: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.names)
    value = (
        "" if parameter.is_argument or not parameter.placeholder else f" {parameter.placeholder}"
    )
    default = "required" if parameter.required else parameter.default
    meaning = parameter.meaning.replace("|", "\\|")
    return f"| {names}{value} | {meaning} | {default} |"


if __name__ == "__main__":
    main()
