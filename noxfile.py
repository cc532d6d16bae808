"""The checks by name: `python -m nox --session lint`. They run in the environment at hand."""

import sys

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "docs", "tests"]

PYTHON = sys.executable  # whatever stands first on the path may be another one
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff")
SPELLED = ("src", "tests", "docs", "benchmarks", ".ci", "noxfile.py", "mkdocs.yml", *PAGES)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, form, spelling, and who may import whom."""
    session.run(PYTHON, "-m", "ruff", "check", ".")
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")
    session.run(PYTHON, "-m", "codespell_lib", *SPELLED)
    session.run(PYTHON, "-c", "from importlinter.cli import lint_imports_command as c; c()")


@nox.session
def types(session: nox.Session) -> None:
    """Types of the package, the tests, and the scripts of the docs."""
    session.run(PYTHON, "-m", "mypy")
    session.run(PYTHON, "-m", "mypy", "docs", "noxfile.py", ".ci")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests."""
    session.run(PYTHON, "-m", "pytest", *session.posargs)


@nox.session
def endtoend(session: nox.Session) -> None:
    """Does an audit find what was planted?"""
    session.run(PYTHON, "-m", "pytest", "tests/endtoend", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, with every warning an error."""
    session.run(PYTHON, "-m", "mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def wheel(session: nox.Session) -> None:
    """The wheel in an empty environment, outside the repository."""
    session.run(PYTHON, ".ci/wheel.py")
