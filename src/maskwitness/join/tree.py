"""The patches of a bank as a tree of leaves: projected, cut into near ones, boxed.

A patch is a vector of its samples inside the circle. Sixteen principal directions of the bank hold
nearly all of its variance, and projecting on orthonormal directions never makes a distance longer.
So a projected distance above the limit rules a pair out. The directions are only nearly
orthonormal and float32 rounds: how much longer a distance can get by that is bounded, not guessed,
and the limit is widened by as much (``stretch`` and ``slack``).
"""

import tempfile
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from maskwitness.kernels import tree as kernels
from maskwitness.kernels._simd import WIDTH
from maskwitness.kernels.tree import AXES, LEAF, Leaves, Queries, Rule
from maskwitness.patches import circle
from maskwitness.records import Bank

SAMPLE = 16_384  # patches that the directions are learnt from
MOST_SQUARED = 2048  # samples or patches whose products are looked at, all against all
BLOCK = 16_384  # patches that are projected at a time


class Memory:
    """Arrays in memory as long as a budget lasts, then in files that vanish with the process."""

    def __init__(self, budget_bytes: int, folder: Path | None = None) -> None:
        self._left = budget_bytes
        self._folder = folder

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array whose values are arbitrary."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size <= self._left or size == 0:
            self._left -= size
            return np.empty(shape, dtype)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            return np.asarray(np.memmap(file, dtype, "w+", shape=shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The patches of a bank that have an image, as the search reads them."""

    leaves: Leaves
    samples: Int64[np.ndarray, " samples"]
    directions: Float32[np.ndarray, "padded axes"]
    stretch: float
    slack: float

    def rule(self, limit: int, k: int, reach_um: int) -> Rule:
        """Return who is a witness, and what rules a pair out in this tree."""
        return Rule(limit, k, reach_um, self.stretch, self.slack)

    def ask(self, bank: Bank, rows: Int64[np.ndarray, " rows"], own: bool) -> Queries:
        """Return some patches of a bank as queries; ``own``: it is the bank of this tree."""
        code = np.zeros((len(rows), self.leaves.code.shape[1]), np.uint8)
        gather_codes(bank.image, rows, self.samples, code)
        return Queries(
            coords=np.ascontiguousarray(project(code, self.directions).T),
            code=code,
            patch=rows.astype(np.int32) if own else np.full(len(rows), -1, np.int32),
            group=bank.group[rows],
            position_um=bank.position_um[rows],
        )


def grow(bank: Bank, memory: Memory) -> Tree:
    """Return the tree of a bank in which at least one patch has an image."""
    samples = np.flatnonzero(circle(bank.image.shape[1]))
    patch = np.flatnonzero(bank.has_image)
    directions = principal_directions(bank, patch, samples)
    coords = memory.empty((len(patch), AXES), np.float32)
    block = np.zeros((min(BLOCK, len(patch)), len(directions)), np.uint8)
    for first in range(0, len(patch), BLOCK):
        rows = patch[first : first + BLOCK]
        gather_codes(bank.image, rows, samples, block[: len(rows)])
        coords[first : first + len(rows)] = project(block[: len(rows)], directions)
    order = np.arange(len(patch))
    kernels.cut_into_leaves(coords, order)
    count = -(-len(patch) // LEAF)
    leaves = Leaves(
        coords=memory.empty((count, AXES, LEAF), np.float32),
        low=np.empty((AXES, count), np.float32),
        high=np.empty((AXES, count), np.float32),
        code=memory.empty((len(patch), len(directions)), np.uint8),
        patch=patch[order].astype(np.int32),
        group=bank.group[patch[order]],
        position_um=bank.position_um[patch[order]],
    )
    kernels.fill_leaves(coords, order, leaves.coords, leaves.low, leaves.high)
    gather_codes(bank.image, patch[order], samples, leaves.code)
    stretch, slack = margins(directions)
    return Tree(leaves=leaves, samples=samples, directions=directions, stretch=stretch, slack=slack)


def gather_codes(
    image: UInt8[np.ndarray, "patches u v"],
    rows: Int64[np.ndarray, " rows"],
    samples: Int64[np.ndarray, " samples"],
    code: UInt8[np.ndarray, "rows padded"],
) -> None:
    """Write the samples inside the circle of some patches; all others are equal everywhere."""
    kernels.gather(image.reshape(len(image), -1), rows, samples, code)


def principal_directions(
    bank: Bank, patch: Int64[np.ndarray, " patches"], samples: Int64[np.ndarray, " samples"]
) -> Float32[np.ndarray, "padded axes"]:
    """Return the directions in which an even sample of the patches varies most."""
    width = -(-len(samples) // WIDTH) * WIDTH
    some = patch[:: -(-len(patch) // (SAMPLE if width <= MOST_SQUARED else MOST_SQUARED))]
    code = np.zeros((len(some), width), np.uint8)
    gather_codes(bank.image, some, samples, code)
    centred = code.astype(np.float32)
    centred -= centred.mean(axis=0)
    if len(centred) > width:
        _, vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64))
        widest = vectors[:, ::-1][:, :AXES]
    else:  # the same directions from the smaller of the two products
        _, vectors = np.linalg.eigh((centred @ centred.T).astype(np.float64))
        widest, _ = np.linalg.qr(centred.T.astype(np.float64) @ vectors[:, ::-1][:, :AXES])
    directions = np.zeros((width, AXES), np.float32)
    directions[:, : widest.shape[1]] = widest
    return directions


def project(
    code: UInt8[np.ndarray, "patches samples"], directions: Float32[np.ndarray, "samples axes"]
) -> Float32[np.ndarray, "patches axes"]:
    """Return the coordinates of patches, with the error that :func:`margins` allows for."""
    # Around the middle grey the values, and with them the rounding, are half as large.
    return (code.astype(np.float32) - np.float32(128)) @ directions


def margins(directions: Float32[np.ndarray, "samples axes"]) -> tuple[float, float]:
    """Return what projected distances can be longer than true ones: a factor, and a summand.

    The factor is the largest singular value of the directions: 1 plus the Frobenius norm of their
    defect bounds its square. The summand is rounding: a float32 sum of n products of x and p, in
    any order, is wrong by at most n·u / (1 - n·u) · |x| · |p|, on each axis of both patches.
    """
    samples, axes = directions.shape
    exact = directions.astype(np.float64)
    lengths = exact.T @ exact
    used = np.diag(np.diag(lengths) > 0).astype(np.float64)
    stretch = sqrt(1 + float(np.linalg.norm(lengths - used)) + 1e-12)
    unit = (samples + 1) * 2.0**-24
    error = unit / (1 - unit) * 128 * sqrt(samples) * stretch
    return stretch, 2 * sqrt(axes) * error
