"""The self-join: for each patch all patches whose image is near-identical.

:func:`range_pairs` is the only entry; how the pairs are found is the runners' business. The answer
is exact, in the order (dist2, index), and does not depend on tiles, threads or memory.
"""

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from maskwitness.config import JoinSettings
from maskwitness.join import cpu
from maskwitness.join.plan import plan_rows
from maskwitness.records import Bank, Pairs

UNLIMITED_UM = 2**62


def range_pairs(bank: Bank, settings: JoinSettings) -> Iterator[Pairs]:
    """Yield the witnesses of all patches, in blocks of consecutive rows.

    Method: M9, M10, M11
    """
    size = bank.image.shape[1]
    limit = dist2_limit(settings.epsilon, size)
    reach_um = reach_of(settings)
    for rows in plan_rows(len(bank.image), settings):
        yield cpu.witnesses_of(bank, rows, limit, settings.k, reach_um)


def dist2_limit(epsilon: float, size: int) -> int:
    """Return the least integer dist2 that is no longer near-identical: MSE ≥ ε.

    ε is read as the decimal number that was written, not as its nearest binary fraction.

    Method: M10
    """
    return ceil(Fraction(repr(epsilon)) * size**2 * 255**2)


def reach_of(settings: JoinSettings) -> int:
    """Return how far on its own branch or scan a patch has no witness, in µm; -1: only itself."""
    if settings.testify == "any":
        return -1
    if settings.testify == "other_stretch":
        return round(settings.stretch_mm * 1000)
    return UNLIMITED_UM
