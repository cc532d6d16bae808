"""The whole method once more, slowly and plainly: what every fast step is held to.

The records that the fast steps make are made here too, and ``tests/parity`` demands that they are
equal to the last bit. Written from ``docs/method.md`` alone and in its order, it prefers the
method's own sentence over speed: loops over voxels, fractions, sums of three as ``(a + b) + c``,
never BLAS. Nothing shipped leans on this module.
"""

import math
import statistics
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64, UInt8
from scipy import ndimage

from maskwitness.config import JoinSettings, PatchSettings, QualitySettings, ResidualSettings
from maskwitness.geometry import axes, invert, spacing_mm, to_world
from maskwitness.records import Bank, Baseline, Frames, Graph, Pairs, Patches, Scan, Scores

Solid = Bool[np.ndarray, "i j k"]
Affine = Float64[np.ndarray, "4 4"]
Vector = Float64[np.ndarray, "3"]
PerPair = Float64[np.ndarray, " pairs"]
Voxel = tuple[int, ...]  # compared as tuples, voxels come in C order

SCORED, NO_IMAGE = "", "the patch has no image contrast"
NO_WITNESS, NO_USABLE_PAIR = "no witness", "no usable pair"
FACES = ((-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1))
AROUND = tuple(step for step in product((-1, 0, 1), repeat=3) if any(step))
STEPS_AWAY = np.abs(np.indices((3, 3, 3)) - 1).sum(axis=0)  # 0 in the middle, 3 at a corner
BY_FACE, BY_ANY = STEPS_AWAY <= 1, STEPS_AWAY <= 3
FIXED = 2**20  # mask distances are summed as whole multiples of 1 / FIXED


def thin(mask: Solid | UInt8[np.ndarray, "i j k"]) -> tuple[Solid, int]:
    """Return the skeleton, and how many voxels of cavities were filled. Method: M1."""
    solid = np.pad(fill_cavities(mask), 1)
    depth, anchors = _depth(solid), np.zeros_like(solid)
    while True:
        skeleton = _peel(solid, anchors)
        slack = _slack(solid, skeleton, depth)
        uncovered, number = ndimage.label(solid & (slack < 0), BY_ANY)
        if number == 0:
            return skeleton[1:-1, 1:-1, 1:-1], int(solid.sum()) - int((mask != 0).sum())
        for part in range(1, number + 1):
            anchors[min(_voxels(uncovered == part), key=lambda voxel: (slack[voxel], voxel))] = True


def fill_cavities(mask: Solid | UInt8[np.ndarray, "i j k"]) -> Solid:
    """Return the mask without the cavities that only one object touches. Method: M1."""
    solid = np.pad(mask != 0, 1)
    filled = solid.copy()
    objects = ndimage.label(solid, BY_ANY)[0]
    empties, number = ndimage.label(~solid, BY_FACE)
    for empty in range(1, number + 1):
        inside = empties == empty
        touching = set(objects[np.any(_shifted(inside, FACES), axis=0)].tolist()) - {0}
        if not inside[0, 0, 0] and len(touching) == 1:
            filled |= inside
    return filled[1:-1, 1:-1, 1:-1]


@cache  # the same few thousand neighbourhoods come again and again
def is_simple(around: bytes) -> bool:
    """Say whether the middle of 3 × 3 × 3 voxels can go with the topology kept. Method: M1."""
    near = np.frombuffer(around, dtype=bool).reshape(3, 3, 3) & (STEPS_AWAY > 0)
    background, _ = ndimage.label(~near & (STEPS_AWAY > 0) & (STEPS_AWAY < 3), BY_FACE)
    beside = set(background[STEPS_AWAY == 1].tolist()) - {0}
    return bool(ndimage.label(near, BY_ANY)[1] == 1 and len(beside) == 1)


def _peel(solid: Solid, anchors: Solid) -> Solid:
    skeleton, quiet, turn = solid.copy(), 0, 0
    while quiet < 6:
        beside = _shifted(skeleton, FACES)[turn % 6]
        quiet, turn = quiet + 1, turn + 1
        voxels = _voxels(skeleton & ~beside & ~anchors)
        candidates = [(-n, v) for v in voxels if (n := _neighbours_if_deletable(skeleton, v))]
        for _, voxel in sorted(candidates):
            if _neighbours_if_deletable(skeleton, voxel):
                skeleton[voxel], quiet = False, 0
    return skeleton


def _neighbours_if_deletable(skeleton: Solid, voxel: Voxel) -> int:
    around = skeleton[tuple(slice(v - 1, v + 2) for v in voxel)]
    neighbours = int(around.sum()) - 1
    return neighbours if neighbours >= 2 and is_simple(around.tobytes()) else 0


def _voxels(where: Solid) -> list[Voxel]:
    return [tuple(voxel) for voxel in np.argwhere(where).tolist()]


def _shifted(volume: np.ndarray, steps: tuple[Voxel, ...]) -> list[np.ndarray]:
    """Volumes that hold, at every voxel, its neighbour one step away; the rim must be empty."""
    return [np.roll(volume, [-s for s in step], axis=(0, 1, 2)) for step in steps]


def _depth(solid: Solid) -> np.ndarray:
    depth, layer = np.zeros(solid.shape, dtype=np.int64), solid
    while layer.any():
        depth += layer
        layer = layer & np.all(_shifted(layer, FACES), axis=0)
    return depth


def _slack(solid: Solid, skeleton: Solid, depth: np.ndarray) -> np.ndarray:
    unreached = -(10**9)
    old, slack = depth, np.where(skeleton, 2 * depth + 2, unreached)
    while not np.array_equal(old, slack):
        old, near = slack, np.max(_shifted(slack, AROUND), axis=0)
        slack = np.where(solid, np.maximum(slack, near - 1), unreached)
    return slack


def edges_of(skeleton: Solid) -> list[tuple[int, int]]:
    """Return the edges that stay as (lower, higher) index, in the method's order. Method: M2."""
    index = {voxel: int(np.ravel_multi_index(voxel, skeleton.shape)) for voxel in _voxels(skeleton)}
    near: dict[int, dict[int, int]] = {node: {} for node in index.values()}
    for (voxel, node), step in product(index.items(), AROUND):
        end = index.get(tuple(v + s for v, s in zip(voxel, step, strict=True)))
        if end is not None:
            near[node][end] = sum(s * s for s in step)
    edges = [(dist2, a, b) for a in near for b, dist2 in near[a].items() if a < b]
    place = {(a, b): place for place, (_, a, b) in enumerate(sorted(edges))}
    triangles = [
        {place[a, b], place[a, c], place[b, c]}
        for a, b in place for c in near[a].keys() & near[b].keys() if b < c
    ]  # fmt: skip
    reduced: dict[int, set[int]] = {}  # pivot -> column of edges, summed modulo 2
    for column in sorted(triangles, key=lambda triangle: sorted(triangle, reverse=True)):
        while column and max(column) in reduced:
            column = column ^ reduced[max(column)]
        if column:
            reduced[max(column)] = column
    return [edge for edge in place if place[edge] not in reduced]


def trace(mask: Solid | UInt8[np.ndarray, "i j k"], affine: Affine) -> Graph:
    """Return the centreline graph of a mask. Method: M1, M2, M3."""
    skeleton, filled = thin(mask)
    near: dict[int, list[int]] = {int(node): [] for node in np.flatnonzero(skeleton)}
    for a, b in edges_of(skeleton):
        near[a].append(b)
        near[b].append(a)
    solid = fill_cavities(mask)
    radius = {int(np.ravel_multi_index(v, mask.shape)): inscribed_radius_mm(solid, v, affine)
              for v in _voxels(skeleton)}  # fmt: skip
    objects, number = ndimage.label(skeleton, BY_ANY)
    branches: list[tuple[list[int], int]] = []
    for component in sorted(np.flatnonzero(objects == o + 1).tolist() for o in range(number)):
        branches += _walk(near, _root(near, radius, component), len(branches))
    rows = [(b, i, n) for b, (path, _) in enumerate(branches) for i, n in enumerate(path)]
    branch, order, node = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    points_vox = np.stack(np.unravel_index(node, mask.shape), axis=1).astype(np.float64)
    points_mm = to_world(points_vox, affine)
    arc_mm = np.zeros(len(rows))
    for i in np.flatnonzero(order):
        arc_mm[i] = arc_mm[i - 1] + _norm(points_mm[i] - points_mm[i - 1])
    return Graph(
        points_vox=points_vox, points_mm=points_mm, arc_mm=arc_mm, filled_voxels=filled,
        radius_mm=np.array([radius[n] for n in node.tolist()], dtype=np.float64),
        branch=branch.astype(np.int32), order=order.astype(np.int32),
        parent=np.array([parent for _, parent in branches], dtype=np.int32),
    )  # fmt: skip


def inscribed_radius_mm(solid: Solid, voxel: Voxel, affine: Affine) -> float:
    """Return the distance to the nearest background voxel. Method: M3.

    It is at most depth steps away; what is within R mm is, along each axis, within R times the
    length of that row of the inverse affine. So this box cannot miss it, even where axes shear.
    """
    depth = int(_depth(np.pad(solid, 1))[tuple(v + 1 for v in voxel)])
    bound = depth * spacing_mm(affine).max() * np.sqrt((invert(affine)[:3, :3] ** 2).sum(axis=1))
    offsets = np.array(list(product(*(range(-int(n) - 1, int(n) + 2) for n in bound))))
    there = offsets + np.array(voxel)
    covered = ((there >= 0) & (there < solid.shape)).all(axis=1)
    covered[covered] = solid[tuple(there[covered].T)]
    x, y, z = ((r[0] * offsets[:, 0] + r[1] * offsets[:, 1]) + r[2] * offsets[:, 2]
               for r in affine[:3])  # fmt: skip
    return float(np.sqrt(((x * x + y * y) + z * z)[~covered].min()))


def _root(near: dict[int, list[int]], radius: dict[int, float], component: list[int]) -> int:
    ends = [node for node in component if len(near[node]) == 1]
    return min(ends or component, key=lambda node: (-radius[node], node))


def _walk(near: dict[int, list[int]], root: int, first: int) -> list[tuple[list[int], int]]:
    """Return the branches of one component as (nodes, parent), numbered from ``first`` on."""
    branches: list[tuple[list[int], int]] = [] if near[root] else [([root], -1)]
    reached, walked, queue = {root: -1}, set(), [root]
    for node in queue:  # grows while it is read
        for second in sorted(near[node]):
            if (node, second) in walked:
                continue
            path = [node, second]
            while len(near[path[-1]]) == 2 and path[-1] != root:
                path += [end for end in near[path[-1]] if end != path[-2]]
            walked |= {(path[0], path[1]), (path[-1], path[-2])}
            if path[-1] not in reached:
                reached[path[-1]] = first + len(branches)
                queue.append(path[-1])
            branches.append((path, reached[node]))
    return branches


def _dot(a: Vector, b: Vector) -> float:
    return float((a[0] * b[0] + a[1] * b[1]) + a[2] * b[2])


def _norm(a: Vector) -> float:
    return math.sqrt(_dot(a, a))


def transport(graph: Graph, affine: Affine) -> Frames:
    """Return the frames along every branch. Method: M4, M5."""
    t, n, b = (np.zeros_like(graph.points_mm) for _ in range(3))
    last = {int(branch): i for i, branch in enumerate(graph.branch)}  # its last point
    for i, branch in enumerate(graph.branch.tolist()):
        before = i - 1 if graph.order[i] > 0 else last.get(int(graph.parent[branch]), -1)
        if i < last[branch]:
            step = graph.points_mm[i + 1] - graph.points_mm[i]
            t[i] = step / _norm(step)
        else:
            t[i] = t[i - 1] if graph.order[i] > 0 else axes(affine)[2]
        steepest = min(axes(affine), key=lambda axis: abs(_dot(axis, t[i])))
        old = steepest if before < 0 else n[before]
        if _norm(old - _dot(old, t[i]) * t[i]) < 1e-6:  # a right angle, straight into the normal
            old = -math.copysign(1.0, _dot(old, t[i])) * t[before]
        n[i] = old - _dot(old, t[i]) * t[i]
        n[i] /= _norm(n[i])
        (tx, ty, tz), (nx, ny, nz) = t[i], n[i]
        b[i] = ty * nz - tz * ny, tz * nx - tx * nz, tx * ny - ty * nx
    return Frames(tangent=t, normal=n, binormal=b)


def sample(scan: Scan, graph: Graph, frames: Frames, settings: PatchSettings) -> Patches:
    """Return the canonical patch at every point. Method: M6, M7, M8."""
    size, number = settings.size, len(graph.branch)
    odd = 2 * np.arange(size) - (size - 1)
    circle, v = odd[:, None] ** 2 + odd**2 <= size**2, odd / 2 * settings.step_mm
    top = np.array(scan.image.shape).reshape(3, 1, 1) - 1
    patches = Patches(
        image=np.zeros((number, size, size), dtype=np.uint8),
        mask=np.zeros((number, (size**2 + 7) // 8), dtype=np.uint8),
        has_image=np.zeros(number, dtype=bool),
        **{name: np.full(number, np.nan) for name in list(Patches.__dataclass_fields__)[3:]},
    )
    for p in range(number):
        rows = zip(graph.points_vox[p], invert(scan.affine)[:3, :3], strict=True)
        n, b = frames.normal[p], frames.binormal[p]
        at = np.stack([(c + v[:, None] * _dot(row, n)) + v * _dot(row, b) for c, row in rows])
        patches.outside[p] = ((at < -0.5) | (at > top + 0.5)).any(axis=0).sum() / size**2
        at = np.clip(at, 0, top)
        hu = scan.image.slope * _trilinear(scan.image.data, at) + scan.image.intercept
        low, high = patches.low_hu[p], patches.high_hu[p] = hu.min(), hu.max()
        patches.has_image[p] = high > low
        if high > low:
            patches.image[p] = np.floor((hu - low) / (high - low) * 255 + 0.5) * circle
        mask = (scan.mask[tuple(np.floor(at + 0.5).astype(int))] != 0) & circle
        patches.mask[p] = np.packbits(mask)
        patches.area_mm2[p] = mask.sum() * settings.step_mm**2
        if mask.any():
            patches.lumen_hu[p] = np.add.accumulate(hu[mask])[-1] / mask.sum()
        nearest = max(abs(_dot(axis, frames.tangent[p])) for axis in axes(scan.affine))
        patches.angle_deg[p] = math.degrees(math.acos(min(1.0, nearest)))
    return patches


def _trilinear(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    near = np.floor(at).astype(int)
    far = np.minimum(near + 1, np.array(data.shape).reshape(3, 1, 1) - 1)
    f = at - near
    corner = {s: data[tuple(np.where(np.reshape(s, (3, 1, 1)), far, near))].astype(np.float64)
              for s in product((0, 1), repeat=3)}  # fmt: skip
    along_i = {s: corner[0, *s] + f[0] * (corner[1, *s] - corner[0, *s])
               for s in product((0, 1), repeat=2)}  # fmt: skip
    along_j = [along_i[0, s] + f[1] * (along_i[1, s] - along_i[0, s]) for s in (0, 1)]
    return along_j[0] + f[2] * (along_j[1] - along_j[0])


def image_dist2(image: UInt8[np.ndarray, "n u v"]) -> Int64[np.ndarray, "n n"]:
    """Return the squared distance between any two images. Method: M9."""
    rows = image.reshape(len(image), -1).astype(np.int64)
    dist2 = [((rows - row) ** 2).sum(axis=1) for row in rows]
    return np.array(dist2, dtype=np.int64).reshape(len(rows), len(rows))


def witnesses(bank: Bank, settings: JoinSettings, size: int) -> Pairs:
    """Return the witnesses of every patch. Method: M10, and the counts of M11."""
    dist2, number = image_dist2(bank.image).tolist(), len(bank.image)
    limit = Fraction(repr(settings.epsilon)) * size**2 * 255**2
    masks = np.unpackbits(bank.mask, axis=1).astype(bool)
    kept = []
    for i in range(number):
        near = sorted((dist2[i][j], j) for j in range(number)
                      if dist2[i][j] < limit and _may_testify(bank, i, j, settings))  # fmt: skip
        kept.append(near[: settings.k] if settings.k > 0 else near)
    rows = [(j, d2, (masks[i] & masks[j]).sum(), (masks[i] | masks[j]).sum())
            for i, near in enumerate(kept) for d2, j in near]  # fmt: skip
    witness, d2, intersection, union = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Pairs(
        first=0, offset=np.cumsum([0, *map(len, kept)], dtype=np.int64),
        witness=witness.astype(np.int32), dist2=d2.astype(np.int32),
        intersection=intersection.astype(np.uint16), union=union.astype(np.uint16),
    )  # fmt: skip


def _may_testify(bank: Bank, i: int, j: int, settings: JoinSettings) -> bool:
    if i == j or not bank.has_image[i] or not bank.has_image[j]:
        return False
    apart = abs(int(bank.position_um[i]) - int(bank.position_um[j]))
    far = settings.testify == "other_stretch" and apart > round(settings.stretch_mm * 1000)
    return bool(far or settings.testify == "any" or bank.group[i] != bank.group[j])


def _bins(pairs: Pairs, bins: int, epsilon: float, size: int) -> list[int]:
    limit = Fraction(repr(epsilon)) * size**2 * 255**2
    return [math.floor(d2 * bins / limit) for d2 in pairs.dist2.tolist()]


def mask_distance(pairs: Pairs) -> PerPair:
    """Return one minus the overlap of the two masks. Method: M11."""
    counts = zip(pairs.intersection.tolist(), pairs.union.tolist(), strict=True)
    return np.array([1 - both / any_ if any_ else 0.0 for both, any_ in counts], dtype=np.float64)


def baseline(pairs: Pairs, epsilon: float, size: int, settings: ResidualSettings) -> Baseline:
    """Return what mask disagreement is usual at each image distance. Method: M12."""
    bins, place = settings.bins, _bins(pairs, settings.bins, epsilon, size)
    edges = np.array([b * epsilon / bins for b in range(bins + 1)])
    fixed: list[list[Fraction]] = [[] for _ in range(bins)]
    for b, distance in zip(place, mask_distance(pairs).tolist(), strict=True):
        fixed[b].append(Fraction(math.floor(FIXED * distance + 0.5), FIXED))
    count = np.array([len(f) for f in fixed], dtype=np.int64)
    return Baseline(
        low=edges[:-1], high=edges[1:], count=count, used=count >= settings.min_pairs,
        mean=np.array([float(statistics.mean(f)) if f else math.nan for f in fixed]),
        std=np.array([math.sqrt(statistics.variance(f)) if f[1:] else math.nan for f in fixed]),
        min_iou=np.array([float(1 - max(f)) if f else math.nan for f in fixed]),
    )  # fmt: skip


def residuals(pairs: Pairs, usual: Baseline, epsilon: float, size: int) -> PerPair:
    """Return how unusual each pair's mask disagreement is, NaN in unused bins. Method: M13."""
    place = np.array(_bins(pairs, len(usual.count), epsilon, size), dtype=np.int64)
    r = (usual.mean[place] - mask_distance(pairs)) / (usual.std[place] + 1e-6)
    return np.where(usual.used[place], r, np.nan)


def score(pairs: Pairs, residual: PerPair, bank: Bank) -> Scores:
    """Return the median residual of each patch, or why there is none. Method: M14."""
    number, area = len(pairs.offset) - 1, np.unpackbits(bank.mask, axis=1).sum(axis=1)
    median, usual_area = np.full(number, np.nan), np.full(number, np.nan)
    reason = np.full(number, SCORED, dtype=object)
    for row, (start, stop) in enumerate(zip(pairs.offset[:-1], pairs.offset[1:], strict=True)):
        usable = [r for r in residual[start:stop].tolist() if not math.isnan(r)]
        if stop > start:
            usual_area[row] = statistics.median(area[pairs.witness[start:stop]].tolist())
        if usable:
            median[row] = statistics.median(usable)
        else:
            silent = NO_USABLE_PAIR if stop > start else NO_WITNESS
            reason[row] = silent if bank.has_image[pairs.first + row] else NO_IMAGE
    count = np.diff(pairs.offset)
    return Scores(residual=median, witnesses=count, reason=reason, usual_area=usual_area)


def quality(
    points_mm: Float64[np.ndarray, "points 3"], residual: Float64[np.ndarray, " points"],
    shape: tuple[int, int, int], affine: Affine, settings: QualitySettings,
) -> Float32[np.ndarray, "i j k"]:  # fmt: skip
    """Return the quality map. Method: M15, M16."""
    quality_map = np.ones(shape, dtype=np.float32)
    for voxel in product(*map(range, shape)) if len(points_mm) else []:
        x, y, z = (points_mm - to_world(np.array([voxel], dtype=np.float64), affine)).T
        dist2 = (x * x + y * y) + z * z
        nearest = int(dist2.argmin())  # the first of equals
        reaches = math.sqrt(dist2[nearest]) / settings.reach_mm
        if reaches <= math.sqrt(50 * math.log(2)):
            w = math.exp(-(reaches * reaches) / 2)
            r = 0.0 if math.isnan(residual[nearest]) else float(residual[nearest])
            q = 1 / (1 + math.exp(min(-r, 700)))  # e^710 is too large for a float
            quality_map[voxel] = 1 - (1 - q) * w
    return quality_map


def weighted_loss(loss: Float[np.ndarray, "*v"], quality_map: Float[np.ndarray, "*v"]) -> float:
    """Return the mean loss, every voxel as heavy as its quality. Method: M17."""
    weight = math.fsum(quality_map.flat)
    total = math.fsum(float(q) * float(v) for q, v in zip(quality_map.flat, loss.flat, strict=True))
    return total / weight if weight > 0 else 0.0
