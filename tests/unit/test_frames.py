import math

import numpy as np
import pytest

from maskwitness.centreline import trace_graph
from maskwitness.errors import GeometryError
from maskwitness.frames import tangents, transport_frames
from maskwitness.records import Frames
from tests.shapes import ONE, drawing, graph_of, torus

X, Y, Z = np.eye(3).tolist()


def assert_orthonormal(frames: Frames, tolerance: float = 1e-6) -> None:
    axes = np.stack([frames.tangent, frames.normal, frames.binormal], axis=1)
    np.testing.assert_allclose(
        axes @ axes.transpose(0, 2, 1), np.broadcast_to(np.eye(3), axes.shape), atol=tolerance
    )
    assert (np.linalg.det(axes) > 0).all()


def helix(turns: float, steps: int, radius: float = 5.0, rise: float = 2.0) -> np.ndarray:
    """Points of a helix that climbs 2π · ``rise`` a turn."""
    angle = np.linspace(0, 2 * np.pi * turns, steps * int(turns) + 1)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), rise * angle], axis=1)


def twist_on_a_helix(steps: int, radius: float = 5.0, rise: float = 2.0) -> float:
    """The angle, in radians, by which the last frame is off the analytic one after three turns.

    Against Frenet's frame, one that does not twist turns by -τ along the curve.
    """
    path = helix(3, steps, radius, rise)
    frames = transport_frames(graph_of([path]), ONE)
    speed = math.hypot(radius, rise)
    # A chord has the direction of the tangent half a step on.
    middle = (np.arange(len(path) - 1) + 0.5) * 2 * np.pi / steps
    frenet_n = np.stack([-np.cos(middle), -np.sin(middle), 0 * middle], axis=1)
    frenet_b = np.stack(
        [rise * np.sin(middle), -rise * np.cos(middle), np.full_like(middle, radius)], axis=1
    )
    normal = frames.normal[:-1]
    turned = np.arctan2((normal * frenet_b / speed).sum(axis=1), (normal * frenet_n).sum(axis=1))
    expected = -rise / speed * (middle - middle[0])
    off = turned - turned[0] - expected
    return float(abs((off[-1] + np.pi) % (2 * np.pi) - np.pi))


class TestTangents:
    def test_point_from_each_point_to_the_next_and_the_last_keeps_its_own(self):
        graph = graph_of([[[0, 0, 0], [2, 0, 0], [2, 3, 0], [2, 3, 4]]])
        assert tangents(graph, ONE).tolist() == [X, Y, Z, Z]

    def test_do_not_cross_from_one_branch_to_the_next(self):
        graph = graph_of([[[0, 0, 0], [1, 0, 0]], [[9, 9, 9], [9, 8, 9], [9, 7, 9]]], [-1, -1])
        assert tangents(graph, ONE).tolist() == [X, X, [0, -1, 0], [0, -1, 0], [0, -1, 0]]

    def test_of_single_points_are_the_image_axis_k_wherever_they_stand(self):
        affine = np.array([[0, 0, 2.0, 0], [1, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 1]])
        graph = graph_of([[[5, 5, 5]], [[0, 0, 0], [0, 1, 0]], [[7, 7, 7]]], [-1, -1, -1])
        assert tangents(graph, affine).tolist() == [X, Y, Y, X]

    def test_are_in_millimetres_not_in_voxels(self):
        graph = trace_graph(drawing("#. .#"), np.diag([3.0, 4.0, 1.0, 1.0]))
        np.testing.assert_allclose(tangents(graph, np.diag([3.0, 4, 1, 1])), [[0.6, 0.8, 0]] * 2)

    def test_of_points_on_top_of_each_other_are_refused_by_number(self):
        graph = graph_of([[[0, 0, 0], [1, 0, 0], [1, 0, 0], [2, 0, 0]]])
        with pytest.raises(GeometryError, match="point 1 lies where the next one lies"):
            tangents(graph, ONE)


class TestFirstFrame:
    def test_the_first_normal_is_the_image_axis_most_across_the_vessel(self):
        frames = transport_frames(graph_of([[[0, 0, 0], [5, 4, 1]]]), ONE)
        tangent = np.array([5, 4, 1]) / math.sqrt(42)
        expected = np.array(Z) - tangent[2] * tangent
        np.testing.assert_allclose(frames.normal[0], expected / np.linalg.norm(expected))

    @pytest.mark.parametrize(("way", "normal"), [(X, Y), (Y, X), (Z, X)])
    def test_of_equal_axes_it_is_the_first(self, way, normal):
        frames = transport_frames(graph_of([[[0, 0, 0], way]]), ONE)
        assert frames.normal[0].tolist() == normal

    def test_a_single_point_has_a_frame(self):
        frames = transport_frames(graph_of([[[1, 2, 3]]]), ONE)
        assert frames.tangent.tolist() == [Z]
        assert frames.normal.tolist() == [X]
        assert frames.binormal.tolist() == [Y]

    def test_in_a_sheared_grid_it_is_orthonormal_all_the_same(self):
        affine = np.array([[1, 0.5, 0.3, 0], [0, 1, -0.4, 0], [0.2, 0, 1, 0], [0, 0, 0, 1]])
        assert_orthonormal(transport_frames(graph_of([[[0, 0, 0]]]), affine), 1e-12)


class TestRightAngles:
    @pytest.mark.parametrize("sign", [1, -1], ids=["into +n", "into -n"])
    def test_a_turn_straight_into_the_normal_turns_the_frame_with_it(self, sign):
        frames = transport_frames(graph_of([[[0, 0, 0], [1, 0, 0], [1, sign, 0]]]), ONE)
        assert frames.normal[0].tolist() == Y
        assert frames.tangent[1].tolist() == [0, sign, 0]
        assert frames.normal[1].tolist() == [-sign, 0, 0]  # +n turns back, -n turns on
        assert frames.binormal.tolist() == [Z, Z, Z]  # the axis of the turn stays

    @pytest.mark.parametrize("sign", [1, -1])
    def test_a_turn_into_the_binormal_leaves_the_normal(self, sign):
        frames = transport_frames(graph_of([[[0, 0, 0], [1, 0, 0], [1, 0, sign]]]), ONE)
        assert frames.normal.tolist() == [Y, Y, Y]

    def test_a_turn_that_is_nearly_right_angled_is_still_orthonormal(self):
        for slip in (0.0, 1e-15, 1e-9, 9e-7, 1.1e-6, 1e-5, 1e-3):
            turn = [1 + slip, math.sqrt(1 - slip**2), 0]
            assert_orthonormal(transport_frames(graph_of([[[0, 0, 0], [1, 0, 0], turn]]), ONE))

    def test_a_walk_around_a_square_comes_home_as_it_left(self):
        square = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
        frames = transport_frames(graph_of([square]), ONE)
        assert_orthonormal(frames, 0.0)
        assert frames.normal[4].tolist() == frames.normal[0].tolist()

    def test_a_turn_back_keeps_the_normal(self):
        frames = transport_frames(graph_of([[[0, 0, 0], [1, 0, 0], [0, 0, 0]]]), ONE)
        assert frames.normal.tolist() == [Y, Y, Y]


class TestTwist:
    def test_a_straight_vessel_has_one_frame(self):
        path = np.outer(np.arange(9), [1.0, 2.0, -0.5])
        frames = transport_frames(graph_of([path]), ONE)
        np.testing.assert_allclose(frames.normal, frames.normal[:1].repeat(9, axis=0), atol=1e-15)

    def test_a_tilted_circle_twists_by_less_the_finer_it_is_walked(self):
        # Projecting shortens the part of the normal in the plane, so it is exact in the limit only.
        across, along = np.array([0.36, 0.48, -0.8]), np.array([0.8, -0.6, 0.0])
        drift = []
        for steps in (64, 256):
            angle = np.linspace(0, 2 * np.pi, steps + 1)
            circle = 4 * (np.outer(np.cos(angle), across) + np.outer(np.sin(angle), along))
            frames = transport_frames(graph_of([circle]), ONE)
            out_of_plane = frames.normal @ np.cross(across, along)
            assert_orthonormal(frames, 1e-12)
            assert 0.1 < abs(out_of_plane[0]) < 0.9  # neither in the plane nor across it
            drift.append(np.abs(out_of_plane - out_of_plane[0]).max())
        assert drift[0] < 0.12
        assert drift[1] < 0.3 * drift[0]

    def test_a_circle_in_the_image_plane_keeps_its_axis(self):
        angle = np.linspace(0, 2 * np.pi, 33)
        circle = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
        frames = transport_frames(graph_of([circle]), ONE)
        np.testing.assert_allclose(frames.normal, [Z] * 33, atol=1e-12)

    def test_a_helix_twists_as_little_as_its_rotation_minimising_frame(self):
        frenet_twist = 3 * 2 * np.pi * 2.0 / math.hypot(5, 2)  # what Frenet's frame would do
        assert frenet_twist > 6
        coarse, fine = twist_on_a_helix(48), twist_on_a_helix(192)
        assert coarse < 0.05
        assert fine < 0.35 * coarse

    def test_a_voxel_helix_stays_orthonormal(self):
        voxels = np.unique(np.rint(helix(2, 60)).astype(int), axis=0, return_index=True)[1]
        path = np.rint(helix(2, 60))[np.sort(voxels)]
        assert_orthonormal(transport_frames(graph_of([path]), ONE), 1e-9)


class TestBranches:
    def test_a_child_starts_from_its_parents_last_frame(self):
        stem = [[0, 0, 0], [0, 0, 1], [0.3, 0.1, 2]]
        child = [[0.3, 0.1, 2], [1, 0.5, 3], [2, 1, 3.5]]
        frames = transport_frames(graph_of([stem, child], [-1, 0]), ONE)
        whole = transport_frames(graph_of([stem + child[1:]]), ONE)
        # As if there were no junction, but for the junction point, which is a point of both.
        np.testing.assert_allclose(frames.normal[3:], whole.normal[2:], atol=1e-12)

    def test_the_parent_is_asked_and_not_the_branch_before(self):
        stem, bend = [[0, 0, 0], [0, 0, 1]], [[0, 0, 1], [0, 1, 1], [1, 1, 1]]
        child = [[0, 0, 1], [0, 0, 2]]
        frames = transport_frames(graph_of([stem, bend, child], [-1, 0, 0]), ONE)
        assert frames.normal[-1].tolist() == frames.normal[1].tolist() == X
        assert frames.normal[4].tolist() != X

    def test_a_branch_without_a_parent_starts_anew(self):
        bend, other = [[0, 0, 0], [0, 1, 0], [1, 1, 0.5]], [[5, 5, 5], [5, 5, 6]]
        frames = transport_frames(graph_of([bend, other], [-1, -1]), ONE)
        assert frames.normal[-1].tolist() == X

    def test_a_child_that_turns_off_at_a_right_angle_has_a_frame(self):
        frames = transport_frames(
            graph_of([[[0, 0, 0], [0, 0, 1]], [[0, 0, 1], [1, 0, 1]]], [-1, 0]), ONE
        )
        assert_orthonormal(frames, 0.0)
        assert frames.normal[2].tolist() == [0, 0, -1]

    def test_a_closed_loop_has_frames_all_round(self):
        graph = trace_graph(torus(), ONE)
        assert_orthonormal(transport_frames(graph, ONE), 1e-9)
