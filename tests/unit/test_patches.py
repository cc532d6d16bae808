import math

import numpy as np
import pytest

from maskwitness.config import PatchSettings
from maskwitness.patches import angles_to_axes, circle, sample_patches
from maskwitness.records import Frames, Patches
from tests.shapes import ONE, graph_of, scan_of

PAPER = PatchSettings()  # 24 samples, 0.125 mm apart
FOUR = PatchSettings(extent_mm=4.0, size=4)  # samples at -1.5, -0.5, 0.5 and 1.5 mm
X, Y, Z = np.eye(3)
RAMP = np.fromfunction(lambda i, j, k: 3 * i + 5 * j + 7 * k, (12, 13, 14))


def frame(tangent: np.ndarray, normal: np.ndarray, points: int = 1) -> Frames:
    axes = [np.array(v, float) for v in (tangent, normal, np.cross(tangent, normal))]
    t, n, b = (np.tile(axis, (points, 1)) for axis in axes)
    return Frames(tangent=t, normal=n, binormal=b)


def cut(data, centre, settings=PAPER, mask=None, affine=ONE, frames=None, **rescale) -> Patches:
    """Cut one patch, across the k axis unless frames say otherwise: u along i, v along j."""
    graph = graph_of([[centre]], affine=affine)
    scan = scan_of(np.asarray(data), mask, affine, **rescale)
    return sample_patches(scan, graph, frames or frame(Z, X), settings)


def mask_of(patches: Patches, size: int = 24) -> np.ndarray:
    bits = np.unpackbits(patches.mask, axis=1, count=size * size)
    return bits.reshape(-1, size, size)


class TestCircle:
    def test_of_24_samples_holds_448(self):
        assert circle(24).sum() == 448

    def test_is_the_same_from_all_sides(self):
        for size in (4, 9, 24, 33, 128):
            inside = circle(size)
            for other in (inside.T, inside[::-1], inside[:, ::-1]):
                np.testing.assert_array_equal(inside, other)
            assert abs(inside.mean() - math.pi / 4) < 0.12

    def test_touches_the_middle_of_each_side_but_no_corner(self):
        assert circle(4).astype(int).tolist() == [[0, 1, 1, 0], [1] * 4, [1] * 4, [0, 1, 1, 0]]


class TestImage:
    def test_of_a_ramp_is_the_ramp(self):
        # Steps of 1/8 and whole slopes: every value is exact in binary.
        centre = np.array([5.0, 6.0, 7.0])
        patches = cut(RAMP, centre)
        offset = (np.arange(24) - 11.5) * 0.125
        values = 3 * (5 + offset[:, None]) + 5 * (6 + offset[None, :]) + 49
        low, high = values.min(), values.max()
        assert patches.low_hu.tolist() == [low]
        assert patches.high_hu.tolist() == [high]
        expected = np.floor((values - low) / (high - low) * 255 + 0.5)
        np.testing.assert_array_equal(patches.image[0], np.where(circle(24), expected, 0))

    def test_is_linear_between_voxels_along_each_axis_in_turn(self):
        data = np.zeros((2, 2, 2))
        data[1, 1, 1] = 800.0
        patches = cut(data, [0.5, 0.5, 0.25], PatchSettings(extent_mm=2.0, size=4))
        # Samples at 0 (clamped), 0.25, 0.75 and 1 (clamped) along i and j; a quarter along k.
        assert patches.high_hu.tolist() == [200.0]
        at = np.array([0.0, 0.25, 0.75, 1.0])
        expected = np.floor(at[:, None] * at[None, :] * 255 + 0.5)
        np.testing.assert_array_equal(patches.image[0], np.where(circle(4), expected, 0))

    def test_runs_along_the_normal_first_and_the_binormal_second(self):
        rising = cut(RAMP * 0 + np.arange(12).reshape(-1, 1, 1), [5, 6, 7])
        assert (np.diff(rising.image[0][:, 12].astype(int)) > 0).all()  # u along i
        across = cut(RAMP * 0 + np.arange(13).reshape(1, -1, 1), [5, 6, 7])
        np.testing.assert_array_equal(across.image[0], rising.image[0].T)

    def test_of_constant_values_does_not_exist(self):
        patches = cut(np.full((9, 9, 9), 40), [4, 4, 4])
        assert patches.has_image.tolist() == [False]
        assert not patches.image.any()
        assert patches.low_hu.tolist() == patches.high_hu.tolist() == [40.0]
        assert patches.area_mm2.tolist() == [448 / 64]  # its mask is kept all the same

    def test_is_normalised_over_the_corners_too(self):
        data = np.zeros((12, 12, 3))
        data[6, 6] = 100.0  # a quarter of it reaches the four samples around the centre
        data[8, 8] = 500.0  # a quarter of it reaches the far corner sample, outside the circle
        patches = cut(data, [6.0, 6.0, 1.0], FOUR)
        assert patches.high_hu.tolist() == [125.0]
        assert patches.image[0].tolist() == [[0] * 4, [0, 51, 51, 0], [0, 51, 51, 0], [0] * 4]

    def test_is_rescaled_by_slope_and_intercept(self):
        plain, scaled = cut(RAMP, [5, 6, 7]), cut(RAMP, [5, 6, 7], slope=2.0, intercept=-1024.0)
        np.testing.assert_array_equal(scaled.image, plain.image)
        assert scaled.low_hu[0] == 2 * plain.low_hu[0] - 1024
        assert scaled.high_hu[0] == 2 * plain.high_hu[0] - 1024
        assert scaled.lumen_hu[0] == pytest.approx(2 * plain.lumen_hu[0] - 1024)

    def test_of_a_negative_slope_is_the_negative(self):
        plain, negative = cut(RAMP, [5, 6, 7]), cut(RAMP, [5, 6, 7], slope=-2.0, intercept=10.0)
        assert negative.low_hu[0] == 10 - 2 * plain.high_hu[0]
        assert negative.high_hu[0] == 10 - 2 * plain.low_hu[0]
        apart = 255 - plain.image[0].astype(int) - negative.image[0]
        assert set(apart[circle(24)].tolist()) <= {-1, 0}  # halves are rounded up in both

    @pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
    def test_does_not_depend_on_how_the_file_stores_its_numbers(self, dtype):
        data = np.random.default_rng(2).integers(0, 200, (8, 8, 8))
        np.testing.assert_array_equal(
            cut(data.astype(dtype), [3.3, 4.2, 3.9]).image,
            cut(np.asfortranarray(data), [3.3, 4.2, 3.9]).image,
        )


class TestBorder:
    def test_the_samples_beyond_it_are_counted(self):
        patches = cut(RAMP, [0.0, 6.0, 7.0])
        assert patches.outside.tolist() == [8 / 24]  # 8 of 24 rows lie below -0.5
        assert cut(RAMP, [5, 6, 7]).outside.tolist() == [0.0]
        assert cut(RAMP, [11, 6, 7]).outside.tolist() == [8 / 24]
        assert cut(RAMP, [40, 6, 7]).outside.tolist() == [1.0]

    def test_half_a_voxel_beyond_the_last_centre_is_still_inside(self):
        assert cut(RAMP, [1.0, 6, 7], FOUR).outside.tolist() == [0.0]  # the first row is at -0.5
        assert cut(RAMP, [0.9, 6, 7], FOUR).outside.tolist() == [0.25]
        assert cut(RAMP, [10.0, 6, 7], FOUR).outside.tolist() == [0.0]  # the last row is at 11.5
        assert cut(RAMP, [10.1, 6, 7], FOUR).outside.tolist() == [0.25]

    def test_the_image_goes_on_as_at_the_edge(self):
        data = RAMP * 0 + np.arange(12).reshape(-1, 1, 1)
        patches = cut(data, [0.0, 6.0, 7.0])
        assert patches.low_hu.tolist() == [0.0]
        assert (patches.image[0, :12] == 0).all()  # rows at or below coordinate 0
        assert (patches.image[0, 12:, 12] > 0).all()

    def test_the_mask_goes_on_as_at_the_edge(self):
        mask = np.zeros(RAMP.shape, np.uint8)
        mask[0] = 1
        found = mask_of(cut(RAMP, [0.0, 6.0, 7.0], mask=mask))[0]
        np.testing.assert_array_equal(found[:16], circle(24)[:16])  # up to coordinate 0.5
        assert not found[16:].any()

    @pytest.mark.parametrize("shape", [(20, 20, 1), (1, 20, 20), (20, 1, 20), (1, 1, 1)])
    def test_volumes_of_one_slice_can_be_cut(self, shape):
        data = np.random.default_rng(1).normal(size=shape)
        for tangent, normal in ((Z, X), (X, Y), (Y, Z)):
            patches = cut(data, [n // 2 for n in shape], frames=frame(tangent, normal))
            assert patches.low_hu[0] >= data.min()
            assert patches.high_hu[0] <= data.max()
            assert mask_of(patches).sum() == 448
        assert cut(data, [0, 0, 0]).has_image[0] == (max(shape[:2]) > 1)


class TestMask:
    def test_takes_the_nearest_voxel_and_of_two_the_upper(self):
        mask = np.zeros(RAMP.shape, np.uint8)
        mask[5] = 1
        # Rows at 3.5, 4.5, 5.5 and 6.5: these are voxels 4, 5, 6 and 7.
        found = mask_of(cut(RAMP, [5.0, 6.0, 7.0], FOUR, mask), 4)[0]
        assert found.tolist() == [[0] * 4, [1] * 4, [0] * 4, [0] * 4]

    def test_is_cut_to_the_circle_and_packed_row_by_row(self):
        patches = cut(RAMP, [5, 6, 7], mask=np.full(RAMP.shape, 7, np.uint8))
        np.testing.assert_array_equal(patches.mask[0], np.packbits(circle(24)))
        assert patches.mask.shape == (1, 72)

    def test_whose_bits_fill_no_byte_is_padded_with_zeros(self):
        patches = cut(RAMP, [5, 6, 7], PatchSettings(extent_mm=3.0, size=5))
        assert patches.mask.shape == (1, 4)
        np.testing.assert_array_equal(patches.mask[0], np.packbits(circle(5)))

    def test_area_and_lumen_are_those_of_the_drawn_vessel(self):
        mask = np.zeros(RAMP.shape, np.uint8)
        mask[6:] = 1  # rows from coordinate 5.5 on
        patches = cut(RAMP, [5.0, 6.0, 7.0], mask=mask)
        rows = circle(24) & (np.arange(24) >= 16)[:, None]
        assert patches.area_mm2.tolist() == [rows.sum() / 64]
        offset = (np.arange(24) - 11.5) * 0.125
        values = 3 * (5 + offset[:, None]) + 5 * (6 + offset[None, :]) + 49
        assert patches.lumen_hu[0] == pytest.approx(values[rows].mean(), rel=1e-12)

    def test_of_a_round_vessel_has_its_area(self):
        i, j, _ = np.indices((80, 80, 3))
        mask = ((i - 40) ** 2 + (j - 40) ** 2 <= 400).astype(np.uint8)  # a radius of 1 mm
        data, fine = np.zeros(mask.shape), np.diag([0.05, 0.05, 0.05, 1])
        patches = cut(data, [2, 2, 0.05], PatchSettings(size=96), mask, fine)
        assert patches.area_mm2[0] == pytest.approx(math.pi, rel=0.02)

    def test_that_is_empty_has_no_lumen(self):
        patches = cut(RAMP, [5, 6, 7], mask=np.zeros(RAMP.shape, np.uint8))
        assert patches.area_mm2.tolist() == [0.0]
        assert math.isnan(patches.lumen_hu[0])


class TestAngle:
    @pytest.mark.parametrize(
        ("tangent", "degrees"),
        [
            ((0, 0, 1), 0),
            ((0, -1, 0), 0),
            ((1, 1, 0), 45),
            ((1, -1, 1), 54.7356),
            ((3, 4, 0), 36.8699),
        ],
    )
    def test_is_that_to_the_nearest_image_axis(self, tangent, degrees):
        unit = np.array([tangent]) / np.linalg.norm(tangent)
        assert angles_to_axes(unit, np.diag([0.5, 0.5, 3.0, 1.0]))[0] == pytest.approx(
            degrees, abs=1e-4
        )

    def test_is_the_image_axes_own_and_not_the_worlds(self):
        half = math.sqrt(0.5)
        turned = np.array([[half, -half, 0, 0], [half, half, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
        along_i, along_x = np.array([[half, half, 0]]), np.array([[1.0, 0, 0]])
        assert angles_to_axes(along_i, turned)[0] == pytest.approx(0, abs=1e-6)
        assert angles_to_axes(along_x, turned)[0] == pytest.approx(45)


class TestManyPoints:
    def test_each_point_has_its_own_patch(self):
        data = np.random.default_rng(3).normal(size=(9, 9, 9))
        places = [[4.2, 4, 4], [1, 1, 1], [7.7, 2, 5]]
        graph = graph_of([places])
        together = sample_patches(scan_of(data), graph, frame(Z, X, 3), PAPER)
        for n, place in enumerate(places):
            alone = cut(data, place)
            np.testing.assert_array_equal(together.image[n], alone.image[0])
            assert together.low_hu[n] == alone.low_hu[0]
            assert together.outside[n] == alone.outside[0]

    def test_the_extent_says_how_far_apart_samples_are(self):
        near, far = cut(RAMP, [5, 6, 7]), cut(RAMP, [5, 6, 7], PatchSettings(extent_mm=6.0))
        spread = near.high_hu[0] - near.low_hu[0]
        assert far.high_hu[0] - far.low_hu[0] == 2 * spread
        np.testing.assert_array_equal(far.image, near.image)
