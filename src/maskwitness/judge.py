"""How well a run found the errors that were planted: the marks against the truth.

In goes what a run says (scores, findings, quality maps) and a truth folder as the phantom writes
it; out comes a :class:`Judgement`. A point is bad where the drawn mask and the true one disagree
around it, whether or not an error was planted there: the planting may overlap a junction or leave
the vessel's wall as it was, and a score is right to follow the voxels and not the intention.

An unscored point says neither good nor bad. It counts as an unremarkable one, score 0, so that a
run gains nothing by keeping silent; the figures over scored points alone stand beside.
"""

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from scipy.spatial import cKDTree

from maskwitness.errors import InputError
from maskwitness.geometry import same_grid, to_world
from maskwitness.io.volumes import read_volume
from maskwitness.records import Volume

REACH_MM = 2.0  # how far around a point or a finding its voxels are looked at
TOLERANCE_MM = 1e-6  # a voxel at 2 mm is within, whatever rounding does to its last digit
BAD_FRACTION = 0.25  # of the ball's vessel voxels on which the masks disagree
CHUNK = 1024  # points whose lists of neighbours are held at once
WORST = (10, 20, 50, 100)  # lengths of a review list at which its precision is told

Number = float | None  # None: undefined, because there is no bad or no good example
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTruth:
    """What is true of each centreline point."""

    bad: Bool[np.ndarray, " points"]
    kind: Shaped[np.ndarray, " points"]  # object array of str, "" where no planted error is near
    fraction: Float64[np.ndarray, " points"]  # |drawn xor truth| / |drawn or truth| in the ball


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedError:
    """One row of the truth's ``errors.csv``."""

    scan: str
    error: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How well a run found what was planted. ``None`` where a figure is undefined."""

    points: int
    scored: Number  # share of the points that have a score
    bad_share: Number
    auroc_all: Number
    ap_all: Number
    auroc_scored: Number
    ap_scored: Number
    kinds: dict[str, dict[str, Any]]  # planted, found, bad_points, coverage, auroc, ap
    voxels: dict[str, Number]  # auroc, ap, bad_share of the quality maps
    findings: dict[str, Any]  # total, hit, planted, found, precision of the n worst

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain tables, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    """The truth of one scan, on the grid of its drawn mask."""

    drawn: Bool[np.ndarray, "i j k"]
    true: Bool[np.ndarray, "i j k"]
    error: Shaped[np.ndarray, "i j k"]
    affine: Float64[np.ndarray, "4 4"]
    kinds: dict[int, str]


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


def auroc(bad: Bool[np.ndarray, " n"], badness: Float[np.ndarray, " n"]) -> Number:
    """Return the chance that a bad one is ranked before a good one; a tie is half a success.

    Returns None where there is no bad one or no good one.
    """
    positives, negatives = int(bad.sum()), int((~bad).sum())
    if positives == 0 or negatives == 0:
        return None
    _, place, count = np.unique(badness, return_inverse=True, return_counts=True)
    midrank = np.cumsum(count) - (count - 1) / 2
    ranks = float(midrank[place[bad]].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def average_precision(bad: Bool[np.ndarray, " n"], badness: Float[np.ndarray, " n"]) -> Number:
    """Return Σ (R_n − R_{n−1}) P_n down the list of the worst; equal values are one step.

    Returns None where there is no bad one or no good one.
    """
    positives = int(bad.sum())
    if positives == 0 or positives == len(bad):
        return None
    _, place, count = np.unique(badness, return_inverse=True, return_counts=True)
    hits = np.bincount(place, weights=bad, minlength=len(count))[::-1]
    precision = np.cumsum(hits) / np.cumsum(count[::-1])
    return float((hits / positives * precision).sum())


def judge_run(
    points: Columns,
    findings: Sequence[Mapping[str, Any]],
    quality: Callable[[str], Volume | None],
    truth: Path,
) -> Judgement:
    """Return how well a run found the errors planted in a phantom data set.

    Only scans of which the run has points or findings are looked at, one at a time.

    Parameters
    ----------
    points
        Columns ``scan``, ``x_mm``, ``y_mm``, ``z_mm`` and ``score`` (NaN: unscored).
    findings
        Each with ``scan``, ``centre_mm`` and ``worst_score``, and ``points_mm`` where known.
    quality
        Name of a scan to its quality map, or None where there is none.
    truth
        The folder that the phantom wrote.

    Raises
    ------
    InputError
        Where the truth lacks a scan of the run or lies on another grid.
    """
    scan_of = np.asarray(points["scan"])
    score = np.asarray(points["score"], dtype=np.float64)
    at_mm = np.stack([np.asarray(points[f"{x}_mm"], dtype=np.float64) for x in "xyz"], axis=1)
    bad, kind = np.zeros(len(score), dtype=bool), np.full(len(score), "", dtype=object)
    hits: list[set[int]] = [set() for _ in findings]
    names = sorted({*map(str, scan_of), *(str(finding["scan"]) for finding in findings)})
    planted = [error for error in read_errors(truth) if error.scan in names]
    voxels = []
    for name in names:
        kinds = {error.error: error.kind for error in planted if error.scan == name}
        scan, here = _read_truth(truth, name, kinds), scan_of == name
        judged = judge_points(at_mm[here], scan.drawn, scan.true, scan.error, scan.affine, kinds)
        bad[here], kind[here] = judged.bad, judged.kind
        voxels.append(_judge_voxels(name, scan, quality(name)))
        _note_hits(hits, findings, name, scan)
    found = {
        (str(f["scan"]), error) for f, own in zip(findings, hits, strict=True) for error in own
    }
    return Judgement(
        **_over_points(bad, score),
        kinds=_over_kinds(bad, kind, score, planted, found),
        voxels=_over_voxels(voxels),
        findings=_over_findings(findings, hits, planted, found),
    )


def read_errors(truth: Path) -> list[PlantedError]:
    """Return the planted errors that a truth folder lists."""
    path = truth / "truth" / "errors.csv"
    if not path.is_file():
        message = f"{truth} is no truth folder: it has no truth/errors.csv"
        raise InputError(message)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: it cannot be read as CSV ({error})"
        raise InputError(message) from error
    return [_planted(f"{path}: row {number}", row) for number, row in enumerate(rows, start=1)]


def _planted(where: str, row: Mapping[str, str | None]) -> PlantedError:
    scan, error, kind = (row.get(name) for name in ("scan", "error", "kind"))
    if scan is None or kind is None or error is None or not error.isdecimal():
        message = f"{where} is no planted error: scan {scan!r}, error {error!r}, kind {kind!r}"
        raise InputError(message)
    return PlantedError(scan=scan, error=int(error), kind=kind)


def _read_truth(truth: Path, name: str, kinds: dict[int, str]) -> _Truth:
    folders = ("labelsTr", "truth/masks", "truth/errors")
    volumes = []
    for folder in folders:
        path = truth / folder / f"{name}.nii.gz"
        if not path.is_file():
            message = f"the truth in {truth} has no scan {name!r}: {folder}/{path.name} is missing"
            raise InputError(message)
        volumes.append(read_volume(path))
    drawn, true, error = volumes
    for folder, volume in zip(folders[1:], volumes[1:], strict=True):
        if not same_grid(drawn.shape, drawn.affine, volume.shape, volume.affine):
            message = f"scan {name!r}: {folder} does not lie on the grid of its drawn mask"
            raise InputError(message)
    return _Truth(
        drawn=drawn.data != 0,
        true=true.data != 0,
        error=error.data,
        affine=drawn.affine,
        kinds=kinds,
    )


def _judge_voxels(
    name: str, scan: _Truth, quality: Volume | None
) -> tuple[Bool[np.ndarray, " voxels"], Float[np.ndarray, " voxels"]]:
    """Return which vessel voxels, drawn or true, are wrong, and what the quality map says."""
    if quality is None:
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=np.float32)
    if not same_grid(scan.drawn.shape, scan.affine, quality.shape, quality.affine):
        message = f"scan {name!r}: the quality map does not lie on the grid of the drawn mask"
        raise InputError(message)
    union = scan.drawn | scan.true
    value = quality.slope * quality.data[union].astype(np.float32) + quality.intercept
    return scan.drawn[union] != scan.true[union], 1 - value


def _note_hits(
    hits: list[set[int]], findings: Sequence[Mapping[str, Any]], name: str, scan: _Truth
) -> None:
    """Add to the findings of one scan which planted errors they lie within reach of."""
    where = np.argwhere(scan.error != 0)
    mine = [n for n, finding in enumerate(findings) if str(finding["scan"]) == name]
    if not mine or len(where) == 0:
        return
    tree = cKDTree(to_world(where.astype(np.float64), scan.affine))
    errors = scan.error[tuple(where.T)]
    for n in mine:
        for near in tree.query_ball_point(_places(findings[n]), REACH_MM + TOLERANCE_MM):
            hits[n] |= set(map(int, np.unique(errors[near]))) & scan.kinds.keys()


def _places(finding: Mapping[str, Any]) -> Float64[np.ndarray, "places 3"]:
    centre = np.asarray(finding["centre_mm"], dtype=np.float64).reshape(1, 3)
    others = np.asarray(finding.get("points_mm", ()), dtype=np.float64).reshape(-1, 3)
    return np.concatenate([centre, others])


def _badness(score: Float64[np.ndarray, " points"]) -> Float64[np.ndarray, " points"]:
    return -np.where(np.isnan(score), 0.0, score)


def _share(of: Bool[np.ndarray, " n"]) -> Number:
    return float(of.mean()) if len(of) else None


def _over_points(
    bad: Bool[np.ndarray, " points"], score: Float64[np.ndarray, " points"]
) -> dict[str, Any]:
    scored, badness = ~np.isnan(score), _badness(score)
    return {
        "points": len(bad),
        "scored": _share(scored),
        "bad_share": _share(bad),
        "auroc_all": auroc(bad, badness),
        "ap_all": average_precision(bad, badness),
        "auroc_scored": auroc(bad[scored], badness[scored]),
        "ap_scored": average_precision(bad[scored], badness[scored]),
    }


def _over_kinds(
    bad: Bool[np.ndarray, " points"],
    kind: Shaped[np.ndarray, " points"],
    score: Float64[np.ndarray, " points"],
    planted: list[PlantedError],
    found: set[tuple[str, int]],
) -> dict[str, dict[str, Any]]:
    """Return the figures of each kind: its bad points against all good points."""
    badness, scored = _badness(score), ~np.isnan(score)
    count = Counter(error.kind for error in planted)
    hit = Counter(error.kind for error in planted if (error.scan, error.error) in found)
    table = {}
    for name in sorted(count):
        own = bad & (kind == name)
        either = own | ~bad
        table[name] = {
            "planted": count[name],
            "found": hit[name],
            "bad_points": int(own.sum()),
            "coverage": _share(scored[own]),
            "auroc": auroc(own[either], badness[either]),
            "ap": average_precision(own[either], badness[either]),
        }
    return table


def _over_voxels(
    scans: list[tuple[Bool[np.ndarray, " voxels"], Float[np.ndarray, " voxels"]]],
) -> dict[str, Number]:
    bad = np.concatenate([np.zeros(0, dtype=bool), *(bad for bad, _ in scans)])
    badness = np.concatenate([np.zeros(0, dtype=np.float32), *(badness for _, badness in scans)])
    return {
        "auroc": auroc(bad, badness),
        "ap": average_precision(bad, badness),
        "bad_share": _share(bad),
    }


def _over_findings(
    findings: Sequence[Mapping[str, Any]],
    hits: list[set[int]],
    planted: list[PlantedError],
    found: set[tuple[str, int]],
) -> dict[str, Any]:
    worst = np.array([float(finding["worst_score"]) for finding in findings], dtype=np.float64)
    ranked = np.array([bool(own) for own in hits])[np.argsort(worst, kind="stable")]
    return {
        "total": len(findings),
        "hit": int(ranked.sum()),
        "planted": len(planted),
        "found": len(found),
        "precision_of_worst": {str(n): _share(ranked[:n]) for n in WORST if n <= len(findings)},
    }
