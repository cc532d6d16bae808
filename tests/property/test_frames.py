"""What parallel transport promises of any centreline."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from maskwitness.centreline import trace_graph
from maskwitness.frames import transport_frames
from maskwitness.geometry import check_affine
from tests.shapes import ONE, graph_of, noise

seeds = st.integers(0, 10**6)
quick = settings(max_examples=60, deadline=None)
STEPS = np.array([s for s in np.ndindex(3, 3, 3) if s != (1, 1, 1)]) - 1


def axes_of(frames):
    return np.stack([frames.tangent, frames.normal, frames.binormal], axis=1)


def assert_orthonormal(frames, tolerance):
    axes = axes_of(frames)
    products = axes @ axes.transpose(0, 2, 1)
    assert np.abs(products - np.eye(3)).max() <= tolerance
    assert (np.linalg.det(axes) > 0).all()


def affine_of(seed: int) -> np.ndarray:
    """Return an oblique, sheared, perhaps left-handed affine."""
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = Rotation.random(rng=rng).as_matrix() * rng.uniform(0.3, 2.0, 3)
    affine[:3, :3] = affine[:3, :3] @ (np.eye(3) + np.triu(rng.uniform(-0.3, 0.3, (3, 3)), 1))
    affine[:3, 0] *= rng.choice([-1, 1])
    affine[:3, 3] = rng.normal(scale=50, size=3)
    check_affine(affine)
    return affine


@quick
@given(seed=seeds, isotropic=st.booleans())
def test_frames_of_any_voxel_walk_are_orthonormal(seed, isotropic):
    # Walks among 26-neighbours, so with right angles into +n and -n and turns on the spot.
    rng = np.random.default_rng(seed)
    affine = ONE if isotropic else affine_of(seed)
    paths = [STEPS[rng.integers(0, 26, 60)].cumsum(axis=0) @ affine[:3, :3].T for _ in range(3)]
    graph = graph_of(paths, [-1, 0, int(rng.integers(-1, 2))])
    assert_orthonormal(transport_frames(graph, affine), 1e-9)


@quick
@given(seed=seeds, share=st.sampled_from([0.05, 0.2, 0.5]), skew=st.booleans())
def test_frames_of_any_mask_are_orthonormal(seed, share, skew):
    affine = affine_of(seed) if skew else ONE
    graph = trace_graph(noise(seed, (11, 10, 12), share, 0.7), affine)
    assert_orthonormal(transport_frames(graph, affine), 1e-9)


def generic_path(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(40, 3)) * 0.4 + rng.normal(size=3)).cumsum(axis=0)


@quick
@given(seed=seeds)
def test_turning_the_world_turns_the_frames(seed):
    path, affine = generic_path(seed), affine_of(seed)
    turn = Rotation.random(rng=np.random.default_rng(seed + 1)).as_matrix()
    turned = affine.copy()
    turned[:3] = turn @ affine[:3]
    here = axes_of(transport_frames(graph_of([path]), affine))
    there = axes_of(transport_frames(graph_of([path @ turn.T]), turned))
    # A step that nearly folds back, or is nearly along the normal, magnifies the last bit.
    np.testing.assert_allclose(there, here @ turn.T, atol=1e-7)


@quick
@given(seed=seeds, shift=st.tuples(*[st.integers(-64, 64)] * 3))
def test_moving_the_world_changes_no_frame(seed, shift):
    path, affine = np.rint(generic_path(seed) * 8) / 8, affine_of(seed)
    assume((np.diff(path, axis=0) != 0).any(axis=1).all())
    np.testing.assert_array_equal(
        axes_of(transport_frames(graph_of([path]), affine)),
        axes_of(transport_frames(graph_of([path + shift]), affine)),
    )


@quick
@given(seed=seeds)
def test_the_frame_turns_by_no_more_than_the_path_does(seed):
    # Least turning: the normal's own change is never larger than the tangent's.
    frames = transport_frames(graph_of([generic_path(seed)]), affine_of(seed))
    bend = np.linalg.norm(np.diff(frames.tangent, axis=0), axis=1)
    sharp = np.einsum("pc,pc->p", frames.tangent[1:], frames.tangent[:-1]) < 0
    slip = np.linalg.norm(np.diff(frames.normal, axis=0), axis=1)
    assert (slip[~sharp] <= bend[~sharp] + 1e-9).all()


@quick
@given(seed=seeds)
def test_a_junction_in_a_path_changes_no_frame(seed):
    path, affine = generic_path(seed), affine_of(seed)
    whole = transport_frames(graph_of([path]), affine).normal
    parted = transport_frames(graph_of([path[:20], path[19:]], [-1, 0]), affine).normal
    np.testing.assert_array_equal(parted[:19], whole[:19])
    across = np.abs(np.einsum("c,c->", whole[18], np.diff(path[19:21], axis=0)[0]))
    assume(across < 0.9 * np.linalg.norm(path[20] - path[19]))
    # The end of the first part repeats its tangent, so its normal is the one before it.
    np.testing.assert_allclose(parted[20:], whole[19:], atol=1e-9)


@quick
@given(seed=seeds)
def test_the_size_of_the_world_does_not_matter(seed):
    path, affine = generic_path(seed), affine_of(seed)
    larger = affine.copy()
    larger[:3] *= 4.0
    np.testing.assert_array_equal(
        axes_of(transport_frames(graph_of([path]), affine)),
        axes_of(transport_frames(graph_of([path * 4.0]), larger)),
    )
