"""Which findings lie on a planted error, and how many would if they lay anywhere.

A finding has up to four places: its first, middle, last and worst point. It lies on an error that
changed a voxel within 2 mm of one of them. Errors are not rare, so some findings would do so by
chance. How many is worked out by moving each finding, its places as far apart along the points as
they are, to every scored point in turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped
from scipy.spatial import cKDTree

from maskwitness.geometry import to_world
from maskwitness.judge.points import REACH_MM, TOLERANCE_MM
from maskwitness.judge.ranking import Number, share
from maskwitness.judge.truth import PlantedError, Truth

WORST = (10, 20, 50, 100)  # lengths of a review list at which its precision is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What lies around the points and the findings of one scan."""

    near: Bool[np.ndarray, " points"]  # whether a planted error is within reach of a point
    errors: list[set[int]]  # of each finding: the planted errors within reach of its places
    rows: list[Int64[np.ndarray, " _"]]  # of each finding: the points that are its places


def findings_of(
    rows: Sequence[Mapping[str, Any]], points: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Return the rows of findings.parquet with the places that count: all four of each."""
    return [
        {
            "scan": row["scan"],
            "worst_score": row["worst_score"],
            "centre_mm": tuple(row[f"centre_{axis}_mm"] for axis in "xyz"),
            "points_mm": [
                *(tuple(row[f"{end}_{axis}_mm"] for axis in "xyz") for end in ("start", "end")),
                tuple(float(points[f"{axis}_mm"][row["worst_patch"]]) for axis in "xyz"),
            ],
        }
        for row in rows
    ]


def places_of(finding: Mapping[str, Any]) -> Float64[np.ndarray, "places 3"]:
    """Return the places of a finding, its middle first."""
    centre = np.asarray(finding["centre_mm"], dtype=np.float64).reshape(1, 3)
    others = np.asarray(finding.get("points_mm", ()), dtype=np.float64).reshape(-1, 3)
    return np.concatenate([centre, others])


def look_around(
    scan: Truth,
    points_mm: Float64[np.ndarray, "points 3"],
    places: Sequence[Float64[np.ndarray, "_ 3"]],
) -> Surroundings:
    """Return which points and which findings of a scan have a planted error within reach."""
    where = np.argwhere(np.isin(scan.error, list(scan.kinds)) & (scan.error != 0))
    reach_mm = REACH_MM + TOLERANCE_MM
    near, errors = np.zeros(len(points_mm), dtype=bool), [set[int]() for _ in places]
    if len(where):
        tree, number = cKDTree(to_world(where.astype(np.float64), scan.affine)), scan.error
        number = number[tuple(where.T)]
        near = np.isfinite(tree.query(points_mm, distance_upper_bound=reach_mm)[0])
        for own, at_mm in zip(errors, places, strict=True):
            for found in tree.query_ball_point(at_mm, reach_mm):
                own |= set(map(int, np.unique(number[found])))
    rows = [np.zeros(0, dtype=np.int64) for _ in places]
    if len(points_mm):
        tree = cKDTree(points_mm)
        rows = [np.asarray(tree.query(at_mm)[1], dtype=np.int64) for at_mm in places]
    return Surroundings(near=near, errors=errors, rows=rows)


def hits_by_chance(
    rows: Sequence[Int64[np.ndarray, " _"]],
    near: Bool[np.ndarray, " points"],
    scored: Bool[np.ndarray, " points"],
    scan: Shaped[np.ndarray, " points"],
) -> Number:
    """Return how many findings would lie on a planted error if each lay at any scored point."""
    at = np.flatnonzero(scored)
    if not len(at):
        return None
    number = np.unique(scan, return_inverse=True)[1]
    chance: dict[tuple[int, ...], float] = {}  # most findings are one point or two
    total = 0.0
    for own in rows:
        steps = tuple(sorted({int(row - own[0]) for row in own})) or (0,)
        if steps not in chance:
            there = np.clip(at + np.array(steps)[:, np.newaxis], 0, len(near) - 1)
            hit = near[there] & (number[there] == number[at])
            chance[steps] = float(hit.any(axis=0).mean())
        total += chance[steps]
    return total


def over_findings(
    findings: Sequence[Mapping[str, Any]],
    hits: Sequence[set[int]],
    planted: Sequence[PlantedError],
    found: set[tuple[str, int]],
) -> dict[str, Any]:
    """Return the counts of findings and of planted errors, and how good the worst findings are."""
    worst = np.array([float(finding["worst_score"]) for finding in findings], dtype=np.float64)
    ranked = np.array([bool(own) for own in hits])[np.argsort(worst, kind="stable")]
    return {
        "total": len(findings),
        "hit": int(ranked.sum()),
        "planted": len(planted),
        "found": len(found),
        "precision_of_worst": {str(n): share(ranked[:n]) for n in WORST if n <= len(findings)},
    }
