"""Who looks like whom: for each patch all near-identical ones, or the k nearest of all.

:func:`range_pairs` and :func:`nearest_pairs` are the only entries; how the pairs are found is the
runners' business. The answer is exact, in the order (dist2, index), and does not depend on blocks,
threads, device or memory.
"""

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from pathlib import Path

import numpy as np

from maskwitness.config import JoinSettings
from maskwitness.join import cpu
from maskwitness.join.plan import plan_search
from maskwitness.join.tree import Memory, grow
from maskwitness.records import Bank, Pairs

UNLIMITED_UM = 2**62
ANY_DISTANCE = 2**31 - 1


def range_pairs(
    bank: Bank,
    settings: JoinSettings,
    queries: Bank | None = None,
    *,
    threads: int | None = None,
    scratch: Path | None = None,
) -> Iterator[Pairs]:
    """Yield the witnesses of all patches, in blocks of consecutive rows.

    Parameters
    ----------
    bank
        Who may testify.
    queries
        Who asks; none given: the bank itself, and no patch testifies for itself. Patches of the
        same group are the same scan or branch in both banks.
    threads
        How many work; none given: one a core.
    scratch
        A folder for files, where the bank is larger than ``settings.memory_mb`` allows.

    Method: M9, M10, M11
    """
    limit = dist2_limit(settings.epsilon, bank.image.shape[1])
    return _search(bank, settings, queries, limit, settings.k, threads, scratch)


def nearest_pairs(
    bank: Bank,
    k: int,
    settings: JoinSettings,
    queries: Bank | None = None,
    *,
    threads: int | None = None,
    scratch: Path | None = None,
) -> Iterator[Pairs]:
    """Yield the k nearest patches of the bank that may testify, however far they are.

    Of the settings those count that say who may testify, and the memory. The other parameters are
    those of :func:`range_pairs`.
    """
    if k < 1:
        message = f"k = {k}: at least one nearest patch must be asked for"
        raise ValueError(message)
    return _search(bank, settings, queries, ANY_DISTANCE, k, threads, scratch)


def _search(
    bank: Bank,
    settings: JoinSettings,
    queries: Bank | None,
    limit: int,
    k: int,
    threads: int | None,
    scratch: Path | None,
) -> Iterator[Pairs]:
    asking = bank if queries is None else queries
    if not (bank.has_image.any() and asking.has_image.any()):
        if len(asking.image):
            yield _nothing(len(asking.image))
        return
    plan = plan_search(settings, threads)
    tree = grow(bank, Memory(plan.tree_bytes, scratch))
    rule = tree.rule(limit, k, reach_of(settings))
    yield from cpu.Searcher(bank, tree, asking, queries is None, rule, plan).blocks()


def _nothing(rows: int) -> Pairs:
    return Pairs(
        first=0,
        offset=np.zeros(rows + 1, np.int64),
        witness=np.empty(0, np.int32),
        dist2=np.empty(0, np.int32),
        intersection=np.empty(0, np.uint16),
        union=np.empty(0, np.uint16),
    )


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
