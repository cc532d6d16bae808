import math

import nibabel
import numpy as np
import pytest

from maskwitness.errors import GeometryError
from maskwitness.geometry import (
    axes,
    check_affine,
    describe_grid,
    describe_numbers,
    invert,
    orientation,
    same_grid,
    spacing_mm,
    to_world,
)

OBLIQUE = np.array(
    [[0.5, 0.1, -0.05, 3.0], [-0.1, 0.45, 0.2, -8.0], [0.02, -0.15, 0.8, 1.0], [0, 0, 0, 1]]
)
LPS = np.array([[-0.4, 0, 0, 90.0], [0, -0.4, 0, -20.0], [0, 0, 1.1, 5.0], [0, 0, 0, 1]])
SHAPE = (20, 30, 40)


def moved(affine: np.ndarray, by: float) -> np.ndarray:
    other = affine.copy()
    other[0, 3] += by
    return other


class TestToWorld:
    def test_puts_voxels_where_the_affine_says(self):
        points = np.array([[0, 0, 0], [1, 2, 3], [10, 0, 0.5]], float)
        expected = np.array([[90, -20, 5], [89.6, -20.8, 8.3], [86, -20, 5.55]])
        np.testing.assert_allclose(to_world(points, LPS), expected)

    def test_agrees_with_nibabel(self):
        points = np.random.default_rng(0).normal(size=(50, 3)) * 100
        expected = nibabel.affines.apply_affine(OBLIQUE, points)
        np.testing.assert_allclose(to_world(points, OBLIQUE), expected, rtol=1e-13)

    def test_sums_from_left_to_right(self):
        # (1e16 + -1e16) + 1 is 1; in any other order it is 0 or 2.
        affine = np.eye(4)
        affine[0, :3] = 1.0
        assert to_world(np.array([[1e16, -1e16, 1.0]]), affine)[0, 0] == 1.0
        assert to_world(np.array([[1.0, 1e16, -1e16]]), affine)[0, 0] == 0.0

    def test_of_no_points_is_no_points(self):
        assert to_world(np.empty((0, 3)), OBLIQUE).shape == (0, 3)


class TestInvert:
    @pytest.mark.parametrize("affine", [np.eye(4), LPS, OBLIQUE], ids=["one", "lps", "oblique"])
    def test_leads_back(self, affine):
        points = np.random.default_rng(1).uniform(-50, 50, (30, 3))
        np.testing.assert_allclose(to_world(to_world(points, affine), invert(affine)), points)
        np.testing.assert_allclose(invert(affine), np.linalg.inv(affine), atol=1e-12)

    def test_is_exact_where_it_can_be(self):
        inverse = invert(np.diag([0.5, -0.25, 2.0, 1.0]))
        assert inverse.tolist() == np.diag([2.0, -4.0, 0.5, 1.0]).tolist()

    def test_of_a_flat_affine_is_refused(self):
        flat = np.eye(4)
        flat[:3, 2] = [1, 1, 0]
        with pytest.raises(GeometryError, match="its axes lie in one plane"):
            invert(flat)


class TestAxes:
    def test_spacing_is_the_length_of_a_step(self):
        np.testing.assert_allclose(spacing_mm(LPS), [0.4, 0.4, 1.1])
        affine = np.eye(4)
        affine[:3, 1] = [3, 4, 0]
        assert spacing_mm(affine).tolist() == [1, 5, 1]

    def test_axes_are_unit_rows(self):
        np.testing.assert_allclose(axes(LPS), np.diag([-1.0, -1.0, 1.0]))
        affine = np.eye(4)
        affine[:3, 1] = [3, 4, 0]
        np.testing.assert_allclose(axes(affine)[1], [0.6, 0.8, 0])

    @pytest.mark.parametrize("affine", [np.eye(4), LPS, OBLIQUE, np.eye(4)[[2, 0, 1, 3]]])
    def test_orientation_agrees_with_nibabel(self, affine):
        assert orientation(affine) == "".join(nibabel.orientations.aff2axcodes(affine))

    def test_orientation_names_where_axes_point(self):
        assert orientation(np.eye(4)) == "RAS"
        assert orientation(LPS) == "LPS"


class TestCheck:
    @pytest.mark.parametrize("affine", [np.eye(4), LPS, OBLIQUE])
    def test_a_place_in_space_passes(self, affine):
        check_affine(affine)

    def test_what_is_no_number_is_refused(self):
        for bad in (math.nan, math.inf):
            affine = np.eye(4)
            affine[1, 3] = bad
            with pytest.raises(GeometryError, match="not finite"):
                check_affine(affine)

    def test_a_voxel_without_size_is_refused_with_its_spacing(self):
        with pytest.raises(GeometryError, match=r"a voxel has no size: spacing 1 × 0 × 0\.5 mm"):
            check_affine(np.diag([1, 0, 0.5, 1.0]))

    def test_axes_in_one_plane_are_refused(self):
        affine = np.eye(4)
        affine[:3, 1] = affine[:3, 0] * -2
        with pytest.raises(GeometryError, match="two image axes point the same way"):
            check_affine(affine)

    def test_small_voxels_are_not_flat_voxels(self):
        check_affine(np.diag([1e-4, 1e-4, 1e-4, 1.0]))


class TestSameGrid:
    def test_rounding_in_a_header_is_forgiven_and_a_shift_is_not(self):
        assert same_grid(SHAPE, LPS, SHAPE, LPS)
        assert same_grid(SHAPE, LPS, SHAPE, moved(LPS, 0.0039))
        assert not same_grid(SHAPE, LPS, SHAPE, moved(LPS, 0.0041))
        assert same_grid(SHAPE, LPS, SHAPE, moved(LPS, 0.0041), tolerance_vox=0.02)

    def test_another_size_is_another_grid(self):
        assert not same_grid(SHAPE, LPS, (20, 30, 41), LPS)

    def test_a_small_turn_shows_at_the_far_corner(self):
        turned = LPS.copy()
        turned[0, 2] += 0.0005  # 0.02 mm over 39 slices
        assert not same_grid(SHAPE, LPS, SHAPE, turned)
        assert same_grid((20, 30, 2), LPS, (20, 30, 2), turned)

    def test_flipped_storage_of_the_same_place_is_another_grid(self):
        flipped = np.diag([-1.0, 1, 1, 1])
        flipped[0, 3] = 19
        assert not same_grid(SHAPE, np.eye(4), SHAPE, flipped)


class TestDescriptions:
    def test_numbers_are_written_as_people_do(self):
        assert (
            describe_numbers(np.array([0.5, 1.0, 100.0, 0.1234, 0.0]))
            == "0.5 × 1 × 100 × 0.123 × 0"
        )
        assert describe_numbers(np.array([-1.5, 2.0]), ", ") == "-1.5, 2"

    def test_a_grid_is_one_line(self):
        assert describe_grid(SHAPE, LPS) == (
            "20 × 30 × 40 voxels of 0.4 × 0.4 × 1.1 mm, axes LPS, first voxel at (90, -20, 5) mm"
        )
