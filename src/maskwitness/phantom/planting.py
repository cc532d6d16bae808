"""Where errors can be planted: a survey of the points, and their rates.

Places are drawn point by point: the rate of error centres per millimetre of annotated vessel is
multiplied by ``oblique_bias`` on oblique points and by ``thin_bias`` on thin ones. The total length
of all stretches is what the noise setting says, whatever the biases: they move errors, they do not
add any. False branches have no vessel under them and are placed without bias.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.spatial import cKDTree

from maskwitness import geometry
from maskwitness.phantom.anatomy import Heart
from maskwitness.phantom.drawing import Drawing
from maskwitness.phantom.records import Arteries, Tubes
from maskwitness.phantom.settings import NOISES, OBLIQUE_DEG, THIN_MM, PhantomSettings
from maskwitness.phantom.vessels import STEP_MM

MARGIN_MM = 1.2  # between two errors, and between an error and the edge of the volume


@dataclass(slots=True)
class Planted:
    """An error as planted, before anyone has counted voxels."""

    kind: str
    branch: int
    path_mm: Float64[np.ndarray, "path 3"]
    centre_mm: Float64[np.ndarray, " 3"]  # where the dice fell: biases apply to this point
    magnitude_mm: float
    angle_deg: float
    radius_mm: float
    systematic: bool = False


@dataclass(slots=True)
class Plot:
    """Where errors can be planted, and those that have been."""

    arteries: Arteries
    veins: Tubes
    heart: Heart
    drawing: Drawing
    settings: PhantomSettings
    affine: Float64[np.ndarray, "4 4"]
    rng: np.random.Generator
    angle_deg: Float64[np.ndarray, " points"]
    eligible: Bool[np.ndarray, " points"]  # annotated, well inside the volume
    free: Bool[np.ndarray, " points"]
    vein_gap_mm: Float64[np.ndarray, " points"]  # between the walls of artery and nearest vein
    vein_point: Int64[np.ndarray, " points"]
    errors: list[Planted] = field(default_factory=list)

    @property
    def strength(self) -> float:
        """What the noise setting multiplies magnitudes by."""
        return NOISES[self.settings.noise].strength

    @property
    def next_number(self) -> int:
        """The number of the error that is planted now."""
        return len(self.errors) + 1

    def weights(self, *, biased: bool = True) -> Float64[np.ndarray, " points"]:
        """Return the rate of error centres at each point, relative to an unbiased one."""
        rate = (self.eligible & self.free).astype(np.float64)
        if biased:
            radius = self.arteries.tubes.radius_mm
            rate *= np.where(self.angle_deg > OBLIQUE_DEG, self.settings.oblique_bias, 1.0)
            rate *= np.where(radius < THIN_MM, self.settings.thin_bias, 1.0)
        return rate

    def stretch(self, centre: int, length_mm: float) -> Int64[np.ndarray, " stretch"]:
        """Return the points about a centre on its branch; none where another error is near."""
        half = max(1, round(0.5 * length_mm / STEP_MM))
        margin = math.ceil(MARGIN_MM / STEP_MM)
        around = np.arange(centre - half - margin, centre + half + margin + 1)
        around = around[(around >= 0) & (around < len(self.free))]
        own = self.arteries.tubes.branch[around] == self.arteries.tubes.branch[centre]
        around = around[own & self.arteries.annotated[around]]
        inside = around[np.abs(around - centre) <= half]
        enough = len(inside) >= max(3, 0.6 * (2 * half + 1))
        return inside if enough and self.free[around].all() else inside[:0]

    def take(self, points: Int64[np.ndarray, " stretch"]) -> None:
        """Keep other errors away from these points."""
        margin = math.ceil(MARGIN_MM / STEP_MM)
        for point in points:
            self.free[max(0, point - margin) : point + margin + 1] = False


def survey(
    arteries: Arteries,
    veins: Tubes,
    heart: Heart,
    drawing: Drawing,
    settings: PhantomSettings,
    grid: tuple[Float64[np.ndarray, "4 4"], tuple[int, int, int]],
    rng: np.random.Generator,
) -> Plot:
    """Measure what the planting needs to know of every point."""
    affine, shape = grid
    points = arteries.tubes.points_mm
    spacing = geometry.spacing_mm(affine)
    at = geometry.to_world(points, geometry.invert(affine))
    edge = 2.0 / spacing
    inside = ((at > edge) & (at < np.array(shape) - 1 - edge)).all(axis=1)
    distance, nearest = cKDTree(veins.points_mm).query(points)
    return Plot(
        arteries=arteries,
        veins=veins,
        heart=heart,
        drawing=drawing,
        settings=settings,
        affine=affine,
        rng=rng,
        angle_deg=_angles(points, arteries, affine),
        eligible=arteries.annotated & inside,
        free=np.ones(len(points), dtype=bool),
        vein_gap_mm=distance - arteries.tubes.radius_mm - veins.radius_mm[nearest],
        vein_point=np.asarray(nearest, dtype=np.int64),
    )


def _angles(
    points: Float64[np.ndarray, "points 3"], arteries: Arteries, affine: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, " points"]:
    """Return each point's angle to the nearest image axis, over a millimetre and a half."""
    ahead = np.zeros_like(points)
    for branch in range(len(arteries.parent)):
        at = np.flatnonzero(arteries.tubes.branch == branch)
        after, before = np.minimum(at + 2, at[-1]), np.maximum(at - 2, at[0])
        ahead[at] = points[after] - points[before]
    return angle_to_axes(ahead, affine)


def angle_to_axes(
    directions: Float64[np.ndarray, "points 3"], affine: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, " points"]:
    """Return the angle of each direction to the image axis nearest to it."""
    length = np.maximum(np.linalg.norm(directions, axis=1), 1e-9)
    along = np.abs(directions @ geometry.axes(affine).T).max(axis=1) / length
    return np.rad2deg(np.arccos(np.clip(along, 0.0, 1.0)))
