"""The vocabulary: plain records that travel between the steps, and the legend of their axes.

Words
    **scan** image + mask. **point** one place on a centreline. **branch** the points between two
    junctions or ends. **frame** tangent, normal, binormal at a point. **patch** the image and mask
    cut on the frame's normal plane. **witness** of a patch: another patch whose image is
    near-identical. **pair** patch + witness. **residual** of a pair: how unusual their mask
    disagreement is, given how alike their images are. **score** of a patch: the median of its
    residuals. **finding** a run of badly scored patches on one branch. **quality map** the voxel
    field Q in [0, 1]. **run** the directory that an audit writes.

Axes
    ``i j k`` voxel axes of a volume, in file order; ``points`` centreline points of one scan;
    ``branches`` branches of one scan; ``patches`` patches of a data set; ``u v`` samples of a
    patch along normal and binormal; ``pairs`` patch-witness pairs in order of their patch.

Units
    ``_mm`` world millimetres (RAS+), ``_vox`` voxel indices, ``_hu`` intensity in the file's own
    unit after rescaling (HU for CT), ``_deg`` degrees. ``dist2`` is an integer, see Method M9.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, Shaped, UInt8, UInt16


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Voxels and where they lie. The value of a voxel is ``slope * data + intercept``."""

    data: Shaped[np.ndarray, "i j k"]
    affine: Float64[np.ndarray, "4 4"]
    slope: float = 1.0
    intercept: float = 0.0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of voxels along i, j and k."""
        i, j, k = self.data.shape
        return i, j, k


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """An image and the one mask that somebody drew on it, on the same grid."""

    name: str
    image: Volume
    mask: UInt8[np.ndarray, "i j k"]  # 1 inside the vessel, 0 outside

    @property
    def affine(self) -> Float64[np.ndarray, "4 4"]:
        """Voxel indices to world millimetres, for image and mask alike."""
        return self.image.affine


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The centreline: points in branches. A junction stands once in each branch that meets it.

    Points are sorted by branch, then by order along the branch, from the root outward.
    """

    points_vox: Float64[np.ndarray, "points 3"]
    points_mm: Float64[np.ndarray, "points 3"]
    radius_mm: Float64[np.ndarray, " points"]  # of the largest ball inside the mask
    branch: Int32[np.ndarray, " points"]
    order: Int32[np.ndarray, " points"]
    arc_mm: Float64[np.ndarray, " points"]  # along the branch, from its first point
    parent: Int32[np.ndarray, " branches"]  # the branch that was walked to get here, -1: none
    filled_voxels: int = 0  # cavities closed before thinning


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """An orthonormal frame at each point: b = t × n."""

    tangent: Float64[np.ndarray, "points 3"]
    normal: Float64[np.ndarray, "points 3"]
    binormal: Float64[np.ndarray, "points 3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """The canonical patches of one scan and what was measured on them."""

    image: UInt8[np.ndarray, "points u v"]
    mask: UInt8[np.ndarray, "points bytes"]  # numpy.packbits of the circle-masked u × v mask
    has_image: Bool[np.ndarray, " points"]  # False where every sample had the same value
    low_hu: Float64[np.ndarray, " points"]
    high_hu: Float64[np.ndarray, " points"]
    lumen_hu: Float64[np.ndarray, " points"]  # mean inside the patch's mask; NaN where it is empty
    area_mm2: Float64[np.ndarray, " points"]
    angle_deg: Float64[np.ndarray, " points"]  # tangent to the nearest image axis
    outside: Float64[np.ndarray, " points"]  # fraction of the samples outside the volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All that later steps need to know of one scan."""

    graph: Graph
    frames: Frames
    patches: Patches


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """The patches of a whole data set, as the join sees them.

    Two patches may not testify for each other where they have the same ``group`` and their
    ``position_um`` differ by no more than the reach that the settings give.
    """

    image: UInt8[np.ndarray, "patches u v"]
    mask: UInt8[np.ndarray, "patches bytes"]
    has_image: Bool[np.ndarray, " patches"]
    group: Int64[np.ndarray, " patches"]
    position_um: Int64[np.ndarray, " patches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Witnesses of the patches ``first … first + rows - 1``, nearest first, ties by lowest index.

    The witnesses of row ``r`` are ``witness[offset[r]:offset[r + 1]]``.
    """

    first: int
    offset: Int64[np.ndarray, " rows_plus_1"]
    witness: Int32[np.ndarray, " pairs"]
    dist2: Int32[np.ndarray, " pairs"]
    intersection: UInt16[np.ndarray, " pairs"]
    union: UInt16[np.ndarray, " pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What mask disagreement is usual at each image distance: one row a bin."""

    low: Float64[np.ndarray, " bins"]  # MSE
    high: Float64[np.ndarray, " bins"]
    count: Int64[np.ndarray, " bins"]
    mean: Float64[np.ndarray, " bins"]  # of the mask distance; NaN where unknown
    std: Float64[np.ndarray, " bins"]
    min_iou: Float64[np.ndarray, " bins"]
    used: Bool[np.ndarray, " bins"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One row a patch: the median residual, or NaN with the reason why there is none."""

    residual: Float64[np.ndarray, " patches"]
    witnesses: Int64[np.ndarray, " patches"]
    reason: Shaped[np.ndarray, " patches"]  # object array of str, "" where scored
    usual_area: Float64[np.ndarray, " patches"]  # median of the witnesses' masks, in samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A run of badly scored points on one branch: one place for a reviewer to look at."""

    scan: str
    branch: int
    first_patch: int
    worst_patch: int
    points: int
    start_mm: tuple[float, float, float]
    centre_mm: tuple[float, float, float]
    end_mm: tuple[float, float, float]
    length_mm: float
    worst_score: float
    mean_score: float
    kind: str
