"""Scores to quality map: each voxel near the centreline takes the score of its nearest point.

Strategy: the volume is cut into cubes of 8³ voxels. A cube looks up which points could be nearest
to any of its voxels (those not much farther from its centre than the nearest one) and each voxel
then tries only these: exact, ties included, and linear in the voxels near a vessel. A k-d tree asks
every voxel separately and takes several times as long.
"""

import math

import numpy as np
from jaxtyping import Float32, Float64
from scipy.spatial import cKDTree

from maskwitness.config import QualitySettings
from maskwitness.geometry import to_world
from maskwitness.kernels.voronoi import paint_into

CUBE = 8


def paint_quality(
    points_mm: Float64[np.ndarray, "points 3"],
    residual: Float64[np.ndarray, " points"],
    shape: tuple[int, int, int],
    affine: Float64[np.ndarray, "4 4"],
    settings: QualitySettings,
) -> Float32[np.ndarray, "i j k"]:
    """Return Q on the voxel grid: 1 far from the centreline, low where the score is bad.

    Method: M15, M16
    """
    quality = np.ones(shape, np.float32, order="F")
    if len(points_mm) == 0:
        return quality
    score = np.where(np.isnan(residual), 0.0, residual)
    doubt = 1.0 - 1.0 / (1.0 + np.exp(np.minimum(-score, 700.0)))  # e^710 is too large for a float
    cubes, candidates, offset = _candidates(points_mm, shape, affine, reach_limit_mm(settings))
    paint_into(
        cubes,
        candidates,
        offset,
        points_mm,
        doubt,
        affine,
        (CUBE, settings.reach_mm, reach_limit_mm(settings)),
        quality,
    )
    return quality


def reach_limit_mm(settings: QualitySettings) -> float:
    """Return the distance beyond which Q is 1 to the last bit of a float32.

    There the weight is below 2⁻²⁵, half the step from 1 to the next lower float32.

    Method: M16
    """
    return settings.reach_mm * math.sqrt(50 * math.log(2))


def _candidates(
    points_mm: Float64[np.ndarray, "points 3"],
    shape: tuple[int, int, int],
    affine: Float64[np.ndarray, "4 4"],
    limit_mm: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # First voxels of the cubes in reach, and for each the points that may be nearest, by index.
    starts = [np.arange(0, length, CUBE) for length in shape]
    cubes = np.stack(np.meshgrid(*starts, indexing="ij"), axis=-1).reshape(-1, 3)
    centres = to_world(cubes + (CUBE - 1) / 2, affine)
    corners = (np.array(list(np.ndindex(2, 2, 2))) - 0.5) * (CUBE - 1)
    spread = to_world(corners, affine) - affine[:3, 3]
    half_mm = float(np.sqrt((spread**2).sum(axis=1)).max())
    tree = cKDTree(points_mm)
    nearest = np.asarray(tree.query(centres, distance_upper_bound=limit_mm + half_mm + 1e-6)[0])
    near = np.isfinite(nearest)
    found = tree.query_ball_point(
        centres[near], nearest[near] + 2 * half_mm + 1e-6, return_sorted=True
    )
    offset = np.concatenate([[0], np.cumsum([len(f) for f in found])]).astype(np.int64)
    candidates = np.concatenate([np.asarray(f, np.int64) for f in found] or [np.empty(0, np.int64)])
    return cubes[near].astype(np.int64), candidates, offset
