"""Search on a CUDA device: the same tree, the same rule, the same bits as on the processor.

The bank lies on the device in the order of the tree, cut into tiles of 128. Queries come in blocks
of consecutive rows, sorted among themselves the same way. Boxes in sixteen directions rule most
pairs of tiles out; what is left is multiplied as int8 and compared as int32. Hits are appended,
sorted by row, distance and number, and cut to the k nearest. A block whose hits do not fit is
halved, so a small card needs more blocks and nothing else; a bank that does not fit comes in slabs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from maskwitness.join.gpu_kernels import PAIRS, STEP, TILE, count_overlaps, find_hits
from maskwitness.join.tree import margins, principal_directions
from maskwitness.kernels.tree import AXES, CODE_BITS
from maskwitness.patches import circle
from maskwitness.records import Bank, Pairs

Tensor = torch.Tensor
DEVICE = "cuda"  # the tests' interpreter works on the processor
MOST_ROWS = 2**18  # a block: in a larger one, neighbours in the sorted order are nearer
LEAST_ROWS = 2**10
UPLOAD = 2**17  # patches that go to the device at a time
HIT_BYTES = 64  # of a hit: its key, its row, and what sorting takes
BOUND_BYTES = 16  # of a pair of tiles: the distance of their boxes, and what computing it takes
FEW_NODES = 64  # of a tree: so many are looked at one by one
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What of a patch is compared, and the directions that it is projected on."""

    samples: Tensor
    directions: Tensor  # float64, filled up with zeros
    stretch: float
    slack: float

    def near(self, limit: Tensor) -> Tensor:
        """Return the squared projected distance from which on a pair is ruled out."""
        radius = limit.double().sqrt() * self.stretch + self.slack
        return (radius**2 * (1 + 1e-5)).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Patches on the device in tiles of near ones. Arrays are filled up to whole tiles."""

    code: Tensor  # the samples minus 128
    norm: Tensor  # their squared length
    row: Tensor  # which of the given rows it is
    patch: Tensor  # its number in the bank; -1: not of the bank
    group: Tensor
    position_um: Tensor
    low: Tensor  # the box around each tile
    high: Tensor
    order: Tensor
    count: int


def why_not() -> str:
    """Return why no device can be used, in a sentence; empty if one can."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < (7, 5):
        return f"the CUDA device is of generation {major}.{minor}; 7.5 is the least"
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
    masks = _words(bank.mask)
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


def frame_of(bank: Bank) -> Frame:
    """Return the directions of a bank, as the tree on the processor has them."""
    samples = np.flatnonzero(circle(bank.image.shape[1]))
    directions = principal_directions(bank, np.flatnonzero(bank.has_image), samples)
    stretch, slack = margins(directions)
    width = -(-len(samples) // STEP) * STEP
    filled = torch.zeros((width, AXES), dtype=torch.float64, device=DEVICE)
    filled[: len(samples)] = _upload(directions[: len(samples)])
    return Frame(samples=_upload(samples), directions=filled, stretch=stretch, slack=slack)


def cloud_of(
    bank: Bank, rows: np.ndarray, frame: Frame, own: bool, order: Tensor | None = None
) -> Cloud:
    """Return some patches of a bank, on the device and sorted into tiles."""
    count, width = len(rows), len(frame.directions)
    padded = -(-count // TILE) * TILE
    code = torch.zeros((padded, width), dtype=torch.int8, device=DEVICE)
    coords = torch.empty((count, AXES), dtype=torch.float32, device=DEVICE)
    for first in range(0, count, UPLOAD):
        part = rows[first : first + UPLOAD]
        whole = part[-1] - part[0] + 1 == len(part)
        image = _upload(bank.image[part[0] : part[-1] + 1] if whole else bank.image[part])
        image = image.view(len(part), -1)
        here = slice(first, first + len(part))
        # Flipping the top bit takes 128 away, read as a signed number.
        code[here, : len(frame.samples)] = (image[:, frame.samples] ^ 128).view(torch.int8)
        coords[here] = (code[here].double() @ frame.directions).float()
    if order is None:
        order = tree_order(coords)
    order = order.to(DEVICE)
    code[:count] = code[:count][order]
    low, high = _boxes(coords[order], padded)
    number = _upload(rows.astype(np.int32))[order]
    return Cloud(
        code=code,
        norm=_norm(code),
        row=_filled(order.int(), padded),
        patch=_filled(number if own else torch.full_like(number, -1), padded),
        group=_filled(_upload(bank.group[rows])[order], padded),
        position_um=_filled(_upload(bank.position_um[rows])[order], padded),
        low=low,
        high=high,
        order=order,
        count=count,
    )


def tree_order(coords: Tensor) -> Tensor:
    """Return the order in which each run of TILE points is one leaf of a kd-tree.

    All nodes of a level are cut at once, at whole tiles, across the axis in which each is widest.
    """
    order = torch.arange(len(coords), device=coords.device)
    bounds = torch.tensor([0, len(coords)], device=coords.device)
    while True:
        sizes = bounds.diff()
        tiles = (sizes + TILE - 1) // TILE
        if int(tiles.max()) <= 1:
            return order
        node = torch.repeat_interleave(torch.arange(len(sizes), device=coords.device), sizes)
        points = coords[order]
        axis = _widest(points, bounds[:-1] // TILE)
        value = points.gather(1, axis[node][:, None])[:, 0]
        by_value = value.argsort(stable=True)
        order = order[by_value[node[by_value].argsort(stable=True)]]
        cut = bounds[:-1] + (tiles + 1) // 2 * TILE
        bounds = torch.cat([bounds, cut[tiles > 1]]).sort().values


def _widest(points: Tensor, first_tile: Tensor) -> Tensor:
    # Nodes are whole tiles, so the boxes of tiles are all that needs looking at.
    low, high = _boxes(points, -(-len(points) // TILE) * TILE)
    if len(first_tile) <= FEW_NODES:
        ends = [*first_tile.tolist(), len(low)]
        parts = [slice(a, b) for a, b in pairwise(ends)]
        return torch.stack([(high[p].amax(0) - low[p].amin(0)).argmax() for p in parts])
    tile = torch.arange(len(low), device=points.device)
    node = (torch.searchsorted(first_tile, tile, right=True) - 1)[:, None].expand(-1, AXES)
    lowest = torch.full((len(first_tile), AXES), torch.inf, device=points.device)
    highest = torch.full_like(lowest, -torch.inf)
    lowest.scatter_reduce_(0, node, low, "amin")
    highest.scatter_reduce_(0, node, high, "amax")
    return (highest - lowest).argmax(1)


def _boxes(coords: Tensor, padded: int) -> tuple[Tensor, Tensor]:
    spare = padded - len(coords)
    low = torch.nn.functional.pad(coords, (0, 0, 0, spare), value=torch.inf)
    high = torch.nn.functional.pad(coords, (0, 0, 0, spare), value=-torch.inf)
    return low.view(-1, TILE, AXES).amin(1), high.view(-1, TILE, AXES).amax(1)


def _filled(values: Tensor, padded: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, padded - len(values)))


def _norm(code: Tensor) -> Tensor:
    parts = code.split(UPLOAD)
    return torch.cat([(part.int() ** 2).sum(1, dtype=torch.int32) for part in parts])


def _words(mask: np.ndarray) -> Tensor:
    spare = -mask.shape[1] % 4
    whole = np.pad(mask, ((0, 0), (0, spare))) if spare else np.ascontiguousarray(mask)
    return _upload(whole.view(np.int32))


def _upload(array: np.ndarray) -> Tensor:
    # torch wants to be able to write, which it does not do here.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(DEVICE)


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
        return _as_pairs(block, rows, *_no_hits(), _words(queries.mask[rows]), masks)
    asked = cloud_of(queries, rows, slabs.frame, own)
    hits = Hits(asked, wanted, slabs, card)
    for slab in slabs:
        hits.search(slab)
    return _as_pairs(block, rows, hits.row, hits.key, _words(queries.mask[rows]), masks)


def _no_hits() -> tuple[Tensor, Tensor]:
    return (
        torch.empty(0, dtype=torch.int32, device=DEVICE),
        torch.empty(0, dtype=torch.int64, device=DEVICE),
    )


class Hits:
    """The witnesses of one block of queries so far: sorted by row and key, at most k a row."""

    def __init__(self, asked: Cloud, wanted: Wanted, slabs: Slabs, card: Card) -> None:
        self.row, self.key = _no_hits()
        self._asked, self._wanted, self._frame, self._card = asked, wanted, slabs.frame, card
        self._patch_bits = len(slabs.bank.image).bit_length()
        self._limit = torch.full((asked.count,), wanted.limit, dtype=torch.int32, device=DEVICE)

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
        row = torch.empty(room, dtype=torch.int32, device=DEVICE)
        key = torch.empty(room, dtype=torch.int64, device=DEVICE)
        count = torch.zeros(1, dtype=torch.int64, device=DEVICE)
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
        rank = torch.arange(len(self.row), device=DEVICE) - start[self.row.long()]
        keep = rank < k
        self.row, self.key = self.row[keep], self.key[keep]
        # A full row wants only what is no farther than its last.
        size = size.clamp(max=k)
        full = size == k
        last = (size.cumsum(0) - 1)[full]
        self._limit[full] = ((self.key[last] >> CODE_BITS) + 1).int().clamp(max=self._wanted.limit)


def box_bounds(asked: Cloud, slab: Cloud) -> Tensor:
    """Return the squared distance between the boxes of each two tiles."""
    bound = torch.zeros((len(asked.low), len(slab.low)), device=DEVICE)
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
    both = torch.empty(len(key), dtype=torch.int16, device=DEVICE)
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
