"""Voxels and millimetres: affines, spacing, and whether two grids are the same.

World coordinates are RAS+ millimetres. Affines may be oblique, left-handed, anisotropic and
sheared; nothing here assumes that the axes are orthogonal.
"""

import numpy as np
from jaxtyping import Float64

from maskwitness.errors import GeometryError


def to_world(
    points_vox: Float64[np.ndarray, "points 3"], affine: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, "points 3"]:
    """Return world millimetres of voxel coordinates.

    Written as a sum of three products in a fixed order, not as a matrix product: BLAS may sum in
    another order on another machine, and everything downstream is promised to be bit-identical.
    """
    x, y, z = points_vox[:, 0:1], points_vox[:, 1:2], points_vox[:, 2:3]
    return ((affine[:3, 0] * x + affine[:3, 1] * y) + affine[:3, 2] * z) + affine[:3, 3]


def invert(affine: Float64[np.ndarray, "4 4"]) -> Float64[np.ndarray, "4 4"]:
    """Return the affine from world millimetres to voxel coordinates.

    By cofactors, in a fixed order of operations, for the reason given at :func:`to_world`.
    """
    (a, b, c), (d, e, f), (g, h, i) = (tuple(map(float, row)) for row in affine[:3, :3])
    determinant = (a * (e * i - f * h) - b * (d * i - f * g)) + c * (d * h - e * g)
    if not np.isfinite(determinant) or determinant == 0.0:
        message = "the affine has no inverse: its axes lie in one plane"
        raise GeometryError(message)
    linear = np.array(
        [
            [e * i - f * h, c * h - b * i, b * f - c * e],
            [f * g - d * i, a * i - c * g, c * d - a * f],
            [d * h - e * g, b * g - a * h, a * e - b * d],
        ]
    ) / determinant  # fmt: skip
    shift = affine[:3, 3]
    inverse = np.eye(4)
    inverse[:3, :3] = linear
    inverse[:3, 3] = -(
        (linear[:, 0] * shift[0] + linear[:, 1] * shift[1]) + linear[:, 2] * shift[2]
    )
    return inverse


def spacing_mm(affine: Float64[np.ndarray, "4 4"]) -> Float64[np.ndarray, " 3"]:
    """Return the length of one voxel step along each image axis."""
    return np.sqrt((affine[:3, :3] ** 2).sum(axis=0))


def axes(affine: Float64[np.ndarray, "4 4"]) -> Float64[np.ndarray, "3 3"]:
    """Return the unit directions of the image axes i, j, k as rows, in world coordinates."""
    return (affine[:3, :3] / spacing_mm(affine)).T


def check_affine(affine: Float64[np.ndarray, "4 4"]) -> None:
    """Raise :class:`GeometryError` where the affine places voxels nowhere."""
    if not np.isfinite(affine).all():
        message = "the affine holds values that are not finite numbers"
        raise GeometryError(message)
    steps = spacing_mm(affine)
    if (steps <= 0).any():
        message = f"a voxel has no size: spacing {describe_numbers(steps)} mm"
        raise GeometryError(message)
    if abs(np.linalg.det(axes(affine))) < 1e-6:
        message = "two image axes point the same way: the affine has no inverse"
        raise GeometryError(message)


def same_grid(
    shape_a: tuple[int, int, int],
    affine_a: Float64[np.ndarray, "4 4"],
    shape_b: tuple[int, int, int],
    affine_b: Float64[np.ndarray, "4 4"],
    tolerance_vox: float = 0.01,
) -> bool:
    """Say whether two grids put every voxel in the same place, to a fraction of a voxel.

    The corners of the volume are compared, because a small rotation moves them most.
    """
    if shape_a != shape_b:
        return False
    corners = np.array(
        [[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=np.float64
    ) * (np.array(shape_a) - 1)
    apart = to_world(corners, affine_a) - to_world(corners, affine_b)
    limit = tolerance_vox * float(spacing_mm(affine_a).min())
    return bool(np.sqrt((apart**2).sum(axis=1)).max() <= limit)


def describe_grid(shape: tuple[int, int, int], affine: Float64[np.ndarray, "4 4"]) -> str:
    """Return a grid in one line: size, spacing, the way its axes point, its first voxel."""
    size = " × ".join(map(str, shape))
    return (
        f"{size} voxels of {describe_numbers(spacing_mm(affine))} mm, "
        f"axes {orientation(affine)}, first voxel at ({describe_numbers(affine[:3, 3], ', ')}) mm"
    )


def orientation(affine: Float64[np.ndarray, "4 4"]) -> str:
    """Return where the image axes point, as letters like RAS or LPS (nearest world axis)."""
    letters = ("LR", "PA", "IS")
    directions = axes(affine)
    found = [int(np.abs(direction).argmax()) for direction in directions]
    return "".join(
        letters[axis][int(direction[axis] > 0)]
        for axis, direction in zip(found, directions, strict=True)
    )


def describe_numbers(values: Float64[np.ndarray, " n"], separator: str = " × ") -> str:
    """Return numbers as people write them: up to three decimals, no trailing zeros."""
    return separator.join(f"{value:.3f}".rstrip("0").rstrip(".") or "0" for value in values)
