"""The scanner of a phantom: its grid, its blur and its noise.

In: a volume of tissue. Out: whole HU on an oblique grid, left- or right-handed, with noise that is
correlated between neighbouring voxels, as a reconstruction filter leaves it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float32, Float64, Int16
from scipy.spatial.transform import Rotation
from scipy.special import chndtr

from maskwitness.kernels import phantom_noise
from maskwitness.phantom.settings import GridSize

TEXTURE_VOX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What differs from one scan to the next: scanner, contrast agent, patient, annotator."""

    shape: tuple[int, int, int]
    linear: Float64[np.ndarray, "3 3"]  # of the affine: columns are voxel steps
    lumen_hu: float
    right_heart_hu: float
    vein_hu: float
    muscle_hu: float
    fat_hu: float
    blur_mm: float  # standard deviation of the point spread
    noise_hu: float
    motion_mm: float
    copies: int  # 2: a doubled edge, more: a smear
    cutoff_mm: float  # thinner branches are not annotated


def draw_style(rng: np.random.Generator, size: GridSize) -> Style:
    """Draw the style of one scan."""
    shape = np.array(size.shape)
    spacing = np.array(size.spacing_mm)
    if size.whole_heart:
        shape[2] = rng.integers(256, 289)
        spacing[:2] = rng.uniform(0.31, 0.41)
    else:
        spacing[:2] *= rng.uniform(0.9, 1.1)
        spacing[2] *= rng.uniform(0.9, 1.1)
    lumen = rng.uniform(320.0, 480.0)
    return Style(
        shape=(int(shape[0]), int(shape[1]), int(shape[2])),
        linear=_direction(rng) * spacing,
        lumen_hu=lumen,
        right_heart_hu=rng.uniform(130.0, 0.85 * lumen),
        vein_hu=rng.uniform(110.0, min(250.0, 0.7 * lumen)),
        muscle_hu=rng.uniform(90.0, 125.0),
        fat_hu=rng.uniform(-105.0, -80.0),
        blur_mm=rng.uniform(0.32, 0.46),
        noise_hu=rng.uniform(12.0, 27.0),
        motion_mm=rng.uniform(0.35, 0.95) if rng.random() < 0.45 else 0.0,
        copies=2 if rng.random() < 0.5 else 5,
        cutoff_mm=rng.uniform(0.46, 0.56),
    )


def _direction(rng: np.random.Generator) -> Float64[np.ndarray, "3 3"]:
    """LAS as ImageCAS has it, LPS as scanners have it, or RAS; half of them tilted."""
    flips = np.array([[-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0], [1.0, 1.0, 1.0]])
    flip = flips[rng.choice(3, p=[0.5, 0.3, 0.2])]
    axis = rng.normal(size=3)
    tilt = rng.uniform(2.0, 12.0) if rng.random() < 0.5 else 0.0
    turn = Rotation.from_rotvec(math.radians(tilt) * axis / np.linalg.norm(axis))
    return turn.as_matrix() * flip


def place_grid(style: Style, middle_mm: Float64[np.ndarray, " 3"]) -> Float64[np.ndarray, "4 4"]:
    """Return the affine of a grid whose middle lies at a place in the world."""
    affine = np.eye(4)
    affine[:3, :3] = style.linear
    affine[:3, 3] = middle_mm - style.linear @ ((np.array(style.shape) - 1) / 2)
    # NIfTI keeps float32: what is written and what was made must be the same grid
    return affine.astype(np.float32).astype(np.float64)


@lru_cache(maxsize=1)
def blur_table() -> Float64[np.ndarray, "r d"]:
    """Return the share of a Gaussian that falls on a disc, see ``phantom_paint.covered``.

    Exact: the squared distance of a blurred point from the disc's centre follows a noncentral
    chi-squared law with two degrees of freedom. A disc thinner than the blur loses contrast.
    """
    radius = np.arange(81)[:, None] / 10.0
    distance = np.maximum(radius + np.arange(-60, 41)[None, :] / 10.0, 0.0)
    return np.nan_to_num(chndtr(np.broadcast_to(radius**2, distance.shape), 2.0, distance**2))


def expose(
    volume: Float32[np.ndarray, "i j k"], style: Style, rng: np.random.Generator
) -> Int16[np.ndarray, "i j k"]:
    """Return what the scanner writes of a volume of tissue."""
    noise = rng.standard_normal(volume.size, dtype=np.float32).reshape(volume.shape, order="F")
    for axis in range(3):
        taps = _taps(0.75 if axis < 2 else 0.55)
        phantom_noise.colour_into(noise, taps, axis)
    coarse = tuple(n // TEXTURE_VOX + 2 for n in volume.shape)
    texture = rng.normal(0.0, 7.0, coarse).astype(np.float32)
    out = np.zeros(volume.shape, dtype=np.int16, order="F")
    phantom_noise.expose_into(out, volume, noise, texture, TEXTURE_VOX, style.noise_hu)
    return out


def _taps(sigma_vox: float) -> Float32[np.ndarray, " taps"]:
    """Return a Gaussian minus part of a wider one: grain without slow drift, of unit variance."""
    at = np.arange(5)
    narrow = np.exp(-0.5 * (at / sigma_vox) ** 2)
    wide = np.exp(-0.5 * (at / (2.2 * sigma_vox)) ** 2)
    taps = narrow / (2 * narrow.sum() - narrow[0]) - 0.45 * wide / (2 * wide.sum() - wide[0])
    power = 2 * (taps**2).sum() - taps[0] ** 2
    return (taps / math.sqrt(power)).astype(np.float32)
