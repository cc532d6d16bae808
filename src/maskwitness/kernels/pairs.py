"""Loops over patch pairs: which are near, how their masks overlap (Methods M10, M11)."""

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt16, UInt64

from maskwitness.kernels._jit import kernel, small_kernel


@kernel
def collect_into(
    dist2: Int32[np.ndarray, "rows tile"],
    first: tuple[int, int],
    rule: tuple[int, int, int],
    has_image: Bool[np.ndarray, " patches"],
    group: Int64[np.ndarray, " patches"],
    position_um: Int64[np.ndarray, " patches"],
    keys: Int64[np.ndarray, "rows room"],
    count: Int64[np.ndarray, " rows"],
    farthest: Int64[np.ndarray, " rows"],
) -> None:
    """Append the near patches of a tile to their rows, as keys ``dist2 · 2³¹ + index``.

    Keys sort as the witnesses do. A full row keeps its k nearest and from then on admits only what
    is nearer than the last of them.
    """
    limit, k, reach_um = rule
    for r in range(len(dist2)):
        i = first[0] + r
        if not has_image[i]:
            continue
        for c in range(dist2.shape[1]):
            if dist2[r, c] >= limit:
                continue
            j = first[1] + c
            if i == j or not has_image[j]:
                continue
            if group[i] == group[j] and abs(position_um[i] - position_um[j]) <= reach_um:
                continue
            key = (np.int64(dist2[r, c]) << 31) | j
            if key >= farthest[r]:
                continue
            keys[r, count[r]] = key
            count[r] += 1
            if count[r] == keys.shape[1] and k > 0 and count[r] > k:
                keys[r] = np.partition(keys[r], k - 1)
                farthest[r] = keys[r, k - 1]
                count[r] = k


@kernel
def keep_nearest(
    keys: Int64[np.ndarray, "rows room"], count: Int64[np.ndarray, " rows"], k: int
) -> Int64[np.ndarray, " rows"]:
    """Sort each row's keys in place; return how many of them are witnesses: k at the most."""
    kept = np.empty_like(count)
    for r in range(len(count)):
        keys[r, : count[r]] = np.sort(keys[r, : count[r]])
        kept[r] = min(count[r], k) if k > 0 else count[r]
    return kept


@small_kernel
def _population(word: np.uint64) -> np.uint64:
    # Bits set in 64, summed in pairs, nibbles, bytes.
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def overlap_into(
    masks: UInt64[np.ndarray, "patches words"],
    first: int,
    offset: Int64[np.ndarray, " rows_plus_1"],
    witness: Int32[np.ndarray, " pairs"],
    intersection: UInt16[np.ndarray, " pairs"],
    union: UInt16[np.ndarray, " pairs"],
) -> None:
    """Write the number of samples in both masks and in either mask of each pair."""
    for r in range(len(offset) - 1):
        for p in range(offset[r], offset[r + 1]):
            both = np.uint64(0)
            either = np.uint64(0)
            for w in range(masks.shape[1]):
                a, b = masks[first + r, w], masks[witness[p], w]
                both += _population(a & b)
                either += _population(a | b)
            intersection[p] = both
            union[p] = either
