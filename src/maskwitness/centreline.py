"""Mask to centreline: thinning, graph, branches from the root outward.

In goes a mask on its grid, out comes a :class:`~maskwitness.records.Graph`. The thinning is our
own because the field's (Lee, Kashyap & Chu 1994, as in scikit-image and ITK) returns nothing at all
for a straight tube whose section is centred between voxels; see Method M1 for what is done instead
and why it can promise to lose no vessel. Its cost follows the number of foreground voxels.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, UInt8
from scipy import sparse

from maskwitness.errors import InputError
from maskwitness.geometry import to_world
from maskwitness.kernels.thinning import OFFSET, cavities_of, depth_into, slack_into, thin_box
from maskwitness.kernels.voxels import foreground_of, nearest_background_into
from maskwitness.records import Graph


@dataclass(frozen=True, slots=True)
class Box:
    """The part of a mask that holds foreground, in C order, with one voxel of background around."""

    voxels: UInt8[np.ndarray, "i j k"]
    low: Int64[np.ndarray, " 3"]  # the mask's index of the box's voxel (0, 0, 0)

    @property
    def flat(self) -> UInt8[np.ndarray, " voxels"]:
        """The voxels as one row."""
        return self.voxels.reshape(-1)

    @property
    def steps(self) -> tuple[int, int]:
        """Flat steps to the next voxel along j and along i."""
        _, j, k = self.voxels.shape
        return k, j * k

    def indices(self, flat: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n 3"]:
        """Return the mask's indices of flat box voxels."""
        return np.stack(np.unravel_index(flat, self.voxels.shape), axis=1) + self.low


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The thinned mask, and the mask that was thinned: its cavities are filled."""

    points: Int64[np.ndarray, "points 3"]  # voxel indices of the mask, in C order
    mask: Box
    filled: int  # voxels of cavities


def trace_graph(mask: UInt8[np.ndarray, "i j k"], affine: Float64[np.ndarray, "4 4"]) -> Graph:
    """Return the centreline of a mask: points in branches, from each component's root outward.

    Method: M1, M2, M3
    """
    skeleton = thin(mask)
    kept = prune_triangles(skeleton.points)
    radius_mm = inscribed_radius(skeleton.mask.voxels, skeleton.points - skeleton.mask.low, affine)
    branches, parents = _walk_branches(len(skeleton.points), kept, radius_mm)
    node = np.concatenate([np.asarray(b, dtype=np.int64) for b in branches])
    points_vox = skeleton.points[node].astype(np.float64)
    points_mm = to_world(points_vox, affine)
    order = np.concatenate([np.arange(len(b), dtype=np.int32) for b in branches])
    return Graph(
        points_vox=points_vox,
        points_mm=points_mm,
        radius_mm=radius_mm[node],
        branch=np.repeat(np.arange(len(branches), dtype=np.int32), [len(b) for b in branches]),
        order=order,
        arc_mm=arc_length(points_mm, order),
        parent=np.array(parents, dtype=np.int32),
        filled_voxels=skeleton.filled,
    )


def thin(mask: UInt8[np.ndarray, "i j k"]) -> Skeleton:
    """Return the skeleton of a mask.

    Method: M1
    """
    box, live = _crop(mask)
    thinned = _thin_covering(box, live)
    filled = _cavity_voxels(box, thinned, live)
    box.flat[live] = 1
    if len(filled):
        box.flat[filled] = 1
        live = np.sort(np.concatenate([live, filled]))
        thinned = _thin_covering(box, live)
        box.flat[live] = 1
    return Skeleton(box.indices(thinned), box, len(filled))


def _cavity_voxels(
    box: Box, skeleton: Int64[np.ndarray, " skeleton"], mask: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " filled"]:
    # Thinning keeps each cavity but widens it, and its cost there is small: so look for them
    # around the skeleton and give back what of them was background before. A cavity that two
    # components touch is left open, filling it would join them.
    voxels, number = cavities_of(box.voxels, skeleton, np.zeros(box.flat.shape, np.uint8))
    if len(voxels) == 0:
        return voxels
    component = _components(box.indices(skeleton))
    rows, planes = box.steps
    around = voxels[:, None] + np.array([-planes, planes, -rows, rows, -1, 1])
    touching = np.searchsorted(skeleton, around.ravel())
    hit = box.flat[around.ravel()] != 0
    pairs = np.unique(
        np.stack([np.repeat(number, 6)[hit], component[touching[hit]]], axis=1), axis=0
    )
    alone = np.bincount(pairs[:, 0]) == 1
    return np.setdiff1d(voxels[alone[number]], mask)


def _components(points: Int64[np.ndarray, "points 3"]) -> Int32[np.ndarray, " points"]:
    edges = np.array(_edges_between(points), dtype=np.int64).reshape(-1, 2)
    links = sparse.coo_array((np.ones(len(edges)), edges.T), shape=(len(points), len(points)))
    return sparse.csgraph.connected_components(links, directed=False)[1]


def _crop(mask: UInt8[np.ndarray, "i j k"]) -> tuple[Box, Int64[np.ndarray, " n"]]:
    # Flat indices in the order of memory, whichever of i and k runs fastest there.
    fortran = mask.flags.f_contiguous and not mask.flags.c_contiguous
    flat = np.ravel(mask.T if fortran else mask)
    found = foreground_of(flat[: len(flat) // 8 * 8].view(np.uint64), flat)
    if len(found) == 0:
        message = "the mask has no foreground"
        raise InputError(message)
    axes = np.unravel_index(found, mask.shape[::-1] if fortran else mask.shape)
    index = np.stack(axes[::-1] if fortran else axes, axis=1)
    low = index.min(axis=0) - 1
    shape = tuple(int(n) for n in index.max(axis=0) - low + 2)
    box = Box(np.zeros(shape, np.uint8), low)
    live = np.ravel_multi_index(tuple((index - low).T), shape)
    live.sort()
    box.flat[live] = 1
    return box, live


def _thin_covering(box: Box, live: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " skeleton"]:
    # Thin, leaving the skeleton in the box; where part of the mask lies farther from it than it
    # is wide, hold the farthest voxel of that part in place and thin again.
    anchors: list[int] = []
    depth = np.zeros(box.flat.shape, np.int32)
    depth_into(box.flat, live, *box.steps, depth)
    while True:
        skeleton = thin_box(box.flat, live, *box.steps)
        box.flat[live] = 1
        found = _uncovered(box, skeleton, depth, len(live))
        if not found:
            box.flat[live] = 0
            box.flat[skeleton] = 1
            return skeleton
        anchors += found
        box.flat[anchors] = 2


def _uncovered(
    box: Box,
    skeleton: Int64[np.ndarray, " skeleton"],
    depth: Int32[np.ndarray, " voxels"],
    voxels: int,
) -> list[int]:
    # The voxel of least slack of each part of the mask that the skeleton does not cover.
    room = 2 * depth[skeleton] + 2
    rank = np.argsort(-room, kind="stable")
    slack = np.zeros(box.flat.shape, np.int32)
    reached = slack_into(box.flat, skeleton[rank], room[rank], *box.steps, slack, voxels)
    far = np.sort(reached[slack[reached] < OFFSET])
    if len(far) == 0:
        return []
    parts = _components(box.indices(far))
    worst = np.lexsort((far, slack[far], parts))
    first = np.r_[True, parts[worst][1:] != parts[worst][:-1]]
    return far[worst[first]].tolist()


def prune_triangles(points: Int64[np.ndarray, "points 3"]) -> list[tuple[int, int]]:
    """Return the edges between 26-neighbours without those that only close triangles.

    Points come in C order. Strategy: triangles as columns over their edges, modulo 2, reduced from
    left to right as in persistent homology; the edge in which a reduced column ends is dropped. As
    many loops stay as the skeleton has.

    Method: M2
    """
    edges = _edges_between(points)
    rank = {edge: n for n, edge in enumerate(edges)}
    near: list[set[int]] = [set() for _ in points]
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    columns: dict[int, set[int]] = {}
    for a, b in edges:
        for c in near[a] & near[b]:
            if c > b:
                column = {rank[a, b], rank[a, c], rank[b, c]}
                while column and max(column) in columns:
                    column ^= columns[max(column)]
                if column:
                    columns[max(column)] = column
    return [edge for n, edge in enumerate(edges) if n not in columns]


def _edges_between(points: Int64[np.ndarray, "points 3"]) -> list[tuple[int, int]]:
    # Pairs (lower, higher) of 26-neighbours, by squared length, lower and higher index.
    low = points.min(axis=0) - 1
    shape = points.max(axis=0) - low + 2
    steps = np.array([shape[1] * shape[2], shape[2], 1])
    flat = (points - low) @ steps
    found = []
    for offset in np.ndindex(3, 3, 3):
        way = np.array(offset) - 1
        if way @ steps <= 0:  # each edge once, from its lower index
            continue
        at = np.searchsorted(flat, flat + way @ steps)
        hit = (at < len(flat)) & (flat[np.minimum(at, len(flat) - 1)] == flat + way @ steps)
        lower = np.flatnonzero(hit)
        found.append(np.stack([np.full_like(lower, way @ way), lower, at[hit]], axis=1))
    table = np.concatenate(found)
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    return [(int(a), int(b)) for a, b in table[:, 1:]]


def inscribed_radius(
    mask: UInt8[np.ndarray, "i j k"],
    points: Int64[np.ndarray, "points 3"],
    affine: Float64[np.ndarray, "4 4"],
) -> Float64[np.ndarray, " points"]:
    """Return the distance from each point to the nearest background voxel, in millimetres.

    Strategy: try offsets by rising length until one leads out of the mask. The reach doubles for
    the few points that stay inside, so that a wide vessel does not make the narrow ones dear.
    """
    radius2 = np.full(len(points), -1.0)
    reach = 4
    while (open_points := radius2 < 0).any():
        offsets, length2 = _offsets(reach, affine)
        found = np.empty(int(open_points.sum()))
        nearest_background_into(mask, points[open_points], offsets, length2, found)
        radius2[open_points] = found
        reach *= 2
    return np.sqrt(radius2)


def _offsets(
    reach: int, affine: Float64[np.ndarray, "4 4"]
) -> tuple[Int64[np.ndarray, "offsets 3"], Float64[np.ndarray, " offsets"]]:
    # All offsets that are certainly shorter than the shortest one beyond the cube of this reach.
    side = np.arange(-reach, reach + 1)
    cube = np.stack(np.meshgrid(side, side, side, indexing="ij"), axis=-1).reshape(-1, 3)
    x, y, z = (
        (affine[row, 0] * cube[:, 0] + affine[row, 1] * cube[:, 1]) + affine[row, 2] * cube[:, 2]
        for row in range(3)
    )
    length2 = (x * x + y * y) + z * z
    # The distance between the cube's centre and its faces: rows of the inverse are the normals.
    normals = np.linalg.inv(affine[:3, :3])
    inside = (reach / np.sqrt((normals**2).sum(axis=1)).max()) ** 2
    near = np.flatnonzero(length2 <= inside)
    near = near[np.argsort(length2[near], kind="stable")]
    return np.ascontiguousarray(cube[near]), length2[near]


def arc_length(
    points_mm: Float64[np.ndarray, "points 3"], order: Int32[np.ndarray, " points"]
) -> Float64[np.ndarray, " points"]:
    """Return the way along the branch from its first point, where ``order`` is 0."""
    step = np.diff(points_mm, axis=0)
    length = np.sqrt((step[:, 0] ** 2 + step[:, 1] ** 2) + step[:, 2] ** 2)
    arc_mm = np.zeros(len(points_mm))
    for first, end in pairwise([*np.flatnonzero(order == 0), len(order)]):
        arc_mm[first + 1 : end] = np.cumsum(length[first : end - 1])
    return arc_mm


def _walk_branches(
    nodes: int, edges: list[tuple[int, int]], radius_mm: Float64[np.ndarray, " nodes"]
) -> tuple[list[list[int]], list[int]]:
    near: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    for others in near:
        others.sort()
    branches: list[list[int]] = []
    parents: list[int] = []
    seen = np.zeros(nodes, dtype=bool)
    for first in range(nodes):
        if not seen[first]:
            root = _root(first, near, radius_mm, seen)
            _walk_component(root, near, branches, parents)
    return branches, parents


def _root(
    first: int,
    near: list[list[int]],
    radius_mm: Float64[np.ndarray, " nodes"],
    seen: Bool[np.ndarray, " nodes"],
) -> int:
    # Marks the component of ``first`` as seen.
    component = [first]
    seen[first] = True
    for node in component:
        for other in near[node]:
            if not seen[other]:
                seen[other] = True
                component.append(other)
    ends = [node for node in component if len(near[node]) == 1] or component
    return min(ends, key=lambda node: (-radius_mm[node], node))


def _walk_component(
    root: int, near: list[list[int]], branches: list[list[int]], parents: list[int]
) -> None:
    if not near[root]:
        branches.append([root])
        parents.append(-1)
        return
    walked: set[tuple[int, int]] = set()
    reached_on = {root: -1}
    queue = deque([root])
    while queue:
        start = queue.popleft()
        for second in near[start]:
            if (start, second) in walked:
                continue
            branch = _follow(start, second, near, root)
            walked |= {(branch[0], branch[1]), (branch[-1], branch[-2])}
            parents.append(reached_on[start])
            if branch[-1] not in reached_on:
                reached_on[branch[-1]] = len(branches)
                queue.append(branch[-1])
            branches.append(branch)


def _follow(start: int, second: int, near: list[list[int]], root: int) -> list[int]:
    # On to the next end or junction; a closed loop comes back to its root.
    branch = [start, second]
    while len(near[branch[-1]]) == 2 and branch[-1] != root:
        a, b = near[branch[-1]]
        branch.append(b if a == branch[-2] else a)
    return branch
