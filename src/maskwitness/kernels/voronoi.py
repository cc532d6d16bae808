"""Nearest centreline points and quality, cube by cube (Methods M15, M16)."""

import math

import numpy as np
from jaxtyping import Float32, Float64, Int64

from maskwitness.kernels._jit import kernel


@kernel
def paint_into(
    cubes: Int64[np.ndarray, "cubes 3"],
    candidates: Int64[np.ndarray, " candidates"],
    offset: Int64[np.ndarray, " cubes_plus_1"],
    points_mm: Float64[np.ndarray, "points 3"],
    doubt: Float64[np.ndarray, " points"],
    affine: Float64[np.ndarray, "4 4"],
    rule: tuple[int, float, float],
    quality: Float32[np.ndarray, "i j k"],
) -> None:
    """Write Q of every voxel of the cubes that is within the limit of a point."""
    side, reach_mm, limit_mm = rule
    m = affine
    size_i, size_j, size_k = quality.shape
    for c in range(len(cubes)):
        i0, j0, k0 = cubes[c]
        for k in range(k0, min(k0 + side, size_k)):
            for j in range(j0, min(j0 + side, size_j)):
                for i in range(i0, min(i0 + side, size_i)):
                    x = ((m[0, 0] * i + m[0, 1] * j) + m[0, 2] * k) + m[0, 3]
                    y = ((m[1, 0] * i + m[1, 1] * j) + m[1, 2] * k) + m[1, 3]
                    z = ((m[2, 0] * i + m[2, 1] * j) + m[2, 2] * k) + m[2, 3]
                    best = np.inf
                    point = -1
                    for n in range(offset[c], offset[c + 1]):
                        p = candidates[n]
                        dx, dy, dz = (
                            x - points_mm[p, 0],
                            y - points_mm[p, 1],
                            z - points_mm[p, 2],
                        )
                        dist2 = (dx * dx + dy * dy) + dz * dz
                        if dist2 < best:  # candidates rise, so the first of equals stays
                            best = dist2
                            point = p
                    distance = math.sqrt(best)
                    if distance <= limit_mm:
                        weight = math.exp(-((distance / reach_mm) ** 2) / 2)
                        quality[i, j, k] = 1.0 - doubt[point] * weight
