"""The house rules that a machine can check: sizes, walls, names, and what an import costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import maskwitness

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "maskwitness"
HEAVY = ("numba", "scipy", "zarr", "pyarrow", "nibabel", "matplotlib", "torch", "SimpleITK")
PUBLIC = [
    "Check", "Config", "Evidence", "MaskwitnessError", "Run", "__version__", "audit", "check",
    "open_check", "open_run", "train",
]  # fmt: skip
# Names of hosts that serve packages, put together here so that this file does not hold them.
REGISTRIES = (
    "py" + "pi.org", "pythonhosted" + ".org", "ana" + "conda.org", "registry." + "npmjs",
    "conda" + ".io", "ghcr" + ".io", "docker" + ".io", "quay" + ".io",
)  # fmt: skip
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".cff", ".sh", ".cfg", ".txt", ".json", ".ini", ""}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def sizes(source: str) -> dict[str, int]:
    """Return the lines of each function, its docstring not counted."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = ast.get_docstring(node, clean=False)
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found[f"{node.name}:{node.lineno}"] = lines - (len(told.splitlines()) if told else 0)
    return found


def tracked_files() -> list[Path]:
    """Return the files of the project, those that git does not know yet included."""
    asked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in asked.stdout.splitlines()]
    return [file for file in files if file.is_file() and file.suffix in TEXT]


def test_no_module_has_more_than_400_lines():
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_no_function_has_more_than_60_lines():
    long = {
        f"{path.relative_to(PACKAGE)}:{name}": lines
        for path in modules()
        for name, lines in sizes(path.read_text(encoding="utf-8")).items()
        if lines > 60
    }
    assert long == {}


def test_nine_of_ten_functions_have_at_most_30_lines():
    lines = sorted(
        lines for path in modules() for lines in sizes(path.read_text(encoding="utf-8")).values()
    )
    assert len(lines) > 100
    assert lines[int(0.9 * len(lines))] <= 30


def test_a_docstring_does_not_count_as_lines_of_a_function():
    assert sizes('def f():\n    """Say.\n\n    More.\n    """\n    return 1\n') == {"f:1": 2}


def test_the_public_names_are_exactly_these():
    assert maskwitness.__all__ == PUBLIC
    assert dir(maskwitness) == PUBLIC
    for name in PUBLIC:
        assert getattr(maskwitness, name) is not None


def test_the_loss_is_there_without_an_import_of_its_own():
    code = "import maskwitness; print(maskwitness.train.weighted_loss.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "weighted_loss\n"


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'adit'"):
        maskwitness.adit  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import maskwitness",
        "import maskwitness; maskwitness.__version__",
        "import sys; sys.argv[1:] = ['--help']; from maskwitness.cli import main; main()",
    ],
    ids=["import", "version", "help"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str):
    watched = (
        "import atexit, sys\n"
        f"heavy = lambda: sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "atexit.register(lambda: sys.stderr.write(repr(heavy())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched + code], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]"


def test_the_walls_between_the_modules_stand():
    pytest.importorskip("importlinter", reason="the lint group is not installed")
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_every_part_of_the_package_has_its_place_in_the_layers():
    rules = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    parts = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    free = {"__init__", "__main__", "reference"}
    layered = set(re.findall(r"maskwitness\.(\w+)", rules.split("layers = [")[1].split("\n]")[0]))
    assert parts - free == layered


def test_only_one_module_compiles():
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if re.search(r"^\s*(import|from) numba\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users == {"kernels/_jit.py", "kernels/_simd.py"}


def test_no_file_names_the_host_of_a_package_registry():
    named = {
        f"{file.relative_to(ROOT)}: {host}"
        for file in tracked_files()
        for host in REGISTRIES
        if host in file.read_text(encoding="utf-8")
    }
    assert named == set()
