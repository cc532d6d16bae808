"""What thinning and the graph promise of any mask at all."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from maskwitness.centreline import prune_triangles, thin, trace_graph
from maskwitness.geometry import to_world
from tests.shapes import EVERY_NEIGHBOUR, ONE, as_mask, noise, topology, without_cavities

masks = st.builds(
    noise,
    seed=st.integers(0, 10**6),
    shape=st.tuples(*[st.integers(1, 11)] * 3),
    share=st.sampled_from([0.03, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 1.0]),
    smooth=st.sampled_from([0.0, 0.0, 0.5, 0.8, 1.2]),
)
quick = settings(max_examples=60, deadline=None)
thorough = settings(max_examples=250, deadline=None)


def assert_covered(solid: np.ndarray, points: np.ndarray) -> None:
    """Walk 2ρ + 2 steps from every skeleton voxel, through the mask: no voxel is left."""
    solid = np.pad(solid, 1) != 0
    depth = ndimage.distance_transform_cdt(solid, "taxicab")
    near = np.zeros_like(solid)
    for point in points + 1:
        start = np.zeros_like(solid)
        start[tuple(point)] = True
        steps = 2 * int(depth[tuple(point)]) + 2
        near |= ndimage.binary_dilation(start, EVERY_NEIGHBOUR, iterations=steps, mask=solid)
    np.testing.assert_array_equal(near, solid)


@thorough
@given(mask=masks)
def test_a_skeleton_has_the_components_loops_and_cavities_of_its_mask(mask):
    skeleton = thin(mask)
    solid = without_cavities(mask)
    assert skeleton.filled == int(solid.sum()) - int(mask.sum())
    assert topology(as_mask(skeleton.points, mask.shape)) == topology(solid)


@thorough
@given(mask=masks)
def test_a_skeleton_lies_in_its_mask_and_keeps_a_part_of_every_component(mask):
    solid = without_cavities(mask)
    kept = as_mask(thin(mask).points, mask.shape)
    assert not (kept & ~solid & 1).any()
    labels, count = ndimage.label(solid, EVERY_NEIGHBOUR)
    assert set(labels[kept == 1].tolist()) == set(range(1, count + 1))


@quick
@given(mask=masks)
def test_no_voxel_lies_farther_from_the_skeleton_than_the_vessel_is_wide(mask):
    assert_covered(without_cavities(mask), thin(mask).points)


@thorough
@given(mask=masks)
def test_the_graph_has_the_components_and_loops_of_the_skeleton(mask):
    points = thin(mask).points
    components, loops, _ = topology(as_mask(points, mask.shape))
    assert len(prune_triangles(points)) - len(points) + components == loops


@thorough
@given(mask=masks)
def test_branches_walk_every_edge_of_the_graph_once(mask):
    points = thin(mask).points
    edges = {frozenset(map(tuple, points[list(e)].tolist())) for e in prune_triangles(points)}
    graph = trace_graph(mask, ONE)
    places = [tuple(p) for p in graph.points_vox.astype(int).tolist()]
    walked = [frozenset(places[n - 1 : n + 1]) for n in range(len(places)) if graph.order[n] > 0]
    assert len(walked) == len(set(walked)) == len(edges)
    assert set(walked) == edges
    assert set(places) == {tuple(p) for p in points.tolist()}


@thorough
@given(mask=masks)
def test_branches_end_only_where_they_must_and_parents_come_first(mask):
    graph = trace_graph(mask, ONE)
    places = [tuple(p) for p in graph.points_vox.astype(int).tolist()]
    first = np.flatnonzero(graph.order == 0)
    last = np.r_[first[1:], len(places)] - 1
    inner = [places[n] for n in range(len(places)) if n not in {*first, *last}]
    assert len(inner) == len(set(inner))
    assert not {places[n] for n in {*first.tolist(), *last.tolist()}} & set(inner)
    np.testing.assert_array_equal(graph.branch, np.repeat(np.arange(len(first)), last - first + 1))
    for branch, parent in enumerate(graph.parent.tolist()):
        assert parent < branch
        assert parent < 0 or places[first[branch]] == places[last[parent]]


@quick
@given(mask=masks, seed=st.integers(0, 10**6))
def test_places_and_ways_are_in_the_millimetres_of_the_affine(mask, seed):
    affine = np.eye(4)
    affine[:3] += np.random.default_rng(seed).normal(scale=0.2, size=(3, 4))
    graph = trace_graph(mask, affine)
    np.testing.assert_array_equal(graph.points_mm, to_world(graph.points_vox, affine))
    steps = np.linalg.norm(np.diff(graph.points_mm, axis=0), axis=1)
    inside = graph.order[1:] > 0
    np.testing.assert_allclose(np.diff(graph.arc_mm)[inside], steps[inside], atol=1e-9)
    assert (graph.arc_mm[graph.order == 0] == 0).all()
    assert (graph.radius_mm > 0).all()


@quick
@given(
    mask=masks,
    before=st.tuples(*[st.integers(0, 4)] * 3),
    after=st.tuples(*[st.integers(0, 4)] * 3),
)
def test_a_larger_volume_around_the_mask_changes_nothing(mask, before, after):
    expected = trace_graph(mask, ONE)
    wider = np.pad(mask, list(zip(before, after, strict=True)))
    graph = trace_graph(np.asfortranarray(wider), ONE)
    np.testing.assert_array_equal(graph.points_vox - before, expected.points_vox)
    np.testing.assert_array_equal(graph.radius_mm, expected.radius_mm)
    np.testing.assert_array_equal(graph.parent, expected.parent)
    assert graph.filled_voxels == expected.filled_voxels


@quick
@given(mask=masks, flips=st.tuples(*[st.booleans()] * 3), turn=st.permutations(range(3)))
def test_flipped_and_turned_masks_have_as_many_components_and_loops(mask, flips, turn):
    other = mask[tuple(slice(None, None, -1 if flip else 1) for flip in flips)].transpose(turn)
    one, two = thin(mask), thin(other)
    assert one.filled == two.filled
    assert topology(as_mask(one.points, mask.shape)) == topology(as_mask(two.points, other.shape))
    assert_covered(without_cavities(other), two.points)


@quick
@given(mask=masks)
def test_any_value_but_zero_is_foreground(mask):
    values = mask * np.random.default_rng(1).integers(1, 256, mask.shape, dtype=np.uint8)
    np.testing.assert_array_equal(thin(values).points, thin(mask).points)
