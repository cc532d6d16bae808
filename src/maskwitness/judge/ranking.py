"""How well a ranking puts the bad before the good."""

import numpy as np
from jaxtyping import Bool, Float

Number = float | None  # None: undefined, because there is no bad or no good example


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


def share(of: Bool[np.ndarray, " n"]) -> Number:
    """Return the share of those that are true; None of none."""
    return float(of.mean()) if len(of) else None
