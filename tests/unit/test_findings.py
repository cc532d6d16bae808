import math

import numpy as np
import pytest

from maskwitness.config import FindingSettings
from maskwitness.findings import KINDS, Evidence, find_runs, is_bad, kind_of, kinds
from maskwitness.findings.kinds import Alone, Kind, Narrower, Unlike, Wider

NAN = math.nan
ONLY_EXTREME = FindingSettings(threshold=-3.0, worst_share=0.0, bridge_mm=2.0)


def runs(score, *, branch=None, scan=None, arc=None, settings=ONLY_EXTREME):
    """Find runs along points 1 mm apart, on one branch unless said otherwise."""
    values = np.array(score, dtype=np.float64)
    points = len(values)
    arc_mm = np.arange(points, dtype=np.float64) if arc is None else np.array(arc, float)
    return find_runs(
        np.array(["a"] * points if scan is None else scan),
        np.zeros(points, np.int64) if branch is None else np.array(branch, np.int64),
        np.stack([arc_mm, 2 * arc_mm, 0 * arc_mm], axis=1),
        arc_mm,
        values,
        settings,
    )


def places(found) -> list[tuple[int, int]]:
    return sorted((f.first_patch, f.points) for f in found)


class TestRuns:
    def test_bad_points_in_a_row_are_one_finding(self):
        (found,) = runs([0, 0, -4, -9, -5, 0, 0])
        assert (found.first_patch, found.worst_patch, found.points) == (2, 3, 3)
        assert (found.worst_score, found.mean_score) == (-9.0, -6.0)
        assert (found.start_mm, found.centre_mm, found.end_mm) == ((2, 4, 0), (3, 6, 0), (4, 8, 0))
        assert found.length_mm == 2.0
        assert (found.scan, found.branch, found.kind) == ("a", 0, "")

    def test_a_single_bad_point_is_a_finding_of_no_length(self):
        (found,) = runs([0, -4, 0])
        assert (found.points, found.length_mm) == (1, 0.0)
        assert found.start_mm == found.centre_mm == found.end_mm

    def test_short_gaps_are_bridged_and_longer_ones_are_not(self):
        assert places(runs([-4, 0, -4, 0, 0, -4])) == [(0, 2), (5, 1)]
        assert places(runs([-4, 9, -4], arc=[0, 1, 2.0])) == [(0, 2)]  # 2 mm: just near enough
        assert places(runs([-4, 9, -4], arc=[0, 1, 2.001])) == [(0, 1), (2, 1)]

    def test_unscored_points_are_bridged_too_but_do_not_count(self):
        (found,) = runs([-4, NAN, -6])
        assert (found.points, found.mean_score) == (2, -5.0)

    def test_other_branches_and_scans_are_other_findings(self):
        assert places(runs([-4] * 4, branch=[0, 0, 1, 1])) == [(0, 2), (2, 2)]
        assert places(runs([-4] * 4, scan=["a", "a", "a", "b"])) == [(0, 3), (3, 1)]
        found = runs([-4] * 4, scan=["a", "b", "b", "c"], branch=[7, 7, 8, 8], arc=[0] * 4)
        assert [(f.scan, f.branch) for f in found] == [("a", 7), ("b", 7), ("b", 8), ("c", 8)]

    def test_the_worst_come_first_and_ties_by_place(self):
        settings = FindingSettings(worst_share=0.0, bridge_mm=0.5)
        assert [f.worst_patch for f in runs([-4, 0, -8, 0, -4, 0, -5], settings=settings)] == [
            2,
            6,
            0,
            4,
        ]

    def test_of_equal_points_the_first_is_the_worst(self):
        (found,) = runs([-5, -5, -5])
        assert found.worst_patch == 0

    def test_where_nothing_is_bad_nothing_is_found(self):
        assert runs([0.0, 1.0, -2.99]) == []
        assert runs([NAN, NAN]) == []
        assert runs([]) == []


class TestIsBad:
    @pytest.mark.parametrize(
        ("score", "settings", "bad"),
        [
            ([-3.0, -3.1, 5], ONLY_EXTREME, [False, True, False]),  # below, not at
            ([-1, -2, -0.5, 4], FindingSettings(worst_share=0.5), [True, True, False, False]),
            ([-1, -2, 0.5, 4], FindingSettings(worst_share=0.75), [True, True, False, False]),
            ([1, 2, 3, 4], FindingSettings(worst_share=0.5), [False] * 4),  # all is well
            ([-1, -2, 0, 4], FindingSettings(worst_share=1.0), [True, True, False, False]),
            ([-9, -8, -7, -1], FindingSettings(worst_share=0.25), [True, True, True, False]),
            ([-1, -2], FindingSettings(worst_share=0.49), [False, False]),  # a share of no point
            ([NAN, -4, NAN, -1], ONLY_EXTREME, [False, True, False, False]),
            ([NAN, -2, NAN, -1], FindingSettings(worst_share=0.5), [False, True, False, False]),
            ([NAN, NAN], FindingSettings(worst_share=1.0), [False, False]),
            ([], FindingSettings(worst_share=1.0), []),
        ],
    )
    def test_below_the_threshold_or_among_the_worst_share(self, score, settings, bad):
        assert is_bad(np.array(score, dtype=np.float64), settings).tolist() == bad

    def test_the_usual_share_is_one_in_fifty(self):
        score = -np.arange(1.0, 101.0) / 50  # none is extreme
        assert np.flatnonzero(is_bad(score, FindingSettings())).tolist() == [98, 99]


class TestKinds:
    @pytest.mark.parametrize(
        ("area", "usual", "kind"),
        [
            (1.0, 0.0, Alone),
            (1.2, 1.0, Wider),
            (1.19, 1.0, Unlike),
            (0.81, 1.0, Unlike),
            (0.8, 1.0, Narrower),
            (0.0, 1.0, Narrower),
            (1.0, NAN, Unlike),
        ],
    )
    def test_each_is_reached(self, area, usual, kind):
        assert kind_of(Evidence(area_mm2=area, usual_area_mm2=usual)) == kind.title()

    def test_the_last_of_them_always_applies(self):
        assert KINDS[-1] is Unlike
        for area in (0.0, 1.0, NAN):
            assert Unlike.check(Evidence(area_mm2=area, usual_area_mm2=area))

    def test_have_titles_that_tell_them_apart_and_explain_themselves(self):
        titles = [kind.title() for kind in KINDS]
        assert titles == [
            "drawn where look-alikes have nothing",
            "wider than look-alikes",
            "narrower than look-alikes",
            "elsewhere than look-alikes",
        ]
        assert all(len((kind.__doc__ or "").strip().splitlines()) > 1 for kind in KINDS)

    def test_a_new_kind_is_one_class_named_before_the_others(self, monkeypatch):
        class Huge(Kind):
            """Larger than any vessel.

            The mask covers more than a square centimetre.
            """

            @staticmethod
            def check(evidence: Evidence) -> bool:
                return evidence.area_mm2 > 100

        monkeypatch.setattr(kinds, "KINDS", (Huge, *KINDS))
        assert kind_of(Evidence(area_mm2=101.0, usual_area_mm2=1.0)) == "larger than any vessel"
        assert kind_of(Evidence(area_mm2=99.0, usual_area_mm2=1.0)) == Wider.title()

    def test_two_empty_masks_are_not_narrower_than_each_other(self):
        assert kind_of(Evidence(area_mm2=0.0, usual_area_mm2=0.0)) == Unlike.title()
