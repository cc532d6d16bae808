# mypy: allow-untyped-calls
import gzip
import struct

import nibabel as nib
import numpy as np
import pytest

from maskwitness.errors import InputError
from maskwitness.io import nifti
from maskwitness.io.volumes import read_volume

LEFT_HANDED = np.array(
    [[-0.35, 0, 0, 90.0], [0, -0.35, 0, 80.5], [0, 0, 0.5, -70.25], [0, 0, 0, 1]]
)


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


def assert_refused(path, *words):
    with pytest.raises(InputError) as caught:
        read_volume(path)
    assert str(caught.value).startswith(str(path))
    for word in words:
        assert word in str(caught.value)


# Reading


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.hdr"])
@pytest.mark.parametrize("kind", ["u1", "i2", "f4"])
def test_voxels_keep_their_type_and_come_in_fortran_order(tmp_path, name, kind):
    data = noise(kind=kind)
    image = nib.Nifti1Pair if name.endswith(".hdr") else nib.Nifti1Image
    nib.save(image(data, LEFT_HANDED), tmp_path / name)
    volume = read_volume(tmp_path / name)
    assert volume.data.dtype == np.dtype(kind)
    assert volume.data.flags.f_contiguous
    assert volume.data.flags.writeable
    np.testing.assert_array_equal(volume.data, data)
    np.testing.assert_allclose(volume.affine, LEFT_HANDED, atol=1e-6)


def test_big_endian_voxels_become_native(tmp_path):
    data = noise(kind=">i2")
    header = nib.Nifti1Header(endianness=">")
    nib.save(nib.Nifti1Image(data, LEFT_HANDED, header), tmp_path / "a.nii.gz")
    volume = read_volume(tmp_path / "a.nii.gz")
    assert volume.data.dtype.isnative
    np.testing.assert_array_equal(volume.data, data)


def test_nifti_2_is_read_too(tmp_path):
    nib.save(nib.Nifti2Image(noise(), LEFT_HANDED), tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz").data, noise())


def test_gzip_is_known_by_its_first_bytes_and_not_by_the_name(tmp_path):
    save(tmp_path / "a.nii", noise())
    (tmp_path / "b.nii.gz").write_bytes((tmp_path / "a.nii").read_bytes())
    (tmp_path / "c.nii").write_bytes(gzip.compress((tmp_path / "a.nii").read_bytes()))
    for name in ("b.nii.gz", "c.nii"):
        np.testing.assert_array_equal(read_volume(tmp_path / name).data, noise())


def test_gzip_in_several_members_is_one_file(tmp_path):
    raw = save(tmp_path / "a.nii", noise()).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw[:400]) + gzip.compress(raw[400:]))
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz").data, noise())


def test_rescaling_is_handed_on_and_not_applied(tmp_path):
    path = patch(save(tmp_path / "a.nii", noise()), 112, "ff", 0.5, -1024)
    volume = read_volume(path)
    assert (volume.slope, volume.intercept) == (0.5, -1024)
    np.testing.assert_array_equal(volume.data, noise())


@pytest.mark.parametrize("slope", [0.0, float("nan")])
def test_a_slope_of_zero_or_nan_rescales_nothing(tmp_path, slope):
    volume = read_volume(patch(save(tmp_path / "a.nii", noise()), 112, "ff", slope, 7))
    assert (volume.slope, volume.intercept) == (1.0, 0.0)


def test_the_sform_comes_before_the_qform(tmp_path):
    image = nib.Nifti1Image(noise(), LEFT_HANDED)
    image.set_qform(np.diag([2.0, 2, 2, 1]), 1)
    image.set_sform(LEFT_HANDED, 1)
    nib.save(image, tmp_path / "s.nii")
    np.testing.assert_allclose(read_volume(tmp_path / "s.nii").affine, LEFT_HANDED, atol=1e-6)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "q.nii")
    np.testing.assert_allclose(
        read_volume(tmp_path / "q.nii").affine, np.diag([2, 2, 2, 1]), atol=1e-6
    )


def test_without_sform_and_qform_the_spacing_decides_as_in_nibabel(tmp_path):
    path = patch(save(tmp_path / "a.nii", noise((4, 5, 6, 1))), 252, "hh", 0, 0)
    expected = nib.nifti1.Nifti1Image(noise((4, 5, 6)), None, nib.load(path).header)
    expected.header.set_data_shape((4, 5, 6))
    np.testing.assert_allclose(read_volume(path).affine, expected.header.get_best_affine())


def test_a_header_in_micrometres_is_believed(tmp_path):
    affine = LEFT_HANDED * np.array([[1000], [1000], [1000], [1]])
    path = patch(save(tmp_path / "a.nii", noise(), affine), 123, "b", 3)
    np.testing.assert_allclose(read_volume(path).affine, LEFT_HANDED, rtol=1e-6)


def test_axes_of_one_voxel_after_the_third_do_not_count(tmp_path):
    volume = read_volume(save(tmp_path / "a.nii.gz", noise((4, 5, 6, 1, 1))))
    assert volume.shape == (4, 5, 6)


def test_metadata_between_header_and_voxels_is_passed_over(tmp_path):
    image = nib.Nifti1Image(noise(), LEFT_HANDED)
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"hello" * 999))
    nib.save(image, tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz").data, noise())


# Files that are refused


def test_a_missing_file_is_refused(tmp_path):
    assert_refused(tmp_path / "gone.nii.gz", "there is no such file")


def test_a_link_that_points_nowhere_is_refused(tmp_path):
    (tmp_path / "a.nii.gz").symlink_to(tmp_path / "gone")
    assert_refused(tmp_path / "a.nii.gz", "links to a file that is not here")


def test_a_file_that_the_system_cannot_open_is_refused(tmp_path):
    assert_refused(tmp_path / f"{'x' * 300}.nii.gz", "it cannot be read (File name too long)")


def test_an_unknown_ending_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    assert_refused(tmp_path / "a.png", ".nii.gz", "DICOM")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.nii.gz").touch()
    (tmp_path / "b.nii.gz").write_bytes(gzip.compress(b""))
    assert_refused(tmp_path / "a.nii.gz", "it is empty")
    assert_refused(tmp_path / "b.nii.gz", "it is empty")


def test_a_file_that_is_no_nifti_is_refused(tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(b"hello" * 200))
    (tmp_path / "b.nii").write_bytes(struct.pack("<i", 348) + b"short")
    (tmp_path / "c.nii").write_bytes(struct.pack("<i", 348) + bytes(500))
    for name in ("a.nii.gz", "b.nii", "c.nii"):
        assert_refused(tmp_path / name, "does not begin with a NIfTI header")


@pytest.mark.parametrize("keep", [5, 200, 3000])
def test_a_gzip_file_that_is_cut_short_is_refused(tmp_path, keep):
    data = np.random.default_rng(0).integers(0, 9999, (20, 20, 20)).astype(np.int16)
    path = save(tmp_path / "a.nii.gz", data)
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(path, "it is cut short", "download it again")


def test_a_gzip_file_without_its_checksum_is_refused(tmp_path):
    path = save(tmp_path / "a.nii.gz", noise())
    path.write_bytes(path.read_bytes()[:-6])
    assert_refused(path, "it is cut short")


@pytest.mark.parametrize("place", [-1, -6, 2000])
def test_a_gzip_file_with_a_flipped_bit_is_refused(tmp_path, place):
    data = np.random.default_rng(0).integers(0, 9999, (20, 20, 20)).astype(np.int16)
    path = save(tmp_path / "a.nii.gz", data)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(bytes(raw))
    assert_refused(path, "download it again")


@pytest.mark.parametrize("filler", [0x00, 0x55, 0xFF])
@pytest.mark.parametrize("length", [64, 4000])  # only the checksum knows; no deflate block is left
def test_a_gzip_file_overwritten_in_the_middle_is_refused(tmp_path, length, filler):
    data = np.random.default_rng(0).integers(0, 9999, (40, 40, 40)).astype(np.int16)
    path = save(tmp_path / "a.nii.gz", data)
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + length] = bytes([filler]) * length
    path.write_bytes(bytes(raw))
    assert_refused(path, "its gzip data are damaged", "download it again")


def test_a_header_that_promises_more_than_the_file_holds_is_refused(tmp_path):
    path = patch(save(tmp_path / "a.nii", noise()), 42, "hhh", 512, 512, 275)
    assert_refused(path, "144,179,200 bytes", "at most 420 are there")


def test_a_packed_file_too_small_for_its_promise_is_refused_before_it_is_unpacked(tmp_path):
    raw = patch(save(tmp_path / "a.nii", noise()), 42, "hhh", 1500, 1500, 3000).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw))
    assert_refused(tmp_path / "a.nii.gz", "13,500,000,000 bytes", "it is cut short")


def test_a_packed_file_with_fewer_voxels_than_promised_is_refused(tmp_path):
    raw = patch(save(tmp_path / "a.nii", noise()), 42, "hhh", 5, 6, 70).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw))
    assert_refused(tmp_path / "a.nii.gz", "4,200 bytes", "at most 420 are there")


def test_what_follows_the_voxels_is_thrown_away_after_its_checksum(tmp_path):
    raw = save(tmp_path / "a.nii", noise()).read_bytes()
    packed = gzip.compress(raw + bytes(5_000_000))
    (tmp_path / "a.nii.gz").write_bytes(packed)
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz").data, noise())
    (tmp_path / "a.nii.gz").write_bytes(packed[: len(packed) // 2])
    assert_refused(tmp_path / "a.nii.gz", "it is cut short")


def test_a_gzip_stream_is_not_followed_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(nifti, "_MOST_AFTER", 4_000_000)
    raw = save(tmp_path / "a.nii", noise()).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw + bytes(50_000_000)))
    assert_refused(tmp_path / "a.nii.gz", "go on for more than 4,000,000 bytes after its voxels")


def test_an_absurd_size_is_refused(tmp_path):
    path = patch(save(tmp_path / "a.nii", noise()), 42, "hhh", 30000, 30000, 30000)
    assert_refused(path, "30000 × 30000 × 30000", "more than any scan has")


@pytest.mark.parametrize("sizes", [(0, 5, 5), (-4, 5, 5)])
def test_a_size_of_nothing_is_refused(tmp_path, sizes):
    path = patch(save(tmp_path / "a.nii", noise()), 42, "hhh", *sizes)
    assert_refused(path, "which is no volume")


@pytest.mark.parametrize(("shape", "hint"), [((4, 5, 6, 2), "4 axes"), ((4, 5), "2 axes")])
def test_a_volume_has_three_axes(tmp_path, shape, hint):
    path = save(tmp_path / "a.nii", noise(shape))
    assert_refused(path, hint, "one 3-D volume is wanted", " × ".join(map(str, shape)))


def test_complex_and_coloured_voxels_are_refused(tmp_path):
    colour = np.zeros((3, 3, 3), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert_refused(save(tmp_path / "a.nii", colour), "RGB colour")
    assert_refused(save(tmp_path / "b.nii", np.zeros((3, 3, 3), "c8")), "complex64")


def test_a_voxel_type_that_does_not_exist_is_refused(tmp_path):
    assert_refused(patch(save(tmp_path / "a.nii", noise()), 70, "h", 77), "voxel type 77")


@pytest.mark.parametrize("begin", [12.0, 1e30, float("nan")])
def test_voxels_that_begin_nowhere_are_refused(tmp_path, begin):
    path = patch(save(tmp_path / "a.nii", noise()), 108, "f", begin)
    assert_refused(path, "the voxels begin at byte")


def test_voxels_that_begin_after_the_end_of_the_file_are_refused(tmp_path):
    raw = patch(save(tmp_path / "a.nii", noise()), 108, "f", 5000.0).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw))
    assert_refused(tmp_path / "a.nii.gz", "at most 0 are there")


def test_an_intercept_that_is_no_number_is_refused(tmp_path):
    path = patch(save(tmp_path / "a.nii", noise()), 112, "ff", 1.0, float("nan"))
    assert_refused(path, "rescales values by 1 and then adds nan")


@pytest.mark.parametrize("slope", [float("inf"), float("-inf")])
def test_an_infinite_slope_is_refused(tmp_path, slope):
    path = patch(save(tmp_path / "a.nii", noise()), 112, "ff", slope, 0.0)
    assert_refused(path, f"rescales values by {slope:g} and then adds 0")


def test_an_affine_that_places_voxels_nowhere_is_refused(tmp_path):
    row = 280
    assert_refused(
        patch(save(tmp_path / "a.nii", noise()), row, "f", float("inf")), "not finite numbers"
    )
    assert_refused(
        patch(save(tmp_path / "b.nii", noise()), row, "ffff", 0, 0, 0, 0), "a voxel has no size"
    )
    assert_refused(
        patch(save(tmp_path / "c.nii", noise()), row, "8f", 1, 1, 0, 0, 1, 1, 0, 0),
        "two image axes point the same way",
    )


def test_a_rotation_that_is_none_is_refused(tmp_path):
    path = patch(save(tmp_path / "a.nii", noise()), 252, "hhfff", 1, 0, 3.0, 3.0, 3.0)
    assert_refused(path, "no rotation that can be used")


def test_a_header_without_its_voxel_file_is_refused(tmp_path):
    nib.save(nib.Nifti1Pair(noise(), LEFT_HANDED), tmp_path / "a.hdr")
    (tmp_path / "a.img").unlink()
    assert_refused(tmp_path / "a.hdr", "there is no a.img")
