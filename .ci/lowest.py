"""Install the oldest dependencies that pyproject.toml promises, and run the quick tests on them.

Then once more without SimpleITK: the core has to do without its extra.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ("tests/unit", "tests/parity")


def main() -> None:
    """Install and test in a throw-away environment."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        lowest = place / "lowest.txt"
        lowest.write_text("\n".join(lower_bounds()) + "\n", encoding="utf-8")
        python = place / "venv" / "bin" / "python"
        _run(sys.executable, "-m", "venv", place / "venv")
        _run(python, "-m", "pip", "install", "-q", "--upgrade", "pip>=25.1")
        _run(python, "-m", "pip", "install", "-q", "-c", lowest, ".[itk]", "--group", "test")
        print(lowest.read_text(encoding="utf-8"))
        _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
        _run(python, "-m", "pip", "uninstall", "-q", "-y", "SimpleITK")
        _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit")


def lower_bounds() -> list[str]:
    """Return a constraint for each dependency of the package: exactly its lower bound."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [need for needs in about["optional-dependencies"].values() for need in needs]
    found = [
        re.fullmatch(r"([\w.-]+)\s*>=\s*([\w.]+)", need) for need in about["dependencies"] + extras
    ]
    if not all(found):
        sys.exit("every dependency needs a lower bound and nothing else, like numpy>=2.0")
    return [f"{need[1]}=={need[2]}" for need in found if need]


def _run(*words: Any) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(word) for word in words], cwd=ROOT, env=clean, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
