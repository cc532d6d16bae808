"""Phantoms: CT-like scans of coronary arteries with planted annotation errors and their truth.

::

    settings, index -> style, heart -> arteries, veins -> lesions, motion
                              |              |
                       tissue -> image   truth -> drawing + mistakes -> drawn mask, error map

Everything follows from ``PhantomSettings``; see ``docs/phantom.md``.
"""

from maskwitness.phantom.make import make_scan
from maskwitness.phantom.records import KINDS, PhantomScan, PlantedError
from maskwitness.phantom.settings import PhantomSettings
from maskwitness.phantom.write import write_phantom

__all__ = [
    "KINDS",
    "PhantomScan",
    "PhantomSettings",
    "PlantedError",
    "make_scan",
    "write_phantom",
]
