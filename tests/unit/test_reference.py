import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from skimage import measure

from maskwitness import reference
from maskwitness.config import JoinSettings, PatchSettings, QualitySettings, ResidualSettings
from maskwitness.records import Bank, Graph, Pairs, Scan, Volume

ONE = np.eye(4)
euler_number: Any = measure.euler_number  # scikit-image has no types
NAN = math.nan


def drawing(text: str) -> np.ndarray:
    """One slice of a volume: rows are i, columns are j, # is foreground."""
    rows = [list(row) for row in text.split()]
    return (np.array(rows) == "#").astype(np.uint8)[:, :, None]


def tube(width: int, length: int = 16) -> np.ndarray:
    mask = np.zeros((length + 4, width + 4, width + 4), np.uint8)
    mask[2:-2, 2:-2, 2:-2] = 1
    return mask


def voxels(mask: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(v) for v in np.argwhere(mask).tolist()]


def torus() -> np.ndarray:
    i, j, k = np.indices((7, 21, 21)) - np.array([3, 10, 10]).reshape(3, 1, 1, 1)
    return ((np.hypot(j, k) - 7) ** 2 + i**2 <= 5).astype(np.uint8)


def path_of(graph: Graph, branch: int) -> list[tuple[int, ...]]:
    return [tuple(v) for v in graph.points_vox[graph.branch == branch].astype(int).tolist()]


class TestThinning:
    @pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6])
    def test_a_straight_tube_keeps_its_length_whether_odd_or_even(self, width):
        skeleton, filled = reference.thin(tube(width))
        assert filled == 0
        assert int(skeleton.sum()) == 16 - 2 * (width // 2)  # each end draws in by half a width

    def test_a_staircase_keeps_both_tips(self):
        stairs = drawing("##..... .##.... ..##... ...##.. ....##. .....##")
        skeleton, _ = reference.thin(stairs)
        found = voxels(skeleton)
        assert (0, 0, 0) in found
        assert (5, 6, 0) in found

    def test_a_torus_keeps_its_loop(self):
        skeleton, _ = reference.thin(torus())
        edges = reference.edges_of(skeleton)
        assert len(edges) == int(skeleton.sum())  # as many edges as nodes: one loop

    def test_a_single_voxel_stays(self):
        mask = np.zeros((3, 3, 3), np.uint8)
        mask[1, 1, 1] = 1
        assert voxels(reference.thin(mask)[0]) == [(1, 1, 1)]

    def test_an_empty_mask_gives_an_empty_graph(self):
        graph = reference.trace(np.zeros((3, 4, 5), np.uint8), ONE)
        assert len(graph.points_mm) == len(graph.parent) == 0

    def test_a_mask_that_fills_its_volume_is_thinned_from_outside(self):
        assert int(reference.thin(np.ones((9, 3, 3), np.uint8))[0].sum()) >= 7

    def test_a_cavity_is_filled_and_counted(self):
        mask = np.ones((5, 5, 9), np.uint8)
        mask[2, 2, 3:6] = 0
        skeleton, filled = reference.thin(mask)
        assert filled == 3
        assert euler_number(skeleton, 3) == 1

    def test_a_cavity_that_holds_another_object_is_left(self):
        mask = np.ones((7, 7, 7), np.uint8)
        mask[1:6, 1:6, 1:6] = 0
        mask[3, 3, 3] = 1
        assert reference.thin(mask)[1] == 0

    def test_a_hole_that_reaches_the_rim_is_no_cavity(self):
        mask = np.ones((5, 5, 5), np.uint8)
        mask[2, 2, :3] = 0
        assert not reference.fill_cavities(mask)[2, 2, 0]

    def test_thinning_keeps_the_topology_and_covers_every_voxel(self):
        rng = np.random.default_rng(5)
        for share in (0.2, 0.4, 0.6, 0.8):
            mask = (rng.random((7, 7, 7)) < share).astype(np.uint8)
            solid = reference.fill_cavities(mask)
            skeleton, _ = reference.thin(mask)
            assert euler_number(skeleton, 3) == euler_number(solid, 3)
            every = np.ones((3, 3, 3))
            assert ndimage.label(skeleton, every)[1] == ndimage.label(solid, every)[1]

    @pytest.mark.parametrize(
        ("neighbours", "simple"),
        [
            ([], False),  # alone
            ([(0, 1, 1)], True),  # an end
            ([(0, 1, 1), (2, 1, 1)], False),  # the middle of a line
            ([(0, 1, 1), (0, 1, 2), (1, 1, 2)], True),  # a corner that can be cut
            ([(0, 0, 0), (2, 2, 2)], False),
        ],
    )
    def test_a_voxel_is_simple_where_nothing_parts_and_nothing_opens(self, neighbours, simple):
        around = np.zeros((3, 3, 3), dtype=bool)
        around[1, 1, 1] = True
        for voxel in neighbours:
            around[voxel] = True
        assert reference.is_simple(around.tobytes()) is simple

    def test_the_inside_of_a_solid_is_not_simple(self):
        assert not reference.is_simple(np.ones((3, 3, 3), dtype=bool).tobytes())


class TestEdges:
    def test_of_a_corner_the_diagonal_goes(self):
        # Nodes 0 1 / . 3 in a 2 × 2 slice: 0-1 and 1-3 are steps, 0-3 the diagonal.
        assert reference.edges_of(drawing("## .#") == 1) == [(0, 1), (1, 3)]

    def test_of_a_square_three_edges_stay_for_it_has_no_loop(self):
        assert reference.edges_of(drawing("## ##") == 1) == [(0, 1), (0, 2), (1, 3)]

    def test_a_ring_of_diagonals_keeps_its_loop(self):
        assert len(reference.edges_of(drawing(".#. #.# .#.") == 1)) == 4

    @pytest.mark.parametrize("share", [0.1, 0.25, 0.4, 0.7])
    def test_as_many_loops_stay_as_the_voxels_have(self, share):
        nodes = np.random.default_rng(7).random((6, 6, 6)) < share
        components = ndimage.label(nodes, np.ones((3, 3, 3)))[1]
        cavities = ndimage.label(~np.pad(nodes, 1))[1] - 1
        loops = components + cavities - euler_number(nodes, 3)
        assert len(reference.edges_of(nodes)) - int(nodes.sum()) + components == loops


class TestGraph:
    def test_a_line_is_one_branch_from_its_wider_end(self):
        mask = np.zeros((5, 5, 14), np.uint8)
        mask[2, 2, 1:8] = 1
        mask[1:4, 1:4, 7:13] = 1
        graph = reference.trace(mask, np.diag([1, 1, 3, 1.0]))
        assert graph.parent.tolist() == [-1]
        assert path_of(graph, 0) == [(2, 2, k) for k in range(graph.order[-1] + 1, 0, -1)]
        assert graph.radius_mm[0] > graph.radius_mm[-1]
        assert graph.arc_mm.tolist() == [3.0 * order for order in graph.order]

    def test_a_y_has_a_junction_in_three_branches(self):
        graph = reference.trace(drawing("#...# .#.#. ..#.. ..#.. ..#.."), ONE)
        assert [path_of(graph, b) for b in range(3)] == [
            [(0, 0, 0), (1, 1, 0), (2, 2, 0)],
            [(2, 2, 0), (1, 3, 0), (0, 4, 0)],
            [(2, 2, 0), (3, 2, 0), (4, 2, 0)],
        ]
        assert graph.parent.tolist() == [-1, 0, 0]
        assert graph.order.tolist() == [0, 1, 2] * 3
        root2 = math.sqrt(2)
        assert graph.arc_mm.tolist() == [0, root2, root2 + root2] * 2 + [0, 1, 2]
        assert graph.radius_mm.tolist() == [1.0] * 9

    def test_a_closed_loop_begins_and_ends_at_its_root(self):
        graph = reference.trace(drawing(".#. #.# .#."), ONE)
        assert path_of(graph, 0) == [(0, 1, 0), (1, 0, 0), (2, 1, 0), (1, 2, 0), (0, 1, 0)]
        assert graph.parent.tolist() == [-1]

    def test_a_loop_on_a_stem_is_walked_once(self):
        graph = reference.trace(drawing("..#.. .#.#. ..#.. ..#.. ..#.."), ONE)
        assert path_of(graph, 0) == [(4, 2, 0), (3, 2, 0), (2, 2, 0)]
        assert path_of(graph, 1) == [(2, 2, 0), (1, 1, 0), (0, 2, 0), (1, 3, 0), (2, 2, 0)]
        assert graph.parent.tolist() == [-1, 0]

    def test_single_voxels_are_branches_of_one_point_in_the_order_of_their_index(self):
        graph = reference.trace(drawing("#.# ... #.."), ONE)
        assert graph.points_vox.tolist() == [[0, 0, 0], [0, 2, 0], [2, 0, 0]]
        assert graph.parent.tolist() == [-1, -1, -1]
        assert graph.branch.tolist() == [0, 1, 2]

    def test_the_radius_is_measured_in_millimetres_to_the_nearest_background(self):
        solid = np.ones((7, 7, 7), dtype=bool)
        assert reference.inscribed_radius_mm(solid, (3, 3, 3), ONE) == 4.0
        assert reference.inscribed_radius_mm(solid, (3, 3, 3), np.diag([3, 2, 0.5, 1.0])) == 2.0
        assert reference.inscribed_radius_mm(solid, (0, 3, 3), ONE) == 1.0

    def test_in_a_sheared_grid_the_nearest_background_may_lie_far_off_in_voxels(self):
        # j leads 3 mm along x and 0.1 mm up, so three steps along i and one back along j are
        # 0.1 mm long: out of the volume from (3, 0, 0) by the row below it.
        affine = np.array([[1, 3, 0, 0], [0, 0.1, 0, 0], [0, 0, 9, 0], [0, 0, 0, 1.0]])
        solid = np.ones((9, 1, 1), dtype=bool)
        assert reference.inscribed_radius_mm(solid, (3, 0, 0), affine) == pytest.approx(0.1)

    def test_the_radius_of_a_filled_cavity_is_that_of_the_filled_mask(self):
        mask = np.ones((5, 5, 5), np.uint8)
        mask[2, 2, 2] = 0
        assert reference.trace(mask, ONE).radius_mm.min() > 0


def graph_of(points: Any, branch: list[int], parent: list[int]) -> Graph:
    order = [branch[:i].count(b) for i, b in enumerate(branch)]
    at = np.array(points, dtype=np.float64)
    return Graph(
        points_vox=at,
        points_mm=at,
        radius_mm=np.ones(len(at)),
        branch=np.array(branch, dtype=np.int32),
        order=np.array(order, dtype=np.int32),
        arc_mm=np.zeros(len(at)),
        parent=np.array(parent, dtype=np.int32),
    )


class TestFrames:
    def test_a_straight_branch_keeps_its_first_normal(self):
        frames = reference.transport(
            graph_of([[0, 0, 0], [2, 0, 0], [5, 0, 0]], [0] * 3, [-1]), ONE
        )
        assert frames.tangent.tolist() == [[1, 0, 0]] * 3
        assert frames.normal.tolist() == [[0, 1, 0]] * 3  # j and k tie: the first
        assert frames.binormal.tolist() == [[0, 0, 1]] * 3

    def test_a_single_point_looks_along_the_image_axis_k(self):
        frames = reference.transport(graph_of([[1, 2, 3]], [0], [-1]), np.diag([1, 1, -2, 1.0]))
        assert frames.tangent.tolist() == [[0, 0, -1]]
        assert frames.normal.tolist() == [[1, 0, 0]]

    def test_a_right_angle_into_the_normal_turns_the_frame_by_the_least_angle(self):
        corner = graph_of([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 2, 0]], [0] * 4, [-1])
        frames = reference.transport(corner, ONE)
        assert frames.normal[0].tolist() == [0, 1, 0]
        assert frames.normal[1:].tolist() == [[-1, 0, 0]] * 3
        assert (frames.binormal == [0, 0, 1]).all()

    def test_a_child_goes_on_from_the_last_frame_of_its_parent(self):
        points = [[0, 0, 0], [0, 3, 4], [0, 3, 4], [0, 3, 9]]
        frames = reference.transport(graph_of(points, [0, 0, 1, 1], [-1, 0]), ONE)
        assert frames.normal[1].tolist() == [1, 0, 0]
        assert frames.normal[2].tolist() == [1, 0, 0]
        alone = reference.transport(graph_of(points, [0, 0, 1, 1], [-1, -1]), ONE)
        assert alone.normal[2].tolist() == [1, 0, 0]

    def test_frames_are_orthonormal_along_a_helix(self):
        angle = np.linspace(0, 9, 60)
        helix = np.stack([np.cos(angle), np.sin(angle), angle / 3], axis=1).tolist()
        frames = reference.transport(graph_of(helix, [0] * 60, [-1]), ONE)
        frame = np.stack([frames.tangent, frames.normal, frames.binormal], axis=1)
        assert np.allclose(frame @ frame.transpose(0, 2, 1), np.eye(3), atol=1e-12)


def sampled(data: np.ndarray, mask: np.ndarray, at: list[float], **settings: Any) -> Any:
    points = graph_of([at, [at[0] + 1, at[1], at[2]]], [0, 0], [-1])
    volume = Volume(data=data, affine=ONE, slope=2.0, intercept=-10.0)
    scan = Scan(name="s", image=volume, mask=mask)
    frames = reference.transport(points, ONE)
    return reference.sample(scan, points, frames, PatchSettings(**settings))


class TestPatches:
    def test_a_ramp_is_sampled_along_normal_and_binormal(self):
        _, j, k = np.indices((9, 9, 9))
        patches = sampled((10 * j + k).astype(np.int16), np.ones((9,) * 3, np.uint8), [4, 4, 4],
                          extent_mm=4.0, size=4)  # fmt: skip
        # Samples at 2.5 … 5.5 along j and k: 27.5 … 60.5, doubled, minus ten.
        assert (patches.low_hu[0], patches.high_hu[0]) == (45.0, 111.0)
        ramp = [[(20 * a + 2 * b) / 66 for b in range(4)] for a in range(4)]
        whole = [[math.floor(255 * x + 0.5) for x in row] for row in ramp]
        for a, b in ((0, 0), (0, 3), (3, 0), (3, 3)):
            whole[a][b] = 0  # 9 + 9 > 16: outside the circle
        assert patches.image[0].tolist() == whole
        assert patches.mask[0].tolist() == [0b01101111, 0b11110110]
        assert patches.area_mm2[0] == 12.0
        assert patches.lumen_hu[0] == 78.0
        assert patches.angle_deg[0] == 0.0
        assert patches.outside[0] == 0.0

    def test_the_mask_is_that_of_the_nearest_voxel_and_nan_where_it_is_empty(self):
        mask = np.zeros((9, 9, 9), np.uint8)
        mask[4, 5, 4] = 1
        data = np.arange(729, dtype=np.float32).reshape(9, 9, 9)
        patches = sampled(data, mask, [4, 4, 4], extent_mm=4.0, size=4)
        # Samples of j: 2.5 3.5 4.5 5.5 round up to 3 4 5 6.
        assert np.unpackbits(patches.mask[0]).reshape(4, 4).tolist() == [
            [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]
        ]  # fmt: skip
        assert math.isnan(patches.lumen_hu[1])
        assert patches.area_mm2[1] == 0.0

    def test_a_patch_without_contrast_has_no_image(self):
        patches = sampled(np.full((9, 9, 9), 7, np.int16), np.ones((9,) * 3, np.uint8), [4, 4, 4])
        assert patches.has_image.tolist() == [False, False]
        assert not patches.image.any()
        assert patches.low_hu[0] == patches.high_hu[0] == 4.0

    def test_samples_beyond_the_volume_are_counted_and_clamped(self):
        data = np.arange(9, dtype=np.int16).reshape(1, 9, 1) * np.ones((9, 1, 9), np.int16)
        patches = sampled(data, np.ones((9,) * 3, np.uint8), [4, 0, 4], extent_mm=4.0, size=4)
        # j: −1.5 −0.5 0.5 1.5; only the first lies beyond the voxel's own half step.
        assert patches.outside[0] == 0.25
        assert patches.low_hu[0] == -10.0


def bank_of(values: list[list[int]], masks: list[list[int]], **columns: Any) -> Bank:
    number = len(values)
    image = np.array(values, dtype=np.uint8).reshape(number, 2, 2)
    return Bank(
        image=image,
        mask=np.packbits(np.array(masks, dtype=np.uint8), axis=1),
        has_image=np.array(columns.get("has_image", [True] * number), dtype=bool),
        group=np.array(columns.get("group", [0] * number), dtype=np.int64),
        position_um=np.array(columns.get("position_um", [0] * number), dtype=np.int64),
    )


# 0 and 1 are 1 apart, 0 and 2 are 4, 1 and 2 are 5 (3 is far away)
VALUES = [[10, 20, 30, 40], [11, 20, 30, 40], [10, 22, 30, 40], [200, 20, 30, 40]]
MASKS = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


def rows_of(pairs: Pairs) -> list[list[int]]:
    return [
        pairs.witness[a:b].tolist()
        for a, b in zip(pairs.offset[:-1], pairs.offset[1:], strict=True)
    ]


class TestJoin:
    def test_the_image_distance_is_an_exact_integer(self):
        image = np.array(VALUES, dtype=np.uint8).reshape(4, 2, 2)
        assert reference.image_dist2(image).tolist() == [
            [0, 1, 4, 36100], [1, 0, 5, 35721], [4, 5, 0, 36104], [36100, 35721, 36104, 0]
        ]  # fmt: skip

    def test_witnesses_are_the_near_ones_nearest_first(self):
        pairs = reference.witnesses(bank_of(VALUES, MASKS), JoinSettings(), 2)
        assert rows_of(pairs) == [[1, 2], [0, 2], [0, 1], []]
        assert pairs.dist2.tolist() == [1, 4, 1, 5, 4, 5]
        assert pairs.intersection.tolist() == [2, 0, 2, 0, 0, 0]
        assert pairs.union.tolist() == [3, 2, 3, 3, 2, 3]

    def test_only_the_k_nearest_testify_and_ties_go_to_the_lowest(self):
        twins = [[1, 2, 3, 4]] * 4
        pairs = reference.witnesses(bank_of(twins, MASKS), JoinSettings(k=2), 2)
        assert rows_of(pairs) == [[1, 2], [0, 2], [0, 1], [0, 1]]
        everyone = reference.witnesses(bank_of(twins, MASKS), JoinSettings(k=0), 2)
        assert len(everyone.witness) == 12

    def test_the_limit_is_the_decimal_number_that_was_written(self):
        # ε · 4 · 255² = 26010 for ε = 0.1, though the float 0.1 is a little more than a tenth.
        pair = bank_of([[0, 0, 0, 0], [161, 8, 5, 0]], MASKS[:2])
        assert int(reference.image_dist2(pair.image)[0, 1]) == 26010
        assert rows_of(reference.witnesses(pair, JoinSettings(epsilon=0.1), 2)) == [[], []]
        nearer = bank_of([[0, 0, 0, 0], [161, 8, 4, 2]], MASKS[:2])
        assert rows_of(reference.witnesses(nearer, JoinSettings(epsilon=0.1), 2)) == [[1], [0]]

    def test_a_patch_without_image_neither_asks_nor_testifies(self):
        bank = bank_of([[0] * 4] * 3, MASKS[:3], has_image=[True, False, True])
        assert rows_of(reference.witnesses(bank, JoinSettings(), 2)) == [[2], [], [0]]

    @pytest.mark.parametrize(
        ("testify", "expected"),
        [
            ("any", [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]),
            ("other_stretch", [[2, 3], [3], [0, 3], [0, 1, 2]]),
            ("other_scan", [[3], [3], [3], [0, 1, 2]]),
        ],
    )
    def test_the_settings_say_who_may_testify(self, testify, expected):
        bank = bank_of([[9] * 4] * 4, MASKS, group=[7, 7, 7, 8], position_um=[0, 1000, 5001, 0])
        settings = JoinSettings(testify=testify, stretch_mm=5.0)
        assert rows_of(reference.witnesses(bank, settings, 2)) == expected

    def test_the_mask_distance_of_two_empty_masks_is_nothing(self):
        pairs = reference.witnesses(bank_of(VALUES, MASKS), JoinSettings(), 2)
        assert reference.mask_distance(pairs).tolist() == [1 - 2 / 3, 1.0, 1 - 2 / 3, 1.0, 1.0, 1.0]
        empty = reference.witnesses(bank_of(VALUES[:2], [[0] * 4] * 2), JoinSettings(), 2)
        assert reference.mask_distance(empty).tolist() == [0.0, 0.0]


def pairs_of(dist2: list[int], both: list[int], either: list[int], offset: list[int]) -> Pairs:
    return Pairs(
        first=0,
        offset=np.array(offset, dtype=np.int64),
        witness=np.arange(1, len(dist2) + 1, dtype=np.int32) % (len(offset) - 1),
        dist2=np.array(dist2, dtype=np.int32),
        intersection=np.array(both, dtype=np.uint16),
        union=np.array(either, dtype=np.uint16),
    )


class TestScores:
    # size 2, ε = 0.001: the limit is 260.1, with two bins of 130.05.
    PAIRS = pairs_of([0, 130, 131, 10, 260], [1, 1, 3, 4, 0], [2, 4, 4, 4, 0], [0, 3, 5, 5])
    SETTINGS = ResidualSettings(bins=2, min_pairs=3)

    def test_the_baseline_sums_the_mask_distances_of_each_bin(self):
        usual = reference.baseline(self.PAIRS, 0.001, 2, self.SETTINGS)
        # d = ½, ¾, 0 | ¼, 0: all of them whole multiples of 2⁻²⁰
        assert usual.count.tolist() == [3, 2]
        assert usual.low.tolist() == [0.0, 0.001 / 2]
        assert usual.high.tolist() == [0.001 / 2, 0.001]
        assert usual.mean.tolist() == [1.25 / 3, 0.125]
        assert usual.std.tolist() == [math.sqrt(float(Fraction(7, 48))), math.sqrt(1 / 32)]
        assert usual.min_iou.tolist() == [0.25, 0.75]
        assert usual.used.tolist() == [True, False]

    def test_distances_are_rounded_to_a_millionth_before_they_are_summed(self):
        usual = reference.baseline(pairs_of([0], [1], [3], [0, 1]), 0.001, 2, self.SETTINGS)
        assert usual.mean[0] == 699051 / 2**20  # 2²⁰ · 2/3 = 699050.67
        assert math.isnan(usual.std[0])
        assert math.isnan(usual.mean[1])
        assert math.isnan(usual.min_iou[1])

    def test_a_residual_counts_deviations_and_is_nan_in_unused_bins(self):
        usual = reference.baseline(self.PAIRS, 0.001, 2, self.SETTINGS)
        r = reference.residuals(self.PAIRS, usual, 0.001, 2)
        width = usual.std[0] + 1e-6
        expected = [(1.25 / 3 - d) / width for d in (0.5, 0.75)]
        assert r[:2].tolist() == expected
        assert np.isnan(r).tolist() == [False, False, True, False, True]

    def test_a_score_is_the_median_or_the_reason_why_there_is_none(self):
        pairs = pairs_of([0] * 7, [1] * 7, [1] * 7, [0, 3, 5, 6, 7, 7, 7])
        r = np.array([5.0, -1.0, 2.0, 1.0, 4.0, NAN, -3.0])
        bank = bank_of([[0] * 4] * 6, [[1, 1, 0, 0], [1, 0, 0, 0], *[[1, 1, 1, 0]] * 4],
                       has_image=[True] * 5 + [False])  # fmt: skip
        scores = reference.score(pairs, r, bank)
        assert scores.residual[[0, 1, 3]].tolist() == [2.0, 2.5, -3.0]
        assert np.isnan(scores.residual[[2, 4, 5]]).all()
        assert scores.witnesses.tolist() == [3, 2, 1, 1, 0, 0]
        assert scores.reason.tolist() == [
            "", "", "no usable pair", "", "no witness", "the patch has no image contrast"
        ]  # fmt: skip
        assert scores.usual_area[:4].tolist() == [3.0, 3.0, 2.0, 1.0]
        assert np.isnan(scores.usual_area[4:]).all()

    def test_a_pair_in_an_unused_bin_is_left_out_of_the_median(self):
        pairs = pairs_of([0] * 3, [1] * 3, [1] * 3, [0, 3])
        bank = bank_of([[0] * 4], [[1, 0, 0, 0]])
        scores = reference.score(pairs, np.array([NAN, 3.0, 1.0]), bank)
        assert scores.residual.tolist() == [2.0]
        assert scores.witnesses.tolist() == [3]


class TestQuality:
    SETTINGS = QualitySettings()

    def test_quality_falls_to_the_sigmoid_at_the_point_and_recovers_with_distance(self):
        found = reference.quality(
            np.zeros((1, 3)), np.array([-3.0]), (20, 1, 1), ONE, self.SETTINGS
        )
        q = 1 / (1 + math.exp(3.0))
        assert found[0, 0, 0] == np.float32(q)
        assert found[3, 0, 0] == np.float32(1 - (1 - q) * math.exp(-2.0))
        assert (found[9:] == 1).all()
        assert (np.diff(found[:6, 0, 0]) > 0).all()

    def test_a_voxel_takes_the_nearest_point_and_of_equals_the_first(self):
        points = np.array([[0.0, 0, 0], [4.0, 0, 0]])
        found = reference.quality(points, np.array([-9.0, 9.0]), (5, 1, 1), ONE, self.SETTINGS)
        w = math.exp(-((2 / 1.5) ** 2) / 2)
        q = 1 / (1 + math.exp(9.0))
        assert found[2, 0, 0] == np.float32(1 - (1 - q) * w)
        assert found[3, 0, 0] > 0.999

    def test_an_unscored_point_carries_nought(self):
        found = reference.quality(np.zeros((1, 3)), np.array([NAN]), (1, 1, 1), ONE, self.SETTINGS)
        assert found.tolist() == [[[0.5]]]

    def test_extreme_scores_overflow_nothing(self):
        for score, q in ((-1e6, 0.0), (1e6, 1.0)):
            found = reference.quality(
                np.zeros((1, 3)), np.array([score]), (1, 1, 1), ONE, self.SETTINGS
            )
            assert found.tolist() == [[[q]]]

    def test_without_points_all_is_good(self):
        found = reference.quality(np.zeros((0, 3)), np.zeros(0), (2, 2, 2), ONE, self.SETTINGS)
        assert (found == 1).all()

    def test_the_loss_is_a_mean_weighted_by_quality(self):
        loss = np.array([[1.0, 2.0], [4.0, 8.0]])
        weight = np.array([[1.0, 0.5], [0.5, 0.0]])
        assert reference.weighted_loss(loss, weight) == 2.0
        assert reference.weighted_loss(loss, np.zeros((2, 2))) == 0.0
