"""The docs say what the code does: labels, commands, settings, columns, links, examples."""

import ast
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nibabel
import numpy as np
import pytest
import typer

import maskwitness
from maskwitness.cli import app
from maskwitness.config import Config
from maskwitness.io import store, tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "maskwitness"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    return script


# Labels of the method


def labels_in_docs() -> set[str]:
    return set(re.findall(r"^## (M\d+) ", text_of("method.md"), re.MULTILINE))


def cited(path: Path) -> Iterator[tuple[str, str]]:
    """Yield function and label for every label that a docstring cites as its method."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            for line in re.findall(r"Method: (.*)", ast.get_docstring(node) or ""):
                for label in re.findall(r"M\d+", line):
                    yield node.name, label


def cited_in(paths: list[Path]) -> set[str]:
    return {label for path in paths for _, label in cited(path)}


def test_the_method_has_the_labels_m1_to_m17():
    assert {f"M{n}" for n in range(1, 18)} <= labels_in_docs()


def test_every_label_is_implemented_in_shipped_code():
    shipped = [path for path in PACKAGE.rglob("*.py") if path.name != "reference.py"]
    assert cited_in(shipped) == labels_in_docs()


def test_every_label_is_said_again_by_the_reference():
    # M18 and later are held to other people's implementations, not to our own oracle.
    wanted = {f"M{n}" for n in range(1, 18)}
    assert cited_in([PACKAGE / "reference.py"]) == wanted


def test_labels_are_found_in_docstrings_and_only_there(tmp_path: Path):
    source = tmp_path / "step.py"
    source.write_text(
        'def f():\n    """Say.\n\n    Method: M1, M2\n    """\n\n'
        'def g():\n    """Say. Method: M3."""\n\n'
        'def h():\n    # Method: M4\n    """Say."""\n'
    )
    assert set(cited(source)) == {("f", "M1"), ("f", "M2"), ("g", "M3")}


def test_other_labels_in_the_code_exist():
    named = {
        label
        for path in PACKAGE.rglob("*.py")
        for label in re.findall(r"\bM\d+\b", path.read_text(encoding="utf-8"))
    }
    assert named <= labels_in_docs()


# Commands


def test_the_page_of_commands_is_current():
    made = load_script("make_commands").page()
    assert made == text_of("commands.md"), "run python docs/make_commands.py"


def test_every_command_has_an_example_and_every_parameter_a_meaning():
    script = load_script("make_commands")
    for name, command in script.commands().items():
        assert f"Example: `maskwitness {name}" in (command.__doc__ or ""), name
        for parameter in script.parameters(command):
            assert parameter.meaning, f"{name} {parameter.names}"


def parsers() -> dict[str, Any]:
    """Return the parser of each command by its name, of groups those below them."""
    top: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in top.commands.items():
        below = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in below.items()} if below else {name: command}
    return found


def test_the_page_of_commands_has_every_option_that_the_parser_knows():
    page = text_of("commands.md")
    for name, command in parsers().items():
        own = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in ("--help", "-h") or f"`{option}`" in own, f"{name} {option}"


def shell_lines(path: Path) -> list[str]:
    blocks = [code for kind, code in FENCE.findall(path.read_text(encoding="utf-8")) if not kind]
    spans = re.findall(r"`(maskwitness [^`\n]+)`", path.read_text(encoding="utf-8"))
    return [line for block in blocks for line in block.splitlines()] + spans


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_in_the_docs_exists(page: Path):
    known_commands = parsers()
    for line in shell_lines(page):
        words = line.split("#")[0].split()
        if words[:1] != ["maskwitness"] or words[1].startswith("-"):
            continue
        name = words[1] if words[1] in known_commands else " ".join(words[1:3])
        assert name in known_commands or any(n.startswith(f"{name} ") for n in known_commands), line
        params = known_commands[name].params if name in known_commands else ()
        known = {opt for p in params for opt in p.opts} | {"-h", "--help"}
        used = {word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
        assert used <= known, line


# Links


def anchors_of(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", head).strip().lower() for head in heads]
    return {re.sub(r"[\s]+", "-", head) for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        place, _, anchor = target.partition("#")
        found = (page.parent / place).resolve() if place else page
        assert found.is_file(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors_of(found), f"{page.name}: {target}"


def test_every_page_is_in_the_table_of_contents():
    listed = set(re.findall(r"(\S+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.name for page in DOCS.glob("*.md")} == listed


# The way through the code


def test_the_way_through_the_code_names_what_is_there():
    steps = re.findall(r"\*\*`([\w/]+\.py)` · `(\w+)`", text_of("follow-one-scan.md"))
    assert len(steps) >= 12
    for file, function in steps:
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in defined, f"{file}: {function}"


def test_voxels_become_millimetres_where_the_way_through_the_code_says():
    source = (PACKAGE / "centreline.py").read_text(encoding="utf-8")
    assert "points_mm = to_world(points_vox, affine)" in source


def test_the_layers_in_the_docs_are_those_that_are_checked():
    block = FENCE.findall(text_of("follow-one-scan.md"))[-1][1]
    rules = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("layers = [")[1]
    checked = [
        re.findall(r"maskwitness\.(\w+)", line) for line in rules.split("\n]")[0].splitlines()
    ]
    assert [line.split(", ") for line in block.splitlines()] == [
        names for names in checked if names
    ]


# Settings and the run directory


def test_every_setting_is_documented_and_every_documented_one_exists():
    config = Config()
    names = {
        f"{step.name}.{setting.name}"
        for step in dataclasses.fields(config)
        if step.name != "preset"
        for setting in dataclasses.fields(getattr(config, step.name))
    }
    section = text_of("python.md").split("\n## Settings\n")[1]
    assert set(re.findall(r"^\| `(\w+\.\w+)` \|", section, re.MULTILINE)) == names


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("scans.parquet", tables.SCANS),
        ("patches.parquet", tables.PATCHES),
        ("baseline.parquet", tables.BASELINE),
        ("scores.parquet", tables.SCORES),
        ("findings.parquet", tables.FINDINGS),
        ("pairs.zarr", {"offset": "int64", **store.PAIR_ARRAYS}),
        ("patches.zarr", {"image": "uint8", "mask": "uint8"}),
    ],
)
def test_every_column_of_the_run_directory_is_documented_with_its_type(file: str, columns: Any):
    section = text_of("run-directory.md").split(f"## {file}\n")[1].split("\n## ")[0]
    documented = dict(documented_columns(section))
    assert documented == {name: type_name(kind) for name, kind in columns.items()}


def documented_columns(section: str) -> Iterator[tuple[str, str]]:
    for names, kind in re.findall(r"^\| (`.*?`[^|]*) \| ([^|]+) \|", section, re.MULTILINE):
        for first, last in re.findall(r"`(\w+)`(?: … `(\w+)`)?", names):
            if last:  # t_x … t_z
                both = zip(first, last, strict=True)
                at = next(n for n, (a, b) in enumerate(both) if a != b)
                yield from (
                    (f"{first[:at]}{axis}{first[at + 1 :]}", kind.strip()) for axis in "xyz"
                )
            else:
                yield first, kind.strip()


def type_name(kind: Any) -> str:
    text = str(kind)
    inner = re.match(r"list<\w+: (\w+)>", text)
    names = {"float": "float32", "double": "float64"}
    if inner:
        return f"list of {names.get(inner[1], inner[1])}"
    return names.get(text, text)


# Examples


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny data set ``dataset`` and its run ``run``."""
    place = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    i, j, _ = np.indices((20, 20, 24))
    for folder in ("imagesTr", "labelsTr"):
        (place / "dataset" / folder).mkdir(parents=True)
    for name in ("a", "b"):
        inside = (i - 9.5) ** 2 + (j - 9.5) ** 2 <= 6
        image = np.where(inside, 300, 0) + rng.integers(0, 20, inside.shape)
        for file, data in ((f"imagesTr/{name}_0000", image), (f"labelsTr/{name}", inside)):
            volume = nibabel.nifti1.Nifti1Image(data.astype(np.int16), np.diag([0.5, 0.5, 0.5, 1]))
            nibabel.save(volume, place / "dataset" / f"{file}.nii.gz")
    maskwitness.audit(
        place / "dataset", place / "run", config={"patches": {"extent_mm": 6.0}}, workers=1
    )
    return place


def examples() -> list[Any]:
    return [
        pytest.param(code, id=f"{name}-{number}")
        for name in ("run-directory.md", "python.md")
        for number, (kind, code) in enumerate(FENCE.findall(text_of(name)))
        if kind == "python"
    ]


@pytest.mark.parametrize("code", examples())
def test_the_examples_run(code: str, place: Path, monkeypatch: pytest.MonkeyPatch):
    for module in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        pytest.importorskip(module)
    monkeypatch.chdir(place)
    exec(compile(code, "example", "exec"), {})  # noqa: S102


# The README


def test_the_readme_shows_a_picture_that_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert pictures
    assert (ROOT / pictures[0]).read_bytes().startswith(b"\x89PNG")
