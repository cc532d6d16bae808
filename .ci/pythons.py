"""Print the other Pythons of this machine that the package promises to work with, one a line."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print one working interpreter for each promised version but this one."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for label in about["classifiers"]:
        promised = re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", label)
        if promised and int(promised[1]) != sys.version_info.minor:
            found = next(filter(_works, _candidates(f"3.{promised[1]}")), None)
            if found:
                print(found)


def _candidates(version: str) -> Iterator[str]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    for place in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")):
        yield str(place)


def _works(python: str) -> bool:
    # A shim may stand for a version that is not installed.
    done = subprocess.run([python, "-c", "import venv"], capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    main()
