"""Patches on a CUDA device: projected, sorted by a kd-tree into tiles of near ones, boxed.

The tree is that of :mod:`maskwitness.join.tree`, built with the device's sorts: all nodes of a
level at once.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from maskwitness.join.gpu_kernels import STEP, TILE
from maskwitness.join.tree import margins, principal_directions, words
from maskwitness.kernels.tree import AXES
from maskwitness.patches import circle
from maskwitness.records import Bank

DEVICE = "cuda"  # the tests' interpreter works on the processor
UPLOAD = 2**17  # patches that go to the device at a time
FEW_NODES = 64  # of a tree: so many are looked at one by one


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


def frame_of(bank: Bank) -> Frame:
    """Return the directions of a bank, as the tree on the processor has them."""
    samples = np.flatnonzero(circle(bank.image.shape[1]))
    images = bank.image.reshape(len(bank.image), -1)
    directions = principal_directions(images, np.flatnonzero(bank.has_image), samples)
    stretch, slack = margins(directions)
    width = -(-len(samples) // STEP) * STEP
    filled = torch.zeros((width, AXES), dtype=torch.float64, device=DEVICE)
    filled[: len(samples)] = upload(directions[: len(samples)])
    return Frame(samples=upload(samples), directions=filled, stretch=stretch, slack=slack)


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
        image = upload(bank.image[part[0] : part[-1] + 1] if whole else bank.image[part])
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
    number = upload(rows.astype(np.int32))[order]
    return Cloud(
        code=code,
        norm=_norm(code),
        row=_filled(order.int(), padded),
        patch=_filled(number if own else torch.full_like(number, -1), padded),
        group=_filled(upload(bank.group[rows])[order], padded),
        position_um=_filled(upload(bank.position_um[rows])[order], padded),
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


def words_of(mask: np.ndarray) -> Tensor:
    """Return packed masks as words of 32 bits, filled up with zeros."""
    return upload(words(mask, np.int32))


def upload(array: np.ndarray) -> Tensor:
    """Return an array on the device."""
    # torch wants to be able to write, which it does not do here.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(DEVICE)
