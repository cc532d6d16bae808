"""Options that several commands take, and what is made of what the user gave them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskwitness.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Scans worked on at the same time. [default: one a core]"),
]
Preset = Annotated[str, typer.Option(help="A named configuration: paper.")]
ConfigFile = Annotated[
    Path | None, typer.Option(help="A TOML file of settings, on top of the preset.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, on top of all, like patches.extent_mm=6."),
]
Label = Annotated[
    str | None, typer.Option(help="Label values that are vessel, like 1,2. [default: any but 0]")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where witnesses are searched: auto takes a CUDA device if it pays."),
]


def config_of(preset: str, path: Path | None, settings: list[str] | None, label: str | None) -> Any:
    """Return the settings: a preset, changed by a file, by single settings, by labels."""
    from maskwitness import config

    chosen = config.preset(preset)
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"the settings in {path} cannot be read: {error}"
            raise ConfigError(message) from error
        chosen = config.from_toml(text, chosen)
    if label is not None:
        settings = [f"data.labels={labels_of(label)}", *(settings or [])]
    return config.with_settings(chosen, settings or [])


def labels_of(text: str) -> list[int]:
    """Return label values written as 1,2."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        message = f"--label {text!r}: label values are whole numbers, like 1 or 1,2"
        raise ConfigError(message) from error


def explain_device(device: str) -> None:
    """Say why the processor works although a device was asked for."""
    from maskwitness.join import why_no_device

    reason = why_no_device() if device == "cuda" else ""
    if reason:
        print(f"no CUDA device is used: {reason}; the processor works instead", file=sys.stderr)


def free_place(output: Path) -> Path:
    """Return a place beside ``output`` if that is taken: nothing that is there is overwritten."""
    place, number = output, 1
    while place.exists() and any(place.iterdir()):
        number += 1
        place = output.with_name(f"{output.name}-{number}")
    return place


def answer(as_json: bool, facts: dict[str, Any], show: Callable[[], None]) -> None:
    """Print what came out: one JSON object, or tables for people."""
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
    else:
        show()
