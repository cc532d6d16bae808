"""Parallel transport of a frame along branches (Method M5)."""

import math

import numpy as np
from jaxtyping import Float64, Int32, Int64

from maskwitness.kernels._jit import kernel, small_kernel


@small_kernel
def _dot(a: Float64[np.ndarray, " 3"], b: Float64[np.ndarray, " 3"]) -> float:
    return (a[0] * b[0] + a[1] * b[1]) + a[2] * b[2]


@kernel
def _project_into(
    vector: Float64[np.ndarray, " 3"],
    tangent: Float64[np.ndarray, " 3"],
    out: Float64[np.ndarray, " 3"],
) -> float:
    # The part of a vector across the tangent, at unit length; returns the length it had.
    along = _dot(vector, tangent)
    for axis in range(3):
        out[axis] = vector[axis] - along * tangent[axis]
    length = math.sqrt(_dot(out, out))
    if length > 0.0:
        for axis in range(3):
            out[axis] /= length
    return length


@kernel
def _carry_into(
    normal: Float64[np.ndarray, " 3"],
    previous_tangent: Float64[np.ndarray, " 3"],
    tangent: Float64[np.ndarray, " 3"],
    out: Float64[np.ndarray, " 3"],
) -> None:
    if _project_into(normal, tangent, out) < 1e-6:
        # A right-angled turn straight into the normal: turn the frame with it.
        sign = 1.0 if _dot(normal, tangent) > 0.0 else -1.0
        _project_into(-sign * previous_tangent, tangent, out)


@kernel
def transport_into(
    tangent: Float64[np.ndarray, "points 3"],
    branch: Int32[np.ndarray, " points"],
    parent: Int32[np.ndarray, " branches"],
    last: Int64[np.ndarray, " branches"],
    axes: Float64[np.ndarray, "3 3"],
    normal: Float64[np.ndarray, "points 3"],
) -> None:
    """Write the normals of all points; a parent's points come before its children's."""
    for p in range(len(tangent)):
        before = p - 1
        if p == 0 or branch[p] != branch[p - 1]:
            before = last[parent[branch[p]]] if parent[branch[p]] >= 0 else -1
        if before >= 0:
            _carry_into(normal[before], tangent[before], tangent[p], normal[p])
            continue
        least = 0
        for axis in range(1, 3):
            if abs(_dot(axes[axis], tangent[p])) < abs(_dot(axes[least], tangent[p])):
                least = axis
        _project_into(axes[least], tangent[p], normal[p])
