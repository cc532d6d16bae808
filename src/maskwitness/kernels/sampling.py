"""Cutting patches out of a volume (Methods M6 to M8), in place on the file's own numbers.

No float copy of the volume is made: a patch touches a few hundred voxels of its 72 million.
"""

import math

import numpy as np
from jaxtyping import Bool, Float64, Shaped, UInt8

from maskwitness.kernels._jit import kernel, small_kernel


@small_kernel
def _clamp(value: float, length: int) -> float:
    return min(max(value, 0.0), length - 1.0)


@kernel
def trilinear(volume: Shaped[np.ndarray, "i j k"], x: float, y: float, z: float) -> float:
    """Return the value between voxels at a place inside the volume: along i, then j, then k."""
    i, j, k = int(x), int(y), int(z)
    i2 = min(i + 1, volume.shape[0] - 1)
    j2 = min(j + 1, volume.shape[1] - 1)
    k2 = min(k + 1, volume.shape[2] - 1)
    f = x - i
    a, b = np.float64(volume[i, j, k]), np.float64(volume[i2, j, k])
    c, d = np.float64(volume[i, j2, k]), np.float64(volume[i2, j2, k])
    near_low, near_high = a + f * (b - a), c + f * (d - c)
    a, b = np.float64(volume[i, j, k2]), np.float64(volume[i2, j, k2])
    c, d = np.float64(volume[i, j2, k2]), np.float64(volume[i2, j2, k2])
    far_low, far_high = a + f * (b - a), c + f * (d - c)
    g, h = y - j, z - k
    near = near_low + g * (near_high - near_low)
    far = far_low + g * (far_high - far_low)
    return near + h * (far - near)


@kernel
def _beyond(x: float, y: float, z: float, shape: tuple[int, int, int]) -> bool:
    return not (
        -0.5 <= x <= shape[0] - 0.5 and -0.5 <= y <= shape[1] - 0.5 and -0.5 <= z <= shape[2] - 0.5
    )


@kernel
def _normalise_into(
    values: Float64[np.ndarray, "u v"],
    low: float,
    high: float,
    inside: Bool[np.ndarray, "u v"],
    image: UInt8[np.ndarray, "u v"],
) -> None:
    for a in range(len(values)):
        for b in range(len(values)):
            image[a, b] = 0
            if inside[a, b] and high > low:
                image[a, b] = int(((values[a, b] - low) / (high - low)) * 255.0 + 0.5)


@kernel
def sample_into(
    volume: Shaped[np.ndarray, "i j k"],
    drawn: UInt8[np.ndarray, "i j k"],
    rescale: tuple[float, float],
    centres: Float64[np.ndarray, "points 3"],
    across: Float64[np.ndarray, "points 2 3"],
    step_mm: float,
    inside: Bool[np.ndarray, "u v"],
    image: UInt8[np.ndarray, "points u v"],
    mask: UInt8[np.ndarray, "points u v"],
    numbers: Float64[np.ndarray, "points 5"],
) -> None:
    """Write canonical images and masks, and per point: low, high, lumen sum and count, outside.

    ``centres`` and ``across`` (normal and binormal) are in voxels; ``inside`` is the circle.
    """
    size = len(inside)
    shape = volume.shape
    values = np.empty((size, size))
    numbers[:] = 0.0
    for p in range(len(centres)):
        n, b = across[p]
        for row in range(size):
            u = (row - (size - 1) / 2) * step_mm
            for column in range(size):
                v = (column - (size - 1) / 2) * step_mm
                x = (centres[p, 0] + u * n[0]) + v * b[0]
                y = (centres[p, 1] + u * n[1]) + v * b[1]
                z = (centres[p, 2] + u * n[2]) + v * b[2]
                numbers[p, 4] += _beyond(x, y, z, shape)
                x, y, z = _clamp(x, shape[0]), _clamp(y, shape[1]), _clamp(z, shape[2])
                value = rescale[0] * trilinear(volume, x, y, z) + rescale[1]
                values[row, column] = value
                i, j, k = math.floor(x + 0.5), math.floor(y + 0.5), math.floor(z + 0.5)
                mask[p, row, column] = inside[row, column] and drawn[i, j, k] != 0
                if mask[p, row, column]:
                    numbers[p, 2] += value
                    numbers[p, 3] += 1
        numbers[p, 0], numbers[p, 1] = values.min(), values.max()
        _normalise_into(values, numbers[p, 0], numbers[p, 1], inside, image[p])
