"""The three acts: describe a scan, compare patches, judge a scan. Pure: no files, no screens.

::

    mask ── trace_graph ── transport_frames ── sample_patches      describe
    patches ── range_pairs ── fit_baseline ── score_patches         compare
    scores ── paint_quality                                         judge
"""

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from maskwitness.centreline import trace_graph
from maskwitness.config import Config, PatchSettings, Testify
from maskwitness.frames import transport_frames
from maskwitness.join import range_pairs
from maskwitness.patches import sample_patches
from maskwitness.quality import paint_quality
from maskwitness.records import Bank, Description, Pairs, Scan, Scores
from maskwitness.residuals import bin_edges, fit_baseline, score_patches


def describe(scan: Scan, settings: PatchSettings) -> Description:
    """Return the centreline, frames and canonical patches of one scan."""
    graph = trace_graph(scan.mask, scan.affine)
    frames = transport_frames(graph, scan.affine)
    return Description(
        graph=graph, frames=frames, patches=sample_patches(scan, graph, frames, settings)
    )


def bank_of(descriptions: Iterable[Description], testify: Testify) -> Bank:
    """Return the patches of several scans as one bank, who may testify for whom included."""
    parts = list(descriptions)
    scan = np.concatenate([np.full(len(d.graph.branch), n) for n, d in enumerate(parts)])
    return Bank(
        image=np.concatenate([d.patches.image for d in parts]),
        mask=np.concatenate([d.patches.mask for d in parts]),
        has_image=np.concatenate([d.patches.has_image for d in parts]),
        group=groups(scan, np.concatenate([d.graph.branch for d in parts]), testify),
        position_um=positions_um(np.concatenate([d.graph.arc_mm for d in parts])),
    )


def groups(scan: np.ndarray, branch: np.ndarray, testify: Testify) -> np.ndarray:
    """Return the number of the group within which patches may not testify for each other."""
    if testify == "other_stretch":
        return scan.astype(np.int64) << 32 | branch.astype(np.int64)
    return scan.astype(np.int64)


def positions_um(arc_mm: Float64[np.ndarray, " patches"]) -> np.ndarray:
    """Return places along a branch in whole micrometres, so that comparing them is exact."""
    return np.rint(arc_mm * 1000).astype(np.int64)


def compare(bank: Bank, config: Config) -> Iterator[Scores]:
    """Yield the scores of all patches, block by block, with every pair held in memory.

    For data sets that fit; ``run.audit`` streams the pairs through the run directory instead.
    """
    size = bank.image.shape[1]
    blocks: list[Pairs] = list(range_pairs(bank, config.join))
    baseline = fit_baseline(blocks, config.join.epsilon, size, config.residuals)
    edges = bin_edges(config.join.epsilon, size, config.residuals.bins)
    area = mask_areas(bank.mask)
    for pairs in blocks:
        yield score_patches(pairs, baseline, edges, bank.has_image, area)


def mask_areas(mask: UInt8[np.ndarray, "patches bytes"]) -> Float64[np.ndarray, " patches"]:
    """Return the number of samples in each patch's mask, to look up those of witnesses."""
    return np.bitwise_count(mask).sum(axis=1).astype(np.float64)


def judge(
    scan: Scan, points_mm: Float64[np.ndarray, "points 3"], score: np.ndarray, config: Config
) -> Float32[np.ndarray, "i j k"]:
    """Return the quality map of one scan."""
    return paint_quality(points_mm, score, scan.image.shape, scan.affine, config.quality)
