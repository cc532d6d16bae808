"""The judgement of a whole run, scan by scan."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Shaped

from maskwitness.config import QualitySettings
from maskwitness.errors import InputError
from maskwitness.geometry import same_grid
from maskwitness.judge.findings import hits_by_chance, look_around, over_findings, places_of
from maskwitness.judge.points import judge_points
from maskwitness.judge.ranking import Number, auroc, average_precision, share
from maskwitness.judge.truth import PlantedError, Truth, read_errors, read_truth
from maskwitness.quality import paint_quality
from maskwitness.records import Volume

Columns = Mapping[str, np.ndarray]


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
    kinds: dict[str, dict[str, Any]]  # planted, found, bad_points, coverage, auroc, ap, …_scored
    voxels: dict[str, Number]  # auroc, ap of the quality maps, …_neutral: were every score 0
    findings: dict[str, Any]  # total, hit, hit_by_chance, planted, found, precision of the n worst

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain tables, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Voxels:
    """The vessel voxels of one scan, drawn or true."""

    bad: Bool[np.ndarray, " voxels"]
    badness: Float32[np.ndarray, " voxels"]  # 1 − Q
    neutral: Float32[np.ndarray, " voxels"]  # 1 − Q, were every score 0


def judge_run(
    points: Columns,
    findings: Sequence[Mapping[str, Any]],
    quality: Callable[[str], Volume | None],
    truth: Path,
    painting: QualitySettings,
) -> Judgement:
    """Return how well a run found the errors planted in a phantom data set.

    Only scans of which the run has points or findings are looked at, one at a time.

    Parameters
    ----------
    points
        Columns ``scan``, ``x_mm``, ``y_mm``, ``z_mm`` and ``score`` (NaN: unscored).
    findings
        Each with ``scan``, ``centre_mm`` and ``worst_score``, and its other places ``points_mm``.
    quality
        Name of a scan to its quality map, or None where there is none.
    truth
        The folder that the phantom wrote.
    painting
        How the quality maps were painted.

    Raises
    ------
    InputError
        Where the truth lacks a scan of the run or lies on another grid.
    """
    scan_of = np.asarray(points["scan"])
    score = np.asarray(points["score"], dtype=np.float64)
    at_mm = np.stack([np.asarray(points[f"{x}_mm"], dtype=np.float64) for x in "xyz"], axis=1)
    bad, kind = np.zeros(len(score), dtype=bool), np.full(len(score), "", dtype=object)
    near, voxels = np.zeros(len(score), dtype=bool), []
    hits, rows = [set[int]() for _ in findings], [np.zeros(0, dtype=np.int64) for _ in findings]
    names = sorted({*map(str, scan_of), *(str(finding["scan"]) for finding in findings)})
    planted = [error for error in read_errors(truth) if error.scan in names]
    for name in names:
        kinds = {error.error: error.kind for error in planted if error.scan == name}
        scan, here = read_truth(truth, name, kinds), scan_of == name
        judged = judge_points(at_mm[here], scan.drawn, scan.true, scan.error, scan.affine, kinds)
        bad[here], kind[here] = judged.bad, judged.kind
        voxels.append(_judge_voxels(name, scan, quality(name), at_mm[here], painting))
        mine = [n for n, finding in enumerate(findings) if str(finding["scan"]) == name]
        seen = look_around(scan, at_mm[here], [places_of(findings[n]) for n in mine])
        near[here] = seen.near
        for n, errors, own in zip(mine, seen.errors, seen.rows, strict=True):
            hits[n], rows[n] = errors, np.flatnonzero(here)[own]
    found = {
        (str(f["scan"]), error) for f, own in zip(findings, hits, strict=True) for error in own
    }
    chance = hits_by_chance(rows, near, ~np.isnan(score), scan_of)
    return Judgement(
        **_over_points(bad, score),
        kinds=_over_kinds(bad, kind, score, planted, found),
        voxels=_over_voxels(voxels),
        findings={**over_findings(findings, hits, planted, found), "hit_by_chance": chance},
    )


def _judge_voxels(
    name: str,
    scan: Truth,
    quality: Volume | None,
    points_mm: Float64[np.ndarray, "points 3"],
    painting: QualitySettings,
) -> _Voxels:
    """Return which vessel voxels are wrong, and what the quality map says."""
    if quality is None:
        none = np.zeros(0, dtype=np.float32)
        return _Voxels(np.zeros(0, dtype=bool), none, none)
    if not same_grid(scan.drawn.shape, scan.affine, quality.shape, quality.affine):
        message = f"scan {name!r}: the quality map does not lie on the grid of the drawn mask"
        raise InputError(message)
    i, j, k = scan.drawn.shape
    union = scan.drawn | scan.true
    value = quality.slope * quality.data[union].astype(np.float32) + quality.intercept
    unsaid = np.zeros(len(points_mm))
    neutral = paint_quality(points_mm, unsaid, (i, j, k), scan.affine, painting)[union]
    return _Voxels(
        bad=scan.drawn[union] != scan.true[union], badness=1 - value, neutral=1 - neutral
    )


def _badness(score: Float64[np.ndarray, " points"]) -> Float64[np.ndarray, " points"]:
    return -np.where(np.isnan(score), 0.0, score)


def _over_points(
    bad: Bool[np.ndarray, " points"], score: Float64[np.ndarray, " points"]
) -> dict[str, Any]:
    scored, badness = ~np.isnan(score), _badness(score)
    return {
        "points": len(bad),
        "scored": share(scored),
        "bad_share": share(bad),
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
            "coverage": share(scored[own]),
            "auroc": auroc(own[either], badness[either]),
            "ap": average_precision(own[either], badness[either]),
            "auroc_scored": auroc(own[either & scored], badness[either & scored]),
            "ap_scored": average_precision(own[either & scored], badness[either & scored]),
        }
    return table


def _over_voxels(scans: Sequence[_Voxels]) -> dict[str, Number]:
    bad = np.concatenate([np.zeros(0, dtype=bool), *(scan.bad for scan in scans)])
    badness, neutral = (
        np.concatenate([np.zeros(0, dtype=np.float32), *(getattr(scan, what) for scan in scans)])
        for what in ("badness", "neutral")
    )
    return {
        "auroc": auroc(bad, badness),
        "ap": average_precision(bad, badness),
        "auroc_neutral": auroc(bad, neutral),
        "ap_neutral": average_precision(bad, neutral),
        "bad_share": share(bad),
    }
