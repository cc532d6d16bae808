"""Who looks like whom: for each patch all near-identical ones, or the k nearest of all.

:func:`range_pairs` and :func:`nearest_pairs` are the only entries; how the pairs are found is the
runners' business. The answer is exact, in the order (dist2, index), and does not depend on blocks,
threads, device or memory.
"""

import importlib.util
from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from maskwitness.config import JoinSettings
from maskwitness.join import cpu
from maskwitness.join.plan import plan_search
from maskwitness.join.tree import Memory, grow
from maskwitness.records import Bank, Pairs

__all__ = [
    "Device",
    "Memory",
    "dist2_limit",
    "nearest_pairs",
    "range_pairs",
    "reach_of",
    "why_no_device",
]

UNLIMITED_UM = 2**62
ANY_DISTANCE = 2**31 - 1
FEW = 256  # times fewer queries than patches: they are answered before the patches are sorted
WORTH_A_DEVICE = 100_000  # patches: below, waking the device takes longer than the search
Device = Literal["auto", "cpu", "cuda"]


def range_pairs(
    bank: Bank,
    settings: JoinSettings,
    queries: Bank | None = None,
    *,
    device: Device = "cpu",
    threads: int | None = None,
    memory: Memory | None = None,
) -> Iterator[Pairs]:
    """Yield the witnesses of all patches, in blocks of consecutive rows.

    Parameters
    ----------
    bank
        Who may testify.
    queries
        Who asks; none given: the bank itself, and no patch testifies for itself. Patches of the
        same group are the same scan or branch in both banks.
    device
        ``cuda``: where there is a CUDA device and the package torch; ``auto``: there too, if the
        bank is large enough to gain by it.
    threads
        How many work; none given: one a core.
    memory
        Where the tree goes, of which the bank may have taken its part; none given: half of what
        the settings allow, and files in the system's place for such.

    Method: M9, M10, M11
    """
    limit = dist2_limit(settings.epsilon, bank.image.shape[1])
    question = _Question(limit, settings.k, reach_of(settings), settings)
    return _search(bank, queries, question, device, threads, memory)


def nearest_pairs(
    bank: Bank,
    k: int,
    settings: JoinSettings,
    queries: Bank | None = None,
    *,
    device: Device = "cpu",
    threads: int | None = None,
    memory: Memory | None = None,
) -> Iterator[Pairs]:
    """Yield the k nearest patches of the bank that may testify, however far they are.

    Of the settings those count that say who may testify, and the memory. The other parameters are
    those of :func:`range_pairs`.
    """
    if k < 1:
        message = f"k = {k}: at least one nearest patch must be asked for"
        raise ValueError(message)
    question = _Question(ANY_DISTANCE, k, reach_of(settings), settings)
    return _search(bank, queries, question, device, threads, memory)


def why_no_device() -> str:
    """Return why no CUDA device can be used, in a sentence; empty if one can."""
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return f"it needs {' and '.join(missing)}: pip install 'maskwitness[gpu]'"
    from maskwitness.join import gpu

    return gpu.why_not()


class _Question(NamedTuple):
    limit: int
    k: int
    reach_um: int
    settings: JoinSettings


def _search(
    bank: Bank,
    queries: Bank | None,
    question: _Question,
    device: Device,
    threads: int | None,
    memory: Memory | None,
) -> Iterator[Pairs]:
    asking = bank if queries is None else queries
    if not (bank.has_image.any() and asking.has_image.any()):
        if len(asking.image):
            yield _nothing(len(asking.image))
        return
    limit, k, reach_um, settings = question
    large = len(bank.image) >= WORTH_A_DEVICE
    if (device == "cuda" or (device == "auto" and large)) and not why_no_device():
        from maskwitness.join import gpu

        wanted = gpu.Wanted(limit=limit, k=k, reach_um=reach_um, waves=limit == ANY_DISTANCE)
        yield from gpu.blocks(bank, asking, queries is None, wanted)
        return
    plan = plan_search(settings, threads)
    ordered = len(asking.image) * FEW >= len(bank.image)
    tree = grow(bank, memory or Memory.of(settings), plan.threads, ordered)
    rule = tree.rule(limit, k, reach_um)
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
