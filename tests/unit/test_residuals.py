import math
import statistics
from fractions import Fraction

import numpy as np
import pytest

from maskwitness import residuals
from maskwitness.config import ResidualSettings
from maskwitness.records import Baseline, Pairs, Scores
from maskwitness.residuals import (
    NO_IMAGE,
    NO_USABLE_PAIR,
    NO_WITNESS,
    BaselineFit,
    bin_edges,
    fit_baseline,
    residuals_of,
    score_patches,
)

FOUR_BINS = ResidualSettings(bins=4, min_pairs=2)
SIZE = 4  # at ε = 0.01 the limit is 10404, so each of four bins is 2601 wide


def pairs_of(rows: list[list[tuple[int, int, int]]], first: int = 0, witness: int = 0) -> Pairs:
    """Pairs from (dist2, intersection, union), one list a patch."""
    flat = np.array([pair for row in rows for pair in row], dtype=np.int64).reshape(-1, 3)
    return Pairs(
        first=first,
        offset=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        witness=np.full(len(flat), witness, np.int32),
        dist2=flat[:, 0].astype(np.int32),
        intersection=flat[:, 1].astype(np.uint16),
        union=flat[:, 2].astype(np.uint16),
    )


def fit(rows, settings=FOUR_BINS) -> Baseline:
    return fit_baseline([pairs_of(rows)], 0.01, SIZE, settings)


def score(rows, baseline, has_image=True, area=(), witness=0) -> Scores:
    pairs = pairs_of(rows, witness=witness)
    image = np.broadcast_to(np.array(has_image), len(rows)).copy()
    areas = np.array([*area, *[0.0] * len(rows)])
    return score_patches(pairs, baseline, bin_edges(0.01, SIZE, 4), image, areas)


def known_baseline(mean=(0.5, 0.25, 0.1, 0.0), std=(0.1, 0.05, 0.01, 0.0), used=None) -> Baseline:
    return Baseline(
        low=np.arange(4) * 0.0025,
        high=np.arange(1, 5) * 0.0025,
        count=np.full(4, 50),
        mean=np.array(mean),
        std=np.array(std),
        min_iou=np.zeros(4),
        used=np.array([True] * 4 if used is None else used),
    )


def random_pairs(seed: int, rows: int = 60, limit: int = 10404) -> Pairs:
    rng = np.random.default_rng(seed)
    both = rng.integers(0, 12, (rows, 9))
    return pairs_of(
        [
            [(int(rng.integers(0, limit)), int(b), int(b + rng.integers(0, 4))) for b in row]
            for row in both
        ]
    )


def split(pairs: Pairs, at: list[int]) -> list[Pairs]:
    """The same pairs in blocks of rows."""
    blocks = []
    for first, end in zip([0, *at], [*at, len(pairs.offset) - 1], strict=True):
        here = slice(int(pairs.offset[first]), int(pairs.offset[end]))
        blocks.append(
            Pairs(
                first=first,
                offset=pairs.offset[first : end + 1] - pairs.offset[first],
                witness=pairs.witness[here],
                dist2=pairs.dist2[here],
                intersection=pairs.intersection[here],
                union=pairs.union[here],
            )
        )
    return blocks


def assert_same_baseline(one: Baseline, other: Baseline) -> None:
    for name in ("low", "high", "count", "mean", "std", "min_iou", "used"):
        a, b = getattr(one, name), getattr(other, name)
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert a.tobytes() == b.tobytes(), name


class TestBins:
    def test_begin_at_whole_distances(self):
        assert bin_edges(0.01, SIZE, 4).tolist() == [0, 2601, 5202, 7803]

    @pytest.mark.parametrize(
        ("epsilon", "size", "bins"), [(0.001, 24, 100), (0.3, 9, 7), (1e-7, 4, 50), (1e-5, 4, 999)]
    )
    def test_hold_a_distance_as_the_method_says(self, epsilon, size, bins):
        edges = bin_edges(epsilon, size, bins)
        limit = Fraction(repr(epsilon)) * size**2 * 255**2
        distances = sorted(
            {*range(min(50, math.ceil(limit))), *(int(e) for e in edges if e < limit)}
        )
        for dist2 in distances:
            expected = math.floor(dist2 * bins / limit)
            assert int(np.searchsorted(edges, dist2, side="right")) - 1 == expected

    def test_of_a_baseline_are_named_by_their_mse(self):
        baseline = fit([])
        assert baseline.low.tolist() == [0, 0.0025, 0.005, 0.0075]
        assert baseline.high.tolist() == [0.0025, 0.005, 0.0075, 0.01]


class TestBaseline:
    def test_counts_averages_and_spreads_each_bin(self):
        rows = [[(0, 1, 2), (2600, 3, 4)], [(2601, 1, 4), (10403, 5, 5), (10402, 0, 9)]]
        baseline = fit(rows)
        assert baseline.count.tolist() == [2, 1, 0, 2]
        np.testing.assert_array_equal(baseline.mean, [0.375, 0.75, np.nan, 0.5])
        assert baseline.std[0] == pytest.approx(math.sqrt(2) / 8, rel=1e-15)
        assert baseline.std[3] == pytest.approx(math.sqrt(0.5), rel=1e-15)
        np.testing.assert_array_equal(np.isnan(baseline.std), [False, True, True, False])
        np.testing.assert_array_equal(baseline.min_iou, [0.5, 0.25, np.nan, 0.0])
        assert baseline.used.tolist() == [True, False, False, True]

    def test_of_two_empty_masks_the_distance_is_nothing(self):
        baseline = fit([[(0, 0, 0), (1, 0, 0)]])
        assert baseline.mean[0] == baseline.std[0] == 0.0
        assert baseline.min_iou[0] == 1.0

    def test_a_bin_is_used_from_its_least_number_of_pairs_on(self):
        settings = ResidualSettings(bins=4, min_pairs=3)
        assert fit([[(0, 1, 2)] * 2], settings).used.tolist() == [False] * 4
        assert fit([[(0, 1, 2)] * 3], settings).used.tolist() == [True, False, False, False]

    def test_of_no_pairs_has_no_numbers(self):
        baseline = fit_baseline([], 0.01, SIZE, FOUR_BINS)
        assert baseline.count.tolist() == [0] * 4
        assert np.isnan([baseline.mean, baseline.std, baseline.min_iou]).all()
        assert not baseline.used.any()

    def test_agrees_with_plain_statistics(self):
        pairs = random_pairs(1)
        baseline = fit_baseline([pairs], 0.01, SIZE, FOUR_BINS)
        counts = zip(pairs.intersection.tolist(), pairs.union.tolist(), strict=True)
        distance = np.array([1 - i / u if u else 0.0 for i, u in counts])
        for b in range(4):
            here = distance[pairs.dist2 // 2601 == b].tolist()
            assert baseline.count[b] == len(here) > 30
            assert baseline.mean[b] == pytest.approx(statistics.mean(here), abs=5e-7)
            assert baseline.std[b] == pytest.approx(statistics.stdev(here), abs=1e-6)
            assert baseline.min_iou[b] == pytest.approx(1 - max(here), abs=5e-7)

    def test_does_not_depend_on_blocks_or_their_order(self):
        pairs = random_pairs(2)
        expected = fit_baseline([pairs], 0.01, SIZE, FOUR_BINS)
        rng = np.random.default_rng(3)
        for cuts in ([30], [1, 2, 3], list(range(1, 60))):
            blocks = split(pairs, cuts)
            order = rng.permutation(len(blocks))
            shuffled = fit_baseline([blocks[n] for n in order], 0.01, SIZE, FOUR_BINS)
            assert_same_baseline(shuffled, expected)

    def test_does_not_depend_on_how_many_pairs_are_summed_at_once(self, monkeypatch):
        pairs = random_pairs(4)
        expected = fit_baseline([pairs], 0.01, SIZE, FOUR_BINS)
        for block in (1, 7, 539, 540, 541):
            monkeypatch.setattr(residuals, "BLOCK", block)
            assert_same_baseline(fit_baseline([pairs], 0.01, SIZE, FOUR_BINS), expected)

    def test_outgrows_64_bits_without_harm(self):
        whole, half = 1 << 20, 1 << 19
        fitted = BaselineFit(0.01, SIZE, FOUR_BINS)
        block = 1 << 21  # pairs: half of them wholly apart, half of them half apart
        squares = (block // 2) * (whole**2 + half**2)
        assert squares < 2**62
        for _ in range(64):
            fitted.sums[0].add(np.array([block, (block // 2) * (whole + half), squares, whole]))
        assert fitted.sums[0].second > 2**63
        baseline = fitted.finish()
        count = 64 * block
        assert baseline.count[0] == count
        assert baseline.mean[0] == 0.75
        assert baseline.std[0] == pytest.approx(0.25 * math.sqrt(count / (count - 1)), rel=1e-15)
        assert baseline.min_iou[0] == 0.0

    def test_one_block_of_the_largest_distances_fits_in_64_bits(self):
        assert residuals.BLOCK * (1 << 40) < 2**63


class TestResiduals:
    def test_are_in_units_of_the_usual_spread(self):
        pairs = pairs_of([[(0, 1, 2), (2601, 1, 4), (5202, 9, 10), (0, 4, 4)]])
        found = residuals_of(pairs, known_baseline(), bin_edges(0.01, SIZE, 4))
        expected = [0.0, -0.5 / 0.050001, (0.1 - 0.1) / 0.010001, 0.5 / 0.100001]
        np.testing.assert_allclose(found, expected, atol=1e-9)

    def test_of_worse_masks_than_usual_are_negative(self):
        pairs = pairs_of([[(0, 0, 5), (0, 5, 5)]])
        worse, better = residuals_of(pairs, known_baseline(), bin_edges(0.01, SIZE, 4))
        assert worse < -4.9
        assert better > 4.9

    def test_where_nothing_ever_differs_are_finite(self):
        pairs = pairs_of([[(7803, 5, 5), (7803, 0, 0), (7803, 0, 5)]])
        found = residuals_of(pairs, known_baseline(), bin_edges(0.01, SIZE, 4))
        np.testing.assert_allclose(found, [0.0, 0.0, -1e6])

    def test_in_unused_bins_are_no_numbers(self):
        baseline = known_baseline(used=[True, False, True, True])
        pairs = pairs_of([[(0, 1, 2), (2601, 1, 2), (5202, 1, 2)]])
        found = residuals_of(pairs, baseline, bin_edges(0.01, SIZE, 4))
        assert np.isnan(found).tolist() == [False, True, False]


class TestScores:
    def test_are_the_median_over_witnesses(self):
        # Residuals in the first bin: (0.5 - d) / 0.100001.
        rows = [
            [(0, 0, 4), (0, 3, 4), (0, 4, 4)],  # d = 1, 0.25, 0
            [(0, 0, 4), (0, 2, 4), (0, 3, 4), (0, 4, 4)],  # d = 1, 0.5, 0.25, 0
            [(0, 1, 4)],
        ]
        scores = score(rows, known_baseline())
        expected = np.array([0.25, 0.125, -0.25]) / 0.100001
        np.testing.assert_allclose(scores.residual, expected, rtol=1e-12)
        assert scores.witnesses.tolist() == [3, 4, 1]
        assert scores.reason.tolist() == ["", "", ""]

    def test_leave_out_pairs_of_unused_bins(self):
        baseline = known_baseline(used=[True, False, True, True])
        scores = score([[(0, 0, 4), (2601, 4, 4), (2601, 4, 4)]], baseline)
        np.testing.assert_allclose(scores.residual, [-0.5 / 0.100001])
        assert scores.witnesses.tolist() == [3]

    def test_that_are_missing_say_why(self):
        baseline = known_baseline(used=[True, False, True, True])
        rows: list[list[tuple[int, int, int]]] = [[(0, 1, 2)], [(2601, 1, 2)], [], []]
        scores = score(rows, baseline, has_image=[True, True, True, False])
        assert np.isnan(scores.residual).tolist() == [False, True, True, True]
        assert scores.reason.tolist() == ["", NO_USABLE_PAIR, NO_WITNESS, NO_IMAGE]
        assert (NO_USABLE_PAIR, NO_WITNESS, NO_IMAGE) == (
            "no usable pair",
            "no witness",
            "the patch has no image contrast",
        )

    def test_come_with_the_usual_size_of_the_witnesses_masks(self):
        pairs = Pairs(
            first=1,
            offset=np.array([0, 3, 3, 5]),
            witness=np.array([0, 2, 3, 0, 1], np.int32),
            dist2=np.zeros(5, np.int32),
            intersection=np.ones(5, np.uint16),
            union=np.ones(5, np.uint16),
        )
        area = np.array([10.0, 20.0, 5.0, 40.0])
        edges = bin_edges(0.01, SIZE, 4)
        scores = score_patches(
            pairs, known_baseline(), edges, np.array([False, True, True, True]), area
        )
        np.testing.assert_array_equal(scores.usual_area, [10.0, np.nan, 15.0])
        assert scores.reason.tolist() == ["", NO_WITNESS, ""]  # patches 1, 2 and 3

    def test_of_blocks_are_those_of_the_whole(self):
        pairs = random_pairs(6)
        baseline = fit_baseline([pairs], 0.01, SIZE, FOUR_BINS)
        edges, image, area = bin_edges(0.01, SIZE, 4), np.ones(60, bool), np.arange(60.0)
        whole = score_patches(pairs, baseline, edges, image, area)
        parts = [
            score_patches(block, baseline, edges, image, area)
            for block in split(pairs, [1, 20, 59])
        ]
        for name in ("residual", "witnesses", "usual_area", "reason"):
            np.testing.assert_array_equal(
                np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name)
            )
