"""Sums over pairs and medians over witnesses (Methods M12 to M14)."""

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, UInt16

from maskwitness.kernels._jit import kernel

FIXED = 1 << 20  # mask distances are summed in units of 2⁻²⁰


@kernel
def bin_of(dist2: int, edges: Int64[np.ndarray, " edges"]) -> int:
    """Return the bin that holds an integer distance; ``edges`` are the bins' lowest integers."""
    return int(np.searchsorted(edges, dist2, side="right")) - 1


@kernel
def add_to_bins(
    dist2: Int32[np.ndarray, " pairs"],
    intersection: Int64[np.ndarray, " pairs"] | UInt16[np.ndarray, " pairs"],
    union: Int64[np.ndarray, " pairs"] | UInt16[np.ndarray, " pairs"],
    edges: Int64[np.ndarray, " edges"],
    sums: Int64[np.ndarray, "bins 4"],
) -> None:
    """Add pairs to the integer sums of their bins: count, Σ d, Σ d², largest d.

    Σ d² of up to 2²² pairs fits: each is at most 2⁴⁰. Callers add block by block in Python.
    """
    for p in range(len(dist2)):
        fixed = 0
        if union[p] > 0:
            apart = np.int64(union[p]) - np.int64(intersection[p])
            fixed = (2 * FIXED * apart + union[p]) // (2 * np.int64(union[p]))
        b = bin_of(dist2[p], edges)
        sums[b, 0] += 1
        sums[b, 1] += fixed
        sums[b, 2] += fixed * fixed
        sums[b, 3] = max(sums[b, 3], fixed)


@kernel
def residuals_into(
    dist2: Int32[np.ndarray, " pairs"],
    intersection: UInt16[np.ndarray, " pairs"],
    union: UInt16[np.ndarray, " pairs"],
    edges: Int64[np.ndarray, " edges"],
    mean: Float64[np.ndarray, " bins"],
    std: Float64[np.ndarray, " bins"],
    used: Bool[np.ndarray, " bins"],
    out: Float64[np.ndarray, " pairs"],
) -> None:
    """Write the residual of each pair, NaN in bins that are not used."""
    for p in range(len(dist2)):
        b = bin_of(dist2[p], edges)
        distance = 0.0
        if union[p] > 0:
            distance = 1.0 - float(intersection[p]) / float(union[p])
        out[p] = (mean[b] - distance) / (std[b] + 1e-6) if used[b] else np.nan


@kernel
def medians_into(
    values: Float64[np.ndarray, " pairs"],
    offset: Int64[np.ndarray, " rows_plus_1"],
    out: Float64[np.ndarray, " rows"],
) -> None:
    """Write the median of each row's values that are numbers, NaN where there is none."""
    for r in range(len(offset) - 1):
        row = values[offset[r] : offset[r + 1]]
        row = np.sort(row[~np.isnan(row)])
        half = len(row) // 2
        if len(row) == 0:
            out[r] = np.nan
        elif len(row) % 2:
            out[r] = row[half]
        else:
            out[r] = (row[half - 1] + row[half]) / 2
