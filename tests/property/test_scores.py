"""What baselines, scores and quality maps promise of any pairs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwitness.config import QualitySettings, ResidualSettings
from maskwitness.geometry import to_world
from maskwitness.quality import paint_quality, reach_limit_mm
from maskwitness.records import Pairs
from maskwitness.residuals import bin_edges, fit_baseline, residuals_of, score_patches
from tests.shapes import voxels_of

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 10**6)
BINS = ResidualSettings(bins=5, min_pairs=4)
EDGES = bin_edges(0.01, 4, 5)


def pairs_of(seed: int, rows: int = 25) -> Pairs:
    rng = np.random.default_rng(seed)
    offset = np.concatenate([[0], rng.integers(0, 9, rows).cumsum()]).astype(np.int64)
    both = rng.integers(0, 10, offset[-1])
    return Pairs(
        first=0,
        offset=offset,
        witness=rng.integers(0, rows, offset[-1]).astype(np.int32),
        dist2=rng.integers(0, 10404, offset[-1]).astype(np.int32),
        intersection=both.astype(np.uint16),
        union=(both + rng.integers(0, 3, offset[-1])).astype(np.uint16),
    )


def shuffled(pairs: Pairs, seed: int) -> Pairs:
    """Return the same pairs, those of each row in another order."""
    rng = np.random.default_rng(seed)
    bounds = zip(pairs.offset[:-1], pairs.offset[1:], strict=True)
    order = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in bounds]).astype(int)
    return Pairs(
        first=0,
        offset=pairs.offset,
        witness=pairs.witness[order],
        dist2=pairs.dist2[order],
        intersection=pairs.intersection[order],
        union=pairs.union[order],
    )


@quick
@given(seed=seeds)
def test_the_order_of_pairs_changes_no_bit(seed):
    one, two = pairs_of(seed), shuffled(pairs_of(seed), seed)
    usual = [fit_baseline([pairs], 0.01, 4, BINS) for pairs in (one, two)]
    assert usual[0].mean.tobytes() == usual[1].mean.tobytes()
    assert usual[0].std.tobytes() == usual[1].std.tobytes()
    image, area = np.ones(25, bool), np.arange(25.0)
    scores = [score_patches(pairs, usual[0], EDGES, image, area) for pairs in (one, two)]
    assert scores[0].residual.tobytes() == scores[1].residual.tobytes()
    assert scores[0].usual_area.tobytes() == scores[1].usual_area.tobytes()


@quick
@given(seed=seeds)
def test_scores_lie_among_the_residuals_of_their_row(seed):
    pairs = pairs_of(seed)
    baseline = fit_baseline([pairs], 0.01, 4, BINS)
    residual = residuals_of(pairs, baseline, EDGES)
    scores = score_patches(pairs, baseline, EDGES, np.ones(25, bool), np.arange(25.0))
    for row, (start, end) in enumerate(zip(pairs.offset[:-1], pairs.offset[1:], strict=True)):
        usable = residual[start:end][~np.isnan(residual[start:end])]
        assert (scores.reason[row] == "") == (len(usable) > 0)
        if len(usable):
            assert scores.residual[row] == np.median(usable)
        assert np.isnan(scores.residual[row]) == (len(usable) == 0)


@quick
@given(seed=seeds)
def test_a_worse_mask_never_scores_better(seed):
    pairs = pairs_of(seed)
    baseline = fit_baseline([pairs], 0.01, 4, BINS)
    worse = Pairs(
        first=0,
        offset=pairs.offset,
        witness=pairs.witness,
        dist2=pairs.dist2,
        intersection=pairs.intersection,
        union=pairs.union + np.uint16(1),
    )
    image, area = np.ones(25, bool), np.arange(25.0)
    here = score_patches(pairs, baseline, EDGES, image, area).residual
    there = score_patches(worse, baseline, EDGES, image, area).residual
    np.testing.assert_array_equal(np.isnan(here), np.isnan(there))
    assert (there <= here)[~np.isnan(here)].all()


def scene(seed: int):
    """Return points, scores, a small grid and a sheared affine."""
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = np.diag(rng.uniform(0.4, 1.5, 3)) + rng.uniform(-0.2, 0.2, (3, 3))
    affine[:3, 3] = rng.normal(scale=20, size=3)
    shape = tuple(rng.integers(1, 19, 3).tolist())
    places = rng.uniform(-2, np.array(shape) + 1.0, (int(rng.integers(1, 12)), 3))
    places[len(places) // 2 :] = np.rint(places[len(places) // 2 :])  # some on voxels: ties
    score = rng.normal(-1, 4, len(places))
    score[rng.random(len(places)) < 0.2] = np.nan
    return to_world(places, affine), score, shape, affine


@quick
@given(seed=seeds, reach=st.sampled_from([0.05, 0.4, 1.5, 6.0]))
def test_quality_equals_brute_force(seed, reach):
    points, score, shape, affine = scene(seed)
    quality = QualitySettings(reach_mm=reach)
    found = paint_quality(points, score, shape, affine, quality)
    voxels = to_world(voxels_of(shape), affine)
    apart = np.sqrt(((voxels[:, None] - points[None]) ** 2).sum(axis=-1))
    nearest = apart.argmin(axis=1)
    doubt = 1 - 1 / (1 + np.exp(-np.nan_to_num(score, nan=0.0)))
    expected = 1 - doubt[nearest] * np.exp(-((apart.min(axis=1) / reach) ** 2) / 2)
    # Where two points are equally near to the last bit, another way to sum may choose the other.
    two = np.sort(apart, axis=1)[:, :2]
    clear = np.ones(len(voxels), bool) if len(points) == 1 else two[:, 1] - two[:, 0] > 1e-9
    np.testing.assert_allclose(found.ravel()[clear], expected[clear], atol=1e-6)
    far = apart.min(axis=1) > reach_limit_mm(quality) * (1 + 1e-9)
    assert (found.ravel()[far] == 1.0).all()


@quick
@given(seed=seeds)
def test_quality_is_a_weight_and_only_falls_as_scores_fall(seed):
    points, score, shape, affine = scene(seed)
    here = paint_quality(points, score, shape, affine, QualitySettings())
    there = paint_quality(points, score - 1.5, shape, affine, QualitySettings())
    assert ((here >= 0) & (here <= 1)).all()
    assert (there <= here).all()
    assert here.shape == shape
    assert here.dtype == np.float32
