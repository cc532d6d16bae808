"""Cut a cloud of points into leaves of near ones, and search them (Methods M9 to M11)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt8

from maskwitness.kernels._jit import kernel, small_kernel, unordered_kernel
from maskwitness.kernels._simd import AXES as AXES  # noqa: PLC0414 - others know it from here
from maskwitness.kernels._simd import LEAF as LEAF  # noqa: PLC0414
from maskwitness.kernels._simd import dist2_of_rows, lowest_bit, near_bits

NONE = np.int64(2**62)  # a key that is larger than every key

CODE_BITS = 31  # of a key: its low bits are the patch, its high bits the distance


class Leaves(NamedTuple):
    """Patches in the order of a tree, as the search reads them. Place: where in that order."""

    coords: Float32[np.ndarray, "leaves axes leaf"]  # projected; the last leaf is filled up
    low: Float32[np.ndarray, "axes leaves"]  # the box around a leaf
    high: Float32[np.ndarray, "axes leaves"]
    code: UInt8[np.ndarray, "places samples"]
    patch: Int32[np.ndarray, " places"]
    group: Int64[np.ndarray, " places"]
    position_um: Int64[np.ndarray, " places"]


class Queries(NamedTuple):
    """Some patches that ask, near each other."""

    coords: Float32[np.ndarray, "axes queries"]
    points: Float32[np.ndarray, "queries axes"]  # the same, the other way round
    code: UInt8[np.ndarray, "queries samples"]
    patch: Int32[np.ndarray, " queries"]  # their number in the bank, -1: not of the bank
    group: Int64[np.ndarray, " queries"]
    position_um: Int64[np.ndarray, " queries"]


class Rule(NamedTuple):
    """Who is a witness, and what a projected distance must be to rule a pair out."""

    limit: int  # a witness is nearer than this
    k: int  # nearest witnesses kept, 0: all
    reach_um: int  # within it, patches of one group do not testify for each other
    stretch: float  # projected distances are at most this much longer than true ones,
    slack: float  # and this much, for rounding


class Found(NamedTuple):
    """The witnesses of each query, as keys: dist2 · 2³¹ + patch. They sort as witnesses do."""

    keys: Int64[np.ndarray, "queries room"]
    size: Int64[np.ndarray, " queries"]  # may exceed the room where k is 0: then the rest is lost
    farthest: Int64[np.ndarray, " queries"]  # only smaller keys are still wanted


@kernel
def cut_into_leaves(
    coords: Float32[np.ndarray, "places axes"], order: Int64[np.ndarray, " places"]
) -> None:
    """Sort ``order`` so that each run of LEAF entries is one leaf of a kd-tree.

    Every node is cut at a whole number of leaves, across the axis in which it is widest.
    """
    first = np.empty(64, np.int64)
    end = np.empty(64, np.int64)
    first[0], end[0], depth = 0, len(order), 1
    while depth > 0:
        depth -= 1
        a, b = first[depth], end[depth]
        leaves = (b - a + LEAF - 1) // LEAF
        if leaves <= 1:
            continue
        middle = a + (leaves + 1) // 2 * LEAF
        _select(coords, order, a, b, middle, _widest(coords, order, a, b))
        first[depth], end[depth] = a, middle
        first[depth + 1], end[depth + 1] = middle, b
        depth += 2


@kernel
def _widest(
    coords: Float32[np.ndarray, "places axes"], order: Int64[np.ndarray, " places"], a: int, b: int
) -> int:
    low = coords[order[a]].copy()
    high = low.copy()
    for n in range(a, b):
        for axis in range(coords.shape[1]):
            value = coords[order[n], axis]
            low[axis] = min(low[axis], value)
            high[axis] = max(high[axis], value)
    return int(np.argmax(high - low))


@kernel
def _select(
    coords: Float32[np.ndarray, "places axes"],
    order: Int64[np.ndarray, " places"],
    a: int,
    b: int,
    middle: int,
    axis: int,
) -> None:
    # Hoare's selection: afterwards no value before `middle` is above one from there on.
    low, high = a, b - 1
    while low < high:
        pivot = coords[order[(low + high) // 2], axis]
        i, j = low, high
        while i <= j:
            while coords[order[i], axis] < pivot:
                i += 1
            while coords[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@kernel
def gather(
    image: UInt8[np.ndarray, "patches all"],
    rows: Int64[np.ndarray, " rows"],
    samples: Int64[np.ndarray, " samples"],
    code: UInt8[np.ndarray, "rows padded"],
) -> None:
    """Copy some samples of some patches, and fill the codes up with zeros."""
    for r in range(len(rows)):
        for s in range(len(samples)):
            code[r, s] = image[rows[r], samples[s]]
        code[r, len(samples) :] = 0


@unordered_kernel
def project(
    code: UInt8[np.ndarray, "patches padded"],
    directions: Float32[np.ndarray, "padded axes"],
    coords: Float32[np.ndarray, "patches axes"],
) -> None:
    """Write the coordinates of patches: float32 sums, in whatever order is fast.

    ``margins`` bounds the error of any order.
    """
    middle = np.float32(128)  # around it the values, and with them the rounding, are half as large
    axes = np.ascontiguousarray(directions.T)
    values = np.empty(code.shape[1], np.float32)
    for r in range(len(code)):
        for s in range(len(values)):
            values[s] = np.float32(code[r, s]) - middle
        for axis in range(AXES):
            total = np.float32(0)
            for s in range(len(values)):
                total += values[s] * axes[axis, s]
            coords[r, axis] = total


@kernel
def fill_leaves(
    coords: Float32[np.ndarray, "places axes"],
    order: Int64[np.ndarray, " places"],
    leaf_coords: Float32[np.ndarray, "leaves axes leaf"],
    low: Float32[np.ndarray, "axes leaves"],
    high: Float32[np.ndarray, "axes leaves"],
    first: int,
    end: int,
) -> None:
    """Write the points of the leaves ``first … end - 1`` axis by axis, and the box around them."""
    for leaf in range(first, end):
        a = leaf * LEAF
        b = min(a + LEAF, len(order))
        for axis in range(AXES):
            low[axis, leaf] = np.inf
            high[axis, leaf] = -np.inf
            for n in range(a, b):
                value = coords[order[n], axis]
                leaf_coords[leaf, axis, n - a] = value
                if value == np.inf:  # a patch that is near nobody
                    continue
                low[axis, leaf] = min(low[axis, leaf], value)
                high[axis, leaf] = max(high[axis, leaf], value)
            for n in range(b - a, LEAF):
                leaf_coords[leaf, axis, n] = np.inf  # no query is near it


@kernel
def search_leaves(queries: Queries, leaves: Leaves, rule: Rule, found: Found) -> int:
    """Add the witnesses of some queries; return how many exact distances that took.

    Leaves come in order of the distance between their box and the queries' box. What can be ruled
    out by box or projection is; the decision on the rest is the exact integer.
    """
    near = np.empty(len(found.size), np.float32)  # per query: projected dist2 of what is wanted
    for q in range(len(near)):
        near[q] = _projected(found.farthest[q], rule)
    bound = _box_bounds(queries.coords, leaves)
    # The nearest leaf first: its witnesses set limits that rule most other leaves out.
    compared = _search_leaf(int(np.argmin(bound)), queries, leaves, rule, found, near)
    bound[np.argmin(bound)] = np.inf
    wanted = np.flatnonzero(bound < near.max())
    for leaf in wanted[np.argsort(bound[wanted])]:
        if bound[leaf] >= near.max():
            break
        compared += _search_leaf(leaf, queries, leaves, rule, found, near)
    return compared


@small_kernel
def _projected(farthest: np.int64, rule: Rule) -> np.float32:
    # A key below `farthest` has at most its distance, so dist2 < that + 1, or the limit.
    limit = min(float(rule.limit), float((farthest >> CODE_BITS) + 1))
    return np.float32((np.sqrt(limit) * rule.stretch + rule.slack) ** 2 * (1 + 1e-5))


@kernel
def _box_bounds(
    coords: Float32[np.ndarray, "axes queries"], leaves: Leaves
) -> Float32[np.ndarray, " leaves"]:
    bound = np.zeros(leaves.low.shape[1], np.float32)
    for axis in range(AXES):
        low, high = coords[axis].min(), coords[axis].max()
        for leaf in range(len(bound)):
            gap = _outside(low, high, leaves.low[axis, leaf], leaves.high[axis, leaf])
            bound[leaf] += gap * gap
    return bound


@small_kernel
def _outside(
    low: np.float32, high: np.float32, other_low: np.float32, other_high: np.float32
) -> np.float32:
    # How far two intervals lie apart.
    return max(max(other_low - high, low - other_high), np.float32(0))


@kernel
def _search_leaf(
    leaf: int,
    queries: Queries,
    leaves: Leaves,
    rule: Rule,
    found: Found,
    near: Float32[np.ndarray, " queries"],
) -> int:
    # Records are taken apart once: handing them on for every pair would cost more than its sums.
    code, group, position_um = leaves.code, leaves.group, leaves.position_um
    points = queries.points
    limit, k, reach_um = rule.limit, rule.k, rule.reach_um
    keys, size, farthest = found.keys, found.size, found.farthest
    bound = _point_bounds(queries.coords, leaves.low[:, leaf], leaves.high[:, leaf])
    bits = np.empty(LEAF // 64, np.uint64)
    compared = 0
    for q in range(len(bound)):
        if bound[q] >= near[q] or near_bits(leaves.coords, leaf, points, q, near[q], bits) == 0:
            continue
        for block in range(len(bits)):
            word = bits[block]
            while word != 0:
                place = leaf * LEAF + block * 64 + lowest_bit(word)
                word &= word - np.uint64(1)
                compared += 1
                dist2 = np.int64(dist2_of_rows(queries.code, q, code, place))
                if dist2 >= limit:
                    continue
                patch = leaves.patch[place]
                key = (dist2 << CODE_BITS) | np.int64(patch)
                if key >= farthest[q] or patch == queries.patch[q]:
                    continue
                same = group[place] == queries.group[q]
                if same and abs(position_um[place] - queries.position_um[q]) <= reach_um:
                    continue
                if size[q] < keys.shape[1]:
                    keys[q, size[q]] = key
                size[q] += 1
                if k > 0 and size[q] == keys.shape[1] and k < keys.shape[1]:
                    keep_smallest(keys, size, farthest, q, k)
        if k > 0:
            near[q] = _projected(farthest[q], rule)
    return compared


@kernel
def _point_bounds(
    coords: Float32[np.ndarray, "axes queries"],
    low: Float32[np.ndarray, " axes"],
    high: Float32[np.ndarray, " axes"],
) -> Float32[np.ndarray, " queries"]:
    # The squared distance of each query to a box.
    bound = np.zeros(coords.shape[1], np.float32)
    for axis in range(AXES):
        a, b = low[axis], high[axis]
        for q in range(len(bound)):
            gap = _outside(coords[axis, q], coords[axis, q], a, b)
            bound[q] += gap * gap
    return bound


@kernel
def keep_smallest(
    keys: Int64[np.ndarray, "queries room"],
    size: Int64[np.ndarray, " queries"],
    farthest: Int64[np.ndarray, " queries"],
    q: int,
    k: int,
) -> None:
    """Keep the k smallest keys of a full row; from then on only what is smaller is wanted."""
    row = keys[q]
    row[:] = np.partition(row, k - 1)
    farthest[q] = row[k - 1]
    size[q] = k
