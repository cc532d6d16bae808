# mypy: allow-untyped-calls
import builtins
from pathlib import Path

import numpy as np
import pytest

from maskwitness.errors import InputError
from maskwitness.geometry import to_world
from maskwitness.io.volumes import Case, file_digest, read_scan, read_volume, write_volume

sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")

REAL = Path(__file__).parents[2].parent / "shared" / "real"
AORTA = REAL / "itktubetk_aorta_mask" / "Segmentation.mha"
OBLIQUE = (0.8, -0.6, 0.0, 0.6, 0.8, 0.0, 0.0, 0.0, 1.0)
TO_RAS = np.array([-1, -1, 1])


def picture(shape=(4, 5, 6), kind=np.int16, direction=OBLIQUE):
    values = np.random.default_rng(2).integers(0, 99, shape[::-1]).astype(kind)
    image = sitk.GetImageFromArray(values)
    image.SetOrigin((10.5, -20.25, 30))
    image.SetSpacing((0.5, 0.75, 1.25))
    image.SetDirection(direction)
    return image


def save(path, image):
    sitk.WriteImage(image, str(path))
    return path


def write_slices(folder, positions, series="1.2.3", names="slice_{}.dcm", size=(4, 5), turn=""):
    """Write a DICOM file at each position (LPS); slice n holds n at voxel (1, 2), else 0."""
    folder.mkdir(exist_ok=True)
    for number, position in enumerate(positions):
        values = np.zeros(size[::-1], np.int16)
        values[2, 1] = number
        image = sitk.GetImageFromArray(values)
        image.SetSpacing((0.5, 0.75))
        fields = {
            "0008|0060": "CT",
            "0020|000d": "1.2",
            "0020|000e": series,
            "0020|0013": str(number),
            "0020|0032": "\\".join(map(str, position)),
            "0020|0037": turn or "1\\0\\0\\0\\1\\0",
        }
        for key, value in fields.items():
            image.SetMetaData(key, value)
        writer = sitk.ImageFileWriter()
        writer.KeepOriginalImageUIDOn()
        writer.SetFileName(str(folder / names.format(number)))
        writer.Execute(image)
    return folder


def straight(count, step=1.25):
    return [(10, 20, 30 + step * number) for number in range(count)]


def assert_refused(path, *words):
    with pytest.raises(InputError) as caught:
        read_volume(path)
    assert str(caught.value).startswith(str(path))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["a.mha", "a.mhd", "a.nrrd", "a.nhdr"])
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float32])
def test_voxels_lie_where_simpleitk_puts_them(tmp_path, name, kind):
    image = picture(kind=kind)
    volume = read_volume(save(tmp_path / name, image))
    assert volume.data.dtype == kind
    assert volume.data.flags.f_contiguous
    assert volume.data.flags.writeable
    for index in ((0, 0, 0), (3, 4, 5), (1, 2, 3)):
        theirs = np.array(image.TransformIndexToPhysicalPoint(index)) * TO_RAS
        ours = to_world(np.array([index], dtype=np.float64), volume.affine)[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        assert volume.data[index] == image[index]


def test_the_voxels_outlive_the_image_they_came_from(tmp_path):
    volumes = [read_volume(save(tmp_path / "a.nrrd", picture((40, 40, 40)))) for _ in range(5)]
    for volume in volumes:
        np.testing.assert_array_equal(volume.data, sitk.GetArrayFromImage(picture((40, 40, 40))).T)


def test_a_sheared_nrrd_keeps_its_shear(tmp_path):
    header = (
        "NRRD0004\ntype: short\ndimension: 3\nspace: left-posterior-superior\nsizes: 2 2 2\n"
        "space directions: (1,0,0) (0.2,1,0) (0,0,2)\nspace origin: (3,4,5)\n"
        "endian: little\nencoding: raw\n\n"
    )
    (tmp_path / "a.nrrd").write_bytes(header.encode() + bytes(16))
    expected = [[-1.0, -0.2, 0, -3], [0, -1, 0, -4], [0, 0, 2, 5], [0, 0, 0, 1]]
    np.testing.assert_allclose(
        read_volume(tmp_path / "a.nrrd").affine, np.array(expected), atol=1e-6
    )


def test_an_image_in_nrrd_and_a_mask_in_nifti_make_a_scan(tmp_path):
    image = read_volume(save(tmp_path / "image.nrrd", picture()))
    mask = (image.data > 50).astype(np.uint8)
    write_volume(tmp_path / "mask.nii.gz", mask, image.affine)
    scan = read_scan(Case(name="a", image=tmp_path / "image.nrrd", mask=tmp_path / "mask.nii.gz"))
    np.testing.assert_array_equal(scan.mask, mask)


def test_an_axis_of_one_voxel_after_the_third_does_not_count(tmp_path):
    image = sitk.JoinSeries([picture()])
    np.testing.assert_array_equal(
        read_volume(save(tmp_path / "a.nrrd", image)).data, sitk.GetArrayFromImage(picture()).T
    )


def test_more_or_fewer_axes_are_refused(tmp_path):
    assert_refused(
        save(tmp_path / "a.nrrd", sitk.JoinSeries([picture(), picture()])), "it has 4 axes"
    )
    assert_refused(save(tmp_path / "b.mha", picture()[:, :, 0]), "it has 2 axes (4 × 5)")


def test_several_numbers_in_a_voxel_are_refused(tmp_path):
    image = sitk.Compose([picture(), picture()])
    assert_refused(save(tmp_path / "a.mha", image), "each voxel holds 2 numbers")


def test_a_damaged_file_is_refused_in_one_sentence(tmp_path, capfd):
    (tmp_path / "a.mha").write_bytes(b"hello")
    assert_refused(tmp_path / "a.mha", "ITK cannot read it", "Unable to determine ImageIO")
    path = save(tmp_path / "b.nrrd", picture())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="ITK cannot read it") as caught:
        read_volume(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().out == ""


def test_a_header_whose_voxels_are_gone_is_refused(tmp_path):
    path = save(tmp_path / "a.mhd", picture())
    (tmp_path / "a.raw").unlink()
    assert_refused(path, "ITK cannot read it")
    with pytest.raises(InputError, match="cannot be read"):
        file_digest(path)


def test_without_simpleitk_the_way_to_get_it_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "a.mha", picture())
    real_import = builtins.__import__

    def without_itk(name, *args):
        if name == "SimpleITK":
            raise ImportError(name)
        return real_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_itk)
    assert_refused(path, "pip install maskwitness[itk]")
    assert_refused(tmp_path, "pip install maskwitness[itk]")


# DICOM


def test_a_dicom_series_is_read_in_the_order_of_its_slices(tmp_path):
    positions = straight(6)
    folder = write_slices(tmp_path / "ct", positions[::-1])
    (folder / "notes.txt").write_text("not DICOM")
    volume = read_volume(folder)
    assert volume.shape == (4, 5, 6)
    assert volume.data[1, 2].tolist() == [5, 4, 3, 2, 1, 0]
    assert volume.data.flags.f_contiguous
    expected = [[-0.5, 0, 0, -10], [0, -0.75, 0, -20], [0, 0, 1.25, 30], [0, 0, 0, 1]]
    np.testing.assert_allclose(volume.affine, np.array(expected), atol=1e-6)


def test_a_dicom_series_lies_where_simpleitk_puts_it(tmp_path):
    across, down = np.array([0.8, 0.6, 0]), np.array([0, 0, -1.0])
    normal = np.cross(across, down)
    positions = [tuple(np.round(np.array([1, 2, 3]) + n * 0.9 * normal, 6)) for n in range(5)]
    turn = "\\".join(map(str, (*across, *down)))
    folder = write_slices(tmp_path / "ct", positions, turn=turn)
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    theirs, volume = reader.Execute(), read_volume(folder)
    for index in ((0, 0, 0), (3, 4, 4)):
        place = np.array(theirs.TransformIndexToPhysicalPoint(index)) * TO_RAS
        ours = to_world(np.array([index], dtype=np.float64), volume.affine)[0]
        np.testing.assert_allclose(ours, place, atol=1e-4)
    np.testing.assert_array_equal(volume.data, sitk.GetArrayFromImage(theirs).T)


def test_a_tilted_gantry_becomes_a_sheared_affine(tmp_path):
    positions = [(0, 0.3 * number, 2 * number) for number in range(5)]
    volume = read_volume(write_slices(tmp_path / "ct", positions))
    np.testing.assert_allclose(volume.affine[:3, 2], [0, -0.3, 2], atol=1e-6)


def test_positions_that_were_rounded_are_even_enough(tmp_path):
    positions = [(0, 0, round(0.625 * number, 1)) for number in range(9)]
    assert read_volume(write_slices(tmp_path / "ct", positions)).shape == (4, 5, 9)


def test_a_missing_slice_is_refused_with_its_neighbours(tmp_path):
    positions = straight(7)
    folder = write_slices(tmp_path / "ct", positions)
    (folder / "slice_3.dcm").unlink()
    assert_refused(
        folder, "slices are missing: slice_2.dcm and slice_4.dcm lie 2.5 mm apart", "1.25 mm apart"
    )


def test_uneven_slices_are_refused(tmp_path):
    positions = [*straight(3), (10, 20, 32.5 + 1.25 * 1.4)]
    assert_refused(write_slices(tmp_path / "ct", positions), "not evenly spaced", "resample")


def test_slices_in_the_same_place_are_refused(tmp_path):
    folder = write_slices(tmp_path / "ct", straight(4) + straight(4))
    assert_refused(folder, "lie in the same place", "one phase")


def test_several_series_are_refused_by_name(tmp_path):
    folder = write_slices(tmp_path / "ct", straight(3), series="1.2.3", names="a{}.dcm")
    write_slices(folder, straight(4), series="1.2.4", names="b{}.dcm")
    assert_refused(folder, "2 DICOM series", "1.2.3", "(3 files)", "1.2.4", "(4 files)")


def test_a_single_slice_is_refused(tmp_path):
    assert_refused(write_slices(tmp_path / "ct", straight(1)), "a single slice (slice_0.dcm)")


def test_slices_of_different_sizes_are_refused(tmp_path):
    folder = write_slices(tmp_path / "ct", straight(3))
    write_slices(folder, [(10, 20, 50)], names="other{}.dcm", size=(8, 8))
    assert_refused(folder, "other0.dcm and slice_0.dcm differ in size")


def test_slices_that_point_different_ways_are_refused(tmp_path):
    folder = write_slices(tmp_path / "ct", straight(3))
    write_slices(folder, [(10, 20, 50)], names="other{}.dcm", turn="0\\1\\0\\1\\0\\0")
    assert_refused(folder, "point different ways")


def test_a_folder_without_dicom_is_refused_in_silence(tmp_path, capfd):
    (tmp_path / "ct").mkdir()
    (tmp_path / "ct" / "a.txt").write_text("hello")
    assert_refused(tmp_path / "ct", "holds no DICOM series")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.skipif(not AORTA.is_file(), reason=f"no real volumes at {REAL}")
def test_a_real_metaimage_lies_where_simpleitk_puts_it():
    volume, image = read_volume(AORTA), sitk.ReadImage(str(AORTA))
    assert volume.shape == image.GetSize() == (184, 98, 521)
    np.testing.assert_array_equal(volume.data, sitk.GetArrayFromImage(image).T)
    indices = np.array([[0, 0, 0], [183, 97, 520], [100, 3, 400]])
    theirs = [image.TransformIndexToPhysicalPoint(index) for index in indices.tolist()]
    ours = to_world(indices.astype(np.float64), volume.affine)
    np.testing.assert_allclose(ours, np.array(theirs) * TO_RAS, atol=1e-6)
