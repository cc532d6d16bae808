"""The patches of a bank as a tree of leaves: projected, cut into near ones, boxed.

A patch is a vector of its samples inside the circle. Sixteen principal directions of the bank hold
nearly all of its variance, and projecting on orthonormal directions never makes a distance longer.
So a projected distance above the limit rules a pair out. The directions are only nearly
orthonormal and float32 rounds: how much longer a distance can get by that is bounded, not guessed,
and the limit is widened by as much (``stretch`` and ``slack``).
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from maskwitness.config import JoinSettings
from maskwitness.kernels import tree as kernels
from maskwitness.kernels._simd import WIDTH
from maskwitness.kernels.tree import AXES, LEAF, Leaves, Queries, Rule
from maskwitness.patches import circle
from maskwitness.records import Bank

SAMPLE = 8192  # patches that the directions are learnt from
ROUNDS = 8  # of learning them
BLOCK = 16_384  # patches that are projected at a time


class Memory:
    """Arrays in memory as long as a budget lasts, then in files that vanish with the process.

    The system keeps such files in memory as long as there is room, and takes it back when there is
    none.
    """

    def __init__(self, budget_bytes: int, folder: Path | None = None) -> None:
        self._left = budget_bytes
        self._folder = folder

    @classmethod
    def of(cls, settings: JoinSettings, folder: Path | None = None) -> "Memory":
        """Return the memory for a bank and its tree: half of what the join may hold."""
        return cls(settings.memory_mb * 2**20 // 2, folder)

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
        code = gather(bank.image.reshape(len(bank.image), -1), rows, self.samples)
        coords = np.empty((len(rows), AXES), np.float32)
        kernels.project(code, self.directions, coords)
        return Queries(
            coords=np.ascontiguousarray(coords.T),
            points=coords,
            code=code,
            patch=rows.astype(np.int32) if own else np.full(len(rows), -1, np.int32),
            group=bank.group[rows],
            position_um=bank.position_um[rows],
        )


def grow(bank: Bank, memory: Memory, threads: int = 1, ordered: bool = True) -> Tree:
    """Return the tree of a bank in which at least one patch has an image.

    ``ordered``: sort the patches, which takes time and lets far more be ruled out. Otherwise leaves
    are patches that follow each other; where few ask, that is the faster way.
    """
    images = bank.image.reshape(len(bank.image), -1)
    in_place = not ordered and images.shape[1] % WIDTH == 0
    # Samples outside the circle are equal everywhere: they need not be left out, they add nothing.
    samples = (
        np.arange(images.shape[1]) if in_place else np.flatnonzero(circle(bank.image.shape[1]))
    )
    patch = np.arange(len(images)) if in_place else np.flatnonzero(bank.has_image)
    directions = principal_directions(images, np.flatnonzero(bank.has_image), samples)
    coords = memory.empty((len(patch), AXES), np.float32)

    def project_block(first: int) -> None:
        rows = patch[first : first + BLOCK]
        code = images[first : first + BLOCK] if in_place else gather(images, rows, samples)
        kernels.project(code, directions, coords[first : first + BLOCK])

    with ThreadPoolExecutor(threads) as pool:
        blocks = range(0, len(patch), BLOCK)
        list(pool.map(project_block, blocks))
        order = np.arange(len(patch))
        if in_place:
            coords[~bank.has_image] = np.inf  # near nobody
        elif ordered:
            kernels.cut_into_leaves(coords, order)
        leaves = _empty_leaves(bank, patch[order], directions, memory)

        def fill_block(first: int) -> None:
            boxes = leaves.coords, leaves.low, leaves.high
            end = min(first + BLOCK // LEAF, len(leaves.coords))
            kernels.fill_leaves(coords, order, *boxes, first, end)

        list(pool.map(fill_block, range(0, len(leaves.coords), BLOCK // LEAF)))
        if in_place:
            leaves = leaves._replace(code=images)
        else:
            leaves = leaves._replace(code=memory.empty((len(patch), len(directions)), np.uint8))

            def gather_block(first: int) -> None:
                rows = leaves.patch[first : first + BLOCK].astype(np.int64)
                kernels.gather(images, rows, samples, leaves.code[first : first + BLOCK])

            list(pool.map(gather_block, blocks))
    stretch, slack = margins(directions)
    return Tree(leaves=leaves, samples=samples, directions=directions, stretch=stretch, slack=slack)


def _empty_leaves(
    bank: Bank,
    patch: Int64[np.ndarray, " places"],
    directions: Float32[np.ndarray, "padded axes"],
    memory: Memory,
) -> Leaves:
    count = -(-len(patch) // LEAF)
    return Leaves(
        coords=memory.empty((count, AXES, LEAF), np.float32),
        low=np.empty((AXES, count), np.float32),
        high=np.empty((AXES, count), np.float32),
        code=np.empty((0, len(directions)), np.uint8),
        patch=patch.astype(np.int32),
        group=bank.group[patch],
        position_um=bank.position_um[patch],
    )


def gather(
    images: UInt8[np.ndarray, "patches all"],
    rows: Int64[np.ndarray, " rows"],
    samples: Int64[np.ndarray, " samples"],
) -> UInt8[np.ndarray, "rows padded"]:
    """Return some samples of some patches, filled up with zeros to whole steps of the compiler."""
    code = np.empty((len(rows), -(-len(samples) // WIDTH) * WIDTH), np.uint8)
    kernels.gather(images, np.ascontiguousarray(rows), samples, code)
    return code


def words(mask: UInt8[np.ndarray, "patches bytes"], word: type[np.integer[Any]]) -> np.ndarray:
    """Return packed masks as whole words of a kind, filled up with zeros."""
    spare = -mask.shape[1] % np.dtype(word).itemsize
    padded = np.pad(mask, ((0, 0), (0, spare))) if spare else np.ascontiguousarray(mask)
    return padded.view(word)


def principal_directions(
    images: UInt8[np.ndarray, "patches all"],
    patch: Int64[np.ndarray, " some"],
    samples: Int64[np.ndarray, " samples"],
) -> Float32[np.ndarray, "padded axes"]:
    """Return the directions in which an even sample of the patches varies most, or nearly.

    By repeated products with the sample: only the few directions that are wanted are found, and no
    threads of a linear algebra library wait for each other on busy cores.
    """
    centred = gather(images, patch[:: -(-len(patch) // SAMPLE)], samples).astype(np.float32)
    centred -= centred.mean(axis=0)
    basis = np.random.default_rng(0).normal(size=(centred.shape[1], 2 * AXES)).astype(np.float32)
    for _ in range(ROUNDS):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    seen = (centred @ basis).astype(np.float64)
    _, turn = np.linalg.eigh(seen.T @ seen)
    widest, _ = np.linalg.qr(basis.astype(np.float64) @ turn[:, ::-1][:, :AXES])
    directions = np.zeros((centred.shape[1], AXES), np.float32)
    directions[:, : widest.shape[1]] = widest
    return directions


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
