"""The eight kinds of mistake, each an edit of the drawing about one centre point.

Every function returns the millimetres of vessel that it spent, 0 where the place did not fit.
Magnitudes are drawn from "barely visible in the overlap" to gross.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64
from scipy.ndimage import gaussian_filter1d
from scipy.spatial import cKDTree

from maskwitness.phantom.planting import Planted, Plot, angle_to_axes
from maskwitness.phantom.records import KINDS
from maskwitness.phantom.settings import NOISES, OBLIQUE_DEG
from maskwitness.phantom.vessels import STEP_MM, Course, walk

KIND_WEIGHTS = (0.20, 0.15, 0.15, 0.11, 0.12, 0.11, 0.07, 0.09)  # in the order of KINDS
RAMP_MM = 0.8  # an error sets in over this length


def plant_errors(plot: Plot) -> None:
    """Plant local errors until their stretches have the wanted length, then the systematic ones."""
    level = NOISES[plot.settings.noise]
    share = level.share if plot.settings.error_share is None else plot.settings.error_share
    budget = share * float(plot.eligible.sum()) * STEP_MM
    # the last error overshoots by half its length on average, so does the wish fall short
    wish = budget + plot.rng.uniform(-3.0, 1.0) if budget > 0 else 0.0
    used, failures = 0.0, 0
    while used < wish and failures < 60:
        kind = str(plot.rng.choice(KINDS, p=KIND_WEIGHTS))
        spent = plant_one(plot, kind, budget)
        failures += spent == 0.0
        used += spent
    if level.oblique_too_wide:
        widen_oblique(plot)


def plant_one(plot: Plot, kind: str, budget_mm: float) -> float:
    """Plant one error of a kind at the first of many random places that suits it."""
    for _ in range(40):
        weights = plot.weights(biased=kind != "false_branch")
        if not weights.any():
            return 0.0
        centre = int(plot.rng.choice(len(weights), p=weights / weights.sum()))
        if kind == "missing_branch":
            spent = _miss_branch(plot, centre, budget_mm)
        else:
            spent = PLANTERS[kind](plot, centre)
        if spent > 0.0:
            return spent
    return 0.0


def _record(
    plot: Plot, kind: str, stretch: Int64[np.ndarray, " stretch"], centre: int, magnitude_mm: float
) -> float:
    """Note an error that lies on the vessel itself."""
    tubes = plot.arteries.tubes
    plot.take(stretch)
    plot.errors.append(
        Planted(
            kind=kind,
            branch=int(tubes.branch[centre]),
            path_mm=tubes.points_mm[stretch],
            centre_mm=tubes.points_mm[centre],
            magnitude_mm=magnitude_mm,
            angle_deg=float(plot.angle_deg[centre]),
            radius_mm=float(tubes.radius_mm[centre]),
        )
    )
    return len(stretch) * STEP_MM


def _record_extra(
    plot: Plot, kind: str, centre: int, path: Float64[np.ndarray, "path 3"], radius_mm: float
) -> float:
    """Note an error that lies beside the vessel, and draw it."""
    middle = len(path) // 2
    ahead = path[min(middle + 2, len(path) - 1)] - path[max(middle - 2, 0)]
    # a false branch has only an angle of its own; a leak is a fault of the vessel it leaves
    angle = float(plot.angle_deg[centre])
    if kind == "false_branch":
        angle = float(angle_to_axes(ahead[None], plot.affine)[0])
    plot.drawing.append(path, radius_mm, plot.next_number)
    plot.take(np.array([centre]))
    plot.errors.append(
        Planted(
            kind=kind,
            branch=int(plot.arteries.tubes.branch[centre]),
            path_mm=path,
            centre_mm=path[middle],
            magnitude_mm=radius_mm,
            angle_deg=angle,
            radius_mm=float(plot.arteries.tubes.radius_mm[centre]),
        )
    )
    return float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())


def _ramp(count: int) -> Float64[np.ndarray, " stretch"]:
    """Return weights that rise from both ends of a stretch to 1."""
    from_end = np.minimum(np.arange(count), np.arange(count)[::-1]) + 0.5
    x = np.clip(from_end * STEP_MM / RAMP_MM, 0.0, 1.0)
    return x * x * (3.0 - 2.0 * x)


def _too_wide(plot: Plot, centre: int) -> float:
    stretch = plot.stretch(centre, plot.rng.uniform(2.0, 7.0))
    if len(stretch) == 0:
        return 0.0
    radius = plot.arteries.tubes.radius_mm[centre]
    by = float(max(0.2, radius * plot.rng.uniform(0.16, 0.6)) * plot.strength)
    plot.drawing.radius_mm[stretch] += by * _ramp(len(stretch))
    plot.drawing.error[stretch] = plot.next_number
    return _record(plot, "too_wide", stretch, centre, by)


def _too_narrow(plot: Plot, centre: int) -> float:
    stretch = plot.stretch(centre, plot.rng.uniform(2.0, 7.0))
    if len(stretch) == 0:
        return 0.0
    radius = plot.arteries.tubes.radius_mm[centre]
    by = float(radius * min(plot.rng.uniform(0.16, 0.6) * plot.strength, 0.75))
    narrowed = plot.drawing.radius_mm[stretch] - by * _ramp(len(stretch))
    plot.drawing.radius_mm[stretch] = np.maximum(narrowed, 0.15)
    plot.drawing.error[stretch] = plot.next_number
    return _record(plot, "too_narrow", stretch, centre, by)


def _shifted(plot: Plot, centre: int) -> float:
    stretch = plot.stretch(centre, plot.rng.uniform(2.5, 7.0))
    if len(stretch) == 0:
        return 0.0
    points, rng = plot.arteries.tubes.points_mm, plot.rng
    by = float(plot.arteries.tubes.radius_mm[centre] * rng.uniform(0.3, 1.1) * plot.strength)
    ahead = points[stretch[-1]] - points[stretch[0]]
    way = np.cross(ahead, rng.normal(size=3))
    way /= np.linalg.norm(way)
    plot.drawing.points_mm[stretch] += by * _ramp(len(stretch))[:, None] * way
    plot.drawing.error[stretch] = plot.next_number
    return _record(plot, "shifted", stretch, centre, by)


def _staircase(plot: Plot, centre: int) -> float:
    stretch = plot.stretch(centre, plot.rng.uniform(3.0, 8.0))
    if len(stretch) == 0:
        return 0.0
    radius = plot.arteries.tubes.radius_mm[centre]
    by = float(radius * plot.rng.uniform(0.35, 0.9) * plot.strength)
    plot.drawing.stair_mm[stretch] = by * _ramp(len(stretch))
    plot.drawing.error[stretch] = plot.next_number
    return _record(plot, "staircase", stretch, centre, by)


def _gap(plot: Plot, centre: int) -> float:
    stretch = plot.stretch(centre, plot.rng.uniform(2.0, 5.0) * plot.strength)
    if len(stretch) == 0:
        return 0.0
    plot.drawing.present[stretch] = False
    plot.drawing.error[stretch] = plot.next_number
    return _record(plot, "gap", stretch, centre, len(stretch) * STEP_MM)


def _leak(plot: Plot, centre: int) -> float:
    """Follow the touching vein for some millimetres; where none touches, run into the heart."""
    tubes, rng = plot.arteries.tubes, plot.rng
    stretch = plot.stretch(centre, 2.0)
    if len(stretch) == 0:
        return 0.0
    here, radius = tubes.points_mm[centre], float(tubes.radius_mm[centre])
    if plot.vein_gap_mm[centre] < 1.0:
        path, wide = _along_vein(plot, centre, rng.uniform(2.0, 5.0) * plot.strength, both=True)
        bridge = np.linspace(here, path[len(path) // 2], 4)
        drawn = float(max(wide * rng.uniform(0.7, 1.05), 0.45))
        plot.drawing.append(bridge, 0.8 * min(radius, drawn), plot.next_number)
    elif rng.random() < 0.3:  # veins are the usual way out: most other places are tried again
        inward = plot.heart.bodies[0].centre_mm - here
        inward += 12.0 * rng.normal(size=3)
        inward /= np.linalg.norm(inward)
        reach = radius + rng.uniform(1.0, 2.2) * plot.strength
        path = np.linspace(here, here + reach * inward, 6)
        drawn = float(max(0.5, radius * rng.uniform(0.6, 1.0)))
    else:
        return 0.0
    plot.take(stretch)
    return _record_extra(plot, "leak", centre, path, drawn)


def _along_vein(
    plot: Plot, centre: int, length_mm: float, *, both: bool
) -> tuple[Float64[np.ndarray, "path 3"], float]:
    """Return points of the vein beside an artery, and its radius there."""
    nearest = int(plot.vein_point[centre])
    own = np.flatnonzero(plot.veins.branch == plot.veins.branch[nearest])
    count = max(3, round(length_mm / STEP_MM))
    first = nearest - count // 2 if both else nearest
    if not both and (nearest + count > own[-1] or plot.rng.random() < 0.5):
        first = nearest - count
    picked = own[(own >= first) & (own <= first + count)]
    if not both and first < nearest:
        picked = picked[::-1]
    return plot.veins.points_mm[picked], float(plot.veins.radius_mm[nearest])


def _false_branch(plot: Plot, centre: int) -> float:
    """Draw a branch along a vein, along the edge of a chamber, or where nothing is."""
    tubes, rng = plot.arteries.tubes, plot.rng
    here, length = tubes.points_mm[centre], rng.uniform(5.0, 13.0)
    if plot.vein_gap_mm[centre] < 3.0 and rng.random() < 0.6:
        path, wide = _along_vein(plot, centre, length, both=False)
        radius = float(np.clip(wide * rng.uniform(0.7, 1.0), 0.5, 1.2))
        path = np.concatenate([np.linspace(here, path[0], 5)[:-1], path])
    else:
        radius = float(rng.uniform(0.5, 0.95))
        course = Course(
            start_mm=here,
            towards=rng.normal(size=3),
            length_mm=length,
            radius_mm=radius,
            level_mm=rng.uniform(-1.2, 1.5),
        )
        path, _ = walk(plot.heart, course, rng)
    annotated = tubes.points_mm[plot.arteries.annotated]
    apart, nearest = cKDTree(annotated).query(path)
    clear = apart > tubes.radius_mm[plot.arteries.annotated][nearest] + radius + 0.3
    if len(path) < 8 or clear.mean() < 0.6:  # it would only make a true vessel wider
        return 0.0
    return _record_extra(plot, "false_branch", centre, path, radius)


def _miss_branch(plot: Plot, centre: int, budget_mm: float) -> float:
    """Leave out a branch and all that springs from it, or the last part of a long one."""
    longest = max(8.0, min(35.0, 0.6 * budget_mm))
    own = np.flatnonzero(plot.arteries.tubes.branch == plot.arteries.tubes.branch[centre])
    removed = _downstream(plot, int(own[0]))
    if len(removed) * STEP_MM > longest:
        removed = _downstream(plot, centre)
    length = len(removed) * STEP_MM
    if not 4.0 <= length <= longest or not plot.free[removed].all():
        return 0.0
    if plot.arteries.parent[plot.arteries.tubes.branch[centre]] < 0 and removed[0] == own[0]:
        return 0.0
    plot.drawing.present[removed] = False
    plot.drawing.error[removed] = plot.next_number
    return _record(plot, "missing_branch", removed, centre, length)


def _downstream(plot: Plot, first: int) -> Int64[np.ndarray, " stretch"]:
    """Return the annotated points from one point to the ends of all that it feeds."""
    branch, arteries = plot.arteries.tubes.branch, plot.arteries
    own = np.flatnonzero((branch == branch[first]) & arteries.annotated)
    found = [own[own >= first]]
    for child in np.flatnonzero(arteries.parent == branch[first]):
        begins = np.flatnonzero((branch == child) & arteries.annotated)
        if arteries.parent_point[child] >= first and len(begins):
            found.append(_downstream(plot, int(begins[0])))
    return np.concatenate(found).astype(np.int64)


def widen_oblique(plot: Plot) -> None:
    """Draw every oblique piece too wide: the systematic error of drawing slice by slice."""
    by = float(plot.rng.uniform(0.21, 0.31))
    oblique = plot.angle_deg > OBLIQUE_DEG
    oblique &= plot.arteries.annotated & (plot.drawing.error[: len(oblique)] == 0)
    branch = plot.arteries.tubes.branch
    for number in np.unique(branch):
        at = np.flatnonzero(branch == number)
        # short interruptions are the noise of the tangent, not of the annotator
        steady = gaussian_filter1d(oblique[at].astype(float), 2.0, mode="nearest") > 0.5
        steady &= plot.drawing.error[at] == 0
        steady &= plot.arteries.annotated[at]
        for run in np.split(at, np.flatnonzero(np.diff(steady.astype(int))) + 1):
            if len(run) >= 5 and steady[run[0] - at[0]]:
                plot.drawing.radius_mm[run] += by * _ramp(len(run))
                plot.drawing.error[run] = plot.next_number
                _record(plot, "too_wide", run, int(run[len(run) // 2]), by)
                plot.errors[-1].systematic = True


PLANTERS: dict[str, Callable[[Plot, int], float]] = {
    "too_wide": _too_wide,
    "too_narrow": _too_narrow,
    "shifted": _shifted,
    "gap": _gap,
    "leak": _leak,
    "staircase": _staircase,
    "false_branch": _false_branch,
}
