"""One new scan against a finished run: exact scores, nobody acquits itself, nothing is changed."""

import hashlib
import json
import math
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import maskwitness
from maskwitness import reference
from maskwitness.errors import InputError, StoreError
from maskwitness.findings import bad_limit
from maskwitness.io import tables
from maskwitness.io.datasets import Case
from maskwitness.io.volumes import read_scan, read_volume, write_volume
from maskwitness.join import Memory
from maskwitness.pipeline import describe
from maskwitness.records import Bank, Pairs, Patches, Scores
from maskwitness.run import Check, Run, audit, check, open_check, open_run
from maskwitness.run.scoring import read_bank
from tests.conftest import WIDE, arrays_of

FILES = [
    "check.json", "findings.parquet", "pairs.zarr", "patches.parquet", "patches.zarr", "quality",
    "scores.parquet",
]  # fmt: skip


def scan_of(data: Path, number: int) -> dict[str, Any]:
    """Return image and mask of a scan of the phantom."""
    return {
        "image": data / "imagesTr" / f"phantom_{number:03d}_0000.nii.gz",
        "mask": data / "labelsTr" / f"phantom_{number:03d}.nii.gz",
    }


def run_of(data: Path, place: Path, numbers: list[int], config: Any = WIDE) -> Run:
    rows = [",".join(map(str, scan_of(data, n).values())) + f",scan {n}" for n in numbers]
    place.mkdir(exist_ok=True)
    (place / "cases.csv").write_text("\n".join(["image,mask,name", *rows]))
    return audit(place / "cases.csv", place / "run", config=config, workers=1)


@pytest.fixture(scope="module")
def small_run(phantom_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of the first two scans; the third is new to it."""
    return run_of(phantom_data, tmp_path_factory.mktemp("small"), [0, 1])


@pytest.fixture(scope="module")
def checked(small_run: Run, phantom_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Check:
    output = tmp_path_factory.mktemp("checked") / "out"
    return check(small_run.path, **scan_of(phantom_data, 2), output=output)


def content_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def expected(run: Run, patches: Patches, may_testify: np.ndarray) -> tuple[Pairs, Scores]:
    """Return pairs and scores as plain NumPy and the reference have them."""
    bank, config = read_bank(run.folder, run.config, Memory.of(run.config.join)), run.config
    limit = Fraction(repr(config.join.epsilon)) * 24**2 * 255**2
    images = bank.image.reshape(len(bank.image), -1).astype(np.int64)
    masks, own = (np.unpackbits(m, axis=1).astype(bool) for m in (bank.mask, patches.mask))
    kept, rows = [0], []
    for i, image in enumerate(patches.image.reshape(len(patches.image), -1).astype(np.int64)):
        dist2 = ((images - image) ** 2).sum(axis=1)
        witnesses = (dist2 < math.ceil(limit)) & bank.has_image & may_testify
        near = np.flatnonzero(witnesses & bool(patches.has_image[i]))
        near = near[np.lexsort((near, dist2[near]))][: config.join.k]
        kept.append(len(near))
        rows += [(j, dist2[j], (own[i] & masks[j]).sum(), (own[i] | masks[j]).sum()) for j in near]
    witness, d2, both, either = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    pairs = Pairs(
        first=0,
        offset=np.cumsum(kept, dtype=np.int64),
        witness=witness.astype(np.int32),
        dist2=d2.astype(np.int32),
        intersection=both.astype(np.uint16),
        union=either.astype(np.uint16),
    )
    residual = reference.residuals(pairs, run.baseline, config.join.epsilon, 24)
    has_image = np.ones(max(len(images), len(patches.image)), bool)
    has_image[: len(patches.image)] = patches.has_image
    asking = Bank(
        image=bank.image, mask=bank.mask, has_image=has_image[: len(images)], group=bank.group,
        position_um=bank.position_um,
    )  # fmt: skip
    return pairs, reference.score(pairs, residual, asking)


def assert_equals_the_reference(done: Check, run: Run, case: Case, may: np.ndarray) -> None:
    patches = describe(read_scan(case, run.config.data.labels), run.config.patches).patches
    pairs, scores = expected(run, patches, may)
    found = {**arrays_of(done, "patches"), **arrays_of(done, "pairs")}
    np.testing.assert_array_equal(found["image"], patches.image)
    np.testing.assert_array_equal(found["mask"], patches.mask)
    for name in ("offset", "witness", "dist2", "intersection", "union"):
        np.testing.assert_array_equal(found[name], getattr(pairs, name), err_msg=name)
    table = done.scores
    for name in ("score", "residual"):
        np.testing.assert_array_equal(table[name].to_numpy(), np.float32(scores.residual))
    assert table["witnesses"].to_pylist() == scores.witnesses.tolist()
    assert table["reason"].to_pylist() == scores.reason.tolist()
    usual = np.float32(scores.usual_area * run.config.patches.step_mm**2)
    np.testing.assert_array_equal(table["usual_area_mm2"].to_numpy(), usual)
    assert done.summary["scored"] == np.isfinite(scores.residual).sum() > 50


def case_of(data: Path, number: int) -> Case:
    return Case(name=f"phantom_{number:03d}", **scan_of(data, number))


class TestScores:
    def test_of_a_new_scan_equal_the_reference(self, checked, small_run, phantom_data):
        assert checked.state["excluded"] == []
        everyone = np.ones(small_run.summary["patches"], bool)
        assert_equals_the_reference(checked, small_run, case_of(phantom_data, 2), everyone)

    @pytest.mark.parametrize("testify", ["any", "other_stretch", "other_scan"])
    def test_of_a_scan_of_the_run_rest_on_the_others(self, testify, phantom_data, tmp_path):
        config = {"join": {"epsilon": 0.01, "testify": testify}}
        run = run_of(phantom_data, tmp_path, [0, 1, 2], config)
        done = check(run, **scan_of(phantom_data, 1), output=tmp_path / "out")
        assert done.state["excluded"] == [
            {"scan": 1, "name": "scan 1", "because": "the same image"}
        ]
        others = run.patches["scan"].to_numpy() != 1
        assert_equals_the_reference(done, run, case_of(phantom_data, 1), others)
        if testify == "other_scan":  # then the audit has asked the very same witnesses
            audited = run.scores.filter((~others).tolist())
            assert done.scores["score"].to_pylist() == audited["score"].to_pylist()

    def test_a_scan_is_known_again_by_its_mask_or_name(self, small_run, phantom_data, tmp_path):
        known, other = scan_of(phantom_data, 0), scan_of(phantom_data, 2)
        image = read_volume(known["image"])
        write_volume(tmp_path / "again.nii.gz", image.data + image.data.dtype.type(1), image.affine)
        shutil.copy(other["image"], tmp_path / "scan 0.nii.gz")
        for name, mask, because in (
            ("again", known["mask"], "the same mask"),
            ("scan 0", other["mask"], "the same name"),
        ):
            image_file = tmp_path / f"{name}.nii.gz"
            done = check(small_run, image=image_file, mask=mask, output=tmp_path / f"{name} out")
            assert done.state["excluded"] == [{"scan": 0, "name": "scan 0", "because": because}]
            own = small_run.patches["scan"].to_numpy()
            assert set(own[arrays_of(done, "pairs")["witness"]]) == {1}

    def test_resolve_to_witnesses_of_the_run(self, checked, small_run):
        rows = checked.scores.to_pylist()
        scored = [row["patch"] for row in rows if row["score"] is not None]
        images = arrays_of(small_run, "patches")["image"]
        for patch in scored[:: len(scored) // 5]:
            evidence = checked.evidence(patch)
            assert evidence.scan == "phantom_002"
            assert evidence.score == pytest.approx(np.nanmedian(evidence.residual), rel=1e-6)
            np.testing.assert_array_equal(evidence.witness_image, images[evidence.witness])
            moved = evidence.image.astype(int) - evidence.witness_image
            np.testing.assert_array_equal((moved**2).sum(axis=(1, 2)), evidence.dist2)
        with pytest.raises(StoreError, match="there is no patch 99999: this check has 0 to"):
            checked.evidence(99999)


class TestFindings:
    def test_what_is_bad_is_said_by_the_run(self, checked, small_run):
        limit = bad_limit(
            small_run.scores["score"].to_numpy().astype(float), small_run.config.findings
        )
        assert checked.state["bad_below"] == limit < 0
        score = checked.scores["score"].to_numpy()
        assert checked.summary["bad_points"] == (score < limit).sum()
        found = checked.findings.to_pylist()
        assert len(found) == checked.summary["findings"]
        assert sum(row["points"] for row in found) == (score < limit).sum()
        assert all(row["worst_score"] < limit and row["kind"] for row in found)

    def test_a_scan_that_is_not_worse_than_usual_has_none(self, small_run, phantom_data, tmp_path):
        # A share of the worst of its own points would always find some.
        shutil.copytree(small_run.path, tmp_path / "run")
        scores = small_run.scores
        at = scores.column_names.index("score")
        worse = pa.array(scores["score"].to_numpy() - 100, pa.float32())
        scores = scores.set_column(at, "score", worse)
        tables.write_table(tmp_path / "run" / "scores.parquet", scores)
        done = check(tmp_path / "run", **scan_of(phantom_data, 2), output=tmp_path / "out")
        below = done.scores["score"].to_numpy() < small_run.config.findings.threshold
        assert done.state["bad_below"] == small_run.config.findings.threshold
        assert done.summary["bad_points"] == below.sum() < 0.02 * done.summary["scored"]


class TestFolder:
    def test_holds_what_the_format_promises(self, checked, small_run, phantom_data):
        assert sorted(path.name for path in checked.path.iterdir()) == FILES
        for name in ("patches", "scores", "findings"):
            schema = pq.read_schema(checked.path / f"{name}.parquet")
            kinds = dict(zip(schema.names, schema.types, strict=True))
            assert kinds == dict(getattr(tables, name.upper())), name
        assert set(checked.patches["scan"].to_pylist()) == {-1}
        assert checked.patches["patch"].to_pylist() == list(range(checked.summary["patches"]))
        state = json.loads((checked.path / "check.json").read_text())
        assert state["format"] == 1
        assert state["run"]["path"] == str(small_run.path)
        assert state["run"]["config_digest"] == small_run.config.digest()
        assert state["run"]["fingerprint"] == small_run.state["dataset"]["fingerprint"]
        assert state["scan"]["image"] == str(scan_of(phantom_data, 2)["image"])
        assert list(state["seconds"]) == ["describe", "read", "search", "write"]
        assert open_check(checked.path).summary == checked.summary

    def test_has_a_quality_map_on_the_masks_grid(self, checked, phantom_data):
        quality = checked.quality()
        mask = read_volume(scan_of(phantom_data, 2)["mask"])
        assert quality.shape == mask.shape
        np.testing.assert_allclose(quality.affine, mask.affine, atol=1e-5)
        assert quality.data.dtype == np.float32
        assert 0 <= quality.data.min() < 0.5
        assert quality.data.max() == 1

    def test_the_run_is_not_changed_by_a_bit(self, small_run, phantom_data, tmp_path):
        before = content_of(small_run.path)
        stamps = {p: p.stat().st_mtime_ns for p in small_run.path.rglob("*")}
        check(small_run, **scan_of(phantom_data, 2), output=tmp_path / "out")
        assert content_of(small_run.path) == before
        assert {p: p.stat().st_mtime_ns for p in small_run.path.rglob("*")} == stamps

    def test_the_same_check_is_the_same(self, checked, small_run, phantom_data, tmp_path):
        again = check(small_run, **scan_of(phantom_data, 2), output=tmp_path / "new" / "out")
        one, two = content_of(checked.path), content_of(again.path)
        assert one.keys() == two.keys()
        assert {name for name in one if one[name] != two[name]} <= {"check.json"}

    @pytest.mark.parametrize("stage", ["patches", "bank", "pairs", "quality"])
    def test_nothing_is_left_of_an_interrupted_check(
        self, stage, small_run, phantom_data, tmp_path
    ):
        def interrupt(now, done, total):
            if now == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            check(
                small_run,
                **scan_of(phantom_data, 2),
                output=tmp_path / "out",
                progress=interrupt,
            )
        assert list(tmp_path.iterdir()) == []

    def test_a_former_check_is_replaced_only_on_demand(self, small_run, phantom_data, tmp_path):
        output = tmp_path / "out"
        output.mkdir()  # an empty folder is free
        check(small_run, **scan_of(phantom_data, 2), output=output)
        with pytest.raises(StoreError, match=r"holds a former check.\nChoose another.*--redo"):
            check(small_run, **scan_of(phantom_data, 1), output=output)

        def interrupt(now, done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            check(
                small_run,
                **scan_of(phantom_data, 1),
                output=output,
                redo=True,
                progress=interrupt,
            )
        assert open_check(output).name == "phantom_002"
        again = check(small_run, **scan_of(phantom_data, 1), output=output, redo=True)
        assert again.name == "phantom_001"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert sorted(path.name for path in output.iterdir()) == FILES


class TestRefusals:
    def test_a_run_that_is_not_finished(self, small_run, phantom_data, tmp_path):
        shutil.copytree(small_run.path, tmp_path / "run")
        state = dict(small_run.state)
        state["stages"] = {k: v for k, v in state["stages"].items() if k != "quality"}
        (tmp_path / "run" / "run.json").write_text(json.dumps(state))
        with pytest.raises(StoreError, match="is not finished; a check needs a finished run"):
            check(tmp_path / "run", **scan_of(phantom_data, 2), output=tmp_path / "out")
        with pytest.raises(StoreError, match="is no run directory"):
            check(phantom_data, **scan_of(phantom_data, 2), output=tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("redo", [False, True])
    def test_a_place_that_holds_something_else(self, redo, small_run, phantom_data, tmp_path):
        (tmp_path / "file").write_text("mine")
        for place in (tmp_path, tmp_path / "file"):
            with pytest.raises(StoreError, match="is there already and is no former check"):
                check(small_run, **scan_of(phantom_data, 2), output=place, redo=redo)
        for place in (small_run.path, small_run.path / "quality" / "new"):
            with pytest.raises(StoreError, match=r"lies in the run .* which is not changed"):
                check(small_run, **scan_of(phantom_data, 2), output=place, redo=redo)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_scan_that_cannot_be_read(self, small_run, phantom_data, tmp_path):
        scan, output = scan_of(phantom_data, 2), tmp_path / "out"
        mask = read_volume(scan["mask"])
        write_volume(tmp_path / "half.nii.gz", mask.data[:, :, ::2].copy("F"), mask.affine)
        write_volume(tmp_path / "empty.nii.gz", mask.data * np.uint8(0), mask.affine)
        for name, sentence in (
            ("half.nii.gz", "does not lie on the grid of its image"),
            ("empty.nii.gz", "the mask is empty"),
            ("none.nii.gz", "there is no such file"),
        ):
            with pytest.raises(InputError, match=sentence):
                check(small_run, image=scan["image"], mask=tmp_path / name, output=output)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.nii.gz", "half.nii.gz"]

    def test_a_folder_that_is_no_check(self, small_run, tmp_path):
        with pytest.raises(StoreError, match=r"is no check: its check.json is not there"):
            open_check(small_run.path)
        (tmp_path / "check.json").write_text('{"format": 9}')
        with pytest.raises(StoreError, match="is no check of format 1"):
            open_check(tmp_path)

    def test_the_evidence_of_a_run_that_was_done_again(self, small_run, phantom_data, tmp_path):
        shutil.copytree(small_run.path, tmp_path / "run")
        done = check(tmp_path / "run", **scan_of(phantom_data, 2), output=tmp_path / "out")
        state = {**open_run(tmp_path / "run").state, "config_digest": "another"}
        (tmp_path / "run" / "run.json").write_text(json.dumps(state))
        with pytest.raises(StoreError, match=r"is no longer the run that .* was checked against"):
            done.evidence(0)


def test_the_runs_labels_hold(phantom_data, tmp_path):
    config = {**WIDE, "data": {"labels": [7]}}
    for number in (0, 1):
        mask = read_volume(scan_of(phantom_data, number)["mask"])
        write_volume(tmp_path / f"{number}.nii.gz", mask.data * np.uint8(7), mask.affine)
    (tmp_path / "cases.csv").write_text(
        f"image,mask\n{scan_of(phantom_data, 0)['image']},{tmp_path / '0.nii.gz'}\n"
    )
    run = audit(tmp_path / "cases.csv", tmp_path / "run", config=config, workers=1)
    image = scan_of(phantom_data, 1)["image"]
    with pytest.raises(InputError, match="no voxel has label 7"):
        check(run, image=image, mask=scan_of(phantom_data, 1)["mask"], output=tmp_path / "out")
    done = maskwitness.check(run, image=image, mask=tmp_path / "1.nii.gz", output=tmp_path / "out")
    assert done.summary["patches"] > 0
