import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from scipy import ndimage

from maskwitness.kernels import pairs, sampling, scores, thinning, transport, tree, voxels
from maskwitness.kernels._jit import kernel
from maskwitness.kernels._simd import dist2_of_rows, lowest_bit, near_bits
from tests.shapes import noise

STEPS = list(product((-1, 0, 1), repeat=3))  # bit n of a word is the voxel STEPS[n] away
BIT = {step: n for n, step in enumerate(STEPS)}
FACES = [s for s in STEPS if sum(map(abs, s)) == 1]
NEAR = [s for s in STEPS if 1 <= sum(map(abs, s)) <= 2]


def word_of(steps) -> int:
    return sum(1 << BIT[step] for step in steps)


def random_words(seed: int, count: int) -> list[int]:
    """Neighbourhoods of every density, the middle left out."""
    rng = np.random.default_rng(seed)
    bits = rng.random((count, 27)) < rng.random((count, 1))
    bits[:, BIT[0, 0, 0]] = False
    return (bits @ (1 << np.arange(27))).tolist()


def components(voxels_left: set[tuple[int, ...]], touching: int) -> list[set[tuple[int, ...]]]:
    """Parts of a set of voxels whose neighbours differ along up to ``touching`` axes by one."""
    left, parts = set(voxels_left), []
    while left:
        part, todo = set(), [left.pop()]
        while todo:
            voxel = todo.pop()
            part.add(voxel)
            near = {
                other
                for other in left
                if max(abs(a - b) for a, b in zip(voxel, other, strict=True)) <= 1
                and sum(abs(a - b) for a, b in zip(voxel, other, strict=True)) <= touching
            }
            left -= near
            todo += near
        parts.append(part)
    return parts


def slow_background(word: int) -> int:
    background = {step for step in NEAR if not word >> BIT[step] & 1}
    return sum(any(face in part for face in FACES) for part in components(background, 1))


def slow_is_simple(word: int) -> bool:
    foreground = {step for step in STEPS if word >> BIT[step] & 1}
    return len(components(foreground, 3)) == 1 and slow_background(word) == 1


class TestNeighbourhoods:
    def test_simple_is_what_its_definition_says(self):
        words = random_words(0, 10_000)
        assert [thinning.is_simple(word) for word in words] == [slow_is_simple(w) for w in words]
        assert 500 < sum(map(slow_is_simple, words[:5000])) < 4500

    def test_background_is_counted_as_its_definition_says(self):
        words = random_words(1, 5000)
        found = [thinning.background_touches(word) for word in words]
        assert found == [slow_background(word) for word in words]
        assert set(found) >= {0, 1, 2, 3}

    def test_that_are_small_are_all_as_their_definition_says(self):
        # All with up to two neighbours, and all with up to two gaps.
        full = word_of(STEPS) & ~word_of([(0, 0, 0)])
        few = [word_of({a, b} - {(0, 0, 0)}) for a, b in product(STEPS, repeat=2)]
        for word in {*few, *(full & ~w for w in few)}:
            assert thinning.is_simple(word) == slow_is_simple(word), bin(word)

    @pytest.mark.parametrize(
        ("word", "simple"),
        [
            (0, False),  # alone
            (word_of([(0, 0, 1)]), True),  # an end
            (word_of([(0, 0, 1), (0, 0, -1)]), False),  # the middle of a line
            (word_of([(0, 0, 1), (0, 1, 0)]), True),  # a corner that can be cut
            (word_of([s for s in STEPS if s[0] == 0 and s != (0, 0, 0)]), False),  # in a sheet
            (word_of([s for s in STEPS if s != (0, 0, 0)]), False),  # inside
            (word_of([s for s in STEPS if s[0] < 1 and s != (0, 0, 0)]), True),  # on a wall
        ],
    )
    def test_by_eye(self, word, simple):
        assert thinning.is_simple(word) is simple

    def test_are_read_from_a_box_in_the_order_of_steps(self):
        box = noise(2, (3, 4, 5), 0.5)
        at = int(np.ravel_multi_index((1, 2, 2), box.shape))
        expected = word_of(s for s in STEPS if any(s) and box[1 + s[0], 2 + s[1], 2 + s[2]])
        assert thinning.neighbourhood(box.ravel(), at, 5, 20) == expected

    def test_bits_are_counted(self):
        for word in random_words(3, 200):
            assert thinning.count_bits(word) == word.bit_count()


class TestDepthAndSlack:
    def test_depth_is_the_city_block_distance(self):
        box = np.pad(noise(4, (8, 9, 10), 0.8, 0.8), 1)
        depth = np.zeros(box.size, np.int32)
        rows, planes = box.shape[2], box.shape[1] * box.shape[2]
        thinning.depth_into(box.ravel(), np.flatnonzero(box), rows, planes, depth)
        expected = ndimage.distance_transform_cdt(box, "taxicab")
        np.testing.assert_array_equal(depth.reshape(box.shape), expected)
        assert expected.max() > 2

    def test_slack_falls_by_one_a_step_through_the_mask(self):
        # A bent corridor: the way round counts, not the straight line.
        box = np.zeros((3, 5, 7), np.uint8)
        box[1, 1, 1:6] = box[1, 1:4, 5] = box[1, 3, 1:6] = 1
        slack = np.zeros(box.size, np.int32)
        seed = np.array([np.ravel_multi_index((1, 1, 1), box.shape)])
        thinning.slack_into(box.ravel(), seed, np.array([6], np.int32), 7, 35, slack, 13)
        left = slack.reshape(box.shape)[1] - thinning.OFFSET
        assert left[1, 1:6].tolist() == [6, 5, 4, 3, 2]
        assert left[2, 5] == 2  # a corner is cut: one step from (1, 4)
        assert left[3, 1:6].tolist() == [-2, -1, 0, 1, 1]  # and here both corners

    def test_of_two_seeds_the_better_counts(self):
        box = np.zeros((3, 3, 12), np.uint8)
        box[1, 1, 1:11] = 1
        seeds = np.flatnonzero(box)[[0, 9]]
        slack = np.zeros(box.size, np.int32)
        thinning.slack_into(box.ravel(), seeds, np.array([7, 2], np.int32), 12, 36, slack, 10)
        left = slack.reshape(box.shape)[1, 1, 1:11] - thinning.OFFSET
        assert left.tolist() == [7, 6, 5, 4, 3, 2, 1, 0, 1, 2]


class TestVoxels:
    @pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 1000, 1003])
    def test_foreground_is_found_in_any_stretch(self, size):
        for share in (0.0, 0.002, 0.3, 1.0):
            flat = (np.random.default_rng(size).random(size) < share).astype(np.uint8)
            words = flat[: size // 8 * 8].view(np.uint64)
            np.testing.assert_array_equal(voxels.foreground_of(words, flat), np.flatnonzero(flat))


@kernel
def rows_apart(a: np.ndarray, i: int, b: np.ndarray, j: int) -> int:
    return dist2_of_rows(a, i, b, j)


@kernel
def marked(leaves, leaf, points, q, limit, bits):
    return near_bits(leaves, leaf, points, q, limit, bits)


@kernel
def first_of(word):
    return lowest_bit(word)


class TestPairs:
    @pytest.mark.parametrize("size", [1, 2, 9, 13])
    def test_overlaps_are_counted_bit_by_bit(self, size):
        rng = np.random.default_rng(size)
        masks = rng.integers(0, 2**64, (20, size), dtype=np.uint64)
        masks[0], masks[1] = 0, np.uint64(2**64 - 1)
        keys = np.tile(np.arange(20) + (7 << 31), (20, 1))
        witness, dist2 = np.empty(400, np.int32), np.empty(400, np.int32)
        both, either = np.empty(400, np.uint16), np.empty(400, np.uint16)
        count = np.full(20, 20)
        pairs.write_pairs(keys, count, masks, masks, witness, dist2, both, either)
        bits = np.unpackbits(masks.view(np.uint8), axis=1).astype(int)
        np.testing.assert_array_equal(both.reshape(20, 20), bits @ bits.T)
        np.testing.assert_array_equal(either.reshape(20, 20), 64 * size - (1 - bits) @ (1 - bits).T)
        np.testing.assert_array_equal(witness.reshape(20, 20), np.tile(np.arange(20), (20, 1)))
        assert set(dist2.tolist()) == {7}


class TestTree:
    @pytest.mark.parametrize("count", [1, 255, 256, 257, 700, 5000])
    @pytest.mark.parametrize("kind", ["random", "equal", "few values"])
    def test_leaves_part_the_points(self, count, kind):
        rng = np.random.default_rng(count)
        coords = rng.normal(size=(count, tree.AXES)).astype(np.float32)
        if kind == "equal":
            coords[:] = 1.0
        if kind == "few values":
            coords = np.round(coords)
        order = np.arange(count)
        tree.cut_into_leaves(coords, order)
        assert sorted(order.tolist()) == list(range(count))
        leaves = -(-count // tree.LEAF)
        filled = np.empty((leaves, tree.AXES, tree.LEAF), np.float32)
        low, high = np.empty((2, tree.AXES, leaves), np.float32)
        tree.fill_leaves(coords, order, filled, low, high, 0, leaves)
        for leaf in range(leaves):
            inside = coords[order[leaf * tree.LEAF : (leaf + 1) * tree.LEAF]]
            np.testing.assert_array_equal(filled[leaf, :, : len(inside)].T, inside)
            assert np.isinf(filled[leaf, :, len(inside) :]).all()
            np.testing.assert_array_equal(low[:, leaf], inside.min(axis=0))
            np.testing.assert_array_equal(high[:, leaf], inside.max(axis=0))

    def test_the_first_cut_is_a_median_of_the_widest_axis(self):
        coords = np.random.default_rng(0).normal(size=(1024, tree.AXES)).astype(np.float32)
        coords[:, 3] *= 10
        order = np.arange(1024)
        tree.cut_into_leaves(coords, order)
        assert coords[order[:512], 3].max() <= coords[order[512:], 3].min()

    @pytest.mark.parametrize("samples", [32, 64, 480, 576])
    def test_distances_of_rows_are_exact(self, samples):
        rng = np.random.default_rng(samples)
        a = rng.integers(0, 256, (9, samples)).astype(np.uint8)
        b = rng.integers(0, 256, (9, samples)).astype(np.uint8)
        a[0], b[0], a[1], b[1] = 0, 255, 255, 0
        found = [[rows_apart(a, i, b, j) for j in range(9)] for i in range(9)]
        apart = a[:, None].astype(int) - b[None].astype(int)
        np.testing.assert_array_equal(found, (apart**2).sum(axis=2))

    @pytest.mark.parametrize("limit", [0.0, 20.0, 1e9])
    def test_near_points_of_a_leaf_are_marked_in_order(self, limit):
        rng = np.random.default_rng(0)
        leaves = rng.normal(size=(3, tree.AXES, tree.LEAF)).astype(np.float32)
        leaves[1, :, 200:] = np.inf  # what fills up a leaf is near nobody
        points = rng.normal(size=(2, tree.AXES)).astype(np.float32)
        bits = np.empty(4, np.uint64)
        some = marked(leaves, 1, points, 1, np.float32(limit), bits)
        dist2 = ((leaves[1].astype(float) - points[1].astype(float)[:, None]) ** 2).sum(axis=0)
        found = np.unpackbits(bits.view(np.uint8), bitorder="little").astype(bool)
        clear = np.abs(dist2 - limit) > 1e-3  # rounding may decide the others
        np.testing.assert_array_equal(found[clear], (dist2 < limit)[clear])
        assert bool(some) == found.any()

    @pytest.mark.parametrize("bit", [0, 1, 31, 32, 63])
    def test_the_lowest_bit_of_a_word(self, bit):
        assert first_of(np.uint64((2**64 - 1) << bit & (2**64 - 1))) == bit
        assert first_of(np.uint64(1 << bit)) == bit

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 30])
    def test_coordinates_are_products_with_the_directions(self, count):
        rng = np.random.default_rng(count)
        code = rng.integers(0, 256, (count, 64)).astype(np.uint8)
        directions = rng.normal(size=(64, tree.AXES)).astype(np.float32)
        coords = np.empty((count, tree.AXES), np.float32)
        tree.project(code, directions, coords)
        expected = (code.astype(float) - 128) @ directions.astype(float)
        np.testing.assert_allclose(coords, expected, atol=0.01)

    def test_a_full_row_keeps_its_nearest(self):
        keys = np.array([[1, 2, 3, 4], [9, 2, 7, 4]])
        count, farthest = np.array([4, 4]), np.full(2, tree.NONE)
        tree.keep_smallest(keys, count, farthest, 1, 2)
        assert count.tolist() == [4, 2]
        assert farthest.tolist() == [tree.NONE, 4]
        assert keys[0].tolist() == [1, 2, 3, 4]
        assert sorted(keys[1, :2].tolist()) == [2, 4]


class TestScores:
    def test_medians_pass_over_what_is_no_number(self):
        nan = np.nan
        values = np.array([3.0, nan, 1.0, 2.0, 5.0, 4.0, nan, 7.0])
        out = np.empty(5)
        scores.medians_into(values, np.array([0, 3, 3, 6, 7, 8]), out)
        np.testing.assert_array_equal(out, [2.0, nan, 4.0, nan, 7.0])

    def test_distances_are_rounded_to_the_nearest_unit(self):
        edges = np.array([0], np.int64)
        for both, either in ((0, 3), (1, 3), (2, 3), (1, 7), (447, 448), (5, 5), (0, 0)):
            sums = np.zeros((1, 4), np.int64)
            one, two = np.array([both], np.uint16), np.array([either], np.uint16)
            scores.add_to_bins(np.zeros(1, np.int32), one, two, edges, sums)
            fixed = np.floor(2**20 * (1 - both / either) + 0.5) if either else 0
            assert sums.tolist() == [[1, fixed, fixed**2, fixed]]


class TestSampling:
    def test_values_at_voxels_are_the_voxels(self):
        data = np.random.default_rng(5).integers(-500, 500, (3, 4, 5))
        for voxel in np.ndindex(data.shape):
            assert sampling.trilinear(data, *map(float, voxel)) == data[voxel]

    def test_values_between_voxels_agree_with_scipy(self):
        rng = np.random.default_rng(6)
        data = rng.normal(size=(4, 5, 6))
        places = rng.uniform(0, np.array(data.shape) - 1, (200, 3))
        expected = ndimage.map_coordinates(data, places.T, order=1)
        found = [sampling.trilinear(data, *place) for place in places.tolist()]
        np.testing.assert_allclose(found, expected, atol=1e-12)


class TestTransport:
    def test_a_first_normal_is_across_its_tangent(self):
        tangent = np.array([[0.6, 0.8, 0.0]])
        normal = np.empty((1, 3))
        one = np.zeros(1, np.int32)
        transport.transport_into(tangent, one, one - 1, np.zeros(1, np.int64), np.eye(3), normal)
        assert normal.tolist() == [[0, 0, 1]]


UNCOMPILED = """
import hashlib
import numpy as np
from maskwitness.config import Config, JoinSettings
from maskwitness.pipeline import bank_of, compare, describe, judge
from maskwitness.records import Scan, Volume
mask = np.zeros((9, 9, 12), np.uint8)
mask[3:6, 3:6, 1:11] = mask[4, 4:8, 5] = 1
data = np.random.default_rng(0).integers(0, 99, mask.shape).astype(np.int16)
scan = Scan(name="a", image=Volume(data=data, affine=np.diag([0.5, 0.5, 0.7, 1])), mask=mask)
config = Config(join=JoinSettings(epsilon=1.0, k=3))
found = describe(scan, config.patches)
bank = bank_of([found, found], "any")
score = np.concatenate([s.residual for s in compare(bank, config)])[: len(found.graph.branch)]
quality = judge(scan, found.graph.points_mm, np.nan_to_num(score), config)
parts = (found.graph.points_mm, found.frames.normal, bank.image, bank.mask, score, quality.round(5))
print(hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest())
"""


@pytest.mark.slow
def test_kernels_give_the_same_uncompiled():
    answers = []
    for disabled in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, "-c", UNCOMPILED],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0] == answers[1] != ""
