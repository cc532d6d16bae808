# mypy: allow-untyped-calls
import hashlib
import struct
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from maskwitness.errors import InputError
from maskwitness.geometry import same_grid, to_world
from maskwitness.io.volumes import (
    Case,
    file_digest,
    read_scan,
    read_volume,
    split_ending,
    write_volume,
)

REAL = Path(__file__).parents[2].parent / "shared" / "real"
LEFT_HANDED = np.array(
    [[-0.35, 0, 0, 90.0], [0, -0.35, 0, 80.5], [0, 0, 0.5, -70.25], [0, 0, 0, 1]]
)
SHEARED = np.array([[0.5, 0.2, 0, 3], [0, 0.5, 0, -4], [0, 0.1, 0.8, 5], [0, 0, 0, 1.0]])


def noise(shape=(5, 6, 7), kind="i2"):
    values = np.random.default_rng(1).integers(0, 100, shape)
    return np.asfortranarray(values.astype(kind))


def save(path, data, affine=LEFT_HANDED):
    nib.save(nib.Nifti1Image(data, affine), path)
    return path


def patch(path, place, kind, *values):
    """Change a field of a NIfTI header that is not packed."""
    raw = bytearray(path.read_bytes())
    struct.pack_into(f"<{kind}", raw, place, *values)
    path.write_bytes(bytes(raw))
    return path


def case(folder, image, mask, image_affine=LEFT_HANDED, mask_affine=LEFT_HANDED):
    return Case(
        name="case_1",
        image=save(folder / "image.nii.gz", image, image_affine),
        mask=save(folder / "mask.nii.gz", mask, mask_affine),
    )


def assert_scan_refused(scan, *words, labels=()):
    with pytest.raises(InputError) as caught:
        read_scan(scan, labels)
    for word in words:
        assert word in str(caught.value)


# Scans


def test_a_scan_has_its_mask_as_zeros_and_ones(tmp_path):
    mask = noise(kind="u1") % 3
    scan = read_scan(case(tmp_path, noise(), mask))
    assert scan.name == "case_1"
    assert scan.mask.flags.f_contiguous
    np.testing.assert_array_equal(scan.mask, mask != 0)


@pytest.mark.parametrize("kind", ["u1", "i2", "i4", "f4", "f8"])
def test_labels_choose_what_is_vessel(tmp_path, kind):
    mask = (noise() % 4).astype(kind)
    given = case(tmp_path, noise(), mask)
    np.testing.assert_array_equal(read_scan(given, (2,)).mask, mask == 2)
    np.testing.assert_array_equal(read_scan(given, (1, 3)).mask, (mask == 1) | (mask == 3))


def test_labels_may_be_stored_scaled(tmp_path):
    given = case(tmp_path, noise(), noise())
    path = save(tmp_path / "scaled.nii", (noise(kind="u1") % 2) * 255)
    patch(path, 112, "ff", 1 / 255, 0)
    scan = read_scan(Case(name="a", image=given.image, mask=path), (1,))
    np.testing.assert_array_equal(scan.mask, noise() % 2)


def test_labels_that_rounding_moved_a_little_are_labels(tmp_path):
    mask = (noise() % 2).astype("f4") * np.float32(1.0000001)
    np.testing.assert_array_equal(read_scan(case(tmp_path, noise(), mask)).mask, noise() % 2)


@pytest.mark.parametrize("value", [0.999, 0.5])
def test_a_mask_of_probabilities_is_refused(tmp_path, value):
    mask = np.zeros((5, 6, 7), np.float32)
    mask[1, 2, 3] = value
    given = case(tmp_path, noise(), mask)
    assert_scan_refused(given, str(given.mask), str(value), "voxel (1, 2, 3)", "threshold")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_mask_with_a_value_that_is_no_number_is_refused(tmp_path, value):
    mask = np.ones((5, 6, 7), np.float32)
    mask[4, 0, 0] = value
    assert_scan_refused(case(tmp_path, noise(), mask), f"holds {value}", "voxel (4, 0, 0)")


def test_an_image_in_the_place_of_the_mask_is_refused(tmp_path):
    image = noise() - np.int16(1024)
    assert_scan_refused(case(tmp_path, image, image), "holds −1024", "is it an image?")


def test_a_negative_label_is_no_matter_where_labels_are_chosen(tmp_path):
    mask = noise() % 3 - np.int16(1)
    np.testing.assert_array_equal(read_scan(case(tmp_path, noise(), mask), (1,)).mask, mask == 1)


def test_an_empty_mask_is_refused(tmp_path):
    given = case(tmp_path, noise(), np.zeros((5, 6, 7), np.uint8))
    assert_scan_refused(given, str(given.mask), "no voxel is marked")
    assert_scan_refused(given, "no voxel has label 1: the mask is empty", labels=(1,))


def test_a_label_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    given = case(tmp_path, noise(), noise(kind="u1") % 3)
    assert_scan_refused(given, "no voxel has label 7, 9; the labels in it are 1, 2", labels=(7, 9))
    many = case(tmp_path, noise(), noise(kind="u1") % 20)
    assert_scan_refused(many, "12 and 7 more", labels=(50,))


def test_an_image_with_values_that_are_no_numbers_is_refused(tmp_path):
    image = noise(kind="f4")
    image[2, 1, 0] = np.nan
    image[4, 5, 6] = np.inf
    given = case(tmp_path, image, noise() % 2)
    assert_scan_refused(given, str(given.image), "2 voxels", "the first at (2, 1, 0)")


def test_a_constant_image_is_legal(tmp_path):
    assert read_scan(case(tmp_path, np.zeros((5, 6, 7), np.int16), noise() % 2)).mask.any()


def test_a_mask_of_another_size_is_refused_with_both_grids(tmp_path):
    given = case(tmp_path, noise((10, 6, 7)), noise() % 2)
    assert_scan_refused(
        given, str(given.image), str(given.mask), "10 × 6 × 7", "5 × 6 × 7",
        "nearest neighbour", "resample_from_to",
    )  # fmt: skip


def test_a_mask_with_another_origin_is_told_to_copy_the_affine(tmp_path):
    moved = LEFT_HANDED.copy()
    moved[:3, 3] += 5
    given = case(tmp_path, noise(), noise() % 2, mask_affine=moved)
    assert_scan_refused(given, "copy the image's affine", "(95, 85.5, -65.25) mm")


def test_a_mask_that_points_another_way_is_told_to_turn(tmp_path):
    turned = LEFT_HANDED @ np.diag([-1.0, 1, 1, 1])
    given = case(tmp_path, noise(), noise() % 2, mask_affine=turned)
    assert_scan_refused(given, "the axes point LPS and RPS", "as_closest_canonical")


def test_a_mask_that_rounding_moved_a_little_lies_on_the_grid(tmp_path):
    moved = LEFT_HANDED.copy()
    moved[:3, 3] += 1e-4
    assert read_scan(case(tmp_path, noise(), noise() % 2, mask_affine=moved)).mask.any()


# Writing


@pytest.mark.parametrize("affine", [LEFT_HANDED, SHEARED])
def test_nibabel_reads_what_was_written(tmp_path, affine):
    write_volume(tmp_path / "a.nii.gz", noise(kind="f4"), affine)
    image: Any = nib.load(tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), noise(kind="f4"))
    np.testing.assert_allclose(image.affine, affine, atol=1e-6)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert int(image.header["sform_code"]) == 1
    assert int(image.header["qform_code"]) == (0 if affine is SHEARED else 1)


def test_simpleitk_finds_the_voxels_in_the_same_place(tmp_path):
    angle = 0.3
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    affine = np.eye(4)
    affine[:3, :3] = turn * [0.4, 0.5, -0.9]
    affine[:3, 3] = [10, -20, 30]
    write_volume(tmp_path / "a.nii.gz", noise(), affine)
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.ReadImage(str(tmp_path / "a.nii.gz"))
    theirs = np.array(image.TransformIndexToPhysicalPoint((4, 3, 2))) * [-1, -1, 1]
    ours = to_world(np.array([[4.0, 3, 2]]), read_volume(tmp_path / "a.nii.gz").affine)
    np.testing.assert_allclose(ours[0], theirs, atol=1e-4)


def test_order_in_memory_and_time_of_day_do_not_change_the_file(tmp_path):
    data = np.random.default_rng(0).random((64, 64, 40), dtype=np.float32)
    write_volume(tmp_path / "a.nii.gz", np.asfortranarray(data), LEFT_HANDED)
    write_volume(tmp_path / "b.nii.gz", np.ascontiguousarray(data), LEFT_HANDED)
    a, b = (tmp_path / name for name in ("a.nii.gz", "b.nii.gz"))
    assert a.read_bytes() == b.read_bytes()
    assert a.read_bytes()[4:8] == bytes(4)  # no time


def test_flags_are_written_as_bytes(tmp_path):
    write_volume(tmp_path / "a.nii", noise() > 50, LEFT_HANDED)
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii").data, noise() > 50)


def test_a_volume_of_many_slabs_is_written_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("maskwitness.io.nifti._SLAB", 100)
    write_volume(tmp_path / "a.nii.gz", noise(), LEFT_HANDED)
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz").data, noise())


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    write_volume(tmp_path / "a.nii.gz", noise(), LEFT_HANDED)
    before = file_digest(tmp_path / "a.nii.gz")
    monkeypatch.setattr("maskwitness.io.nifti._SLAB", "no number")
    with pytest.raises(TypeError):
        write_volume(tmp_path / "a.nii.gz", noise() + 1, LEFT_HANDED)
    assert file_digest(tmp_path / "a.nii.gz") == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.nii.gz"]


def test_what_nifti_cannot_hold_is_not_written(tmp_path):
    with pytest.raises(InputError, match="float16"):
        write_volume(tmp_path / "a.nii.gz", noise(kind="f2"), LEFT_HANDED)
    with pytest.raises(InputError, match="cannot be written there"):
        write_volume(tmp_path / "a.mha", noise(), LEFT_HANDED)


# Digests and names


def test_the_digest_is_that_of_the_file(tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(b"abc")
    assert file_digest(tmp_path / "a.nii.gz") == hashlib.sha256(b"abc").hexdigest()


def test_the_digest_of_a_folder_is_that_of_its_files_by_name(tmp_path):
    for name in ("2.dcm", "1.dcm"):
        (tmp_path / name).write_bytes(name.encode())
    expected = b"".join(hashlib.sha256(f"{n}.dcm".encode()).digest() for n in (1, 2))
    assert file_digest(tmp_path) == hashlib.sha256(expected).hexdigest()


def test_the_digest_sees_voxels_that_lie_in_another_file(tmp_path):
    for header, text in {
        "a.mhd": "NDims = 3\nElementDataFile = a.raw\n",
        "b.mhd": "NDims = 3\nElementDataFile = LIST\na.raw\n",
        "c.mhd": "NDims = 3\nElementDataFile = %d.raw 1 2 1\n",
        "d.nhdr": "NRRD0004\nencoding: raw\ndata file: a.raw\n",
    }.items():
        for name in ("a.raw", "1.raw"):
            (tmp_path / name).write_bytes(b"one")
        (tmp_path / header).write_text(text)
        before = file_digest(tmp_path / header)
        for name in ("a.raw", "1.raw"):
            (tmp_path / name).write_bytes(b"two")
        assert file_digest(tmp_path / header) != before


def test_a_missing_file_has_no_digest(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        file_digest(tmp_path / "gone.nii.gz")


def test_double_endings_are_one_ending():
    assert split_ending("1.img.nii.gz") == ("1.img", ".nii.gz")
    assert split_ending("a.b.NRRD") == ("a.b", ".NRRD")
    assert split_ending("notes.txt") == ("notes.txt", "")
    assert split_ending(".nii.gz") == (".nii.gz", "")


# Real files


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real volumes at {REAL}")
@pytest.mark.parametrize(
    "name",
    [
        "totalseg_aorta_cta/ct_cropped.nii.gz",
        "totalseg_aorta_cta/aorta.nii.gz",
        "totalseg_pulmonary_cta/ct_cropped.nii.gz",
    ],
)
def test_a_real_file_is_read_as_nibabel_and_simpleitk_read_it(name):
    volume = read_volume(REAL / name)
    image: Any = nib.load(REAL / name)
    assert np.array_equal(volume.data, image.dataobj.get_unscaled())
    assert (volume.slope, volume.intercept) == (image.dataobj.slope, image.dataobj.inter)
    np.testing.assert_allclose(volume.affine, image.affine, atol=1e-9)
    corner = tuple(size - 1 for size in volume.shape)
    sitk = pytest.importorskip("SimpleITK")
    theirs = sitk.ReadImage(str(REAL / name)).TransformIndexToPhysicalPoint(corner)
    ours = to_world(np.array([corner], dtype=np.float64), volume.affine)[0]
    np.testing.assert_allclose(ours, np.array(theirs) * [-1, -1, 1], atol=1e-3)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real volumes at {REAL}")
def test_a_real_scan_is_read():
    folder = REAL / "totalseg_aorta_cta"
    scan = read_scan(
        Case(name="aorta", image=folder / "ct_cropped.nii.gz", mask=folder / "aorta.nii.gz")
    )
    assert scan.mask.shape == scan.image.shape == (120, 126, 164)
    assert same_grid(
        scan.image.shape, scan.affine, scan.image.shape, read_volume(folder / "aorta.nii.gz").affine
    )
