import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from maskwitness.config import QualitySettings
from maskwitness.errors import InputError
from maskwitness.io.nifti import write_nifti
from maskwitness.judge import (
    Judgement,
    auroc,
    average_precision,
    findings_of,
    judge_points,
    judge_run,
    read_errors,
)
from maskwitness.quality import paint_quality
from maskwitness.records import Volume

SPACING_HALF = np.diag([0.5, 0.5, 0.5, 1.0])
HEADER = "scan,error,kind,branch,start_x_mm,centre_x_mm,end_x_mm,length_mm,changed_voxels\n"


def tube(length: int = 60) -> np.ndarray:
    mask = np.zeros((length, 20, 20), np.uint8)
    mask[:, 8:11, 8:11] = 1
    return mask


def centreline() -> np.ndarray:
    return np.array([[i * 0.5, 4.5, 4.5] for i in range(60)])


def planted_tube() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # True: 3 × 3 voxels. Drawn: 5 × 5 for i in 20 … 29 (error 1), nothing for i >= 50 (error 2).
    true = tube()
    drawn = true.copy()
    drawn[20:30, 7:12, 7:12] = 1
    drawn[50:] = 0
    error = np.zeros(true.shape, np.uint16)
    error[20:30][drawn[20:30] != true[20:30]] = 1
    error[50:][drawn[50:] != true[50:]] = 2
    return true, drawn, error


class TestPoints:
    def test_a_point_on_a_true_mask_is_good(self):
        error = np.zeros(tube().shape, np.uint16)
        found = judge_points(centreline(), tube(), tube(), error, SPACING_HALF, {})
        assert not found.bad.any()
        assert (found.fraction == 0).all()
        assert (found.kind == "").all()

    def test_points_are_bad_where_the_masks_disagree_and_bear_the_planted_kind(self):
        true, drawn, error = planted_tube()
        kinds = {1: "too_wide", 2: "gap"}
        found = judge_points(centreline(), drawn, true, error, SPACING_HALF, kinds)
        assert not found.bad[:15].any()
        assert (found.kind[22:28] == "too_wide").all()
        assert not found.bad[36:44].any()
        assert (found.kind[52:] == "gap").all()
        assert (found.fraction[55:] == 1.0).all()

    def test_the_fraction_is_that_of_the_voxels_within_two_millimetres(self):
        # A row of voxels 0.4 mm apart: 5 on either side are within 2 mm, the fifth exactly.
        true = np.ones((21, 1, 1), np.uint8)
        drawn = true.copy()
        drawn[:7] = 0
        affine = np.diag([0.4, 0.4, 0.4, 1.0])
        affine[:3, 3] = [-217.3, 81.1, 0.7]
        points = np.array([[-217.3 + 10 * 0.4, 81.1, 0.7]])
        error = np.zeros(true.shape, np.uint16)
        found = judge_points(points, drawn, true, error, affine, {})
        assert found.fraction.tolist() == [2 / 11]  # voxels 5 and 6 of 5 … 15

    def test_a_quarter_is_not_yet_bad(self):
        true = np.ones((8, 1, 1), np.uint8)
        drawn = true.copy()
        drawn[:2] = 0
        error = np.zeros(true.shape, np.uint16)
        affine = np.diag([0.1, 0.1, 0.1, 1.0])
        found = judge_points(np.zeros((1, 3)), drawn, true, error, affine, {})
        assert found.fraction.tolist() == [0.25]
        assert not found.bad[0]

    def test_a_point_far_from_every_voxel_is_not_bad(self):
        true, drawn, error = planted_tube()
        found = judge_points(np.full((1, 3), 500.0), drawn, true, error, SPACING_HALF, {})
        assert not found.bad[0]
        assert found.fraction[0] == 0

    @pytest.mark.parametrize(
        ("errors", "kind"),
        [([2, 2, 1], "gap"), ([2, 1, 0], "leak"), ([0, 0, 2], "gap"), ([0, 0, 0], "")],
    )
    def test_the_commonest_error_names_the_kind_and_ties_go_to_the_lowest(self, errors, kind):
        true = np.ones((3, 1, 1), np.uint8)
        error = np.array(errors, np.uint16).reshape(3, 1, 1)
        found = judge_points(
            np.zeros((1, 3)), np.zeros_like(true), true, error, SPACING_HALF, {1: "leak", 2: "gap"}
        )
        assert found.bad.tolist() == [True]
        assert found.kind.tolist() == [kind]

    def test_a_rotated_and_sheared_grid_gives_the_same_voxels(self):
        true, drawn, error = planted_tube()
        turn = np.array([[0.0, -0.5, 0.0], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.5]])
        affine = np.eye(4)
        affine[:3, :3], affine[:3, 3] = turn, [3.0, -20.0, 7.0]
        moved = centreline() / 0.5 @ turn.T + affine[:3, 3]
        kinds = {1: "too_wide", 2: "gap"}
        here = judge_points(centreline(), drawn, true, error, SPACING_HALF, kinds)
        there = judge_points(moved, drawn, true, error, affine, kinds)
        assert np.array_equal(here.fraction, there.fraction)
        assert np.array_equal(here.kind, there.kind)

    def test_an_error_number_that_nobody_planted_is_refused(self):
        true, drawn, error = planted_tube()
        with pytest.raises(InputError, match="planted error 2, which the truth does not list"):
            judge_points(centreline(), drawn, true, error, SPACING_HALF, {1: "too_wide"})


class TestRanking:
    def test_a_perfect_ranking_scores_one_and_its_reverse_nothing(self):
        bad = np.array([True, True, False, False])
        badness = np.array([4.0, 3.0, 2.0, 1.0])
        assert auroc(bad, badness) == 1.0
        assert auroc(bad, -badness) == 0.0
        assert average_precision(bad, badness) == 1.0

    def test_all_equal_is_a_coin_and_the_share_of_bad_ones(self):
        bad = np.array([True, False, False, False])
        assert auroc(bad, np.zeros(4)) == 0.5
        assert average_precision(bad, np.zeros(4)) == 0.25

    @pytest.mark.parametrize("bad", [[], [True, True], [False, False]])
    def test_without_bad_or_good_ones_both_are_undefined(self, bad):
        flags = np.array(bad, dtype=bool)
        assert auroc(flags, np.zeros(len(bad))) is None
        assert average_precision(flags, np.zeros(len(bad))) is None

    @pytest.mark.parametrize("levels", [2, 5, 50, 10**6])
    def test_both_agree_with_scikit_learn_whatever_the_ties(self, levels):
        rng = np.random.default_rng(levels)
        bad = rng.random(500) < 0.2
        badness = rng.integers(0, levels, 500) / levels + 0.1 * bad
        assert auroc(bad, badness) == pytest.approx(roc_auc_score(bad, badness), abs=1e-12)
        assert average_precision(bad, badness) == pytest.approx(
            average_precision_score(bad, badness), abs=1e-12
        )


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantom")
    true, drawn, error = planted_tube()
    for folder, data in (("labelsTr", drawn), ("truth/masks", true), ("truth/errors", error)):
        (root / folder).mkdir(parents=True)
        for name in ("one", "two"):
            write_nifti(root / folder / f"{name}.nii.gz", data, SPACING_HALF)
    rows = "one,1,too_wide,0,0,0,0,0,0\none,2,gap,0,0,0,0,0,0\ntwo,1,too_wide,0,0,0,0,0,0\n"
    (root / "truth/errors.csv").write_text(HEADER + rows + "two,2,gap,0,0,0,0,0,0\n")
    return root


def points_of(name: str, score: np.ndarray) -> dict[str, np.ndarray]:
    x, y, z = centreline().T
    return {"scan": np.full(60, name), "x_mm": x, "y_mm": y, "z_mm": z, "score": score}


def finding(i: int, worst: float, name: str = "one", **more: Any) -> dict[str, Any]:
    return {"scan": name, "centre_mm": (i * 0.5, 4.5, 4.5), "worst_score": worst, **more}


def judged(points: Any, findings: Any, quality: Any, truth: Path) -> Judgement:
    return judge_run(points, findings, quality, truth, QualitySettings())


def no_map(name: str) -> None:
    return None


class TestRun:
    def test_a_run_that_marks_the_planted_places_is_judged_perfect(self, truth):
        true, drawn, error = planted_tube()
        bad = judge_points(
            centreline(), drawn, true, error, SPACING_HALF, {1: "too_wide", 2: "gap"}
        ).bad
        changed = np.argwhere(error) * 0.5
        near = np.array([(((changed - at) ** 2).sum(axis=1) <= 4).any() for at in centreline()])
        quality = Volume(data=(drawn == true).astype(np.float32), affine=SPACING_HALF)
        found = judged(
            points_of("one", np.where(bad, -9.0, 1.0)),
            [finding(25, -9.0), finding(55, -8.0)],
            lambda name: quality,
            truth,
        )
        assert (found.points, found.scored) == (60, 1.0)
        assert found.bad_share == bad.mean()
        assert (found.auroc_all, found.ap_all) == (1.0, 1.0)
        assert (found.voxels["auroc"], found.voxels["ap"]) == (1.0, 1.0)
        assert found.findings == {
            "total": 2, "hit": 2, "planted": 2, "found": 2, "precision_of_worst": {},
            "hit_by_chance": pytest.approx(2 * near.mean()),
        }  # fmt: skip
        assert found.kinds["gap"]["found"] == found.kinds["gap"]["planted"] == 1
        assert found.kinds["gap"]["auroc"] == found.kinds["too_wide"]["auroc"] == 1.0

    def test_an_unscored_point_counts_as_score_zero_but_not_as_scored(self, truth):
        score = np.full(60, 1.0)
        score[20:30] = np.nan  # all bad; zero is lower than the one of the good ones
        score[52:] = -5.0
        found = judged(points_of("one", score), [], no_map, truth)
        assert found.scored == 50 / 60
        assert found.kinds["too_wide"]["coverage"] < 1.0
        assert found.kinds["gap"]["coverage"] == 1.0
        score[:18] = np.nan
        worse = judged(points_of("one", score), [], no_map, truth)
        assert worse.auroc_all is not None
        assert found.auroc_all is not None
        assert worse.auroc_all < found.auroc_all

    def test_a_kind_is_ranked_against_the_good_points_only(self, truth):
        score = np.zeros(60)
        score[20:30] = -5.0  # too_wide worse than gap: no concern of gap
        score[48:] = -4.0
        found = judged(points_of("one", score), [], no_map, truth)
        assert found.kinds["gap"]["auroc"] == 1.0

    def test_findings_hit_what_lies_within_two_millimetres_of_them(self, truth):
        findings = [
            finding(10, -3.0),  # nothing there
            finding(17, -9.0),  # error 1 begins 1.5 mm on and 1 mm to the side
            finding(16, -4.0),  # 2 mm on: too far
            finding(40, -5.0, points_mm=[(20.0, 4.5, 4.5), (24.0, 4.5, 4.5)]),  # reaches error 2
            finding(25, -6.0, name="two"),
        ]
        found = judged(points_of("one", np.zeros(60)), findings, no_map, truth)
        assert (found.findings["total"], found.findings["hit"]) == (5, 3)
        assert (found.findings["planted"], found.findings["found"]) == (4, 3)
        assert (found.kinds["too_wide"]["found"], found.kinds["gap"]["found"]) == (2, 1)

    def test_the_precision_of_the_worst_findings_is_told(self, truth):
        findings = [finding(25, -20.0 + n) for n in range(4)]
        findings += [finding(10, -10.0 + n) for n in range(8)]
        found = judged(points_of("one", np.zeros(60)), findings[::-1], no_map, truth)
        assert found.findings["precision_of_worst"] == {"10": 0.4}

    def test_a_kind_has_its_figures_over_scored_points_too(self, truth):
        score = np.zeros(60)
        score[52:56] = -4.0
        score[56:] = np.nan
        gap = judged(points_of("one", score), [], no_map, truth).kinds["gap"]
        assert gap["coverage"] < 1
        assert gap["auroc"] < gap["auroc_scored"]
        assert gap["ap"] < gap["ap_scored"]

    def test_all_four_places_of_a_finding_count(self, truth):
        row: dict[str, Any] = {"scan": "one", "worst_score": -4.0, "worst_patch": 3}
        for end, i in (("start", 2), ("centre", 10), ("end", 12)):
            row |= {f"{end}_x_mm": i * 0.5, f"{end}_y_mm": 4.5, f"{end}_z_mm": 4.5}
        points = points_of("one", np.zeros(60))
        (finding,) = findings_of([row], points)
        assert finding["centre_mm"] == (5.0, 4.5, 4.5)
        assert finding["points_mm"] == [(1.0, 4.5, 4.5), (6.0, 4.5, 4.5), (1.5, 4.5, 4.5)]
        for change in ({"start_x_mm": 12.5}, {"end_x_mm": 12.5}, {"worst_patch": 25}):
            found = judged(points, findings_of([{**row, **change}], points), no_map, truth)
            assert found.findings["hit"] == 1, change
        assert judged(points, [finding], no_map, truth).findings["hit"] == 0

    def test_chance_moves_each_finding_as_it_is_to_every_scored_point(self, truth):
        # Error 1 is near points 17 … 32, error 2 near points 46 … 59: 30 of 60.
        score = np.zeros(60)
        single = [finding(5, -3.0)]
        assert judged(points_of("one", score), single, no_map, truth).findings[
            "hit_by_chance"
        ] == pytest.approx(0.5)
        score[:17] = np.nan
        among = judged(points_of("one", score), single * 3, no_map, truth)
        assert among.findings["hit_by_chance"] == pytest.approx(3 * 30 / 43)
        # Two places 5 points apart: the first may also lie 5 points before an error.
        long = [finding(5, -3.0, points_mm=[(5.0, 4.5, 4.5)])]
        score[:] = 0
        wider = judged(points_of("one", score), long, no_map, truth)
        assert wider.findings["hit_by_chance"] == pytest.approx(40 / 60)
        score[:] = np.nan
        none = judged(points_of("one", score), single, no_map, truth)
        assert none.findings["hit_by_chance"] is None

    def test_the_map_of_a_run_without_scores_ranks_as_the_neutral_one(self, truth):
        points = points_of("one", np.full(60, np.nan))
        data = paint_quality(
            centreline(), points["score"], (60, 20, 20), SPACING_HALF, QualitySettings()
        )
        found = judged(points, [], lambda name: Volume(data=data, affine=SPACING_HALF), truth)
        assert found.voxels["auroc"] == found.voxels["auroc_neutral"] != 0.5
        assert found.voxels["ap"] == found.voxels["ap_neutral"]

    def test_a_run_without_bad_points_has_no_figures(self, truth):
        some = {name: column[:10] for name, column in points_of("one", np.zeros(60)).items()}
        found = judged(some, [], no_map, truth)
        assert found.auroc_all is None
        assert set(found.voxels.values()) == {None}
        assert found.kinds["gap"]["coverage"] is None

    def test_the_judgement_can_be_written_as_json(self, truth):
        found = judged(points_of("two", np.zeros(60)), [finding(9, -3.5)], no_map, truth)
        assert json.loads(json.dumps(found.to_dict())) == found.to_dict()

    def test_a_truth_that_lacks_a_scan_is_refused_by_name(self, truth):
        with pytest.raises(InputError, match="has no scan 'three'"):
            judged(points_of("three", np.zeros(60)), [], no_map, truth)

    def test_a_folder_without_errors_is_no_truth(self, tmp_path):
        with pytest.raises(InputError, match="no truth folder"):
            read_errors(tmp_path)

    @pytest.mark.parametrize(
        "table", ["a,b\n1,2\n", "scan,error,kind\none,first,gap\n", "scan,error,kind\none\n"]
    )
    def test_a_damaged_table_of_errors_is_refused_with_its_row(self, tmp_path, table):
        (tmp_path / "truth").mkdir()
        (tmp_path / "truth/errors.csv").write_text(table)
        with pytest.raises(InputError, match=r"errors.csv: row 1 is no planted error: scan "):
            read_errors(tmp_path)
        (tmp_path / "truth/errors.csv").write_bytes(b"scan\xff\n")
        with pytest.raises(InputError, match="cannot be read as CSV"):
            read_errors(tmp_path)

    def test_a_quality_map_on_another_grid_is_refused(self, truth):
        other = Volume(data=np.ones((3, 3, 3), np.float32), affine=SPACING_HALF)
        with pytest.raises(InputError, match="quality map does not lie on the grid"):
            judged(points_of("one", np.zeros(60)), [], lambda name: other, truth)

    def test_a_truth_on_another_grid_is_refused(self, tmp_path):
        (tmp_path / "truth").mkdir()
        (tmp_path / "truth/errors.csv").write_text(HEADER)
        for folder, length in (("labelsTr", 60), ("truth/masks", 59), ("truth/errors", 60)):
            (tmp_path / folder).mkdir(exist_ok=True, parents=True)
            write_nifti(tmp_path / folder / "one.nii.gz", tube(length), SPACING_HALF)
        with pytest.raises(InputError, match="truth/masks does not lie on the grid"):
            judged(points_of("one", np.zeros(60)), [], no_map, tmp_path)
