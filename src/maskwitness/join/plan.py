"""How the join is cut into pieces: pure numbers, from the number of patches and a memory budget."""

from collections.abc import Iterator

from maskwitness.config import JoinSettings

TILE = 8192  # patches a tile: their float32 copy and their products fit in a second-level cache
MOST_ROWS = 1024  # rows a block: enough to keep BLAS busy, few enough to show progress


def room_for(patches: int, k: int) -> int:
    """Return how many candidates a row must be able to hold.

    With a limit of k, twice k: each time it is full, the k nearest are kept.
    """
    return patches if k == 0 else min(patches, 2 * k)


def plan_rows(patches: int, settings: JoinSettings) -> Iterator[range]:
    """Yield blocks of rows that stay below the memory budget."""
    candidates_bytes = 8 * room_for(patches, settings.k)
    products_bytes = 8 * min(patches, TILE)
    budget = settings.memory_mb * 2**20 // 2  # the other half: the tile and the sorted result
    rows = max(1, min(MOST_ROWS, budget // max(1, candidates_bytes + products_bytes)))
    for first in range(0, patches, rows):
        yield range(first, min(first + rows, patches))
