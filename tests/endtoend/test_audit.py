"""From a folder of scans to a finished run directory, and what happens on the way there."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import nibabel
import numpy as np
import pyarrow.parquet as pq
import pytest

from maskwitness.config import PatchSettings, from_dict
from maskwitness.errors import ConfigError, InputError, StoreError
from maskwitness.io import tables
from maskwitness.io.volumes import read_volume, write_volume
from maskwitness.run import audit, open_run
from tests.conftest import WIDE, arrays_of, assert_same_results


def test_a_finished_run_holds_what_the_format_promises(finished_run):
    assert sorted(p.name for p in finished_run.path.iterdir()) == [
        ".lock", "baseline.parquet", "findings.parquet", "pairs.zarr", "patches.parquet",
        "patches.zarr", "quality", "run.json", "scans.parquet", "scores.parquet",
    ]  # fmt: skip
    for name in ("scans", "patches", "baseline", "scores", "findings"):
        schema = pq.read_schema(finished_run.path / f"{name}.parquet")
        expected = getattr(tables, name.upper())
        assert dict(zip(schema.names, schema.types, strict=True)) == dict(expected), name
    patches = arrays_of(finished_run, "patches")
    count = finished_run.summary["patches"]
    assert patches["image"].shape == (count, 24, 24)
    assert patches["mask"].shape == (count, 72)
    state = json.loads((finished_run.path / "run.json").read_text())
    assert state["format"] == 1
    assert list(state["stages"]) == ["patches", "pairs", "scores", "quality"]
    assert state["config_digest"] == finished_run.config.digest()


def test_pairs_are_sorted_and_point_at_near_identical_images(finished_run):
    pairs = arrays_of(finished_run, "pairs")
    offset, witness, dist2 = pairs["offset"], pairs["witness"], pairs["dist2"]
    image = arrays_of(finished_run, "patches")["image"].astype(int)
    assert offset[0] == 0
    assert offset[-1] == len(witness) == finished_run.summary["pairs"] > 1000
    row = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    assert (np.lexsort((witness, dist2, row)) == np.arange(len(row))).all()
    assert (witness != row).all()
    some = np.random.default_rng(0).integers(0, len(row), 200)
    np.testing.assert_array_equal(
        ((image[row[some]] - image[witness[some]]) ** 2).sum(axis=(1, 2)), dist2[some]
    )
    assert dist2.max() < 0.01 * 576 * 255**2


def test_every_score_resolves_to_its_witnesses(finished_run):
    scores = finished_run.scores.to_pylist()
    scored = [row["patch"] for row in scores if row["score"] is not None]
    for patch in scored[:: len(scored) // 12]:
        evidence = finished_run.evidence(patch)
        assert len(evidence.witness) == scores[patch]["witnesses"]
        assert evidence.score == pytest.approx(np.nanmedian(evidence.residual), rel=1e-6)
        both = (evidence.mask & evidence.witness_mask).sum(axis=(1, 2))
        either = (evidence.mask | evidence.witness_mask).sum(axis=(1, 2))
        np.testing.assert_allclose(
            evidence.iou, np.where(either == 0, 1, both / np.maximum(either, 1))
        )
        moved = evidence.image.astype(int) - evidence.witness_image
        np.testing.assert_array_equal((moved**2).sum(axis=(1, 2)), evidence.dist2)
        assert len(finished_run.evidence(patch, most=1).witness) == 1


def test_an_unscored_point_says_why(finished_run):
    for row in finished_run.scores.to_pylist():
        assert (row["score"] is None) == (row["reason"] != "")
        if row["reason"] == "no witness":
            assert row["witnesses"] == 0


def test_a_patch_that_is_not_there_is_refused(finished_run):
    with pytest.raises(StoreError, match="there is no patch 999999: this run has 0 to"):
        finished_run.evidence(999999)


def test_quality_maps_lie_on_the_masks_grid(finished_run, phantom_data):
    for name in finished_run.scans["name"].to_pylist():
        quality = finished_run.quality(name)
        mask = read_volume(phantom_data / "labelsTr" / f"{name}.nii.gz")
        assert quality.shape == mask.shape
        np.testing.assert_allclose(quality.affine, mask.affine, atol=1e-5)
        assert quality.data.dtype == np.float32
        assert 0 <= quality.data.min() < 0.5
        assert quality.data.max() == 1


def test_findings_are_sorted_and_lie_on_bad_points(finished_run):
    findings = finished_run.findings.to_pylist()
    assert findings
    assert [row["worst_score"] for row in findings] == sorted(r["worst_score"] for r in findings)
    scores = finished_run.scores.to_pylist()
    for row in findings:
        worst = scores[row["worst_patch"]]
        assert worst["score"] == row["worst_score"]
        assert worst["scan"] == row["scan"]
        assert row["kind"]


def test_a_finished_run_is_not_done_again(phantom_data, finished_run):
    before = {p: p.stat().st_mtime_ns for p in finished_run.path.rglob("*") if p.name != ".lock"}
    seen: list[str] = []
    again = audit(
        phantom_data,
        finished_run.path,
        config=WIDE,
        progress=lambda stage, done, total: seen.append(stage),
    )
    assert seen == []
    after = {p: p.stat().st_mtime_ns for p in again.path.rglob("*") if p.name != ".lock"}
    assert before == after


@pytest.mark.parametrize("stage", ["patches", "pairs", "scores", "quality"])
def test_an_interrupted_audit_goes_on_and_ends_the_same(
    stage, phantom_data, finished_run, tmp_path
):
    def interrupt(now, done, total):
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(phantom_data, tmp_path / "run", config=WIDE, workers=1, progress=interrupt)
    unfinished = open_run(tmp_path / "run").state["stages"]
    assert stage not in unfinished
    continued = audit(phantom_data, tmp_path / "run", config=WIDE, workers=1)
    for earlier, entry in unfinished.items():
        assert continued.state["stages"][earlier] == entry
    assert_same_results(continued, finished_run)


def test_workers_and_memory_change_nothing(phantom_data, finished_run, tmp_path):
    config = {"join": {"epsilon": 0.01, "memory_mb": 64}}
    other = audit(phantom_data, tmp_path / "run", config=config, workers=3)
    assert_same_results(other, finished_run)


def test_another_configuration_is_said_and_nothing_is_replaced(phantom_data, finished_run):
    with pytest.raises(ConfigError, match=r"with other settings:\n  join.k: 2047 → 5\n.*--redo"):
        audit(phantom_data, finished_run.path, config={"join": {"epsilon": 0.01, "k": 5}})


def test_redo_does_only_what_is_stale(phantom_data, finished_run, tmp_path):
    shutil.copytree(finished_run.path, tmp_path / "run")
    config = {**WIDE, "quality": {"reach_mm": 1.0}}
    run = audit(phantom_data, tmp_path / "run", config=config, redo=True)
    old, new = finished_run.state["stages"], run.state["stages"]
    assert [new[stage] == old[stage] for stage in new] == [True, True, True, False]
    name = run.scans["name"][0].as_py()
    assert run.quality(name).data.mean() > finished_run.quality(name).data.mean()
    back = audit(phantom_data, tmp_path / "run", config=WIDE, redo=True)
    assert_same_results(back, finished_run)


def test_changed_data_is_noticed_by_its_content(phantom_data, finished_run, tmp_path):
    shutil.copytree(phantom_data, tmp_path / "data")
    before = audit(tmp_path / "data", tmp_path / "run", config=WIDE).scans["mask_sha256"]
    mask = tmp_path / "data" / "labelsTr" / "phantom_001.nii.gz"
    mask.touch()  # another time, the same content
    audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    shutil.copy(phantom_data / "truth" / "masks" / "phantom_001.nii.gz", mask)
    with pytest.raises(ConfigError, match="from other data:\n  phantom_001: the mask has changed"):
        audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    redone = audit(tmp_path / "data", tmp_path / "run", config=WIDE, redo=True)
    after = redone.scans["mask_sha256"]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]


def test_changed_voxels_beside_an_unchanged_header_are_noticed(phantom_data, tmp_path):
    for folder, ending in (("imagesTr", "_0000"), ("labelsTr", "")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        volume = read_volume(phantom_data / folder / f"phantom_001{ending}.nii.gz")
        pair = nibabel.nifti1.Nifti1Pair(volume.data, volume.affine)
        nibabel.save(pair, tmp_path / "data" / folder / f"phantom_001{ending}.hdr")
    audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    voxels = tmp_path / "data" / "labelsTr" / "phantom_001.img"
    voxels.write_bytes(voxels.read_bytes()[::-1])
    with pytest.raises(ConfigError, match="from other data:\n  phantom_001: the mask has changed"):
        audit(tmp_path / "data", tmp_path / "run", config=WIDE)


def test_a_data_set_that_moved_is_followed(phantom_data, tmp_path):
    shutil.copytree(phantom_data, tmp_path / "data")
    before = audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    after = audit(tmp_path / "elsewhere", tmp_path / "run", config=WIDE)
    assert after.state["stages"] == before.state["stages"]
    assert after.state["dataset"]["root"] == str(tmp_path / "elsewhere")
    for row in after.scans.to_pylist():
        assert row["image"] == str(tmp_path / f"elsewhere/imagesTr/{row['name']}_0000.nii.gz")


@pytest.mark.parametrize(
    ("gone", "kept"),
    [("quality", 3), ("findings.parquet", 2), ("pairs.zarr", 1), ("patches.parquet", 0)],
)
def test_results_that_are_gone_are_made_again(gone, kept, phantom_data, finished_run, tmp_path):
    shutil.copytree(finished_run.path, tmp_path / "run")
    place = tmp_path / "run" / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    run = audit(phantom_data, tmp_path / "run", config=WIDE)
    assert_same_results(run, finished_run)
    old, new = finished_run.state["stages"], run.state["stages"]
    same = [new[stage]["finished"] == old[stage]["finished"] for stage in new]
    assert same[:kept] == [True] * kept


def test_old_results_do_not_pass_for_new_ones(phantom_data, finished_run, tmp_path):
    shutil.copytree(finished_run.path, tmp_path / "run")

    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    other = {"join": {"epsilon": 0.02}}
    with pytest.raises(KeyboardInterrupt):
        audit(phantom_data, tmp_path / "run", config=other, redo=True, progress=interrupt)
    run = open_run(tmp_path / "run")
    assert not run.is_finished
    assert len(run.patches) == finished_run.summary["patches"]
    assert "pairs" not in run.summary
    for read in (lambda: run.scores, lambda: run.findings, lambda: run.evidence(0)):
        with pytest.raises(StoreError, match="is not finished: it has no scores yet"):
            read()
    with pytest.raises(StoreError, match="it has no quality yet"):
        run.quality("phantom_000")
    left = {p.name for p in run.path.iterdir()}
    assert left.isdisjoint({"pairs.zarr", "scores.parquet", "findings.parquet", "quality"})


def test_a_bad_scan_becomes_a_row_and_the_others_go_on(phantom_data, tmp_path):
    shutil.copytree(phantom_data, tmp_path / "data")
    labels = tmp_path / "data" / "labelsTr"
    (labels / "phantom_000.nii.gz").write_bytes(b"not an image")
    drawn = read_volume(labels / "phantom_001.nii.gz")
    write_volume(labels / "phantom_001.nii.gz", drawn.data * np.uint8(0), drawn.affine)
    run = audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    rows = {row["name"]: row for row in run.scans.to_pylist()}
    assert [rows[f"phantom_00{n}"]["status"] for n in range(3)] == ["refused", "refused", "audited"]
    assert "phantom_000.nii.gz" in rows["phantom_000"]["reason"]
    assert "the mask is empty" in rows["phantom_001"]["reason"]
    assert set(run.scores["scan"].to_pylist()) == {"phantom_002"}
    assert [p.name for p in (run.path / "quality").iterdir()] == ["phantom_002.nii.gz"]


def test_a_refused_scan_that_was_only_touched_has_not_changed(phantom_data, tmp_path):
    shutil.copytree(phantom_data, tmp_path / "data")
    bad = tmp_path / "data" / "labelsTr" / "phantom_000.nii.gz"
    bad.write_bytes(b"not an image")
    run = audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    (row,) = [row for row in run.scans.to_pylist() if row["status"] == "refused"]
    assert row["mask_sha256"] == hashlib.sha256(b"not an image").hexdigest()
    os.utime(bad, (1_000_000_000, 1_000_000_000))
    again = audit(tmp_path / "data", tmp_path / "run", config=WIDE)
    assert again.state["stages"] == run.state["stages"]
    bad.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="phantom_000: the mask has changed"):
        audit(tmp_path / "data", tmp_path / "run", config=WIDE)


def test_a_scan_refused_for_want_of_simpleitk_is_tried_again(phantom_data, tmp_path, monkeypatch):
    sitk = pytest.importorskip("SimpleITK")
    shutil.copytree(phantom_data, tmp_path / "data")
    mask = tmp_path / "data" / "labelsTr" / "phantom_000.nii.gz"
    sitk.WriteImage(sitk.ReadImage(str(mask)), str(tmp_path / "mask.mha"))
    rows = [f"data/imagesTr/phantom_00{n}_0000.nii.gz,data/labelsTr/phantom_00{n}.nii.gz"
            for n in range(3)]  # fmt: skip
    rows[0] = "data/imagesTr/phantom_000_0000.nii.gz,mask.mha"
    (tmp_path / "data.csv").write_text("\n".join(["image,mask", *rows]))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "SimpleITK", None)
        for _ in range(2):  # the second time there is nothing new
            run = audit(tmp_path / "data.csv", tmp_path / "run", config=WIDE)
            assert "need SimpleITK" in run.scans["reason"][0].as_py()
    with pytest.raises(ConfigError, match=r"from other data:\n  phantom_000 can be read now\n"):
        audit(tmp_path / "data.csv", tmp_path / "run", config=WIDE)
    redone = audit(tmp_path / "data.csv", tmp_path / "run", config=WIDE, redo=True)
    assert redone.summary["scans_audited"] == 3


def test_with_no_scan_left_nothing_is_called_finished(phantom_data, tmp_path):
    shutil.copytree(phantom_data, tmp_path / "data")
    for mask in (tmp_path / "data" / "labelsTr").iterdir():
        mask.write_bytes(b"")
    run = audit(tmp_path / "data", tmp_path / "run")
    assert run.summary["scans_audited"] == 0
    assert run.state["stages"] == {}
    assert all(row["reason"] for row in run.scans.to_pylist())
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(phantom_data, tmp_path / "data")
    mended = audit(tmp_path / "data", tmp_path / "run")
    assert mended.summary["scans_audited"] == 3


def test_a_second_process_is_told_who_the_first_is(phantom_data, tmp_path):
    code = (
        "import sys, time\nfrom maskwitness.run import audit\n"
        "def wait(*_):\n    print('working', flush=True)\n    time.sleep(60)\n"
        "audit(sys.argv[1], sys.argv[2], progress=wait)"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(phantom_data), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"working\n"
        with pytest.raises(StoreError, match=f"is being written by process {first.pid} on "):
            audit(phantom_data, tmp_path / "run")
    finally:
        first.kill()
        first.communicate()
    # Killed without a word: its lock is gone with it, and its finished scans are kept.
    audit(phantom_data, tmp_path / "run")


def test_a_folder_with_other_things_in_it_is_left_alone(phantom_data, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="is no run directory; choose another place"):
        audit(phantom_data, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_an_audit_needs_one_data_set_and_a_place(phantom_data, tmp_path):
    with pytest.raises(ConfigError, match="needs a run directory"):
        audit(phantom_data)
    for arguments in ({}, {"dataset": phantom_data, "images": phantom_data}, {"images": "a"}):
        with pytest.raises(InputError, match="name either a data set, or a folder of images"):
            audit(run=tmp_path / "run", **arguments)


def test_images_and_masks_may_come_as_two_folders(phantom_data, finished_run, tmp_path):
    run = audit(
        run=tmp_path / "run",
        images=phantom_data / "imagesTr",
        masks=phantom_data / "labelsTr",
        config=WIDE,
    )
    assert_same_results(run, finished_run)


def test_labels_choose_what_is_vessel(phantom_data, tmp_path):
    shutil.copytree(phantom_data, tmp_path / "data")
    for path in (tmp_path / "data" / "labelsTr").iterdir():
        mask = read_volume(path)
        data = mask.data * np.uint8(2)
        data[:10, :10, :10] = 1
        write_volume(path, data, mask.affine)
    run = audit(tmp_path / "data", tmp_path / "run", config={**WIDE, "data": {"labels": [2]}})
    reference = audit(phantom_data, tmp_path / "plain", config=WIDE)
    assert run.summary["patches"] == reference.summary["patches"]
    other = audit(tmp_path / "data", tmp_path / "none", config={"data": {"labels": [7]}})
    assert other.summary["scans_audited"] == 0
    assert "7" in other.scans["reason"][0].as_py()


def test_vessels_wider_than_the_patch_are_said(real_data, tmp_path):
    table = tmp_path / "aorta.csv"
    folder = real_data / "totalseg_aorta_cta"
    table.write_text(f"image,mask,name\n{folder}/ct_cropped.nii.gz,{folder}/aorta.nii.gz,aorta\n")
    run = audit(table, tmp_path / "run")
    assert run.summary["wider_than_patch"] > 0.9 * run.summary["patches"]
    assert run.summary["widest_mm"] > run.summary["wide_mm"] > 20
    wide = from_dict({"patches": {"extent_mm": 60}, **WIDE})
    fits = audit(table, tmp_path / "wide", config=wide)
    assert fits.summary["wider_than_patch"] == 0
    assert fits.config.patches == PatchSettings(extent_mm=60.0)


def test_the_widths_of_the_vessels_are_those_of_the_points(finished_run):
    diameter_mm = 2 * finished_run.patches["radius_mm"].to_numpy()
    summary = finished_run.summary
    assert summary["widest_mm"] == pytest.approx(diameter_mm.max(), abs=1e-3)
    assert 0.99 < (diameter_mm <= summary["wide_mm"] + 1e-3).mean() < 1


def test_the_same_scan_cropped_twice_is_its_own_witness(real_data, tmp_path):
    """The aorta and pulmonary crops of ../shared/real are one scan: equal images, other masks."""
    table = tmp_path / "two.csv"
    aorta, lung = real_data / "totalseg_aorta_cta", real_data / "totalseg_pulmonary_cta"
    table.write_text(
        "image,mask,name\n"
        f"{aorta}/ct_cropped.nii.gz,{aorta}/aorta.nii.gz,one\n"
        f"{aorta}/ct_cropped.nii.gz,{aorta}/organ_aorta_T264.nii.gz,other\n"
        f"{lung}/ct_cropped.nii.gz,{lung}/pulmonary_artery.nii.gz,lung\n"
    )
    run = audit(table, tmp_path / "run", config={"patches": {"extent_mm": 60}})
    scores = run.scores
    scan = np.array(scores["scan"].to_pylist())
    pairs = arrays_of(run, "pairs")
    row = np.repeat(np.arange(len(scan)), np.diff(pairs["offset"]))
    crossing = scan[row] != scan[pairs["witness"]]
    assert (crossing & (pairs["dist2"] == 0)).any()
