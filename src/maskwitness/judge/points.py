"""Which centreline points lie where the drawn mask is wrong, and what made it so."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped
from scipy.spatial import cKDTree

from maskwitness.errors import InputError
from maskwitness.geometry import to_world

REACH_MM = 2.0  # how far around a point or a finding its voxels are looked at
TOLERANCE_MM = 1e-6  # a voxel at 2 mm is within, whatever rounding does to its last digit
BAD_FRACTION = 0.25  # of the ball's vessel voxels on which the masks disagree
CHUNK = 1024  # points whose lists of neighbours are held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTruth:
    """What is true of each centreline point."""

    bad: Bool[np.ndarray, " points"]
    kind: Shaped[np.ndarray, " points"]  # object array of str, "" where no planted error is near
    fraction: Float64[np.ndarray, " points"]  # |drawn xor truth| / |drawn or truth| in the ball


def judge_points(
    points_mm: Float64[np.ndarray, "points 3"],
    drawn: Shaped[np.ndarray, "i j k"],
    truth: Shaped[np.ndarray, "i j k"],
    error_map: Shaped[np.ndarray, "i j k"],
    affine: Float64[np.ndarray, "4 4"],
    kinds: Mapping[int, str],
) -> PointTruth:
    """Return which points are bad, and which kind of planted error made them so.

    Parameters
    ----------
    points_mm
        Centreline points in world millimetres.
    drawn, truth
        The mask of the data set and the true one; whatever is not 0 is vessel.
    error_map
        Number of the planted error of each voxel, 0 for none.
    affine
        Voxel indices to world millimetres, for all three volumes.
    kinds
        Kind of each planted error, by its number.
    """
    union = np.argwhere((drawn != 0) | (truth != 0))
    differs = (drawn != 0)[tuple(union.T)] != (truth != 0)[tuple(union.T)]
    wrong = union[differs]
    in_union = _count_near(points_mm, to_world(union.astype(np.float64), affine))
    wrong_mm = to_world(wrong.astype(np.float64), affine)
    in_wrong = _count_near(points_mm, wrong_mm)
    fraction = in_wrong / np.maximum(in_union, 1)
    bad = fraction > BAD_FRACTION
    kind = np.full(len(points_mm), "", dtype=object)
    errors = error_map[tuple(wrong.T)].astype(np.int64)
    kind[bad] = [
        _kind_of(error, kinds) for error in _commonest_near(points_mm[bad], wrong_mm, errors)
    ]
    return PointTruth(bad=bad, kind=kind, fraction=fraction)


def _count_near(
    points_mm: Float64[np.ndarray, "points 3"], voxels_mm: Float64[np.ndarray, "voxels 3"]
) -> Int64[np.ndarray, " points"]:
    if len(points_mm) == 0 or len(voxels_mm) == 0:
        return np.zeros(len(points_mm), dtype=np.int64)
    tree = cKDTree(voxels_mm, balanced_tree=False, compact_nodes=False)  # built 3 × as fast
    near = tree.query_ball_point(points_mm, REACH_MM + TOLERANCE_MM, return_length=True)
    return np.asarray(near, dtype=np.int64)


def _commonest_near(
    points_mm: Float64[np.ndarray, "points 3"],
    voxels_mm: Float64[np.ndarray, "voxels 3"],
    errors: Int64[np.ndarray, " voxels"],
) -> list[int]:
    """Return the most frequent error number in each ball, ties by the lowest, 0 for none."""
    planted = errors > 0
    if not planted.any():
        return [0] * len(points_mm)
    tree, errors = cKDTree(voxels_mm[planted]), errors[planted]
    found: list[int] = []
    for first in range(0, len(points_mm), CHUNK):
        chunk = points_mm[first : first + CHUNK]
        balls = tree.query_ball_point(chunk, REACH_MM + TOLERANCE_MM)
        found += [int(np.bincount(errors[near]).argmax()) if near else 0 for near in balls]
    return found


def _kind_of(error: int, kinds: Mapping[int, str]) -> str:
    if error and error not in kinds:
        message = f"the error map holds planted error {error}, which the truth does not list"
        raise InputError(message)
    return kinds[error] if error else ""
