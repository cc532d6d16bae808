"""Search on a CUDA device: the same tree, the same rule, the same bits as on the processor.

The bank lies on the device in the order of the tree, cut into tiles of 128. Queries come in blocks
of consecutive rows, sorted among themselves the same way. Boxes in sixteen directions rule most
pairs of tiles out; what is left is multiplied as int8 and compared as int32. Hits are appended,
sorted by row, distance and number, and cut to the k nearest. A block whose hits do not fit is
halved, so a small card needs more blocks and nothing else; a bank that does not fit comes in slabs.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from maskwitness.join import cloud
from maskwitness.join.cloud import Cloud, Frame, cloud_of, frame_of, words_of
from maskwitness.join.gpu_kernels import PAIRS, STEP, TILE, count_overlaps, find_hits
from maskwitness.kernels.tree import AXES, CODE_BITS
from maskwitness.records import Bank, Pairs

MOST_ROWS = 2**18  # a block: in a larger one, neighbours in the sorted order are nearer
LEAST_ROWS = 2**10
HIT_BYTES = 64  # of a hit: its key, its row, and what sorting takes
BOUND_BYTES = 16  # of a pair of tiles: the distance of their boxes, and what computing it takes
WAVES = (4, 64, 1024)  # tiles that are looked at before the others: they bound the k nearest
WARPS = 8


class NoRoom(Exception):
    """A block has more hits than the device can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Who is a witness: nearer than the limit, the k nearest of them (0: all), out of reach."""

    limit: int
    k: int
    reach_um: int
    waves: bool  # whether the limit is so far that near tiles should narrow it first


def why_not() -> str:
    """Return why no device can be used, in a sentence; empty if one can."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < (7, 5):
        return f"the CUDA device is of generation {major}.{minor}; 7.5 is the least"
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        return "Triton needs a C compiler, cc, gcc or clang, and finds none"
    return ""


def blocks(
    bank: Bank, queries: Bank, own: bool, wanted: Wanted, memory_bytes: int | None = None
) -> Iterator[Pairs]:
    """Yield the witnesses of all queries, in blocks of consecutive rows.

    ``own`` says that the queries are the bank, ``memory_bytes`` what of the device's memory may be
    used; none given: what is free.
    """
    card = Card(memory_bytes)
    frame = frame_of(bank)
    masks = words_of(bank.mask)
    slabs = Slabs(bank, frame, card.left() * 2 // 5)
    tiles = -(-slabs.rows // TILE)
    most = min(MOST_ROWS, max(LEAST_ROWS, card.left() // 8 // (BOUND_BYTES * tiles) * TILE))
    total, first, rows = len(queries.image), 0, most
    while first < total:
        block = range(first, min(first + rows, total))
        try:
            pairs = _search_block(queries, block, own, wanted, slabs, card, masks)
        except (NoRoom, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
            if wanted.k > 0 and not wanted.waves:
                wanted = replace(wanted, waves=True)  # near tiles first: far fewer hits are kept
                continue
            if len(block) == 1:
                message = f"patch {first} has more witnesses than the device can hold"
                raise MemoryError(message) from None
            rows = max(1, len(block) // 2)
            continue
        yield pairs
        first = block.stop


class Card:
    """How much of the device's memory is left."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._most = memory_bytes or torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()

    def left(self) -> int:
        """Return the bytes that may still be taken."""
        return max(0, self._most - torch.cuda.memory_allocated())


class Slabs:
    """The bank on the device: whole if it fits, else one slab after the other."""

    def __init__(self, bank: Bank, frame: Frame, most_bytes: int) -> None:
        self.bank, self.frame = bank, frame
        self._patch = np.flatnonzero(bank.has_image)
        each = 2 * len(frame.directions) + 4 * AXES * 4  # codes twice while they are sorted
        self.rows = min(len(self._patch), max(TILE, most_bytes // each))
        self._order: dict[int, Tensor] = {}
        self._kept: Cloud | None = None

    def __iter__(self) -> Iterator[Cloud]:
        if self.rows == len(self._patch):
            if self._kept is None:
                self._kept = cloud_of(self.bank, self._patch, self.frame, own=True)
            yield self._kept
            return
        for first in range(0, len(self._patch), self.rows):
            rows = self._patch[first : first + self.rows]
            known = self._order.get(first)
            cloud = cloud_of(self.bank, rows, self.frame, own=True, order=known)
            self._order[first] = cloud.order.cpu()
            yield cloud
            del cloud


def _search_block(
    queries: Bank,
    block: range,
    own: bool,
    wanted: Wanted,
    slabs: Slabs,
    card: Card,
    masks: Tensor,
) -> Pairs:
    rows = block.start + np.flatnonzero(queries.has_image[block.start : block.stop])
    if len(rows) == 0:
        return _as_pairs(block, rows, *_no_hits(), words_of(queries.mask[rows]), masks)
    asked = cloud_of(queries, rows, slabs.frame, own)
    hits = Hits(asked, wanted, slabs, card)
    for slab in slabs:
        hits.search(slab)
    return _as_pairs(block, rows, hits.row, hits.key, words_of(queries.mask[rows]), masks)


def _no_hits() -> tuple[Tensor, Tensor]:
    return (
        torch.empty(0, dtype=torch.int32, device=cloud.DEVICE),
        torch.empty(0, dtype=torch.int64, device=cloud.DEVICE),
    )


class Hits:
    """The witnesses of one block of queries so far: sorted by row and key, at most k a row."""

    def __init__(self, asked: Cloud, wanted: Wanted, slabs: Slabs, card: Card) -> None:
        self.row, self.key = _no_hits()
        self._asked, self._wanted, self._frame, self._card = asked, wanted, slabs.frame, card
        self._patch_bits = len(slabs.bank.image).bit_length()
        self._limit = torch.full(
            (asked.count,), wanted.limit, dtype=torch.int32, device=cloud.DEVICE
        )

    def search(self, slab: Cloud) -> None:
        """Add the witnesses in a slab of the bank."""
        bound = box_bounds(self._asked, slab)
        if self._wanted.waves:
            for tiles in WAVES:
                nearest = bound.topk(min(tiles, bound.shape[1]), largest=False)
                wanted = nearest.values < self._near()[:, None]
                block, n = wanted.nonzero(as_tuple=True)
                tile = nearest.indices[block, n]
                self._add(slab, block, tile)
                bound[block, tile] = torch.inf
        block, tile = (bound < self._near()[:, None]).nonzero(as_tuple=True)
        del bound
        self._add(slab, block, tile)

    def _near(self) -> Tensor:
        # The farthest that any query of a tile still wants.
        near = self._frame.near(self._limit)[self._asked.row.long()]
        near[self._asked.count :] = 0
        return near.view(-1, TILE).amax(1)

    def _add(self, slab: Cloud, block: Tensor, tile: Tensor) -> None:
        if len(block) == 0:
            return
        asked = self._asked
        room = self._card.left() // HIT_BYTES
        row = torch.empty(room, dtype=torch.int32, device=cloud.DEVICE)
        key = torch.empty(room, dtype=torch.int64, device=cloud.DEVICE)
        count = torch.zeros(1, dtype=torch.int64, device=cloud.DEVICE)
        find_hits[(len(block),)](
            asked.code, asked.norm, self._limit[asked.row.long()], asked.row, asked.patch,
            asked.group, asked.position_um,
            slab.code, slab.norm, slab.patch, slab.group, slab.position_um,
            block.int(), tile.int(), row, key, count,
            asked.count, slab.count, self._wanted.reach_um, room,
            samples=asked.code.shape[1], step=STEP, tile=TILE, num_warps=WARPS,
        )  # fmt: skip
        found = int(count.item())
        if found > room:
            raise NoRoom
        self.row = torch.cat([self.row, row[:found]])
        self.key = torch.cat([self.key, key[:found]])
        del row, key
        self._sort_and_cut()

    def _sort_and_cut(self) -> None:
        self.row, self.key = sort_hits(self.row, self.key, self._asked.count, self._patch_bits)
        k = self._wanted.k
        if k == 0:
            return
        size = torch.bincount(self.row, minlength=self._asked.count)
        start = size.cumsum(0) - size
        rank = torch.arange(len(self.row), device=cloud.DEVICE) - start[self.row.long()]
        keep = rank < k
        self.row, self.key = self.row[keep], self.key[keep]
        # A full row wants only what is no farther than its last.
        size = size.clamp(max=k)
        full = size == k
        last = (size.cumsum(0) - 1)[full]
        self._limit[full] = ((self.key[last] >> CODE_BITS) + 1).int().clamp(max=self._wanted.limit)


def box_bounds(asked: Cloud, slab: Cloud) -> Tensor:
    """Return the squared distance between the boxes of each two tiles."""
    bound = torch.zeros((len(asked.low), len(slab.low)), device=cloud.DEVICE)
    for axis in range(AXES):
        gap = torch.maximum(
            slab.low[None, :, axis] - asked.high[:, None, axis],
            asked.low[:, None, axis] - slab.high[None, :, axis],
        ).clamp_(min=0)
        bound.addcmul_(gap, gap)
    return bound


def sort_hits(row: Tensor, key: Tensor, rows: int, patch_bits: int) -> tuple[Tensor, Tensor]:
    """Return hits sorted by row, then by key."""
    if len(row) == 0:
        return row, key
    dist2 = key >> CODE_BITS
    dist2_bits = int(dist2.max()).bit_length()
    if rows.bit_length() + dist2_bits + patch_bits <= 63:  # all of it in one number
        patch = key & (2**CODE_BITS - 1)
        packed = (row.long() << (dist2_bits + patch_bits)) | (dist2 << patch_bits) | patch
        del dist2, patch
        packed = packed.sort().values
        row = (packed >> (dist2_bits + patch_bits)).int()
        dist2 = (packed >> patch_bits) & (2**dist2_bits - 1)
        return row, (dist2 << CODE_BITS) | (packed & (2**patch_bits - 1))
    order = key.argsort()
    order = order[row[order].argsort(stable=True)]
    return row[order], key[order]


def _as_pairs(
    block: range, rows: np.ndarray, row: Tensor, key: Tensor, own: Tensor, masks: Tensor
) -> Pairs:
    patch = (key & (2**CODE_BITS - 1)).int()
    both = torch.empty(len(key), dtype=torch.int16, device=cloud.DEVICE)
    either = torch.empty_like(both)
    if len(key):
        count_overlaps[(-(-len(key) // PAIRS),)](
            row, patch, own, masks, both, either, len(key), words=masks.shape[1], block=PAIRS
        )
    size = np.zeros(len(block), np.int64)
    size[rows - block.start] = torch.bincount(row, minlength=len(rows)).cpu().numpy()
    return Pairs(
        first=block.start,
        offset=np.concatenate([np.zeros(1, np.int64), np.cumsum(size)]),
        witness=patch.cpu().numpy(),
        dist2=(key >> CODE_BITS).int().cpu().numpy(),
        intersection=both.cpu().numpy().view(np.uint16),
        union=either.cpu().numpy().view(np.uint16),
    )
