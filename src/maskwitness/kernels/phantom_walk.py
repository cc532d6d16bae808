"""Inner loops of the phantom's anatomy: a smooth surface made of ellipsoids, and walks upon it.

Strategy: an ellipsoid is a matrix ``form`` that maps the offset from its centre to a unit sphere.
With f = |form (x - c)| the distance to its surface is close to (f - 1) / |∇f|, exact to first order
at the surface. The surface of several is their soft minimum, which fills the grooves between
chambers with a rounded bottom: the place where coronary arteries run.
"""

import math

import numpy as np
from jaxtyping import Float64

from maskwitness.kernels._jit import kernel


@kernel
def surface_into(
    distance: Float64[np.ndarray, " ellipsoids"],
    normal: Float64[np.ndarray, "ellipsoids 3"],
    gradient: Float64[np.ndarray, " 3"],
    point: Float64[np.ndarray, " 3"],
    centre: Float64[np.ndarray, "ellipsoids 3"],
    form: Float64[np.ndarray, "ellipsoids 3 3"],
    blend_mm: float,
) -> float:
    """Return the blended distance at ``point``; fill each ellipsoid's own, and the gradient."""
    for e in range(centre.shape[0]):
        f2 = 0.0
        g0 = 0.0
        g1 = 0.0
        g2 = 0.0
        for row in range(3):
            q = 0.0
            for column in range(3):
                q += form[e, row, column] * (point[column] - centre[e, column])
            f2 += q * q
            g0 += form[e, row, 0] * q
            g1 += form[e, row, 1] * q
            g2 += form[e, row, 2] * q
        f = math.sqrt(max(f2, 1e-12))
        size = max(math.sqrt(g0 * g0 + g1 * g1 + g2 * g2), 1e-12)
        distance[e] = (f - 1.0) * f / size
        normal[e, 0] = g0 / size
        normal[e, 1] = g1 / size
        normal[e, 2] = g2 / size
    least = distance.min()
    total = 0.0
    gradient[:] = 0.0
    for e in range(centre.shape[0]):
        weight = math.exp((least - distance[e]) / blend_mm)
        total += weight
        for axis in range(3):
            gradient[axis] += weight * normal[e, axis]
    for axis in range(3):
        gradient[axis] /= total
    return least - blend_mm * math.log(total)


@kernel
def unit_into(vector: Float64[np.ndarray, " 3"]) -> float:
    """Scale ``vector`` to length one; return the length it had."""
    length = math.sqrt(vector[0] ** 2 + vector[1] ** 2 + vector[2] ** 2)
    for axis in range(3):
        vector[axis] /= max(length, 1e-9)
    return length


@kernel
def flatten_into(vector: Float64[np.ndarray, " 3"], normal: Float64[np.ndarray, " 3"]) -> None:
    """Take from ``vector`` its part along ``normal``."""
    along = vector[0] * normal[0] + vector[1] * normal[1] + vector[2] * normal[2]
    for axis in range(3):
        vector[axis] -= along * normal[axis]


@kernel
def follow_into(
    heading: Float64[np.ndarray, " 3"],
    up: Float64[np.ndarray, " 3"],
    distance: Float64[np.ndarray, " ellipsoids"],
    normal: Float64[np.ndarray, "ellipsoids 3"],
    groove: tuple[int, int],
) -> None:
    """Turn ``heading`` a little along the groove between two ellipsoids, and towards it."""
    gap = distance[groove[0]] - distance[groove[1]]
    across = np.zeros(3)
    for axis in range(3):
        across[axis] = normal[groove[0], axis] - normal[groove[1], axis]
    flatten_into(across, up)
    unit_into(across)
    along0 = across[1] * up[2] - across[2] * up[1]
    along1 = across[2] * up[0] - across[0] * up[2]
    along2 = across[0] * up[1] - across[1] * up[0]
    agrees = along0 * heading[0] + along1 * heading[1] + along2 * heading[2]
    sign = 1.0 if agrees > 0 else -1.0
    back = max(-0.12, min(0.12, 0.012 * gap))
    heading[0] += 0.06 * sign * along0 - back * across[0]
    heading[1] += 0.06 * sign * along1 - back * across[1]
    heading[2] += 0.06 * sign * along2 - back * across[2]


@kernel
def attract_into(
    heading: Float64[np.ndarray, " 3"],
    up: Float64[np.ndarray, " 3"],
    point: Float64[np.ndarray, " 3"],
    target: Float64[np.ndarray, " 3"],
    pull: float,
) -> None:
    """Turn ``heading`` a little towards a target, along the surface."""
    wish = np.zeros(3)
    for axis in range(3):
        wish[axis] = target[axis] - point[axis]
    flatten_into(wish, up)
    unit_into(wish)
    for axis in range(3):
        heading[axis] += pull * wish[axis]


@kernel
def bend_into(
    heading: Float64[np.ndarray, " 3"], up: Float64[np.ndarray, " 3"], bend: float
) -> None:
    """Turn ``heading`` to the left by the angle whose tangent is ``bend``."""
    left0 = up[1] * heading[2] - up[2] * heading[1]
    left1 = up[2] * heading[0] - up[0] * heading[2]
    left2 = up[0] * heading[1] - up[1] * heading[0]
    heading[0] += bend * left0
    heading[1] += bend * left1
    heading[2] += bend * left2


@kernel
def walk_into(
    points: Float64[np.ndarray, "points 3"],
    outward: Float64[np.ndarray, "points 3"],
    start: Float64[np.ndarray, " 3"],
    towards: Float64[np.ndarray, " 3"],
    turn_rad: Float64[np.ndarray, " points"],
    level_mm: Float64[np.ndarray, " points"],
    groove: tuple[int, int],
    target: Float64[np.ndarray, " 3"],
    pull: float,
    step_mm: float,
    centre: Float64[np.ndarray, "ellipsoids 3"],
    form: Float64[np.ndarray, "ellipsoids 3 3"],
    blend_mm: float,
) -> None:
    """Walk over the surface, ``level_mm`` above it, from ``start`` in the direction ``towards``.

    ``turn_rad`` bends each step to the left; ``groove`` names two ellipsoids whose common groove
    the walk looks for and follows (-1: none); ``pull`` is how strongly ``target`` attracts.
    ``outward`` is filled with the surface's normals.
    """
    distance = np.zeros(centre.shape[0])
    normal = np.zeros((centre.shape[0], 3))
    up = np.zeros(3)
    heading = towards.copy()
    point = start.copy()
    for s in range(points.shape[0]):
        for axis in range(3):
            points[s, axis] = point[axis]
        surface_into(distance, normal, up, point, centre, form, blend_mm)
        unit_into(up)
        for axis in range(3):
            outward[s, axis] = up[axis]
        flatten_into(heading, up)
        unit_into(heading)
        if groove[0] >= 0:
            follow_into(heading, up, distance, normal, groove)
        if pull > 0.0:
            attract_into(heading, up, point, target, pull)
        bend_into(heading, up, math.tan(turn_rad[s]))
        unit_into(heading)
        for axis in range(3):
            point[axis] += step_mm * heading[axis]
        for _ in range(3):
            value = surface_into(distance, normal, up, point, centre, form, blend_mm)
            size2 = max(up[0] ** 2 + up[1] ** 2 + up[2] ** 2, 0.05)
            # in small moves: a walk that starts off the surface glides onto it
            move = (value - level_mm[s]) / size2
            move = max(-0.3 * step_mm, min(0.3 * step_mm, move))
            for axis in range(3):
                point[axis] -= move * up[axis]
