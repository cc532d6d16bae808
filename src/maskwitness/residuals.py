"""Pairs to scores: what disagreement is usual, how unusual each pair is, the median over witnesses.

Two passes over the pairs in blocks: :func:`fit_baseline` sums, :func:`score_patches` judges. The
sums are integers, so no order of blocks can change a bit of the result.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, sqrt

import numpy as np
from jaxtyping import Bool, Float64, Int64

from maskwitness.config import ResidualSettings
from maskwitness.kernels.scores import FIXED, add_to_bins, medians_into, residuals_into
from maskwitness.records import Baseline, Pairs, Scores

BLOCK = 1 << 20  # pairs summed in int64 before Python's integers take over

NO_IMAGE = "the patch has no image contrast"
NO_WITNESS = "no witness"
NO_USABLE_PAIR = "no usable pair"


def bin_edges(epsilon: float, size: int, bins: int) -> Int64[np.ndarray, " edges"]:
    """Return the lowest integer dist2 of each of the equal MSE bins of [0, ε).

    Method: M12
    """
    width = Fraction(repr(epsilon)) * size**2 * 255**2 / bins
    return np.array([ceil(b * width) for b in range(bins)], dtype=np.int64)


@dataclass(slots=True)
class _Sums:
    """Exact sums of one bin; Python's integers, because billions of squares outgrow 64 bits."""

    count: int = 0
    first: int = 0
    second: int = 0
    largest: int = 0

    def add(self, row: Int64[np.ndarray, " 4"]) -> None:
        count, first, second, largest = (int(value) for value in row)
        self.count += count
        self.first += first
        self.second += second
        self.largest = max(self.largest, largest)

    def mean(self) -> float:
        return float(Fraction(self.first, self.count * FIXED)) if self.count else np.nan

    def std(self) -> float:
        if self.count < 2:
            return np.nan
        spread = self.second - Fraction(self.first * self.first, self.count)
        return sqrt(float(spread / (self.count - 1) / FIXED**2))

    def min_iou(self) -> float:
        return 1.0 - self.largest / FIXED if self.count else np.nan


@dataclass(slots=True)
class BaselineFit:
    """A baseline in the making: blocks of pairs in any order, then :meth:`finish`."""

    epsilon: float
    size: int
    settings: ResidualSettings
    edges: Int64[np.ndarray, " edges"] = field(init=False)
    sums: list[_Sums] = field(init=False)

    def __post_init__(self) -> None:
        self.edges = bin_edges(self.epsilon, self.size, self.settings.bins)
        self.sums = [_Sums() for _ in range(self.settings.bins)]

    def add(self, pairs: Pairs) -> None:
        """Add a block of pairs.

        Method: M12
        """
        for first in range(0, len(pairs.dist2), BLOCK):
            part = slice(first, first + BLOCK)
            block = np.zeros((self.settings.bins, 4), np.int64)
            add_to_bins(
                pairs.dist2[part],
                pairs.intersection[part],
                pairs.union[part],
                self.edges,
                block,
            )
            for sums, row in zip(self.sums, block, strict=True):
                sums.add(row)

    def finish(self) -> Baseline:
        """Return mean, deviation and smallest IoU of each bin."""
        bins = self.settings.bins
        count = np.array([sums.count for sums in self.sums], dtype=np.int64)
        return Baseline(
            low=np.arange(bins) * self.epsilon / bins,
            high=np.arange(1, bins + 1) * self.epsilon / bins,
            count=count,
            mean=np.array([sums.mean() for sums in self.sums]),
            std=np.array([sums.std() for sums in self.sums]),
            min_iou=np.array([sums.min_iou() for sums in self.sums]),
            used=count >= self.settings.min_pairs,
        )


def fit_baseline(
    blocks: Iterable[Pairs], epsilon: float, size: int, settings: ResidualSettings
) -> Baseline:
    """Return what mask disagreement is usual at each image distance.

    Method: M12
    """
    fit = BaselineFit(epsilon, size, settings)
    for pairs in blocks:
        fit.add(pairs)
    return fit.finish()


def residuals_of(
    pairs: Pairs, baseline: Baseline, edges: Int64[np.ndarray, " edges"]
) -> Float64[np.ndarray, " pairs"]:
    """Return how unusual the mask disagreement of each pair is, NaN in bins that are not used.

    Method: M13
    """
    out = np.empty(len(pairs.dist2))
    residuals_into(
        pairs.dist2,
        pairs.intersection,
        pairs.union,
        edges,
        baseline.mean,
        baseline.std,
        baseline.used,
        out,
    )
    return out


def score_patches(
    pairs: Pairs,
    baseline: Baseline,
    edges: Int64[np.ndarray, " edges"],
    has_image: Bool[np.ndarray, " patches"],
    area: Float64[np.ndarray, " bank"],
) -> Scores:
    """Return the median residual of each row of a block, or the reason why there is none.

    ``has_image`` is that of the patches that are scored; ``area``, the number of samples in a mask,
    that of the patches that may testify.

    Method: M14
    """
    residual = np.empty(len(pairs.offset) - 1)
    medians_into(residuals_of(pairs, baseline, edges), pairs.offset, residual)
    usual_area = np.empty(len(residual))
    medians_into(area[pairs.witness], pairs.offset, usual_area)
    witnesses = np.diff(pairs.offset)
    rows = slice(pairs.first, pairs.first + len(residual))
    reason = np.full(len(residual), "", dtype=object)
    reason[np.isnan(residual)] = NO_USABLE_PAIR
    reason[witnesses == 0] = NO_WITNESS
    reason[~has_image[rows]] = NO_IMAGE
    return Scores(residual=residual, witnesses=witnesses, reason=reason, usual_area=usual_area)
