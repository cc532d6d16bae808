"""The two loops that a CUDA device runs (Methods M9 to M11): products with a threshold, overlaps.

Written in Triton. The arithmetic is integers throughout, so that the device's answer is the
processor's, bit for bit.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

TILE = 128  # queries and patches of one product
STEP = 64  # samples a step: rows of codes are filled up to a multiple of it
PAIRS = 256  # pairs whose masks one program compares


def gpu_kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for the device when it is first called."""
    return triton.jit(inspect.unwrap(function))


@gpu_kernel
def find_hits(
    query_code, query_norm, query_limit, query_row, query_patch, query_group, query_place,
    bank_code, bank_norm, bank_patch, bank_group, bank_place,
    block_of, tile_of, hit_row, hit_key, hits,
    queries, patches, reach, room,
    samples: tl.constexpr, step: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Append the witnesses among one block of queries and one tile of the bank.

    A hit is its row and the key dist2 · 2³¹ + patch. Where there is no room left, hits are counted
    and not written.
    """
    program = tl.program_id(0)
    rows = tl.load(block_of + program).to(tl.int64) * tile + tl.arange(0, tile)
    columns = tl.load(tile_of + program).to(tl.int64) * tile + tl.arange(0, tile)
    product = tl.zeros((tile, tile), tl.int32)
    at = tl.arange(0, step)
    for first in range(0, samples, step):
        a = tl.load(query_code + rows[:, None] * samples + (first + at)[None, :])
        b = tl.load(bank_code + columns[None, :] * samples + (first + at)[:, None])
        product = tl.dot(a, b, product, out_dtype=tl.int32)
    dist2 = (
        tl.load(query_norm + rows)[:, None] + tl.load(bank_norm + columns)[None, :] - 2 * product
    )
    limit = tl.load(query_limit + rows)
    near = (dist2 < limit[:, None]) & (rows < queries)[:, None] & (columns < patches)[None, :]
    if tl.sum(tl.sum(near.to(tl.int32), 1), 0) > 0:
        patch = tl.load(bank_patch + columns)
        other = tl.load(query_group + rows)[:, None] != tl.load(bank_group + columns)[None, :]
        apart = tl.abs(
            tl.load(query_place + rows)[:, None] - tl.load(bank_place + columns)[None, :]
        )
        near = near & (other | (apart > reach))
        near = near & (tl.load(query_patch + rows)[:, None] != patch[None, :])
        found = near.to(tl.int32)
        in_row = tl.sum(found, 1)
        total = tl.sum(in_row, 0)
        before = tl.atomic_add(hits, total.to(tl.int64))
        left = tl.minimum(room - before, tile * tile).to(tl.int32)
        place = (tl.cumsum(in_row, 0) - in_row)[:, None] + tl.cumsum(found, 1) - found
        near = near & (place < left)
        key = (dist2.to(tl.int64) << 31) | patch[None, :].to(tl.int64)
        row = tl.broadcast_to(tl.load(query_row + rows)[:, None], (tile, tile))
        tl.store(hit_row + before + place, row, near)
        tl.store(hit_key + before + place, key, near)


@gpu_kernel
def count_overlaps(
    row, patch, own, masks, intersection, union, pairs, words: tl.constexpr, block: tl.constexpr
):
    """Write the number of samples in both masks and in either mask of each pair."""
    p = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    valid = p < pairs
    a_at = own + tl.load(row + p, valid, 0).to(tl.int64) * words
    b_at = masks + tl.load(patch + p, valid, 0).to(tl.int64) * words
    both = tl.zeros((block,), tl.int32)
    either = tl.zeros((block,), tl.int32)
    for word in range(words):
        a = tl.load(a_at + word, valid, 0)
        b = tl.load(b_at + word, valid, 0)
        both += _population(a & b)
        either += _population(a | b)
    tl.store(intersection + p, both.to(tl.int16), valid)
    tl.store(union + p, either.to(tl.int16), valid)


@gpu_kernel
def _population(word):
    # Bits set in 32, summed in pairs, nibbles, bytes.
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return (word * 0x01010101 >> 24) & 0xFF
