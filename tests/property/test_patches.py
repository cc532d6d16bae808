"""A vessel looks the same whichever way its scan lies, and canonical patches are canonical."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from maskwitness.config import PatchSettings
from maskwitness.frames import transport_frames
from maskwitness.geometry import to_world
from maskwitness.patches import circle, sample_patches
from maskwitness.records import Frames
from tests.shapes import graph_of, scan_of, voxels_of

seeds = st.integers(0, 10**6)
quick = settings(max_examples=25, deadline=None)
SHAPE = (40, 42, 44)


def intensity(places: np.ndarray) -> np.ndarray:
    """Return an image as a function of world millimetres: a vessel beside a smaller one."""
    x, y, z = np.moveaxis(places, -1, 0)
    vessel = 400 * np.exp(-((x - 0.2 * z) ** 2 + (y + 0.1 * z) ** 2) / 1.6)
    return vessel + 250 * np.exp(-((x - 1.4) ** 2 + (y - 0.6) ** 2) / 0.5) + 6 * x - 9 * z


def drawn(places: np.ndarray) -> np.ndarray:
    x, y, z = np.moveaxis(places, -1, 0)
    return ((x - 0.2 * z) ** 2 + (y + 0.1 * z) ** 2 < 1).astype(np.uint8)


def patches_in(linear: np.ndarray, frames: Frames, path: np.ndarray):
    """Cut patches along a path out of the same world, voxelised along any three axes."""
    affine = np.eye(4)
    affine[:3, :3] = linear
    affine[:3, 3] = path.mean(axis=0) - linear @ ((np.array(SHAPE) - 1) / 2)
    voxels = voxels_of(SHAPE)
    places = to_world(voxels, affine).reshape(*SHAPE, 3)
    scan = scan_of(intensity(places), drawn(places), affine)
    return sample_patches(scan, graph_of([path], affine=affine), frames, PatchSettings())


PATH = np.stack(
    [0.2 * np.linspace(-1, 1, 5), -0.1 * np.linspace(-1, 1, 5), np.linspace(-1, 1, 5)]
).T
FRAMES = transport_frames(graph_of([PATH]), np.eye(4))
FINE = 0.14
TURN = Rotation.from_euler("zyx", [25, -40, 65], degrees=True).as_matrix()
SHEAR = np.array([[1, 0.25, -0.1], [0, 1, 0.2], [0, 0, 1]])
GRIDS = {
    "turned": TURN * FINE,
    "left-handed": np.diag([-FINE, FINE, FINE]),
    "permuted": np.eye(3)[[2, 0, 1]] * FINE,
    "anisotropic": np.diag([FINE, FINE, 0.2]),
    "sheared": SHEAR * FINE,
    "turned, sheared and left-handed": TURN @ SHEAR @ np.diag([FINE, -FINE, 0.17]),
}


@pytest.mark.parametrize("linear", GRIDS.values(), ids=GRIDS.keys())
def test_a_vessel_looks_the_same_however_its_grid_lies(linear):
    straight = patches_in(np.eye(3) * FINE, FRAMES, PATH)
    other = patches_in(linear, FRAMES, PATH)
    assert straight.outside.max() == other.outside.max() == 0.0
    apart = np.abs(straight.image.astype(int) - other.image.astype(int))
    assert apart.max() <= 3
    assert np.quantile(apart, 0.98) <= 2
    np.testing.assert_allclose(straight.low_hu, other.low_hu, atol=4)
    np.testing.assert_allclose(straight.lumen_hu, other.lumen_hu, rtol=0.02)
    np.testing.assert_allclose(straight.area_mm2, other.area_mm2, rtol=0.12)  # a voxel is large
    np.testing.assert_allclose(straight.area_mm2.mean(), other.area_mm2.mean(), rtol=0.04)


@quick
@given(seed=seeds, size=st.integers(4, 30), extent=st.floats(0.5, 20))
def test_patches_are_canonical(seed, size, extent):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 12, 3).tolist())
    data = rng.integers(-1000, 1000, shape).astype(np.int16)
    mask = (rng.random(shape) < 0.5).astype(np.uint8)
    path = rng.uniform(-2, 13, (6, 3))
    graph = graph_of([path])
    frames = transport_frames(graph, np.eye(4))
    slope, intercept = float(rng.choice([-3.0, 0.5, 1.0])), float(rng.normal())
    scan = scan_of(data, mask, slope=slope, intercept=intercept)
    patches = sample_patches(scan, graph, frames, PatchSettings(size=size, extent_mm=extent))
    inside = circle(size)
    assert not patches.image[:, ~inside].any()
    bits = np.unpackbits(patches.mask, axis=1)
    assert not bits[:, : size * size].reshape(-1, size, size)[:, ~inside].any()
    assert not bits[:, size * size :].any()
    np.testing.assert_array_equal(patches.has_image, patches.high_hu > patches.low_hu)
    assert not patches.image[~patches.has_image].any()
    count = bits.sum(axis=1)
    np.testing.assert_allclose(patches.area_mm2, count * (extent / size) ** 2)
    np.testing.assert_array_equal(np.isnan(patches.lumen_hu), count == 0)
    some = count > 0
    assert (patches.low_hu - 1e-9 <= patches.lumen_hu)[some].all()
    assert (patches.lumen_hu <= patches.high_hu + 1e-9)[some].all()
    assert ((patches.outside >= 0) & (patches.outside <= 1)).all()
    assert ((patches.angle_deg >= 0) & (patches.angle_deg < 54.74)).all()


@quick
@given(seed=seeds, slope=st.sampled_from([0.25, 1.0, 8.0]), intercept=st.integers(-2000, 2000))
def test_brightness_and_contrast_do_not_show(seed, slope, intercept):
    # Powers of two and whole numbers: the same bits, not nearly the same.
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 4000, (9, 9, 9)).astype(np.int16)
    path = np.rint(rng.uniform(1, 8, (5, 3)) * 8) / 8
    graph = graph_of([path + np.arange(5)[:, None] / 8])
    t, n, b = (np.tile(axis, (5, 1)) for axis in np.eye(3)[[2, 0, 1]])
    frames = Frames(tangent=t, normal=n, binormal=b)
    plain = sample_patches(scan_of(data), graph, frames, PatchSettings())
    other = scan_of(data, slope=slope, intercept=float(intercept))
    np.testing.assert_array_equal(
        sample_patches(other, graph, frames, PatchSettings()).image, plain.image
    )


@quick
@given(seed=seeds)
def test_turning_the_frame_by_a_right_angle_turns_the_patch(seed):
    rng = np.random.default_rng(seed)
    graph = graph_of([np.rint(rng.uniform(2, 8, (4, 3)) * 8) / 8 + np.arange(4)[:, None]])
    t, n, b = (np.tile(axis, (4, 1)) for axis in np.eye(3)[[2, 0, 1]])
    scan = scan_of(
        rng.integers(0, 4000, (14, 14, 14)), (rng.random((14,) * 3) < 0.5).astype(np.uint8)
    )
    one = sample_patches(scan, graph, Frames(tangent=t, normal=n, binormal=b), PatchSettings())
    two = sample_patches(scan, graph, Frames(tangent=t, normal=b, binormal=-n), PatchSettings())
    np.testing.assert_array_equal(two.image, np.rot90(one.image, -1, (1, 2)))
