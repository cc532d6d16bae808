"""Run a block of rows against the whole bank: float32 matrix products, then integers.

A float32 product of values in -128 … 127 is exact as long as no partial sum exceeds 2²⁴, that is up
to 1024 samples; longer patches are multiplied in parts. So BLAS, in whatever order it sums, returns
the integer.
"""

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt8, UInt64

from maskwitness.join.plan import TILE, room_for
from maskwitness.kernels.pairs import collect_into, keep_nearest, overlap_into
from maskwitness.patches import circle
from maskwitness.records import Bank, Pairs

EXACT_SAMPLES = 1024


def witnesses_of(bank: Bank, rows: range, limit: int, k: int, reach_um: int) -> Pairs:
    """Return the witnesses of consecutive patches.

    Method: M9, M10, M11
    """
    patches = len(bank.image)
    samples = np.flatnonzero(circle(bank.image.shape[1]))
    block = slice(rows.start, rows.stop)
    centred = _centred(bank.image[block], samples)
    norm2 = _norm2(centred)
    keys = np.empty((len(rows), room_for(patches, k)), np.int64)
    count = np.zeros(len(rows), np.int64)
    farthest = np.full(len(rows), np.iinfo(np.int64).max)
    for first in range(0, patches, TILE):
        tile = _centred(bank.image[first : first + TILE], samples)
        dist2 = norm2[:, None] + _norm2(tile)[None, :] - 2 * _products(centred, tile)
        collect_into(
            dist2,
            (rows.start, first),
            (limit, k, reach_um),
            bank.has_image,
            bank.group,
            bank.position_um,
            keys,
            count,
            farthest,
        )
    return _as_pairs(bank, rows.start, keys, keep_nearest(keys, count, k))


def _centred(
    image: UInt8[np.ndarray, "n u v"], samples: Int64[np.ndarray, " samples"]
) -> Float32[np.ndarray, "n samples"]:
    # Samples outside the circle are equal everywhere and add nothing to a distance.
    return image.reshape(len(image), -1)[:, samples].astype(np.float32) - np.float32(128)


def _norm2(centred: Float32[np.ndarray, "n samples"]) -> Int32[np.ndarray, " n"]:
    return (centred.astype(np.int32) ** 2).sum(axis=1, dtype=np.int32)


def _products(
    a: Float32[np.ndarray, "m samples"], b: Float32[np.ndarray, "n samples"]
) -> Int32[np.ndarray, "m n"]:
    parts = range(0, a.shape[1], EXACT_SAMPLES)
    total = np.zeros((len(a), len(b)), np.int32)
    for part in parts:
        here = slice(part, part + EXACT_SAMPLES)
        total += (a[:, here] @ b[:, here].T).astype(np.int32)
    return total


def _as_pairs(
    bank: Bank, first: int, keys: Int64[np.ndarray, "rows room"], count: Int64[np.ndarray, " rows"]
) -> Pairs:
    offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    kept = keys[np.arange(keys.shape[1])[None, :] < count[:, None]]
    witness = (kept & 0x7FFFFFFF).astype(np.int32)
    intersection = np.empty(len(kept), np.uint16)
    union = np.empty(len(kept), np.uint16)
    overlap_into(_words(bank.mask), first, offset, witness, intersection, union)
    return Pairs(
        first=first,
        offset=offset,
        witness=witness,
        dist2=(kept >> 31).astype(np.int32),
        intersection=intersection,
        union=union,
    )


def _words(mask: UInt8[np.ndarray, "patches bytes"]) -> UInt64[np.ndarray, "patches words"]:
    spare = -mask.shape[1] % 8
    padded = np.pad(mask, ((0, 0), (0, spare))) if spare else np.ascontiguousarray(mask)
    return padded.view(np.uint64)
