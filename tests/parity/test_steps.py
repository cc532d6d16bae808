"""Each shipped step against ``reference.py``: equal means equal, to the last bit."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwitness import join, reference
from maskwitness.centreline import prune_triangles, thin, trace_graph
from maskwitness.config import JoinSettings, PatchSettings, QualitySettings, ResidualSettings
from maskwitness.frames import transport_frames
from maskwitness.join import Memory, plan, range_pairs
from maskwitness.patches import sample_patches
from maskwitness.quality import paint_quality
from maskwitness.records import Bank, Scan, Volume
from maskwitness.residuals import bin_edges, fit_baseline, residuals_of, score_patches
from maskwitness.train import weighted_loss

AFFINES = {
    "straight": np.diag([0.5, 0.5, 0.5, 1.0]),
    "left-handed and anisotropic": np.array(
        [[-0.4, 0, 0, 90.0], [0, 0.4, 0, -20.0], [0, 0, 1.1, 5.0], [0, 0, 0, 1]]
    ),
    "oblique and sheared": np.array(
        [[0.5, 0.1, -0.05, 3.0], [-0.1, 0.45, 0.2, -8.0], [0.02, -0.15, 0.8, 1.0], [0, 0, 0, 1]]
    ),
}


def blobs(seed: int, shape=(13, 12, 14), density=0.5) -> np.ndarray:
    """Return a rough mask: smoothed noise, so that components, loops and cavities all occur."""
    from scipy import ndimage

    rng = np.random.default_rng(seed)
    noise = ndimage.gaussian_filter(rng.normal(size=shape), rng.uniform(0.4, 1.3))
    mask = noise > np.quantile(noise, 1 - density)
    return mask.astype(np.uint8)


def tree(shape=(20, 18, 22)) -> np.ndarray:
    """Return a small vessel tree: a trunk that forks and bends."""
    mask = np.zeros(shape, np.uint8)
    i, j, k = np.meshgrid(*map(np.arange, shape), indexing="ij")
    mask[((i - 9.5) ** 2 + (j - 8.5) ** 2 <= 4) & (k >= 1) & (k <= 12)] = 1
    mask[
        (np.abs(i - 9.5 - (k - 11) * 0.8) < 1.2) & (np.abs(j - 8.5) < 1.2) & (k > 10) & (k < 20)
    ] = 1
    mask[(np.abs(j - 8.5 + (k - 11) * 0.7) < 1.1) & (np.abs(i - 9) < 1.1) & (k > 10) & (k < 20)] = 1
    return mask


def assert_same_records(fast, slow):
    for field in dataclasses.fields(fast):
        ours, theirs = getattr(fast, field.name), getattr(slow, field.name)
        if field.name == "angle_deg":  # arccos is the maths library's: the last bit is its own
            np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-14)
        elif isinstance(ours, np.ndarray) and ours.dtype != object:
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
            assert ours.dtype == theirs.dtype, field.name
        else:
            np.testing.assert_equal(ours, theirs, err_msg=field.name)


def as_scan(mask: np.ndarray, affine: np.ndarray, dtype: str, seed: int = 0) -> Scan:
    rng = np.random.default_rng(seed)
    data = np.asfortranarray(rng.uniform(-200, 600, mask.shape).astype(dtype))
    image = Volume(data=data, affine=affine, slope=1.5, intercept=-3.0)
    return Scan(name="case", image=image, mask=np.asfortranarray(mask))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), density=st.sampled_from([0.05, 0.15, 0.3, 0.5, 0.8]))
def test_thinning_equals_the_reference(seed, density):
    mask = blobs(seed, density=density)
    slow, slow_filled = reference.thin(mask)
    fast = thin(mask)
    np.testing.assert_array_equal(fast.points, np.argwhere(slow))
    assert fast.filled == slow_filled


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), density=st.sampled_from([0.1, 0.3, 0.6]))
def test_the_graph_keeps_the_same_edges_as_the_reference(seed, density):
    skeleton, _ = reference.thin(blobs(seed, density=density))
    points = np.argwhere(skeleton)
    flat = np.asarray(np.ravel_multi_index(tuple(points.T), skeleton.shape))
    fast = {(int(flat[a]), int(flat[b])) for a, b in prune_triangles(points)}
    assert fast == {tuple(sorted(edge)) for edge in reference.edges_of(skeleton)}


@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES.keys())
@pytest.mark.parametrize(
    "mask", [tree(), blobs(3), blobs(11, density=0.1)], ids=["tree", "blobs", "thin"]
)
def test_graph_frames_patches_and_quality_equal_the_reference(mask, affine, dtype):
    scan = as_scan(mask, affine, dtype)
    graph = trace_graph(scan.mask, affine)
    assert_same_records(graph, reference.trace(mask, affine))
    frames = transport_frames(graph, affine)
    assert_same_records(frames, reference.transport(graph, affine))
    for patch in (PatchSettings(), PatchSettings(extent_mm=5.0, size=9)):
        patches = sample_patches(scan, graph, frames, patch)
        assert_same_records(patches, reference.sample(scan, graph, frames, patch))
    residual = np.random.default_rng(1).normal(-1, 3, len(graph.branch))
    residual[::5] = np.nan
    quality = QualitySettings(reach_mm=0.3)
    np.testing.assert_array_equal(
        paint_quality(graph.points_mm, residual, scan.image.shape, affine, quality),
        reference.quality(graph.points_mm, residual, scan.image.shape, affine, quality),
    )


def bank_with_ties(seed: int, patches: int = 60, size: int = 8) -> Bank:
    """Return patches with many duplicates and equal distances."""
    rng = np.random.default_rng(seed)
    originals = rng.integers(0, 256, (6, size, size))
    image = originals[rng.integers(0, 6, patches)] + rng.integers(-2, 3, (patches, 1, 1)) * 3
    mask = rng.random((patches, size * size)) < rng.choice([0.0, 0.3, 0.6], patches)[:, None]
    from maskwitness.patches import circle

    inside = circle(size)
    return Bank(
        image=np.where(inside, np.clip(image, 0, 255), 0).astype(np.uint8),
        mask=np.packbits(mask & inside.ravel(), axis=1),
        has_image=rng.random(patches) > 0.1,
        group=rng.integers(0, 4, patches),
        position_um=rng.integers(0, 20_000, patches),
    )


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    patches=st.integers(257, 600),  # more than a leaf, so that some are ruled out unseen
    k=st.sampled_from([0, 5, 700]),
    testify=st.sampled_from(["any", "other_stretch", "other_scan"]),
    rows=st.integers(1, 600),
    threads=st.integers(1, 4),
    held=st.integers(1, 20_000),
)
def test_neither_blocks_nor_threads_nor_memory_change_the_pairs(
    seed, patches, k, testify, rows, threads, held
):
    bank = bank_with_ties(seed, patches)
    settled = JoinSettings(epsilon=0.01, k=k, testify=testify)

    def smaller(given_settings, _threads):
        made = plan.plan_search(given_settings, threads)
        return dataclasses.replace(
            made, rows=rows, threads=threads, held_bytes=held * plan.PAIR_BYTES
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "plan_search", smaller)
        found = list(range_pairs(bank, settled, memory=Memory(seed % 2 * 2**30)))
    slow = reference.witnesses(bank, settled, 8)
    for name in ("witness", "dist2", "intersection", "union"):
        fast = np.concatenate([getattr(block, name) for block in found])
        np.testing.assert_array_equal(fast, getattr(slow, name))
    sizes = np.concatenate([np.diff(block.offset) for block in found])
    np.testing.assert_array_equal(sizes, np.diff(slow.offset))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.sampled_from([0, 1, 3, 50]),
    epsilon=st.sampled_from([1e-3, 0.01, 0.2]),
    testify=st.sampled_from(["any", "other_stretch", "other_scan"]),
)
def test_pairs_baseline_residuals_and_scores_equal_the_reference(seed, k, epsilon, testify):
    bank = bank_with_ties(seed)
    join = JoinSettings(epsilon=epsilon, k=k, testify=testify, memory_mb=64)
    (fast,) = list(range_pairs(bank, join))
    slow = reference.witnesses(bank, join, 8)
    assert_same_records(fast, slow)
    bins = ResidualSettings(bins=7, min_pairs=5)
    baseline = fit_baseline([fast], epsilon, 8, bins)
    assert_same_records(baseline, reference.baseline(slow, epsilon, 8, bins))
    edges = bin_edges(epsilon, 8, bins.bins)
    np.testing.assert_array_equal(
        residuals_of(fast, baseline, edges), reference.residuals(slow, baseline, epsilon, 8)
    )
    area = np.bitwise_count(bank.mask).sum(axis=1).astype(float)
    scores = score_patches(fast, baseline, edges, bank.has_image, area)
    expected = reference.score(slow, reference.residuals(slow, baseline, epsilon, 8), bank)
    for name in ("residual", "witnesses", "usual_area"):
        np.testing.assert_array_equal(getattr(scores, name), getattr(expected, name), err_msg=name)
    assert scores.reason.tolist() == expected.reason.tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.0, 0.1, 1.0]))
def test_the_weighted_loss_is_the_reference(seed, share):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 7, 3))
    loss = rng.exponential(2.0, shape)
    quality = rng.random(shape) * (rng.random(shape) < share)
    # Not to the last bit: the sums are left to whatever library the tensors come from.
    expected = reference.weighted_loss(loss, quality)
    np.testing.assert_allclose(weighted_loss(loss, quality), expected, rtol=1e-13)
