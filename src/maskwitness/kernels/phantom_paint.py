"""Inner loops that paint the phantom: ellipsoids and tapered tubes with blurred edges.

Strategy: nothing is drawn sharp and blurred afterwards. The share of a voxel that a shape covers
after the scanner's blur is a function of the distance to its edge, and for thin tubes also of the
radius, so it is computed directly, only near the shape. Arrays are Fortran ordered: i runs fastest.
"""

import math

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32

from maskwitness.kernels._jit import kernel


@kernel
def ripple(x: float, y: float, z: float, wave: Float64[np.ndarray, "waves 4"]) -> float:
    """Return twice the mean of plane waves at a place: between -2 and 2, mostly within 1."""
    total = 0.0
    for w in range(wave.shape[0]):
        total += math.sin(wave[w, 0] * x + wave[w, 1] * y + wave[w, 2] * z + wave[w, 3])
    return 2.0 * total / wave.shape[0]


@kernel
def chord(a: float, b: float, c: float) -> tuple[float, float]:
    """Return where a i² + 2 b i + c is negative, for a > 0; an empty range where it never is."""
    root = b * b - a * c
    if root <= 0.0:
        return 1.0, -1.0
    root = math.sqrt(root)
    return (-b - root) / a, (-b + root) / a


@kernel
def edge_of(q0: float, q1: float, q2: float, form: Float64[np.ndarray, "3 3"]) -> float:
    """Return the distance to an ellipsoid's surface of a point, given as form (x - centre)."""
    f = math.sqrt(q0 * q0 + q1 * q1 + q2 * q2)
    g0 = form[0, 0] * q0 + form[1, 0] * q1 + form[2, 0] * q2
    g1 = form[0, 1] * q0 + form[1, 1] * q1 + form[2, 1] * q2
    g2 = form[0, 2] * q0 + form[1, 2] * q1 + form[2, 2] * q2
    return (f - 1.0) * f / max(math.sqrt(g0 * g0 + g1 * g1 + g2 * g2), 1e-12)


@kernel
def paint_ellipsoid_into(
    volume: Float32[np.ndarray, "i j k"],
    affine: Float64[np.ndarray, "4 4"],
    centre: Float64[np.ndarray, " 3"],
    form: Float64[np.ndarray, "3 3"],
    value: float,
    sigma_mm: float,
    wave: Float64[np.ndarray, "waves 4"],
    wave_mm: float,
) -> None:
    """Blend ``value`` into the voxels inside an ellipsoid whose surface ripples by ``wave``."""
    size_i, size_j, size_k = volume.shape
    largest = math.sqrt((form * form).sum(axis=1).max())
    reach = 4.0 * sigma_mm + 2.0 * wave_mm
    outer = 1.0 + reach * largest
    inner = max(0.0, 1.0 - reach * largest)
    step = np.zeros(3)
    base = np.zeros(3)
    here = np.zeros(3)
    for row in range(3):
        for c in range(3):
            step[row] += form[row, c] * affine[c, 0]
    a = step[0] ** 2 + step[1] ** 2 + step[2] ** 2
    for k in range(size_k):
        for j in range(size_j):
            for c in range(3):
                here[c] = affine[c, 1] * j + affine[c, 2] * k + affine[c, 3]
            b = 0.0
            c2 = 0.0
            for row in range(3):
                base[row] = 0.0
                for c in range(3):
                    base[row] += form[row, c] * (here[c] - centre[c])
                b += base[row] * step[row]
                c2 += base[row] * base[row]
            start, end = chord(a, b, c2 - outer * outer)
            first = max(0, math.ceil(start))
            last = min(size_i - 1, math.floor(end))
            # the run of the row that lies well inside needs no distances
            start, end = chord(a, b, c2 - inner * inner)
            deep_first = max(first, math.ceil(start) + 1)
            deep_last = min(last, math.floor(end) - 1)
            for i in range(first, last + 1):
                if deep_first <= i <= deep_last:
                    volume[i, j, k] = value
                    continue
                q0 = base[0] + i * step[0]
                q1 = base[1] + i * step[1]
                q2 = base[2] + i * step[2]
                edge = edge_of(q0, q1, q2, form)
                if wave_mm > 0.0:
                    edge += wave_mm * ripple(
                        here[0] + affine[0, 0] * i,
                        here[1] + affine[1, 0] * i,
                        here[2] + affine[2, 0] * i,
                        wave,
                    )
                if edge <= 4.0 * sigma_mm:
                    share = 1.0 / (1.0 + math.exp(1.702 * edge / sigma_mm))
                    volume[i, j, k] += np.float32(share * (value - volume[i, j, k]))


@kernel
def covered(
    distance_mm: float, radius_mm: float, sigma_mm: float, table: Float64[np.ndarray, "r d"]
) -> float:
    """Return the share of a blurred disc at a distance from its centre, from the blur table.

    Rows: radius / sigma in steps of 0.1. Columns: (distance - radius) / sigma from -6 in the same
    steps. Wider discs have a straight edge.
    """
    x = (distance_mm - radius_mm) / sigma_mm
    y = radius_mm / sigma_mm * 10.0
    if x >= 3.9:
        return 0.0
    if y >= table.shape[0] - 1:
        return 1.0 / (1.0 + math.exp(1.702 * x))
    x = max(x + 6.0, 0.0) * 10.0
    row = int(y)
    column = int(x)
    p = y - row
    q = x - column
    low = table[row, column] * (1.0 - q) + table[row, column + 1] * q
    high = table[row + 1, column] * (1.0 - q) + table[row + 1, column + 1] * q
    return low * (1.0 - p) + high * p


@kernel
def box_of_segment(
    box: Float64[np.ndarray, "3 2"],
    start: Float64[np.ndarray, " 3"],
    end: Float64[np.ndarray, " 3"],
    inverse: Float64[np.ndarray, "4 4"],
    reach_mm: float,
) -> None:
    """Fill the range of voxel indices within reach of a segment, before clipping."""
    for axis in range(3):
        a = inverse[axis, 3]
        b = inverse[axis, 3]
        size = 0.0
        for c in range(3):
            a += inverse[axis, c] * start[c]
            b += inverse[axis, c] * end[c]
            size += inverse[axis, c] ** 2
        reach = reach_mm * math.sqrt(size)
        box[axis, 0] = math.ceil(min(a, b) - reach)
        box[axis, 1] = math.floor(max(a, b) + reach)


@kernel
def cover_tubes_into(
    share: Float32[np.ndarray, "i j k"],
    affine: Float64[np.ndarray, "4 4"],
    inverse: Float64[np.ndarray, "4 4"],
    points: Float64[np.ndarray, "points 3"],
    radius: Float64[np.ndarray, " points"],
    strength: Float64[np.ndarray, " points"],
    motion: Float64[np.ndarray, "points 3"],
    copies: int,
    branch: Int32[np.ndarray, " points"],
    sigma_mm: float,
    table: Float64[np.ndarray, "r d"],
) -> None:
    """Raise ``share`` to what each tapered segment covers, times its strength.

    A moving segment is the mean of ``copies`` of itself, spread from -motion to +motion.
    """
    box = np.zeros((3, 2))
    start = np.zeros(3)
    along = np.zeros(3)
    for s in range(points.shape[0] - 1):
        if branch[s] != branch[s + 1]:
            continue
        moved = 0.0
        length2 = 0.0
        for c in range(3):
            moved += motion[s, c] ** 2
            start[c] = points[s, c]
            along[c] = points[s + 1, c] - points[s, c]
            length2 += along[c] ** 2
        moved = math.sqrt(moved)
        times = copies if moved > 0.05 else 1
        reach = max(radius[s], radius[s + 1]) + 4.0 * sigma_mm + moved
        box_of_segment(box, start, points[s + 1], inverse, reach)
        for k in range(max(0, int(box[2, 0])), min(share.shape[2] - 1, int(box[2, 1])) + 1):
            for j in range(max(0, int(box[1, 0])), min(share.shape[1] - 1, int(box[1, 1])) + 1):
                for i in range(max(0, int(box[0, 0])), min(share.shape[0] - 1, int(box[0, 1])) + 1):
                    # inside an earlier segment of the same tube: nothing can be added
                    if share[i, j, k] >= 0.998 * strength[s]:
                        continue
                    x = affine[0, 0] * i + affine[0, 1] * j + affine[0, 2] * k + affine[0, 3]
                    y = affine[1, 0] * i + affine[1, 1] * j + affine[1, 2] * k + affine[1, 3]
                    z = affine[2, 0] * i + affine[2, 1] * j + affine[2, 2] * k + affine[2, 3]
                    total = 0.0
                    for m in range(times):
                        t = 0.0 if times == 1 else 2.0 * m / (times - 1) - 1.0
                        u = x - start[0] - t * motion[s, 0]
                        v = y - start[1] - t * motion[s, 1]
                        w = z - start[2] - t * motion[s, 2]
                        at = (u * along[0] + v * along[1] + w * along[2]) / max(length2, 1e-12)
                        at = max(0.0, min(1.0, at))
                        u -= at * along[0]
                        v -= at * along[1]
                        w -= at * along[2]
                        wide = radius[s] + at * (radius[s + 1] - radius[s])
                        total += covered(math.sqrt(u * u + v * v + w * w), wide, sigma_mm, table)
                    total *= strength[s] / times
                    share[i, j, k] = max(share[i, j, k], np.float32(total))


@kernel
def blend_into(
    volume: Float32[np.ndarray, "i j k"], share: Float32[np.ndarray, "i j k"], value: float
) -> None:
    """Move each voxel towards ``value`` by its share."""
    for k in range(volume.shape[2]):
        for j in range(volume.shape[1]):
            for i in range(volume.shape[0]):
                if share[i, j, k] > 0.0:
                    volume[i, j, k] += share[i, j, k] * (np.float32(value) - volume[i, j, k])


@kernel
def measure_tubes_into(
    distance: Float32[np.ndarray, "i j k"],
    owner: Int32[np.ndarray, "i j k"],
    affine: Float64[np.ndarray, "4 4"],
    inverse: Float64[np.ndarray, "4 4"],
    points: Float64[np.ndarray, "points 3"],
    radius: Float64[np.ndarray, " points"],
    branch: Int32[np.ndarray, " points"],
    present: Bool[np.ndarray, " points"],
    stair_mm: Float64[np.ndarray, " points"],
    slip: Float64[np.ndarray, "k 3"],
    reach_mm: float,
) -> None:
    """Lower ``distance`` to the signed distance of the nearest tube, and note its segment.

    A segment is there where both its ends are. Where ``stair_mm`` is positive, slice k of the
    segment is drawn displaced by ``stair_mm`` along the unit vector ``slip[k]``.
    """
    box = np.zeros((3, 2))
    start = np.zeros(3)
    along = np.zeros(3)
    for s in range(points.shape[0] - 1):
        if branch[s] != branch[s + 1] or not (present[s] and present[s + 1]):
            continue
        length2 = 0.0
        for c in range(3):
            start[c] = points[s, c]
            along[c] = points[s + 1, c] - points[s, c]
            length2 += along[c] ** 2
        stair = stair_mm[s]
        reach = max(radius[s], radius[s + 1]) + reach_mm + stair
        box_of_segment(box, start, points[s + 1], inverse, reach)
        for k in range(max(0, int(box[2, 0])), min(distance.shape[2] - 1, int(box[2, 1])) + 1):
            for j in range(max(0, int(box[1, 0])), min(distance.shape[1] - 1, int(box[1, 1])) + 1):
                for i in range(
                    max(0, int(box[0, 0])), min(distance.shape[0] - 1, int(box[0, 1])) + 1
                ):
                    u = affine[0, 0] * i + affine[0, 1] * j + affine[0, 2] * k + affine[0, 3]
                    v = affine[1, 0] * i + affine[1, 1] * j + affine[1, 2] * k + affine[1, 3]
                    w = affine[2, 0] * i + affine[2, 1] * j + affine[2, 2] * k + affine[2, 3]
                    u -= start[0] + stair * slip[k, 0]
                    v -= start[1] + stair * slip[k, 1]
                    w -= start[2] + stair * slip[k, 2]
                    at = (u * along[0] + v * along[1] + w * along[2]) / max(length2, 1e-12)
                    at = max(0.0, min(1.0, at))
                    u -= at * along[0]
                    v -= at * along[1]
                    w -= at * along[2]
                    edge = math.sqrt(u * u + v * v + w * w)
                    edge -= radius[s] + at * (radius[s + 1] - radius[s])
                    if edge < distance[i, j, k]:
                        distance[i, j, k] = edge
                        owner[i, j, k] = s
