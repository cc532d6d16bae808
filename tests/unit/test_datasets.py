# mypy: allow-untyped-calls
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maskwitness.errors import InputError
from maskwitness.io.datasets import find_cases, find_cases_in


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def write_json(path, contents):
    path.write_text(json.dumps(contents))
    return path


def names(dataset):
    return [case.name for case in dataset.cases]


def files(dataset):
    """Return the cases as (image, mask), relative to the root of the data set."""
    return [
        (str(case.image.relative_to(dataset.root)), str(case.mask.relative_to(dataset.root)))
        for case in dataset.cases
    ]


def assert_refused(find, *words):
    with pytest.raises(InputError) as caught:
        find()
    for word in words:
        assert word in str(caught.value)


# nnU-Net


def nnunet(root, *, cases=("case_2", "case_10"), channels=1, ending=".nii.gz", **contents):
    for case in cases:
        touch(root, *(f"imagesTr/{case}_{n:04d}{ending}" for n in range(channels)))
        touch(root, f"labelsTr/{case}{ending}")
    described = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "vessel": 1}}
    write_json(root / "dataset.json", described | {"file_ending": ending} | contents)
    return root


@pytest.mark.parametrize("ending", [".nii.gz", ".nrrd", ".mha"])
def test_an_nnunet_folder_is_known_by_itself(tmp_path, ending):
    dataset = find_cases(nnunet(tmp_path, ending=ending))
    assert (dataset.kind, dataset.root, dataset.notes) == ("nnU-Net", tmp_path, ())
    assert names(dataset) == ["case_2", "case_10"]
    assert files(dataset)[0] == (f"imagesTr/case_2_0000{ending}", f"labelsTr/case_2{ending}")


def test_the_dataset_json_of_an_nnunet_folder_stands_for_it(tmp_path):
    assert find_cases(nnunet(tmp_path) / "dataset.json").kind == "nnU-Net"


def test_an_nnunet_folder_without_dataset_json_is_still_one(tmp_path):
    (nnunet(tmp_path) / "dataset.json").unlink()
    assert names(find_cases(tmp_path)) == ["case_2", "case_10"]


def test_the_old_dataset_json_of_nnunet_is_no_datalist(tmp_path):
    old = [{"image": "./imagesTr/case_2.nii.gz", "label": "./labelsTr/case_2.nii.gz"}]
    dataset = find_cases(nnunet(tmp_path, training=old))
    assert files(dataset)[0][0] == "imagesTr/case_2_0000.nii.gz"


def test_only_channel_0_is_looked_at_and_a_note_says_so(tmp_path):
    dataset = find_cases(nnunet(tmp_path, channels=3))
    assert len(dataset.cases) == 2
    assert all(case.image.name.endswith("_0000.nii.gz") for case in dataset.cases)
    assert dataset.notes == ("only channel 0 is looked at of cases with several: case_2, case_10",)


def test_what_has_no_partner_is_left_out_and_noted(tmp_path):
    nnunet(tmp_path)
    touch(tmp_path, "imagesTr/only_image_0000.nii.gz", "labelsTr/only_mask.nii.gz")
    dataset = find_cases(tmp_path)
    assert names(dataset) == ["case_2", "case_10"]
    assert dataset.notes == (
        "images without a mask are left out: only_image_0000",
        "masks without an image are left out: only_mask",
    )


def test_long_notes_are_cut(tmp_path):
    nnunet(tmp_path)
    touch(tmp_path, *(f"labelsTr/x{n}.nii.gz" for n in range(12)))
    assert find_cases(tmp_path).notes[0].endswith("x0, x1, x2, x3, x4 and 7 more")


def test_several_labels_and_the_ignore_label_are_noted(tmp_path):
    labels = {"background": 0, "artery": 1, "ignore": 2}
    (note,) = find_cases(nnunet(tmp_path, labels=labels)).notes
    assert "artery: 1, ignore: 2" in note
    assert "'ignore' too, unless --label" in note


def test_labels_written_the_old_way_are_understood(tmp_path):
    assert find_cases(nnunet(tmp_path, labels={"0": "background", "1": "vessel"})).notes == ()


def test_a_case_whose_name_ends_like_a_channel_is_found(tmp_path):
    touch(tmp_path, "imagesTr/v_0012.nii.gz", "labelsTr/v_0012.nii.gz")
    touch(tmp_path, "imagesTr/v_0013_0000.nii.gz", "labelsTr/v_0013.nii.gz")
    assert names(find_cases(tmp_path)) == ["v_0012", "v_0013"]


def test_nnunets_explicit_paths_are_followed(tmp_path, monkeypatch):
    monkeypatch.setenv("SCANS", str(tmp_path / "elsewhere"))
    listed = {
        "b": {"images": ["$SCANS/b.nii.gz", "b2.nii.gz"], "label": "masks/b.nii.gz"},
        "a": {"images": ["a.nii.gz"], "label": "masks/a.nii.gz"},
        "c": {"images": ["c.nii.gz"]},
    }
    write_json(tmp_path / "dataset.json", {"dataset": listed})
    dataset = find_cases(tmp_path)
    assert dataset.kind == "nnU-Net"
    assert files(dataset) == [
        ("a.nii.gz", "masks/a.nii.gz"),
        ("elsewhere/b.nii.gz", "masks/b.nii.gz"),
    ]
    assert dataset.notes == (
        "cases without a label are left out: c",
        "only channel 0 is looked at of cases with several: b",
    )


def test_an_explicit_case_without_images_is_refused(tmp_path):
    write_json(tmp_path / "dataset.json", {"dataset": {"a": {"label": "a.nii.gz"}}})
    assert_refused(lambda: find_cases(tmp_path), "case 'a' has no list 'images'")


def test_a_file_ending_that_is_no_volume_is_refused(tmp_path):
    nnunet(tmp_path, ending=".png")
    assert_refused(lambda: find_cases(tmp_path), "file_ending is '.png'", ".nii.gz")


def test_two_files_for_one_case_are_refused_with_both(tmp_path):
    (nnunet(tmp_path) / "dataset.json").unlink()
    touch(tmp_path, "labelsTr/case_2.nrrd")
    assert_refused(lambda: find_cases(tmp_path), "case_2.nii.gz", "case_2.nrrd", "remove one")


# ImageCAS


@pytest.mark.parametrize("folder", ["", "1-200/", "a/b/"])
def test_an_imagecas_folder_is_known_by_itself(tmp_path, folder):
    for number in (1, 2, 10):
        touch(tmp_path, f"{folder}{number}.img.nii.gz", f"{folder}{number}.label.nii.gz")
    touch(tmp_path, f"{folder}._1.img.nii.gz", f"{folder}readme.txt")
    dataset = find_cases(tmp_path)
    assert (dataset.kind, dataset.notes) == ("ImageCAS", ())
    assert names(dataset) == ["1", "2", "10"]
    assert files(dataset)[2] == (f"{folder}10.img.nii.gz", f"{folder}10.label.nii.gz")


def test_imagecas_files_without_a_partner_are_noted(tmp_path):
    touch(tmp_path, "1-200/1.img.nii.gz", "1-200/1.label.nii.gz")
    touch(tmp_path, "1-200/2.img.nii.gz", "201-400/2.label.nii.gz")
    dataset = find_cases(tmp_path)
    assert names(dataset) == ["1"]
    assert dataset.notes == (
        "images without a mask are left out: 1-200/2",
        "masks without an image are left out: 201-400/2",
    )


def test_two_imagecas_cases_of_one_name_are_refused_with_both(tmp_path):
    for folder in ("1-200", "copy"):
        touch(tmp_path, f"{folder}/1.img.nii.gz", f"{folder}/1.label.nii.gz")
    assert_refused(
        lambda: find_cases(tmp_path),
        "two cases are named '1'", "1-200/1.img.nii.gz", "copy/1.img.nii.gz",
    )  # fmt: skip


# Datalists


def test_a_datalist_is_read_with_its_validation_part(tmp_path):
    contents = {
        "training": [
            {"image": "images/b.nii.gz", "label": "labels/b.nii.gz", "fold": 1},
            {"image": ["images/a.nii.gz"], "label": str(tmp_path / "labels/a.nii.gz")},
            {"image": "images/d.nii.gz"},
        ],
        "validation": [{"image": "images/c.nii.gz", "label": "labels/c.nii.gz"}],
        "test": ["images/e.nii.gz"],
    }
    dataset = find_cases(write_json(tmp_path / "list.json", contents))
    assert (dataset.kind, dataset.root) == ("datalist", tmp_path)
    assert names(dataset) == ["a", "b", "c"]
    assert files(dataset)[0] == ("images/a.nii.gz", "labels/a.nii.gz")
    assert dataset.notes == ("images without a label are left out: d.nii.gz",)


def test_a_decathlon_folder_is_read_by_its_datalist(tmp_path):
    touch(tmp_path, "imagesTr/la_003.nii.gz", "labelsTr/la_003.nii.gz")
    item = {"image": "./imagesTr/la_003.nii.gz", "label": "./labelsTr/la_003.nii.gz"}
    write_json(tmp_path / "dataset.json", {"training": [item]})
    for place in (tmp_path, tmp_path / "dataset.json"):
        dataset = find_cases(place)
        assert (dataset.kind, names(dataset)) == ("datalist", ["la_003"])
        assert files(dataset) == [("imagesTr/la_003.nii.gz", "labelsTr/la_003.nii.gz")]


def test_several_images_in_one_entry_are_refused(tmp_path):
    item = {"image": ["ct.nii.gz", "pet.nii.gz"], "label": "a.nii.gz"}
    path = write_json(tmp_path / "list.json", {"training": [item]})
    assert_refused(lambda: find_cases(path), str(path), "training[0] has 2 files as its image")


@pytest.mark.parametrize("item", [{"label": "a.nii.gz"}, {"image": 7, "label": "a"}, None])
def test_an_entry_without_an_image_is_refused(tmp_path, item):
    path = write_json(tmp_path / "list.json", {"training": [item]})
    assert_refused(lambda: find_cases(path), "training[0] has no image")


def test_a_json_file_that_is_no_datalist_is_refused(tmp_path):
    other = write_json(tmp_path / "other.json", {"hello": 1})
    assert_refused(lambda: find_cases(other), "has a list 'training'", "holds hello")
    wrong = write_json(tmp_path / "wrong.json", {"training": 1})
    assert_refused(lambda: find_cases(wrong), "'training' is no list")
    rows = write_json(tmp_path / "rows.json", [1])
    assert_refused(lambda: find_cases(rows), "holds a list")
    (tmp_path / "broken.json").write_text("{")
    assert_refused(lambda: find_cases(tmp_path / "broken.json"), "cannot be read as JSON")


def test_a_datalist_without_labels_is_refused_with_what_it_has(tmp_path):
    path = write_json(tmp_path / "list.json", {"training": ["a.nii.gz"]})
    assert_refused(lambda: find_cases(path), "no image with a mask", "left out: a.nii.gz")


# Tables


def test_a_csv_table_is_read_against_its_own_folder(tmp_path):
    (tmp_path / "t.csv").write_text(
        "image,mask,age\nimages/10.nii.gz,masks/10.nii.gz,5\nimages/9.mha,/data/9.mha,6\n"
    )
    dataset = find_cases(tmp_path / "t.csv")
    assert (dataset.kind, dataset.root, dataset.notes) == ("table", tmp_path, ())
    assert names(dataset) == ["9", "10"]
    assert dataset.cases[0].mask == Path("/data/9.mha")
    assert dataset.cases[1].image == tmp_path / "images/10.nii.gz"


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_the_mark_of_excel_are_understood(tmp_path, separator):
    rows = [["name", "image ", "mask"], ["a", "i, 1.nii", "m.nii"], ["", "", ""]]
    text = "\r\n".join(separator.join(row) for row in rows)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8-sig")
    dataset = find_cases(tmp_path / "t.csv")
    assert files(dataset) == [("i, 1.nii", "m.nii")]


def test_a_parquet_table_is_read(tmp_path):
    table = pa.table(
        {
            "image": ["a.nii.gz", "b.nii.gz", "c.nii.gz"],
            "mask": ["a_m.nii.gz", "b_m.nii.gz", None],
            "name": ["x", None, "z"],
            "age": [1.0, 2.0, 3.0],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = find_cases(tmp_path / "t.parquet")
    assert names(dataset) == ["b", "x"]
    assert files(dataset)[1] == ("a.nii.gz", "a_m.nii.gz")
    assert dataset.notes == ("rows without an image or a mask are left out: row 3",)


def test_a_table_without_its_columns_is_refused_with_those_it_has(tmp_path):
    (tmp_path / "t.csv").write_text("image,label\na,b\n")
    assert_refused(
        lambda: find_cases(tmp_path / "t.csv"), "no column mask", "its columns are image, label"
    )
    (tmp_path / "e.csv").write_text("")
    assert_refused(
        lambda: find_cases(tmp_path / "e.csv"), "no column image and no column mask", "none"
    )


def test_a_table_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"image,mask\n\xff\xfe,b\n")
    assert_refused(lambda: find_cases(tmp_path / "t.csv"), "cannot be read as CSV", "UTF-8")
    (tmp_path / "t.parquet").write_bytes(b"hello")
    assert_refused(lambda: find_cases(tmp_path / "t.parquet"), "cannot be read as parquet")


def test_a_file_that_is_not_there_stays_a_case(tmp_path):
    (tmp_path / "t.csv").write_text("image,mask\ngone.nii.gz,gone_too.nii.gz\n")
    assert names(find_cases(tmp_path / "t.csv")) == ["gone"]


def test_two_rows_of_one_name_are_refused_with_both(tmp_path):
    (tmp_path / "t.csv").write_text("image,mask,name\na.nii,m.nii,x\nb.nii,n.nii,x\n")
    assert_refused(lambda: find_cases(tmp_path / "t.csv"), "named 'x'", "a.nii", "b.nii")
    (tmp_path / "u.csv").write_text("image,mask\na.nii,m.nii\na.nii,n.nii\n")
    assert_refused(lambda: find_cases(tmp_path / "u.csv"), "m.nii", "n.nii", "a name of its own")


def test_images_of_one_name_are_told_apart_by_their_folders(tmp_path):
    (tmp_path / "t.csv").write_text("image,mask\np1/ct.nii,p1/m.nii\np2/ct.nii,p2/m.nii\n")
    assert names(find_cases(tmp_path / "t.csv")) == ["p1_ct", "p2_ct"]


def test_a_name_that_no_file_can_have_is_changed_and_noted(tmp_path):
    (tmp_path / "t.csv").write_text("image,mask,name\na.nii,m.nii,../x\nb.nii,n.nii,A\n")
    dataset = find_cases(tmp_path / "t.csv")
    assert names(dataset) == ["_x", "A"]
    assert dataset.notes == ("names that files cannot have were changed: '../x' is '_x'",)


# Two folders


def test_two_folders_are_paired_by_name(tmp_path):
    touch(tmp_path, "i/a.nii.gz", "i/b_0000.nrrd", "i/b_0001.nrrd", "i/c.mha", "i/note.txt")
    touch(tmp_path, "m/a.nii.gz", "m/b.nii.gz", "m/d.nii.gz", "m/.hidden.nii.gz")
    dataset = find_cases_in(tmp_path / "i", tmp_path / "m")
    assert dataset.kind == "folders"
    assert [(c.name, c.image.name, c.mask.name) for c in dataset.cases] == [
        ("a", "a.nii.gz", "a.nii.gz"),
        ("b", "b_0000.nrrd", "b.nii.gz"),
    ]
    assert dataset.notes == (
        "only channel 0 is looked at of cases with several: b",
        "images without a mask are left out: c",
        "masks without an image are left out: d",
    )


def test_a_folder_among_the_images_is_a_dicom_series(tmp_path):
    touch(tmp_path, "i/a/1.dcm", "m/a.nii.gz")
    (case,) = find_cases_in(tmp_path / "i", tmp_path / "m").cases
    assert case.image == tmp_path / "i" / "a"


def test_a_header_and_its_voxels_are_one_image(tmp_path):
    touch(tmp_path, "i/a.hdr", "i/a.img", "i/b.mhd", "i/b.raw", "m/a.nii", "m/b.nii")
    dataset = find_cases_in(tmp_path / "i", tmp_path / "m")
    assert [case.image.name for case in dataset.cases] == ["a.hdr", "b.mhd"]


def test_two_images_for_one_mask_are_refused(tmp_path):
    touch(tmp_path, "i/a.nii.gz", "i/a_0000.nii.gz", "m/a.nii.gz")
    assert_refused(
        lambda: find_cases_in(tmp_path / "i", tmp_path / "m"), "a_0000.nii.gz could both be"
    )


def test_folders_that_do_not_fit_are_refused(tmp_path):
    touch(tmp_path, "i/a.nii.gz", "m/b.nii.gz")
    assert_refused(
        lambda: find_cases_in(tmp_path / "i", tmp_path / "m"),
        "no image with a mask", "left out: a", "left out: b",
    )  # fmt: skip
    assert_refused(lambda: find_cases_in(tmp_path / "i", tmp_path / "i"), "the same folder")
    assert_refused(lambda: find_cases_in(tmp_path / "x", tmp_path / "m"), "no such folder")


# Anything else


def test_what_is_no_data_set_is_refused_with_what_was_looked_for(tmp_path):
    touch(tmp_path, "a.nii.gz", "notes.txt")
    layouts = ("nnU-Net", "ImageCAS", "datalist", "table", "--images DIR --masks DIR")
    assert_refused(lambda: find_cases(tmp_path), str(tmp_path), "not a data set", *layouts)
    assert_refused(lambda: find_cases(tmp_path / "notes.txt"), "not a data set", *layouts)
    assert_refused(lambda: find_cases(tmp_path / "gone"), "there is no such file or folder")


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    nnunet(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    dataset = find_cases(Path("set"))
    assert dataset.root == tmp_path / "set"
    assert all(case.image.is_absolute() for case in dataset.cases)
