"""The records of a phantom: tubes, the scan as made, and what was planted in its mask."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int32, UInt8, UInt16

from maskwitness.records import Scan, Volume

KINDS = (
    "too_wide",
    "too_narrow",
    "shifted",
    "gap",
    "leak",
    "staircase",
    "missing_branch",
    "false_branch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tubes:
    """Tapered tubes: neighbouring points of one branch are joined."""

    points_mm: Float64[np.ndarray, "points 3"]
    radius_mm: Float64[np.ndarray, " points"]
    branch: Int32[np.ndarray, " points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arteries:
    """The coronary trees as they are. ``parent`` -1: the branch begins at the aorta."""

    tubes: Tubes
    parent: Int32[np.ndarray, " branches"]
    parent_point: Int32[np.ndarray, " branches"]  # the point from which the branch springs
    wall_mm: Float64[np.ndarray, " points"]  # outer radius; plaque lies between it and the lumen
    strength: Float64[np.ndarray, " points"]  # contrast, relative to the aorta
    motion_mm: Float64[np.ndarray, "points 3"]  # half the way that the point moves
    annotated: Bool[np.ndarray, " points"]  # belongs to the truth


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedError:
    """One error of the annotator.

    ``magnitude_mm`` is how much wider or narrower the radius was drawn, how far the tube was
    shifted (staircase: each slice), the length left out (gap, missing branch), the radius of what
    was drawn too much (leak, false branch). ``angle_deg`` to the nearest image axis and
    ``radius_mm`` are those of the vessel at the centre; for a false branch the angle is its own.
    """

    error: int  # 1 … n within the scan: the value in the error map
    kind: str
    branch: int
    start_mm: tuple[float, float, float]
    centre_mm: tuple[float, float, float]
    end_mm: tuple[float, float, float]
    length_mm: float
    magnitude_mm: float
    angle_deg: float
    radius_mm: float
    changed_voxels: int
    systematic: bool = False  # part of "everything oblique is drawn too wide"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomScan:
    """One scan, its two masks, and where they differ by a planted error."""

    name: str
    image: Volume
    drawn: UInt8[np.ndarray, "i j k"]
    truth: UInt8[np.ndarray, "i j k"]
    error_map: UInt16[np.ndarray, "i j k"]
    errors: tuple[PlantedError, ...]
    arteries: Arteries
    veins: Tubes

    @property
    def scan(self) -> Scan:
        """What an auditor is given: the image and the drawn mask."""
        return Scan(name=self.name, image=self.image, mask=self.drawn)
