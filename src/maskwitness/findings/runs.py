"""Bad points that follow each other on a branch become one finding."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from maskwitness.config import FindingSettings
from maskwitness.records import Finding


def find_runs(
    scan: Shaped[np.ndarray, " points"],
    branch: Int64[np.ndarray, " points"],
    points_mm: Float64[np.ndarray, "points 3"],
    arc_mm: Float64[np.ndarray, " points"],
    score: Float64[np.ndarray, " points"],
    settings: FindingSettings,
    limit: float | None = None,
) -> list[Finding]:
    """Return the findings of a data set, worst first, their kind still open.

    A point is bad where it scores below the threshold or belongs to the worst share of those that
    score below 0; or below ``limit``, where another data set has said what is bad. Points come
    sorted by scan, branch and place. Bad points of a branch that are no more than ``bridge_mm``
    apart belong together, whatever lies between them.
    """
    found = []
    bad = score < (bad_limit(score, settings) if limit is None else limit)
    for run in _runs(scan, branch, arc_mm, bad, settings.bridge_mm):
        first, last = int(run[0]), int(run[-1])
        worst = int(run[np.argmin(score[run])])
        found.append(
            Finding(
                scan=str(scan[first]),
                branch=int(branch[first]),
                first_patch=first,
                worst_patch=worst,
                points=len(run),
                start_mm=_place(points_mm[first]),
                centre_mm=_place(points_mm[int(run[len(run) // 2])]),
                end_mm=_place(points_mm[last]),
                length_mm=float(arc_mm[last] - arc_mm[first]),
                worst_score=float(score[worst]),
                mean_score=float(score[run].mean()),
                kind="",
            )
        )
    return sorted(found, key=lambda finding: (finding.worst_score, finding.worst_patch))


def is_bad(
    score: Float64[np.ndarray, " points"], settings: FindingSettings
) -> Bool[np.ndarray, " points"]:
    """Say which points are to be looked at; unscored ones are not."""
    return score < bad_limit(score, settings)


def bad_limit(score: Float64[np.ndarray, " points"], settings: FindingSettings) -> float:
    """Return the score below which a point of this data set is bad."""
    scored = np.sort(score[~np.isnan(score)])
    worst = int(len(scored) * settings.worst_share)
    worst_score = float(scored[worst]) if worst < len(scored) else np.inf  # a share of 1: all
    limit = min(worst_score, 0.0) if worst else -np.inf
    return max(limit, settings.threshold)


def _runs(
    scan: Shaped[np.ndarray, " points"],
    branch: Int64[np.ndarray, " points"],
    arc_mm: Float64[np.ndarray, " points"],
    bad: Shaped[np.ndarray, " points"],
    bridge_mm: float,
) -> Iterator[Int64[np.ndarray, " run"]]:
    at = np.flatnonzero(bad)
    if len(at) == 0:
        return
    before, after = at[:-1], at[1:]
    apart = (
        (scan[before] != scan[after])
        | (branch[before] != branch[after])
        | (arc_mm[after] - arc_mm[before] > bridge_mm)
    )
    yield from np.split(at, np.flatnonzero(apart) + 1)


def _place(point_mm: Float64[np.ndarray, " 3"]) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in point_mm)
    return x, y, z
