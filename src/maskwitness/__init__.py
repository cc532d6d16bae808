"""Find the annotation errors in a vessel segmentation data set that was drawn only once.

::

    image + mask ─ centreline ─ frames ─ patches ─┐
    image + mask ─ centreline ─ frames ─ patches ─┼─ pairs ─ residuals ─ scores ─ quality maps
    image + mask ─ centreline ─ frames ─ patches ─┘

``audit`` writes a run directory, ``open_run`` reads one, ``check`` holds one new scan against it.
Names are imported when they are used, so that ``import maskwitness`` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskwitness import train as train
    from maskwitness.config import Config as Config
    from maskwitness.errors import MaskwitnessError as MaskwitnessError
    from maskwitness.run import Check as Check
    from maskwitness.run import Evidence as Evidence
    from maskwitness.run import Run as Run
    from maskwitness.run import audit as audit
    from maskwitness.run import check as check
    from maskwitness.run import open_check as open_check
    from maskwitness.run import open_run as open_run

_HOME = {
    "Check": "run",
    "Config": "config",
    "Evidence": "run",
    "MaskwitnessError": "errors",
    "Run": "run",
    "audit": "run",
    "check": "run",
    "open_check": "run",
    "open_run": "run",
}
__all__ = [
    "Check",
    "Config",
    "Evidence",
    "MaskwitnessError",
    "Run",
    "__version__",
    "audit",
    "check",
    "open_check",
    "open_run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("maskwitness")
    if name == "train":
        return import_module("maskwitness.train")
    if name in _HOME:
        return getattr(import_module(f"maskwitness.{_HOME[name]}"), name)
    message = f"module 'maskwitness' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted(__all__)
