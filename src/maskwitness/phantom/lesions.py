"""Disease and motion: stenoses, soft plaque, calcium, and the blur of a beating heart."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from maskwitness.phantom.records import Arteries, Tubes
from maskwitness.phantom.vessels import STEP_MM


@dataclass(frozen=True, slots=True, kw_only=True)
class Calcium:
    """Short bright tubes in the vessel wall, outside the lumen; one value a tube."""

    tubes: Tubes
    value_hu: Float64[np.ndarray, " tubes"]


def add_lesions(arteries: Arteries, rng: np.random.Generator) -> tuple[Arteries, Calcium]:
    """Return the arteries with narrowed lumens and thickened walls, and the calcium beside them."""
    radius = arteries.tubes.radius_mm.copy()
    wall = arteries.wall_mm.copy()
    wide = np.flatnonzero(arteries.annotated & (radius > 0.8))
    bits: list[tuple[Float64[np.ndarray, "ends 3"], float, float]] = []
    for _ in range(int(rng.poisson(len(wide) * STEP_MM / 55.0))):
        at = int(rng.choice(wide))
        near = np.flatnonzero(arteries.tubes.branch == arteries.tubes.branch[at])
        shape = np.exp(-0.5 * ((near - at) * STEP_MM / rng.uniform(0.9, 2.8)) ** 2)
        kind = rng.random()
        if kind < 0.75:
            depth = rng.uniform(0.25, 0.7)
            before = radius[near]
            radius[near] = np.maximum(before * (1 - depth * shape), 0.3)
            grown = before * (1 + rng.uniform(0.0, 0.25) * shape) + 0.3
            wall[near] = np.maximum(wall[near], grown)
        if kind > 0.35:
            bits += _calcify(arteries, radius, at, near, rng)
    tubes = dataclasses.replace(arteries.tubes, radius_mm=radius)
    changed = dataclasses.replace(arteries, tubes=tubes, wall_mm=wall)
    return changed, _gather(bits)


def _calcify(
    arteries: Arteries,
    radius: Float64[np.ndarray, " points"],
    at: int,
    near: np.ndarray,
    rng: np.random.Generator,
) -> list[tuple[Float64[np.ndarray, "ends 3"], float, float]]:
    """Return a row of small bright bodies on one side of the wall."""
    points = arteries.tubes.points_mm
    bits = []
    side = rng.normal(size=3)
    for _ in range(int(rng.integers(1, 5))):
        here = int(np.clip(at + rng.integers(-6, 7), near[0] + 1, near[-1] - 2))
        ahead = points[here + 1] - points[here - 1]
        ahead /= np.linalg.norm(ahead)
        outward = side + rng.normal(0.0, 0.4, 3)
        outward -= (outward @ ahead) * ahead
        outward /= np.linalg.norm(outward)
        size = rng.uniform(0.3, 0.8)
        middle = points[here] + (radius[here] + 0.7 * size) * outward
        half = rng.uniform(0.1, 1.0) * ahead
        bits.append((np.array([middle - half, middle + half]), size, rng.uniform(700.0, 1200.0)))
    return bits


def _gather(bits: list[tuple[Float64[np.ndarray, "ends 3"], float, float]]) -> Calcium:
    points = np.concatenate([line for line, _, _ in bits]) if bits else np.zeros((0, 3))
    return Calcium(
        tubes=Tubes(
            points_mm=points,
            radius_mm=np.repeat([float(size) for _, size, _ in bits], 2).astype(np.float64),
            branch=np.repeat(np.arange(len(bits)), 2).astype(np.int32),
        ),
        value_hu=np.array([value for _, _, value in bits], dtype=np.float64),
    )


def add_motion(arteries: Arteries, reach_mm: float, rng: np.random.Generator) -> Arteries:
    """Return the arteries with some stretches that moved while they were scanned.

    The movement is across the vessel; the truth stays in the middle of it.
    """
    if reach_mm <= 0.0:
        return arteries
    motion = np.zeros_like(arteries.motion_mm)
    branch = arteries.tubes.branch
    wide = np.flatnonzero(arteries.annotated & (arteries.tubes.radius_mm > 0.7))
    for _ in range(int(rng.integers(4, 10))):
        at = int(rng.choice(wide))
        near = np.flatnonzero(branch == branch[at])
        if len(near) < 4:
            continue
        ahead = np.gradient(arteries.tubes.points_mm[near], axis=0)
        ahead /= np.maximum(np.linalg.norm(ahead, axis=1, keepdims=True), 1e-9)
        way = rng.normal(size=3)
        way /= np.linalg.norm(way)
        way = way - (ahead @ way)[:, None] * ahead
        fall = np.exp(-0.5 * ((near - at) * STEP_MM / rng.uniform(6.0, 14.0)) ** 2)
        motion[near] = reach_mm * rng.uniform(0.6, 1.2) * fall[:, None] * way
    return dataclasses.replace(arteries, motion_mm=motion)
