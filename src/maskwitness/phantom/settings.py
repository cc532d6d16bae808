"""What can be asked of a phantom, and the sizes and noise settings that it comes in."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from maskwitness.errors import ConfigError

Size = Literal["small", "medium", "imagecas"]
Noise = Literal["none", "local", "heavy", "systematic"]

OBLIQUE_DEG = 30.0  # a point whose tangent is farther from every image axis is oblique
THIN_MM = 1.0  # a point of smaller radius is thin


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomSettings:
    """One data set. The scans and their vessels depend on ``size`` and ``seed`` alone."""

    scans: int = 12
    size: Size = "small"
    noise: Noise = "local"
    seed: int = 0
    oblique_bias: float = 1.0  # rate of error centres on oblique points, relative to the others
    thin_bias: float = 1.0  # the same for thin points; both: the product
    jitter_vox: float = 0.045  # standard deviation of the drawn boundary, in smallest voxel steps
    error_share: float | None = None  # of the drawn length; None: what the noise setting says


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSize:
    """The voxels of a phantom of one size, before each scan varies them."""

    shape: tuple[int, int, int]
    spacing_mm: tuple[float, float, float]
    whole_heart: bool  # else the field of view is set on the part with the most vessel


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevel:
    """How often and how far the annotator errs."""

    share: float  # of the annotated length that lies in a planted stretch
    strength: float  # multiplies every magnitude
    oblique_too_wide: bool = False


SIZES: dict[str, GridSize] = {
    "small": GridSize(shape=(96, 96, 80), spacing_mm=(0.5, 0.5, 0.5), whole_heart=False),
    "medium": GridSize(shape=(192, 192, 128), spacing_mm=(0.4, 0.4, 0.5), whole_heart=False),
    "imagecas": GridSize(shape=(512, 512, 275), spacing_mm=(0.35, 0.35, 0.5), whole_heart=True),
}

NOISES: dict[str, NoiseLevel] = {
    "none": NoiseLevel(share=0.0, strength=1.0),
    "local": NoiseLevel(share=0.07, strength=1.0),
    "heavy": NoiseLevel(share=0.20, strength=1.35),
    "systematic": NoiseLevel(share=0.07, strength=1.0, oblique_too_wide=True),
}


def check_settings(settings: PhantomSettings) -> None:
    """Raise :class:`ConfigError` for a phantom that cannot be made."""
    share = settings.error_share
    rules = [
        (settings.scans >= 1, "scans must be at least 1"),
        (settings.seed >= 0, "seed must not be negative"),
        (settings.size in SIZES, f"size must be one of {', '.join(get_args(Size))}"),
        (settings.noise in NOISES, f"noise must be one of {', '.join(get_args(Noise))}"),
        (1 <= settings.oblique_bias < math.inf, "oblique_bias must be 1 or more"),
        (1 <= settings.thin_bias < math.inf, "thin_bias must be 1 or more"),
        (0 <= settings.jitter_vox <= 1, "jitter_vox must lie between 0 and 1"),
        (share is None or 0 <= share <= 0.4, "error_share must lie between 0 and 0.4"),
    ]
    for holds, message in rules:
        if not holds:
            raise ConfigError(message)


def random_streams(settings: PhantomSettings, index: int) -> dict[str, np.random.Generator]:
    """Return one generator for each concern, so that a change to one leaves the others alone.

    The noise setting is no part of the seed: the same scan comes in clean and in noisy drawings.
    """
    names = ("style", "anatomy", "vessels", "lesions", "noise", "jitter", "errors")
    root = np.random.SeedSequence(entropy=settings.seed, spawn_key=(index,))
    return {
        name: np.random.default_rng(child)
        for name, child in zip(names, root.spawn(len(names)), strict=True)
    }
