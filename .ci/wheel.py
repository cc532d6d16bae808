"""Build the wheel, install it in an empty environment outside the repository, and use it there.

    python .ci/wheel.py [PYTHON]

Only the core dependencies are installed: what the tests and the extras bring is not there.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORT_S = 0.6  # twice the budget: other things may be running


def main() -> None:
    """Build, install, use."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _run(place, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, ROOT)
        (wheel,) = place.glob("*.whl")
        _run(place, python, "-m", "venv", place / "venv")
        inside = place / "venv" / "bin"
        _run(place, inside / "python", "-m", "pip", "install", "-q", wheel)
        check_words(place, inside / "maskwitness")
        check_speed(place, inside)
        check_demo(place, inside / "maskwitness")
        check_core_alone(place, inside)
    print("the wheel works on its own")


def check_words(place: Path, tool: Path) -> None:
    """Help and version are there."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "Usage: maskwitness" in _run(place, tool, "--help")
    assert _run(place, tool, "--version") == f"maskwitness {about['version']}\n"


def check_speed(place: Path, inside: Path) -> None:
    """Importing the package and asking for help take no time to speak of."""
    python = inside / "python"
    for what, words in (
        ("import", (python, "-c", "import maskwitness")),
        ("--help", (inside / "maskwitness", "--help")),
    ):
        seconds = min(_seconds(place, *words) for _ in range(5))
        print(f"{what}: {seconds:.2f} s")
        assert seconds <= IMPORT_S, f"{what} takes {seconds:.2f} s"


def check_demo(place: Path, tool: Path) -> None:
    """A tiny demo runs through, and says so to a machine."""
    begun = time.monotonic()
    facts = json.loads(_run(place, tool, "demo", "--scans", "2", "--output", "demo", "--json"))
    print(f"demo of two scans, kernels compiled: {time.monotonic() - begun:.1f} s")
    assert facts["scans_audited"] == 2
    assert facts["patches"] > 0
    stages = json.loads((place / "demo/run/run.json").read_text(encoding="utf-8"))["stages"]
    assert sorted(stages) == ["pairs", "patches", "quality", "scores"]
    assert len(list((place / "demo/run/quality").glob("*.nii.gz"))) == 2


def check_core_alone(place: Path, inside: Path) -> None:
    """Without the extra, a MetaImage file is refused with the one sentence that helps."""
    missing = "import importlib.util as u; print(u.find_spec('SimpleITK'))"
    assert _run(place, inside / "python", "-c", missing).strip() == "None"
    (place / "scan.mha").write_bytes(b"ObjectType = Image\n")
    with (place / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "mask"], ["scan.mha", "scan.mha"]])
    said = _run(place, inside / "maskwitness", "audit", "data.csv", "-o", "run", "--json", code=1)
    (refused,) = json.loads(said)["refused"]
    assert "need SimpleITK: pip install maskwitness[itk]" in refused["reason"], refused


def _run(place: Path, *words: Any, code: int = 0) -> str:
    # Nothing of the calling environment may help: no path to the sources, no active environment.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=place, env=clean | {"COLUMNS": "100"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != code:
        line = " ".join(str(word) for word in words)
        sys.exit(f"exit code {done.returncode}: {line}\n{done.stdout}{done.stderr}")
    return done.stdout


def _seconds(place: Path, *words: Any) -> float:
    begun = time.monotonic()
    _run(place, *words)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
