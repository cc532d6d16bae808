import math
from itertools import pairwise

import numpy as np
import pytest

from maskwitness.config import QualitySettings
from maskwitness.geometry import to_world
from maskwitness.quality import paint_quality, reach_limit_mm
from tests.shapes import ONE, voxels_of

NAN = math.nan
PAPER = QualitySettings()  # λ = 1.5 mm
LINE = np.array([[5.0, 5.0, k] for k in range(20)])
SHEARED = np.array(
    [[0.5, 0.1, -0.05, 3.0], [-0.1, 0.45, 0.2, -8.0], [0.02, -0.15, 0.8, 1.0], [0, 0, 0, 1]]
)


def doubt(score: float) -> float:
    return 1 - 1 / (1 + math.exp(-score))


def paint(points, score, shape=(11, 11, 20), affine=ONE, settings=PAPER) -> np.ndarray:
    places = np.array(points, dtype=np.float64).reshape(-1, 3)
    return paint_quality(places, np.array(score, dtype=np.float64), shape, affine, settings)


class TestOnALine:
    def test_on_the_centreline_quality_is_the_squashed_score(self):
        scores = np.linspace(-6, 4, 20)
        quality = paint(LINE, scores)
        expected = 1 / (1 + np.exp(-scores))
        np.testing.assert_allclose(quality[5, 5], expected, rtol=1e-6)

    def test_beside_it_doubt_fades_as_a_bell(self):
        quality = paint(LINE, np.full(20, -2.0))
        for away in range(6):
            weight = math.exp(-((away / 1.5) ** 2) / 2)
            expected = 1 - doubt(-2.0) * weight
            for voxel in ((5 + away, 5, 9), (5, 5 - away, 0), (5 - away, 5, 19)):
                assert quality[voxel] == pytest.approx(expected, rel=1e-6), voxel
        diagonal = 1 - doubt(-2.0) * math.exp(-(2 / 1.5**2) / 2)
        assert quality[6, 6, 3] == pytest.approx(diagonal, rel=1e-6)

    def test_each_voxel_takes_its_nearest_point(self):
        scores = np.where(np.arange(20) < 10, -5.0, 5.0)
        quality = paint(LINE, scores)
        assert quality[7, 5, 9] < 0.8
        assert quality[7, 5, 10] > 0.99

    def test_distances_are_in_millimetres(self):
        affine = np.diag([0.5, 3.0, 1.0, 1.0])
        quality = paint([[2.5, 15.0, 5.0]], [-2.0], affine=affine)
        assert quality[8, 5, 5] == pytest.approx(1 - doubt(-2.0) * math.exp(-0.5), rel=1e-6)
        assert quality[5, 6, 5] == pytest.approx(1 - doubt(-2.0) * math.exp(-2.0), rel=1e-6)


class TestScores:
    def test_of_unscored_points_are_nothing_known(self):
        assert paint(LINE, np.full(20, NAN))[5, 5, 7] == 0.5

    def test_that_are_better_never_give_worse_quality(self):
        maps = [paint(LINE, np.full(20, s)) for s in (-8.0, -3.0, -0.1, 0.0, 0.1, 3.0)]
        for worse, better in pairwise(maps):
            assert (worse <= better).all()
            assert (worse < better)[5, 5].all()

    @pytest.mark.parametrize(("score", "quality"), [(-1e6, 0.0), (-745.0, 0.0), (1e6, 1.0)])
    def test_that_are_extreme_neither_overflow_nor_warn(self, score, quality):
        assert paint(LINE, np.full(20, score))[5, 5, 7] == quality

    def test_only_where_two_points_are_equally_near_the_first_counts(self):
        points = [[2.0, 5.0, 5.0], [8.0, 5.0, 5.0]]
        for scores in ([-4.0, 4.0], [4.0, -4.0]):
            quality = paint(points, scores)
            expected = 1 - doubt(scores[0]) * math.exp(-((3 / 1.5) ** 2) / 2)
            assert quality[5, 5, 5] == pytest.approx(expected, rel=1e-6)

    def test_of_a_junctions_several_points_the_first_counts(self):
        assert paint([[5.0, 5, 5]] * 3, [-1.0, 4.0, 4.0])[5, 5, 5] == pytest.approx(1 - doubt(-1.0))


class TestReach:
    def test_is_883_mm_as_the_method_says(self):
        assert reach_limit_mm(PAPER) == pytest.approx(8.83, abs=0.005)

    def test_beyond_it_quality_is_one_to_the_last_bit(self):
        fine = np.diag([0.25, 0.25, 0.25, 1])
        quality = paint([[0.0, 0, 0]], [-50.0], (60, 1, 1), fine)[:, 0, 0]
        distance = np.arange(60) * 0.25
        assert (quality[distance > reach_limit_mm(PAPER)] == 1.0).all()
        assert (quality[distance < 8.0] < 1.0).all()
        whole = np.float32(1 - np.exp(-((distance / 1.5) ** 2) / 2))  # without a limit
        np.testing.assert_array_equal(quality, whole)

    def test_is_as_the_settings_say(self):
        quality = paint(LINE, np.full(20, -2.0), settings=QualitySettings(reach_mm=0.2))
        assert quality[5, 5, 5] == pytest.approx(1 - doubt(-2.0))
        assert quality[6, 5, 5] == pytest.approx(1 - doubt(-2.0) * math.exp(-12.5), rel=1e-6)
        assert (quality[7:] == 1.0).all()


class TestGrid:
    def test_without_points_quality_is_one_everywhere(self):
        quality = paint(np.empty((0, 3)), [])
        assert quality.dtype == np.float32
        assert quality.shape == (11, 11, 20)
        assert (quality == 1.0).all()

    def test_points_out_of_all_reach_change_nothing(self):
        assert (paint([[500.0, 0, 0]], [-9.0]) == 1.0).all()

    def test_points_just_outside_the_volume_still_count(self):
        assert paint([[-1.0, 5, 5]], [-9.0])[0, 5, 5] < 0.3

    @pytest.mark.parametrize("affine", [ONE, SHEARED], ids=["straight", "sheared"])
    @pytest.mark.parametrize("shape", [(19, 8, 23), (1, 1, 1), (8, 16, 9)])
    def test_equals_a_search_of_all_points(self, affine, shape):
        rng = np.random.default_rng(4)
        points = to_world(rng.uniform(0, 20, (70, 3)), affine)
        scores = rng.normal(-1, 3, 70)
        voxels = voxels_of(shape)
        apart = to_world(voxels, affine)[:, None] - points[None]
        distance = np.sqrt((apart**2).sum(axis=-1))
        q = 1 / (1 + np.exp(-scores[distance.argmin(axis=1)]))
        expected = 1 - (1 - q) * np.exp(-((distance.min(axis=1) / 1.5) ** 2) / 2)
        np.testing.assert_allclose(
            paint(points, scores, shape, affine).ravel(), expected, rtol=1e-6, atol=1e-7
        )

    def test_the_order_of_points_does_not_matter_without_ties(self):
        rng = np.random.default_rng(5)
        points, scores = rng.uniform(0, 20, (60, 3)), rng.normal(size=60)
        order = rng.permutation(60)
        np.testing.assert_array_equal(paint(points, scores), paint(points[order], scores[order]))
