"""Frames to patches: the image and mask on each normal plane, in canonical integers.

What comes out is uint8 and bits, so that everything after it can be exact (Method M8).
"""

import numpy as np
from jaxtyping import Bool, Float64

from maskwitness.config import PatchSettings
from maskwitness.geometry import axes, invert
from maskwitness.kernels.sampling import sample_into
from maskwitness.records import Frames, Graph, Patches, Scan


def sample_patches(scan: Scan, graph: Graph, frames: Frames, settings: PatchSettings) -> Patches:
    """Cut, normalise and round a patch at each point.

    Method: M6, M7, M8
    """
    inside = circle(settings.size)
    points = len(graph.points_vox)
    image = np.empty((points, *inside.shape), np.uint8)
    mask = np.empty((points, *inside.shape), np.uint8)
    numbers = np.empty((points, 5))
    sample_into(
        scan.image.data,
        scan.mask,
        (float(scan.image.slope), float(scan.image.intercept)),
        graph.points_vox,
        _across(frames, scan.affine),
        settings.step_mm,
        inside,
        image,
        mask,
        numbers,
    )
    low, high, lumen, count, beyond = numbers.T
    return Patches(
        image=image,
        mask=np.packbits(mask.reshape(points, -1), axis=1),
        has_image=high > low,
        low_hu=low.copy(),
        high_hu=high.copy(),
        lumen_hu=np.where(count > 0, lumen / np.maximum(count, 1), np.nan),
        area_mm2=count * settings.step_mm**2,
        angle_deg=angles_to_axes(frames.tangent, scan.affine),
        outside=beyond / settings.size**2,
    )


def circle(size: int) -> Bool[np.ndarray, "u v"]:
    """Return which samples lie inside the inscribed circle, by integers.

    Method: M7
    """
    offset = 2 * np.arange(size) - (size - 1)
    return offset[:, None] ** 2 + offset[None, :] ** 2 <= size**2


def angles_to_axes(
    tangent: Float64[np.ndarray, "points 3"], affine: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, " points"]:
    """Return the angle between each tangent and the nearest image axis, 0 to 54.7 degrees."""
    x, y, z = tangent.T
    cosines = [np.abs((x * ax + y * ay) + z * az) for ax, ay, az in axes(affine)]
    return np.degrees(np.arccos(np.minimum(1.0, np.maximum.reduce(cosines))))


def _across(
    frames: Frames, affine: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, "points 2 3"]:
    # Normal and binormal as steps in voxels.
    linear = invert(affine)[:3, :3]
    turned = [
        (linear[:, 0] * v[:, 0:1] + linear[:, 1] * v[:, 1:2]) + linear[:, 2] * v[:, 2:3]
        for v in (frames.normal, frames.binormal)
    ]
    return np.stack(turned, axis=1)
