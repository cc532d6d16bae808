"""From found keys to pairs, with the overlap of their masks (Methods M10, M11)."""

import numpy as np
from jaxtyping import Int32, Int64, UInt16, UInt64

from maskwitness.kernels._jit import kernel, small_kernel
from maskwitness.kernels.tree import CODE_BITS


@kernel
def write_pairs(
    keys: Int64[np.ndarray, "rows room"],
    count: Int64[np.ndarray, " rows"],
    own: UInt64[np.ndarray, "rows words"],
    masks: UInt64[np.ndarray, "patches words"],
    witness: Int32[np.ndarray, " pairs"],
    dist2: Int32[np.ndarray, " pairs"],
    intersection: UInt16[np.ndarray, " pairs"],
    union: UInt16[np.ndarray, " pairs"],
) -> None:
    """Unpack keys row by row, and count the samples in both masks and in either."""
    p = 0
    for r in range(len(count)):
        for n in range(count[r]):
            j = keys[r, n] & ((1 << CODE_BITS) - 1)
            witness[p] = j
            dist2[p] = keys[r, n] >> CODE_BITS
            both = np.uint64(0)
            either = np.uint64(0)
            for w in range(masks.shape[1]):
                both += _population(own[r, w] & masks[j, w])
                either += _population(own[r, w] | masks[j, w])
            intersection[p] = both
            union[p] = either
            p += 1


@small_kernel
def _population(word: np.uint64) -> np.uint64:
    # Bits set in 64, summed in pairs, nibbles, bytes.
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)
