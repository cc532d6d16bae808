"""The folder: is it an nnU-Net raw folder, is it complete, is it the same every time?"""

import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from maskwitness.errors import InputError
from maskwitness.io.datasets import find_cases
from maskwitness.phantom import PhantomSettings, make_scan, write_phantom
from maskwitness.phantom.write import COLUMNS


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("phantom") / "new"
    write_phantom(out, PhantomSettings(scans=2, seed=5))
    return out


def test_the_folder_is_what_nnunet_expects_with_the_truth_beside_it(written: Path):
    about = json.loads((written / "dataset.json").read_text())
    assert about["channel_names"] == {"0": "CT"}
    assert about["labels"] == {"background": 0, "vessel": 1}
    assert about["numTraining"] == 2
    assert about["file_ending"] == ".nii.gz"
    names = sorted(digest(written))
    assert names == sorted(
        ["dataset.json", "truth/errors.csv", "truth/phantom.json"]
        + [f"imagesTr/phantom_00{n}_0000.nii.gz" for n in range(2)]
        + [f"{folder}/phantom_00{n}.nii.gz" for n in range(2)
           for folder in ("labelsTr", "truth/masks", "truth/errors")]
    )  # fmt: skip


def test_what_is_read_back_is_what_was_made(written: Path):
    scan = make_scan(PhantomSettings(scans=2, seed=5), 1)
    pairs = (
        ("imagesTr/phantom_001_0000.nii.gz", scan.image.data),
        ("labelsTr/phantom_001.nii.gz", scan.drawn),
        ("truth/masks/phantom_001.nii.gz", scan.truth),
        ("truth/errors/phantom_001.nii.gz", scan.error_map),
    )
    for path, expected in pairs:
        image: Any = nibabel.load(written / path)
        found = np.asanyarray(image.dataobj)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
        assert np.array_equal(image.affine, scan.image.affine)
        assert int(image.header["sform_code"]) == int(image.header["qform_code"]) == 1
        assert np.allclose(image.header.get_qform(), scan.image.affine, atol=1e-3)
        assert image.header.get_xyzt_units()[0] == "mm"


def test_the_table_has_one_row_an_error(written: Path):
    with (written / "truth/errors.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    for n in range(2):
        scan = make_scan(PhantomSettings(scans=2, seed=5), n)
        own = [row for row in rows if row["scan"] == scan.name]
        assert [int(row["error"]) for row in own] == [error.error for error in scan.errors]
        for row, error in zip(own, scan.errors, strict=True):
            assert row["kind"] == error.kind
            assert int(row["changed_voxels"]) == error.changed_voxels
            assert float(row["centre_y_mm"]) == pytest.approx(error.centre_mm[1], abs=1e-3)


@pytest.mark.slow
def test_two_workers_write_the_same_bytes_as_one(written: Path, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    write_phantom(
        tmp_path / "two",
        PhantomSettings(scans=2, seed=5),
        workers=2,
        on_scan=lambda done, total: seen.append((done, total)),
    )
    assert digest(tmp_path / "two") == digest(written)
    assert seen == [(1, 2), (2, 2)]


def test_another_seed_writes_other_scans(written: Path, tmp_path: Path):
    write_phantom(tmp_path / "other", PhantomSettings(scans=1, seed=6))
    mine, theirs = digest(tmp_path / "other"), digest(written)
    shared = [name for name in mine if mine[name] == theirs.get(name)]
    assert shared == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not an empty folder"):
        write_phantom(tmp_path, PhantomSettings(scans=1))
    with pytest.raises(InputError, match="not an empty folder"):
        write_phantom(tmp_path / "mine.txt", PhantomSettings(scans=1))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_phantom_leaves_nothing(tmp_path: Path, workers: int):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for out in (tmp_path, tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            write_phantom(out, PhantomSettings(scans=3), workers=workers, on_scan=interrupt)
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_phantom_left_is_no_data_set_and_goes_away(written: Path, tmp_path: Path):
    out = tmp_path / "new"
    code = (
        "import os, sys, pathlib\n"
        "from maskwitness.phantom import PhantomSettings, write_phantom\n"
        "write_phantom(pathlib.Path(sys.argv[1]), PhantomSettings(scans=2, seed=6),\n"
        "              on_scan=lambda done, total: os.kill(os.getpid(), 9))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(out)], check=False)
    assert killed.returncode == -9
    assert [path.name for path in out.iterdir()] == [".unfinished"]
    with pytest.raises(InputError, match="not a data set"):
        find_cases(out)
    write_phantom(out, PhantomSettings(scans=2, seed=5))
    assert digest(out) == digest(written)
    assert sorted(path.name for path in out.iterdir()) == [
        "dataset.json", "imagesTr", "labelsTr", "truth"
    ]  # fmt: skip


def test_an_empty_folder_is_used(tmp_path: Path):
    write_phantom(tmp_path, PhantomSettings(scans=1, noise="none"))
    assert (tmp_path / "dataset.json").exists()
    text = (tmp_path / "truth/errors.csv").read_text()
    assert text == ",".join(COLUMNS) + "\n"
