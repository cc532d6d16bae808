"""Centreline to frames: a tangent at each point, and a normal plane that does not twist.

Frenet frames follow the curve's torsion, jump where it is straight, and so show the same vessel
turned by any angle. Bishop frames are carried along without twist (Bishop 1975), which is what lets
two patches of one vessel look alike. Voxel centrelines turn by 45° and 90° from step to step; the
case where the projection of a normal vanishes does happen and has its own rule (Method M5).
"""

import numpy as np
from jaxtyping import Float64

from maskwitness.errors import GeometryError
from maskwitness.geometry import axes
from maskwitness.kernels.transport import transport_into
from maskwitness.records import Frames, Graph


def transport_frames(graph: Graph, affine: Float64[np.ndarray, "4 4"]) -> Frames:
    """Return an orthonormal frame for each point, a child branch starting from its parent's.

    Method: M5
    """
    tangent = tangents(graph, affine)
    normal = np.empty_like(tangent)
    last = np.flatnonzero(np.r_[graph.branch[1:] != graph.branch[:-1], True])
    transport_into(tangent, graph.branch, graph.parent, last, axes(affine), normal)
    return Frames(tangent=tangent, normal=normal, binormal=_cross(tangent, normal))


def tangents(graph: Graph, affine: Float64[np.ndarray, "4 4"]) -> Float64[np.ndarray, "points 3"]:
    """Return the direction from each point to the next; the last point keeps the one before.

    Method: M4
    """
    ends = np.r_[graph.branch[1:] != graph.branch[:-1], True]
    single = ends & (graph.order == 0)
    step = np.empty_like(graph.points_mm)
    step[:-1] = graph.points_mm[1:] - graph.points_mm[:-1]
    step[1:][ends[1:]] = step[:-1][ends[1:]]
    step[single] = 1.0  # anything that has a length
    length = np.sqrt((step[:, 0] ** 2 + step[:, 1] ** 2) + step[:, 2] ** 2)
    if (length == 0).any():
        message = f"point {int(length.argmin())} lies where the next one lies: it has no tangent"
        raise GeometryError(message)
    tangent = step / length[:, None]
    tangent[single] = axes(affine)[2]
    return tangent


def _cross(
    a: Float64[np.ndarray, "points 3"], b: Float64[np.ndarray, "points 3"]
) -> Float64[np.ndarray, "points 3"]:
    (ax, ay, az), (bx, by, bz) = a.T, b.T
    return np.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], axis=1)
