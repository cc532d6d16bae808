"""Pairs on disk to scores on disk, in two passes over blocks of pairs."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from maskwitness.config import Config
from maskwitness.findings import Evidence, find_runs, is_bad, kind_of
from maskwitness.io.store import RunFolder, pair_blocks, read_whole
from maskwitness.io.tables import BASELINE, FINDINGS, SCORES, read_table, table_of, write_table
from maskwitness.join import Memory
from maskwitness.pipeline import groups, mask_areas, positions_um
from maskwitness.records import Bank, Baseline, Finding, Scores
from maskwitness.residuals import bin_edges, fit_baseline, score_patches


def read_bank(folder: RunFolder, config: Config, memory: Memory) -> Bank:
    """Return the patches of a run as the join wants them, in memory as far as that goes."""
    table = read_table(folder.path("patches.parquet"), ["scan", "branch", "arc_mm", "has_image"])
    arrays = folder.path("patches.zarr")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return Bank(
        image=read_whole(arrays, "image", memory.empty),
        mask=read_whole(arrays, "mask", memory.empty),
        has_image=columns["has_image"],
        group=groups(columns["scan"], columns["branch"], config.join.testify),
        position_um=positions_um(columns["arc_mm"]),
    )


def write_scores(
    folder: RunFolder, config: Config, on_patch: Callable[[int, int], None]
) -> Mapping[str, Any]:
    """Write baseline.parquet, scores.parquet and findings.parquet; return their summary."""
    size = config.patches.size
    store = folder.path("pairs.zarr")
    baseline = fit_baseline(pair_blocks(store), config.join.epsilon, size, config.residuals)
    write_table(folder.path("baseline.parquet"), _baseline_table(baseline))
    edges = bin_edges(config.join.epsilon, size, config.residuals.bins)
    area = mask_areas(read_whole(folder.path("patches.zarr"), "mask"))
    patches = read_table(folder.path("patches.parquet"))
    has_image = patches["has_image"].to_numpy()
    blocks = []
    for pairs in pair_blocks(store):
        blocks.append(score_patches(pairs, baseline, edges, has_image, area))
        on_patch(pairs.first + len(pairs.offset) - 1, len(area))
    return write_judgement(folder, patches, blocks, config)


def write_judgement(
    folder: RunFolder,
    patches: pa.Table,
    blocks: list[Scores],
    config: Config,
    limit: float | None = None,
) -> Mapping[str, Any]:
    """Write scores.parquet and findings.parquet; return their summary.

    ``limit`` is the score below which a point is bad; none given: the scores themselves say it.
    """
    residual = np.concatenate([block.residual for block in blocks])
    reason = np.concatenate([block.reason for block in blocks])
    columns = {
        "score": residual,
        "residual": residual,
        "witnesses": np.concatenate([block.witnesses for block in blocks]),
        "reason": reason,
        "usual_area_mm2": np.concatenate([block.usual_area for block in blocks])
        * config.patches.step_mm**2,
    }
    places = {name: patches[name] for name in ("patch", "branch", "x_mm", "y_mm", "z_mm")}
    scores = table_of({**columns, **places, "scan": patches["name"]}, SCORES)
    write_table(folder.path("scores.parquet"), scores)
    findings = _findings(patches, scores, config, limit)
    write_table(folder.path("findings.parquet"), _findings_table(findings))
    bad = is_bad(residual, config.findings) if limit is None else residual < limit
    return {
        "scored": int(np.isfinite(residual).sum()),
        "unscored": dict(Counter(sorted(reason[reason != ""]))),
        "findings": len(findings),
        "bad_points": int(bad.sum()),
    }


def _findings(
    patches: pa.Table, scores: pa.Table, config: Config, limit: float | None
) -> list[Finding]:
    found = find_runs(
        scores["scan"].to_numpy(),
        scores["branch"].to_numpy().astype(np.int64),
        np.stack([scores[f"{axis}_mm"].to_numpy() for axis in "xyz"], axis=1),
        patches["arc_mm"].to_numpy(),
        scores["score"].to_numpy().astype(np.float64),
        config.findings,
        limit,
    )
    area = patches["area_mm2"].to_numpy()
    usual = scores["usual_area_mm2"].to_numpy()
    return [
        replace(finding, kind=kind_of(Evidence(
            area_mm2=float(area[finding.worst_patch]),
            usual_area_mm2=float(usual[finding.worst_patch]),
        )))
        for finding in found
    ]  # fmt: skip


def _baseline_table(baseline: Baseline) -> pa.Table:
    bins = {"bin": np.arange(len(baseline.count))}
    return table_of(
        bins | {name: getattr(baseline, name) for name in BASELINE if name != "bin"}, BASELINE
    )


def _findings_table(findings: list[Finding]) -> pa.Table:
    rows = []
    for number, finding in enumerate(findings):
        row = {"finding": number, **asdict(finding)}
        for at in ("start", "centre", "end"):
            row |= zip((f"{at}_{axis}_mm" for axis in "xyz"), row.pop(f"{at}_mm"), strict=True)
        rows.append(row)
    return table_of({name: [row[name] for row in rows] for name in FINDINGS}, FINDINGS)
