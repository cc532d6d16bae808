"""Passes over whole volumes: where the foreground is, and how far the background."""

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from maskwitness.kernels._jit import kernel


@kernel
def foreground_of(words: np.ndarray, flat: UInt8[np.ndarray, " voxels"]) -> np.ndarray:
    """Return the flat indices of non-zero voxels, skipping empty stretches eight at a time.

    ``words`` is the same memory as uint64, without the last up to seven bytes.
    """
    total = 0
    for n in range(len(words)):
        if words[n]:
            for at in range(8 * n, 8 * n + 8):
                total += flat[at] != 0
    for at in range(8 * len(words), len(flat)):
        total += flat[at] != 0
    found = np.empty(total, np.int64)
    total = 0
    for n in range(len(words)):
        if words[n]:
            for at in range(8 * n, 8 * n + 8):
                if flat[at]:
                    found[total] = at
                    total += 1
    for at in range(8 * len(words), len(flat)):
        if flat[at]:
            found[total] = at
            total += 1
    return found


@kernel
def nearest_background_into(
    mask: UInt8[np.ndarray, "i j k"],
    points: Int64[np.ndarray, "points 3"],
    offsets: Int64[np.ndarray, "offsets 3"],
    length2: Float64[np.ndarray, " offsets"],
    out: Float64[np.ndarray, " points"],
) -> None:
    """Write the squared length of the first offset that leads to background, -1 where none does.

    ``offsets`` come by rising length; outside the volume is background.
    """
    size_i, size_j, size_k = mask.shape
    for p in range(len(points)):
        out[p] = -1.0
        for n in range(len(offsets)):
            i = points[p, 0] + offsets[n, 0]
            j = points[p, 1] + offsets[n, 1]
            k = points[p, 2] + offsets[n, 2]
            inside = 0 <= i < size_i and 0 <= j < size_j and 0 <= k < size_k
            if not inside or mask[i, j, k] == 0:
                out[p] = length2[n]
                break
