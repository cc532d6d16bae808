import dataclasses
import importlib.util
import os
import tempfile
from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from maskwitness import join
from maskwitness.config import JoinSettings
from maskwitness.join import cpu, dist2_limit, nearest_pairs, plan, range_pairs, reach_of, tree
from maskwitness.patches import circle
from maskwitness.records import Bank, Pairs
from tests.shapes import bank_of_images

ALL = JoinSettings(epsilon=1.0, k=0)


def bank_with_ties(seed: int, patches: int = 90, size: int = 8) -> Bank:
    """Many duplicates and many equal distances; a tenth of the patches have no image."""
    rng = np.random.default_rng(seed)
    inside = circle(size)
    image = rng.integers(0, 256, (5, size, size))[rng.integers(0, 5, patches)]
    image = np.clip(image + 4 * rng.integers(-2, 3, (patches, 1, 1)), 0, 255) * inside
    mask = (rng.random((patches, size, size)) < rng.random((patches, 1, 1))) & inside
    return bank_of_images(
        image,
        mask,
        has_image=rng.random(patches) > 0.1,
        group=rng.integers(0, 4, patches),
        position_um=rng.integers(0, 12_000, patches),
    )


def brute_force(bank: Bank, settings: JoinSettings) -> list[list[tuple[int, int, int, int]]]:
    """For each patch its witnesses as (dist2, index, intersection, union), by plain sums."""
    images = bank.image.reshape(len(bank.image), -1).astype(np.int64)
    masks = np.unpackbits(bank.mask, axis=1).astype(bool)
    size = bank.image.shape[1]
    limit = Fraction(repr(settings.epsilon)) * size * size * 255 * 255
    found = []
    for i in range(len(images)):
        rows = []
        for j in np.flatnonzero(bank.has_image & bank.has_image[i]).tolist():
            near = abs(int(bank.position_um[i] - bank.position_um[j]))
            same = bank.group[i] == bank.group[j]
            barred = {
                "any": False,
                "other_scan": same,
                "other_stretch": same and near <= settings.stretch_mm * 1000,
            }[settings.testify]
            dist2 = int(((images[i] - images[j]) ** 2).sum())
            if i != j and not barred and dist2 < limit:
                both, either = (masks[i] & masks[j]).sum(), (masks[i] | masks[j]).sum()
                rows.append((dist2, j, int(both), int(either)))
        found.append(sorted(rows)[: settings.k or None])
    return found


def rows_of(blocks: list[Pairs]) -> list[list[tuple[int, int, int, int]]]:
    found: list[list[tuple[int, int, int, int]]] = []
    for pairs in blocks:
        assert pairs.first == len(found)
        assert pairs.offset[0] == 0
        assert pairs.offset[-1] == len(pairs.witness)
        numbers = np.stack(
            [pairs.dist2, pairs.witness, pairs.intersection, pairs.union], axis=1
        ).tolist()
        for start, stop in zip(pairs.offset[:-1], pairs.offset[1:], strict=True):
            found.append([(d, w, i, u) for d, w, i, u in numbers[start:stop]])
    return found


def pairs_of(bank: Bank, settings: JoinSettings) -> list[list[tuple[int, int, int, int]]]:
    return rows_of(list(range_pairs(bank, settings)))


def assert_same_pairs(one: list[Pairs], other: list[Pairs]) -> None:
    for name in ("witness", "dist2", "intersection", "union"):
        a = np.concatenate([getattr(pairs, name) for pairs in one])
        b = np.concatenate([getattr(pairs, name) for pairs in other])
        np.testing.assert_array_equal(a, b, err_msg=name)
    assert rows_of(one) == rows_of(other)


class TestWitnesses:
    @pytest.mark.parametrize("k", [0, 1, 2, 7, 45, 1000])
    @pytest.mark.parametrize("testify", ["any", "other_stretch", "other_scan"])
    def test_equal_brute_force_with_ties_and_duplicates(self, k, testify):
        bank = bank_with_ties(k)
        settings = JoinSettings(epsilon=0.02, k=k, testify=testify, stretch_mm=3.0)
        expected = brute_force(bank, settings)
        assert pairs_of(bank, settings) == expected
        ties = [d for row in expected for d, *_ in row]
        assert k == 1 or len(ties) > len(set(ties))

    def test_of_identical_patches_the_lowest_indices_are_kept(self):
        bank = bank_of_images(np.full((30, 6, 6), 9))
        rows = pairs_of(bank, JoinSettings(k=3))
        assert [w for _, w, *_ in rows[0]] == [1, 2, 3]
        assert [w for _, w, *_ in rows[2]] == [0, 1, 3]
        assert [w for _, w, *_ in rows[29]] == [0, 1, 2]

    def test_that_come_late_and_near_push_out_the_far(self):
        # Distances to patch 0 fall along the bank: each full row is cut again and again.
        image = np.zeros((41, 6, 6), int)
        image[1:, 3, 3] = np.arange(40, 0, -1)
        rows = pairs_of(bank_of_images(image), JoinSettings(k=2, epsilon=0.5))
        assert rows[0] == [(1, 40, 0, 0), (4, 39, 0, 0)]

    def test_counts_of_overlap_are_those_of_the_masks(self):
        mask = np.zeros((3, 4, 4), bool)
        mask[0, 1, :2] = mask[1, 1, 1:3] = True
        (row, *_, empty) = pairs_of(bank_of_images(np.zeros((3, 4, 4)), mask), ALL)
        assert row == [(0, 1, 1, 3), (0, 2, 0, 2)]
        assert empty == [(0, 0, 0, 2), (0, 1, 0, 2)]

    def test_a_patch_without_image_neither_testifies_nor_is_scored(self):
        bank = bank_of_images(np.zeros((4, 5, 5)), has_image=np.array([True, False, True, True]))
        assert [[w for _, w, *_ in row] for row in pairs_of(bank, ALL)] == [
            [2, 3],
            [],
            [0, 3],
            [0, 2],
        ]

    def test_a_bank_of_one_patch_has_no_pairs(self):
        (pairs,) = range_pairs(bank_of_images(np.zeros((1, 5, 5))), JoinSettings())
        assert pairs.offset.tolist() == [0, 0]
        assert len(pairs.witness) == 0

    def test_an_empty_bank_has_no_blocks(self):
        assert list(range_pairs(bank_of_images(np.zeros((0, 5, 5))), JoinSettings())) == []

    @pytest.mark.parametrize("size", [4, 5, 24, 33, 36, 40])
    def test_distances_are_exact_at_the_extremes(self, size):
        # 36 × 36 and more have above 1024 samples in the circle: float32 alone would round.
        inside = circle(size)
        rng = np.random.default_rng(size)
        image = rng.integers(0, 2, (12, size, size)) * 255
        image[0], image[1] = 255, 0
        image[2], image[3] = 254, 1
        image *= inside
        rows = pairs_of(bank_of_images(image), ALL)
        assert rows == brute_force(bank_of_images(image), ALL)
        farthest = max(row[-1] for row in rows)
        assert farthest[0] == 255**2 * int(inside.sum())

    def test_of_the_largest_patches_the_counts_still_fit(self):
        inside = circle(128)
        image = np.stack([inside * 255, inside * 0])
        (row, _) = pairs_of(bank_of_images(image, np.stack([inside, inside])), ALL)
        assert row == [(255**2 * 12892, 1, 12892, 12892)]  # the circle's samples


class TestEpsilon:
    def test_is_read_as_the_decimal_number_that_was_written(self):
        assert dist2_limit(1e-3, 24) == 37455  # 37454.4: 37454 is near, 37455 is not
        # 0.01 as a binary fraction is a little more than 0.01 and would admit 260100.
        assert dist2_limit(0.01, 20) == 260_100
        assert ceil(Fraction(0.01) * 20**2 * 255**2) == 260_101

    def test_is_a_limit_that_is_no_longer_near(self):
        image = np.zeros((3, 4, 4), int)
        image[1, 1, 1], image[2, 1, 1] = 101, 102
        assert dist2_limit(0.01, 4) == 102**2
        rows = pairs_of(bank_of_images(image), JoinSettings(epsilon=0.01))
        assert [d for d, *_ in rows[0]] == [101**2]

    def test_of_one_admits_all_but_the_impossible(self):
        assert dist2_limit(1.0, 24) == 24**2 * 255**2

    @pytest.mark.parametrize(
        ("settings", "reach"),
        [
            (JoinSettings(), -1),
            (JoinSettings(testify="other_stretch"), 5000),
            (JoinSettings(testify="other_stretch", stretch_mm=0.0005), 0),
        ],
    )
    def test_the_reach_is_in_whole_micrometres(self, settings, reach):
        assert reach_of(settings) == reach


class TestExclusion:
    def bank(self) -> Bank:
        return bank_of_images(
            np.zeros((5, 4, 4)),
            group=np.array([7, 7, 7, 8, 8]),
            position_um=np.array([0, 5000, 5001, 0, 10**9]),
        )

    def witnesses(self, testify, **settings):
        rows = pairs_of(self.bank(), JoinSettings(testify=testify, **settings))
        return [[w for _, w, *_ in row] for row in rows]

    def test_any_patch_but_itself_may_testify(self):
        assert self.witnesses("any") == [[j for j in range(5) if j != i] for i in range(5)]

    def test_the_same_stretch_may_not_testify_up_to_and_with_its_end(self):
        assert self.witnesses("other_stretch") == [
            [2, 3, 4],
            [3, 4],
            [0, 3, 4],
            [0, 1, 2, 4],
            [0, 1, 2, 3],
        ]

    def test_a_stretch_of_nothing_bars_the_same_place_only(self):
        assert self.witnesses("other_stretch", stretch_mm=0.0)[0] == [1, 2, 3, 4]

    def test_the_same_scan_may_not_testify_at_any_distance(self):
        assert self.witnesses("other_scan") == [[3, 4]] * 3 + [[0, 1, 2]] * 2


class TestBlocks:
    def plan(self, monkeypatch, **changes):
        def smaller(settings, threads):
            return dataclasses.replace(plan.plan_search(settings, threads), **changes)

        monkeypatch.setattr(join, "plan_search", smaller)

    @pytest.mark.parametrize("k", [0, 5, 300])
    @pytest.mark.parametrize("rows", [1, 7, 89, 300])
    @pytest.mark.parametrize("threads", [1, 3])
    def test_rows_and_threads_change_no_bit(self, monkeypatch, k, rows, threads):
        bank, settings = bank_with_ties(5, patches=300), JoinSettings(epsilon=0.02, k=k)
        expected = list(range_pairs(bank, settings))
        self.plan(monkeypatch, rows=rows, threads=threads)
        blocks = list(range_pairs(bank, settings))
        assert len(blocks) == -(-300 // rows)
        assert_same_pairs(blocks, expected)

    @pytest.mark.parametrize("k", [0, 4])
    def test_a_block_with_too_many_pairs_is_halved(self, monkeypatch, k):
        bank, settings = bank_with_ties(6, patches=300), JoinSettings(epsilon=0.02, k=k)
        expected = list(range_pairs(bank, settings))
        most = 500 * plan.PAIR_BYTES
        self.plan(monkeypatch, held_bytes=most)
        blocks = list(range_pairs(bank, settings))
        assert len(blocks) > 1
        assert all(len(b.witness) <= 500 or len(b.offset) == 2 for b in blocks)
        assert_same_pairs(blocks, expected)

    def test_rows_without_limit_find_room(self, monkeypatch):
        # 1500 identical patches: more witnesses a row than there is room for at first.
        image = np.zeros((1500, 6, 6), int)
        monkeypatch.setattr(cpu, "GROUP_BYTES", 8 * 1500 * 10)  # and no more than ten such rows
        count = [len(row) for row in pairs_of(bank_of_images(image), JoinSettings(k=0))]
        assert count == [1499] * 1500

    def test_arrays_beyond_the_budget_lie_in_files(self, monkeypatch, tmp_path):
        bank, settings = bank_with_ties(7, patches=400), JoinSettings(epsilon=0.02)
        expected = list(range_pairs(bank, settings))
        asked = []
        real = tempfile.TemporaryFile

        def noted(**where):
            asked.append(where["dir"])
            return real(**where)

        monkeypatch.setattr(tempfile, "TemporaryFile", noted)
        assert_same_pairs(
            list(range_pairs(bank, settings, memory=tree.Memory(0, tmp_path))), expected
        )
        assert asked == [tmp_path] * 3
        assert list(tmp_path.iterdir()) == []

    def test_a_block_says_where_its_rows_begin(self, monkeypatch):
        self.plan(monkeypatch, rows=40)
        blocks = list(range_pairs(bank_with_ties(7), JoinSettings(epsilon=0.02)))
        assert [(b.first, len(b.offset) - 1) for b in blocks] == [(0, 40), (40, 40), (80, 10)]

    @pytest.mark.parametrize("memory_mb", [64, 512, 4096])
    @pytest.mark.parametrize("threads", [1, 2, 500])
    def test_a_plan_stays_within_its_budget(self, memory_mb, threads):
        made = plan.plan_search(JoinSettings(memory_mb=memory_mb), threads)
        keys = made.threads * plan.GROUP_BYTES
        assert keys <= max(memory_mb * 2**20 // 4, plan.GROUP_BYTES)
        assert made.held_bytes == memory_mb * 2**20 // 4
        assert 1 <= made.threads <= threads
        assert made.rows >= 256

    def test_without_a_number_of_threads_every_core_works(self):
        assert plan.plan_search(JoinSettings(), None).threads == min(plan.cores(), 16)
        assert 1 <= plan.cores() <= (os.cpu_count() or 1)


class TestTree:
    @pytest.mark.parametrize("size", [4, 12, 24, 33])
    @pytest.mark.parametrize("kind", ["black and white", "noise", "smooth"])
    def test_a_projected_distance_is_never_above_its_bound(self, size, kind):
        rng = np.random.default_rng(size)
        image = rng.integers(0, 256, (300, size, size))
        if kind == "black and white":
            image = image // 128 * 255
        if kind == "smooth":
            image = image[:1] // 2 + rng.integers(0, 100, (300, 1, 1))
        bank = bank_of_images(image * circle(size))
        grown = tree.grow(bank, tree.Memory(2**30))
        asked = grown.ask(bank, np.arange(300), own=True)
        code = asked.code.astype(np.float64)
        true = np.sqrt(((code[:, None] - code[None]) ** 2).sum(axis=2))
        coords = asked.coords.T.astype(np.float64)
        seen = np.sqrt(((coords[:, None] - coords[None]) ** 2).sum(axis=2))
        assert (seen <= true * grown.stretch + grown.slack).all()
        assert grown.stretch < 1 + 1e-5
        assert grown.slack < 2

    def test_skewed_directions_widen_the_bound(self):
        directions = np.zeros((64, 16), np.float32)
        directions[:2, :2] = [[1, 0.6], [0, 0.8]]
        stretch, _ = tree.margins(directions)
        assert stretch >= np.linalg.norm(directions, 2)


class TestQueries:
    """Patches of another bank ask: one new scan against a finished run."""

    def split(self, seed: int) -> tuple[Bank, Bank, Bank]:
        whole = bank_with_ties(seed, patches=120)
        return whole, part_of(whole, slice(0, 80)), part_of(whole, slice(80, 120))

    @pytest.mark.parametrize("k", [0, 3, 60])
    @pytest.mark.parametrize("testify", ["any", "other_stretch", "other_scan"])
    def test_find_what_they_would_find_in_one_bank(self, k, testify):
        whole, bank, queries = self.split(k)
        settings = JoinSettings(epsilon=0.02, k=k, testify=testify, stretch_mm=3.0)
        everything = brute_force(whole, dataclasses.replace(settings, k=0))[80:]
        expected = [[pair for pair in row if pair[1] < 80][: k or None] for row in everything]
        assert rows_of(list(range_pairs(bank, settings, queries))) == expected

    def test_the_same_patch_in_both_banks_is_a_witness(self):
        bank = bank_of_images(np.zeros((3, 5, 5)))
        rows = rows_of(list(range_pairs(bank, ALL, bank)))
        assert [[w for _, w, *_ in row] for row in rows] == [[0, 1, 2]] * 3

    @pytest.mark.parametrize("size", [8, 9, 24])
    @pytest.mark.parametrize("k", [0, 7])
    def test_few_are_answered_without_sorting_the_bank(self, monkeypatch, size, k):
        whole = bank_with_ties(size, patches=900, size=size)
        bank, queries = part_of(whole, slice(0, 897)), part_of(whole, slice(897, 900))
        asked = []
        real = tree.grow

        def noted(*args):
            asked.append(args[-1])
            return real(*args)

        monkeypatch.setattr(join, "grow", noted)
        settings = JoinSettings(epsilon=0.02, k=k)
        unsorted = list(range_pairs(bank, settings, queries))
        monkeypatch.setattr(join, "FEW", 2**40)
        assert_same_pairs(unsorted, list(range_pairs(bank, settings, queries)))
        assert asked == [False, True]
        assert rows_of(unsorted)[0] == [
            pair for pair in brute_force(whole, JoinSettings(epsilon=0.02, k=0))[897]
            if pair[1] < 897
        ][: k or None]  # fmt: skip

    @pytest.mark.parametrize("side", ["bank", "queries"])
    def test_without_images_nobody_testifies(self, side):
        _, bank, queries = self.split(1)
        blank = dataclasses.replace(
            {"bank": bank, "queries": queries}[side],
            has_image=np.zeros({"bank": 80, "queries": 40}[side], bool),
        )
        asked = (blank, ALL, queries) if side == "bank" else (bank, ALL, blank)
        assert rows_of(list(range_pairs(*asked))) == [[]] * 40


class TestNearest:
    @pytest.mark.parametrize("k", [1, 5, 64, 1000])
    @pytest.mark.parametrize("testify", ["any", "other_stretch", "other_scan"])
    def test_equal_brute_force_without_a_limit(self, k, testify):
        bank = bank_with_ties(k, patches=300)
        settings = JoinSettings(testify=testify, stretch_mm=3.0)
        widest = dataclasses.replace(settings, epsilon=1.0, k=k)
        assert rows_of(list(nearest_pairs(bank, k, settings))) == brute_force(bank, widest)

    def test_in_another_bank(self):
        whole = bank_with_ties(3, patches=400)
        bank, queries = part_of(whole, slice(0, 300)), part_of(whole, slice(300, 400))
        widest = JoinSettings(epsilon=1.0, k=0, testify="other_scan")
        everything = brute_force(whole, widest)[300:]
        expected = [[pair for pair in row if pair[1] < 300][:16] for row in everything]
        found = rows_of(list(nearest_pairs(bank, 16, widest, queries)))
        assert found == expected
        assert all(len(row) in (0, 16) for row in found)

    def test_the_farthest_possible_patch_is_found(self):
        inside = circle(24)
        bank = bank_of_images(np.stack([inside * 255, inside * 0]))
        rows = rows_of(list(nearest_pairs(bank, 1, JoinSettings())))
        assert [row[0][:2] for row in rows] == [(255**2 * 448, 1), (255**2 * 448, 0)]

    def test_none_at_all_cannot_be_asked_for(self):
        with pytest.raises(ValueError, match="at least one"):
            nearest_pairs(bank_with_ties(1), 0, JoinSettings())


def part_of(bank: Bank, rows: slice) -> Bank:
    return Bank(**{f.name: getattr(bank, f.name)[rows] for f in dataclasses.fields(Bank)})


class TestDevice:
    def test_without_its_packages_none_is_used(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert join.why_no_device() == ("it needs torch and triton: pip install 'maskwitness[gpu]'")
        bank, settings = bank_with_ties(7), JoinSettings(epsilon=0.02)
        assert_same_pairs(
            list(range_pairs(bank, settings, device="cuda")), list(range_pairs(bank, settings))
        )
