import dataclasses
import math

import numpy as np
import pytest

from maskwitness.config import Config, JoinSettings, PatchSettings, ResidualSettings
from maskwitness.errors import InputError
from maskwitness.join import plan, reach_of
from maskwitness.pipeline import (
    bank_of,
    compare,
    describe,
    groups,
    judge,
    mask_areas,
    positions_um,
)
from maskwitness.records import Description, Scan, Scores
from maskwitness.residuals import NO_IMAGE
from tests.shapes import as_mask, scan_of, tube

SHAPE = (17, 17, 44)
AFFINE = np.diag([0.25, 0.25, 0.5, 1.0])
CONFIG = Config(
    join=JoinSettings(epsilon=0.02, k=60),
    residuals=ResidualSettings(bins=4, min_pairs=20),
)
WRONG = range(18, 26)  # slices in which the bad scan is drawn too wide


def vessel(seed: int, wrong: bool = False) -> Scan:
    """A straight bright vessel with a little noise; drawn too wide along a stretch where wrong."""
    lumen = tube(4.0, (8, 8, 2), (8, 8, 41), SHAPE)
    wide = tube(6.5, (8, 8, WRONG.start), (8, 8, WRONG.stop - 1), SHAPE)
    noise = np.random.default_rng(seed).normal(scale=8, size=SHAPE)
    data = np.rint(400.0 * lumen + noise).astype(np.int16)
    return scan_of(data, lumen | wide if wrong else lumen, AFFINE, name=f"case {seed}")


@pytest.fixture(scope="module")
def scans() -> list[Scan]:
    return [vessel(1), vessel(2), vessel(3, wrong=True), vessel(4)]


@pytest.fixture(scope="module")
def described(scans: list[Scan]) -> list[Description]:
    return [describe(scan, CONFIG.patches) for scan in scans]


def compared(described: list[Description], config: Config = CONFIG) -> Scores:
    parts = list(compare(bank_of(described, config.join.testify), config))
    return Scores(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(Scores)
        }
    )


class TestDescribe:
    def test_gives_every_point_a_frame_and_a_patch(self, described):
        for found in described:
            points = len(found.graph.branch)
            assert points > 30
            assert found.frames.normal.shape == (points, 3)
            assert found.patches.image.shape == (points, 24, 24)

    def test_takes_the_patch_it_is_asked_for(self, scans):
        found = describe(scans[0], PatchSettings(size=10))
        assert found.patches.image.shape[1:] == (10, 10)

    def test_refuses_an_empty_mask(self):
        empty = scan_of(np.zeros((4, 4, 4)), np.zeros((4, 4, 4), np.uint8))
        with pytest.raises(InputError, match="no foreground"):
            describe(empty, CONFIG.patches)

    def test_measures_the_vessel(self, described):
        middle = len(described[0].graph.branch) // 2
        patches = described[0].patches
        assert patches.area_mm2[middle] == pytest.approx(math.pi, rel=0.12)
        assert patches.lumen_hu[middle] == pytest.approx(400, rel=0.1)
        assert patches.angle_deg[middle] == 0.0


class TestBank:
    def test_holds_all_scans_one_after_the_other(self, described):
        bank = bank_of(described, "any")
        counts = [len(d.graph.branch) for d in described]
        assert len(bank.image) == sum(counts)
        assert bank.group.tolist() == np.repeat(np.arange(4), counts).tolist()
        second = slice(counts[0], counts[0] + counts[1])
        np.testing.assert_array_equal(bank.image[second], described[1].patches.image)
        np.testing.assert_array_equal(bank.mask[second], described[1].patches.mask)

    def test_positions_are_whole_micrometres(self):
        arc = np.array([0.0, 0.0004, 0.0006, 1.23449999, 5.0])
        assert positions_um(arc).tolist() == [0, 0, 1, 1234, 5000]

    def test_groups_are_scans_or_branches_of_scans(self):
        scan = np.array([0, 0, 1, 1])
        branch = np.array([0, 1, 0, 1], np.int32)
        assert groups(scan, branch, "any").tolist() == [0, 0, 1, 1]
        assert groups(scan, branch, "other_scan").tolist() == [0, 0, 1, 1]
        assert len(set(groups(scan, branch, "other_stretch").tolist())) == 4

    def test_groups_of_many_scans_and_branches_do_not_collide(self):
        scan, branch = np.array([0, 1, 2**20]), np.array([2**31 - 1, 0, 2**31 - 1], np.int32)
        assert len(set(groups(scan, branch, "other_stretch").tolist())) == 3

    def test_areas_are_counts_of_samples(self, described):
        bank = bank_of(described, "any")
        step2 = CONFIG.patches.step_mm**2
        area = np.concatenate([d.patches.area_mm2 for d in described])
        np.testing.assert_allclose(mask_areas(bank.mask) * step2, area)


class TestCompare:
    def test_the_wrongly_drawn_stretch_scores_worst(self, described):
        scores = compared(described)
        counts = np.cumsum([0, *(len(d.graph.branch) for d in described)])
        slices = np.concatenate([d.graph.points_vox[:, 2] for d in described])
        wrong = np.zeros(len(slices), bool)
        wrong[counts[2] : counts[3]] = np.isin(slices[counts[2] : counts[3]], list(WRONG))
        worst = np.argsort(scores.residual)[: int(wrong.sum())]
        assert wrong.sum() >= len(WRONG)
        assert np.mean(wrong[worst]) > 0.85
        assert np.median(scores.residual[wrong]) < np.median(scores.residual[~wrong]) - 1
        assert scores.usual_area[worst[0]] < mask_areas(bank_of(described, "any").mask)[worst[0]]

    def test_blocks_change_no_score(self, described, monkeypatch):
        whole = compared(described)
        monkeypatch.setattr(plan, "MOST_ROWS", 11)
        parts = compared(described)
        np.testing.assert_array_equal(parts.residual, whole.residual)
        np.testing.assert_array_equal(parts.usual_area, whole.usual_area)
        assert parts.reason.tolist() == whole.reason.tolist()

    def test_the_order_of_scans_changes_no_score(self, described):
        # Without a limit on witnesses: with one, ties are kept by index.
        config = dataclasses.replace(CONFIG, join=JoinSettings(epsilon=0.02, k=0))
        here, there = compared(described, config), compared(described[::-1], config)
        counts = [len(d.graph.branch) for d in described]
        back = np.concatenate(np.split(there.residual, np.cumsum(counts[::-1])[:-1])[::-1])
        np.testing.assert_array_equal(back, here.residual)

    def test_a_scan_may_be_barred_from_testifying_for_itself(self, described):
        join = JoinSettings(epsilon=0.02, k=0, testify="other_scan")
        scores = compared(described, dataclasses.replace(CONFIG, join=join))
        free = compared(
            described, dataclasses.replace(CONFIG, join=JoinSettings(epsilon=0.02, k=0))
        )
        own = np.concatenate([np.full(len(d.graph.branch), len(d.graph.branch)) for d in described])
        assert (scores.witnesses < free.witnesses).any()
        assert (scores.witnesses <= len(own) - own).all()
        assert reach_of(join) > 10**9

    def test_a_patch_without_contrast_is_not_scored(self):
        flat = scan_of(
            np.zeros((5, 5, 9)), as_mask(np.array([[2, 2, k] for k in range(9)]), (5, 5, 9))
        )
        scores = compared([describe(flat, CONFIG.patches)])
        assert set(scores.reason.tolist()) == {NO_IMAGE}
        assert np.isnan(scores.residual).all()


class TestJudge:
    def test_doubt_lies_where_the_mask_is_wrong(self, scans, described):
        counts = np.cumsum([0, *(len(d.graph.branch) for d in described)])
        scores = compared(described).residual
        maps = [
            judge(scan, d.graph.points_mm, scores[counts[n] : counts[n + 1]], CONFIG)
            for n, (scan, d) in enumerate(zip(scans, described, strict=True))
        ]
        for scan, quality in zip(scans, maps, strict=True):
            assert quality.shape == scan.mask.shape
            assert ((quality >= 0) & (quality <= 1)).all()
        inside = maps[2][8, 8, WRONG.start + 1 : WRONG.stop - 1]
        assert inside.max() < 0.3
        assert inside.max() < np.median([quality[8, 8, 4:40] for quality in maps])
