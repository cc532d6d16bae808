# mypy: allow-untyped-calls
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maskwitness.geometry import to_world
from maskwitness.io.volumes import read_volume, write_volume

KINDS = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
shapes = st.tuples(*[st.integers(1, 9)] * 3)
voxels = shapes.flatmap(
    lambda shape: st.sampled_from(KINDS).flatmap(
        lambda kind: arrays.arrays(
            np.dtype(kind), shape, elements={"allow_nan": False} if kind[0] == "f" else None
        )
    )
)


@st.composite
def affines(draw):
    """Oblique, left-handed, anisotropic and sheared grids, as scanners and people make them."""
    quaternion = np.array(draw(st.tuples(*[st.floats(-1, 1)] * 4)))
    quaternion[0] += 2  # never zero
    w, x, y, z = quaternion / np.sqrt((quaternion**2).sum())
    turn = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    shear = np.eye(3)
    shear[0, 2], shear[1, 2] = draw(st.tuples(*[st.sampled_from([0.0, 0.1, -0.4])] * 2))
    flips = draw(st.tuples(*[st.sampled_from([-1.0, 1.0])] * 3))
    steps_mm = np.array(draw(st.tuples(*[st.floats(0.2, 1)] * 3))) * flips
    affine = np.eye(4)
    affine[:3, :3] = turn @ shear * steps_mm
    affine[:3, 3] = draw(st.tuples(*[st.floats(-300, 300)] * 3))
    return affine


@settings(max_examples=60, deadline=None)
@given(data=voxels, affine=affines(), ending=st.sampled_from([".nii.gz", ".nii"]))
def test_what_is_written_is_read_again(data, affine, ending):
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a{ending}"
        write_volume(path, data, affine)
        volume = read_volume(path)
    assert volume.data.dtype == data.dtype
    np.testing.assert_array_equal(volume.data, data)
    assert (volume.slope, volume.intercept) == (1.0, 0.0)


@settings(max_examples=60, deadline=None)
@given(affine=affines())
def test_voxels_keep_their_place_in_the_world(affine):
    corners_vox = np.array([[0.0, 0, 0], [511, 0, 274], [511, 511, 0], [255, 128, 274]])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.nii.gz"
        write_volume(path, np.zeros((2, 2, 2), np.uint8), affine)
        found = read_volume(path).affine
    np.testing.assert_allclose(
        to_world(corners_vox, found), to_world(corners_vox, affine), rtol=0, atol=1e-4
    )
