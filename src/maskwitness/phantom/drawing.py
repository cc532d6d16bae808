"""What the annotator draws: tubes that may be edited, and the masks that follow from them.

An error is an edit of the tubes, never of voxels, so that it has a place, a length and a size in
millimetres. The annotator's ordinary unsteadiness is a smooth random field that is added to the
signed distance. Clean and erroneous mask share that field, so where they differ, an error did it.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64, UInt8, UInt16

from maskwitness import geometry
from maskwitness.kernels import phantom_noise, phantom_paint
from maskwitness.phantom.records import Arteries, Tubes
from maskwitness.phantom.tissue import affine_of, box_around

JITTER_PITCH_MM = 1.6  # over this distance the annotator's hand wanders
REACH_MM = 0.6  # how far outside a tube its distance is computed: beyond any jitter


@dataclass(slots=True)
class Drawing:
    """The tubes as drawn; errors edit the arrays in place and append tubes of their own."""

    points_mm: Float64[np.ndarray, "points 3"]
    radius_mm: Float64[np.ndarray, " points"]
    branch: Int32[np.ndarray, " points"]
    present: Bool[np.ndarray, " points"]
    stair_mm: Float64[np.ndarray, " points"]
    error: Int64[np.ndarray, " points"]

    def append(self, points_mm: Float64[np.ndarray, "new 3"], radius_mm: float, error: int) -> None:
        """Draw one more tube, that no vessel lies under."""
        count = len(points_mm)
        number = int(self.branch.max()) + 1
        self.points_mm = np.concatenate([self.points_mm, points_mm])
        self.radius_mm = np.concatenate([self.radius_mm, np.full(count, radius_mm)])
        self.branch = np.concatenate([self.branch, np.full(count, number, dtype=np.int32)])
        self.present = np.concatenate([self.present, np.ones(count, dtype=bool)])
        self.stair_mm = np.concatenate([self.stair_mm, np.zeros(count)])
        self.error = np.concatenate([self.error, np.full(count, error)])

    @property
    def tubes(self) -> Tubes:
        """Place, width and branch of every point, present or not."""
        return Tubes(points_mm=self.points_mm, radius_mm=self.radius_mm, branch=self.branch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """The three masks of a scan and whose error each changed voxel is."""

    truth: UInt8[np.ndarray, "i j k"]
    drawn: UInt8[np.ndarray, "i j k"]
    error_map: UInt16[np.ndarray, "i j k"]


def draw_faithfully(arteries: Arteries) -> Drawing:
    """Return the drawing of an annotator who makes no mistakes."""
    count = len(arteries.annotated)
    return Drawing(
        points_mm=arteries.tubes.points_mm.copy(),
        radius_mm=arteries.tubes.radius_mm.copy(),
        branch=arteries.tubes.branch.copy(),
        present=arteries.annotated.copy(),
        stair_mm=np.zeros(count),
        error=np.zeros(count, dtype=np.int64),
    )


def fill_masks(
    truth: Drawing,
    drawn: Drawing,
    affine: Float64[np.ndarray, "4 4"],
    shape: tuple[int, int, int],
    jitter_vox: float,
    rng: np.random.Generator,
) -> Masks:
    """Return the masks of a true and an erroneous drawing, on the whole grid."""
    everything = np.concatenate([truth.points_mm[truth.present], drawn.points_mm[drawn.present]])
    box = box_around(everything, 5.0, affine, shape)
    slip = _slips(affine, shape[2], rng)[box[2]]
    part = affine_of(box, affine)
    size = tuple(side.stop - side.start for side in box)
    true_mm, true_owner = _measure(truth, part, size, slip)
    drawn_mm, drawn_owner = _measure(drawn, part, size, slip)
    near = (np.abs(true_mm) < REACH_MM) | (np.abs(drawn_mm) < REACH_MM)
    field = _hand(affine, shape, jitter_vox, rng)
    wobble = _jitter(near, np.array([side.start for side in box]), field, affine)
    clean = true_mm + wobble <= 0
    noisy = drawn_mm + wobble <= 0
    # a segment has an error where either of its ends has
    before, after = _errors_of_segments(truth, drawn), _errors_of_segments(drawn, drawn)
    errors = np.zeros(size, dtype=np.uint16, order="F")
    gone, new = clean & ~noisy, noisy & ~clean
    errors[gone] = before[true_owner[gone]]
    errors[new] = after[drawn_owner[new]]
    grid = [np.zeros(shape, dtype=kind, order="F") for kind in (np.uint8, np.uint8, np.uint16)]
    for whole, some in zip(grid, (true_mm <= 0, noisy, errors), strict=True):
        whole[box] = some
    return Masks(truth=grid[0], drawn=grid[1], error_map=grid[2])


def _measure(
    drawing: Drawing,
    affine: Float64[np.ndarray, "4 4"],
    size: tuple[int, ...],
    slip: Float64[np.ndarray, "k 3"],
) -> tuple[Float32[np.ndarray, "i j k"], Int32[np.ndarray, "i j k"]]:
    distance = np.full(size, 99.0, dtype=np.float32, order="F")
    owner = np.full(size, -1, dtype=np.int32, order="F")
    phantom_paint.measure_tubes_into(
        distance,
        owner,
        affine,
        geometry.invert(affine),
        drawing.points_mm,
        drawing.radius_mm,
        drawing.branch,
        drawing.present,
        drawing.stair_mm,
        slip,
        REACH_MM,
    )
    return distance, owner


def _errors_of_segments(drawing: Drawing, errors: Drawing) -> UInt16[np.ndarray, " points"]:
    here = errors.error[: len(drawing.error)]
    return np.maximum(here, np.append(here[1:], 0)).astype(np.uint16)


def _slips(
    affine: Float64[np.ndarray, "4 4"], slices: int, rng: np.random.Generator
) -> Float64[np.ndarray, "k 3"]:
    """Where each slice of a staircase is displaced to: a direction in the slice's own plane."""
    held = np.cumsum(rng.random(slices) < 0.7)  # some slices are copied from the one before
    turn = rng.uniform(0.0, 2.0 * math.pi, slices + 1)[held]
    first, second, _ = geometry.axes(affine)
    return np.cos(turn)[:, None] * first + np.sin(turn)[:, None] * second


def _hand(
    affine: Float64[np.ndarray, "4 4"],
    shape: tuple[int, int, int],
    jitter_vox: float,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "a b c"]:
    """Return the annotator's unsteadiness in millimetres, on a coarse grid over the volume.

    It does not depend on what is drawn, so that all noise settings share it.
    """
    spacing = geometry.spacing_mm(affine)
    a, b, c = (int(n) + 2 for n in np.ceil(np.array(shape) * spacing / JITTER_PITCH_MM))
    # linear interpolation between samples leaves (2/3)^3 of the variance on average
    deviation_mm = jitter_vox * float(spacing.min()) / (2.0 / 3.0) ** 1.5
    return deviation_mm * rng.normal(size=(a, b, c))


def _jitter(
    near: Bool[np.ndarray, "i j k"],
    first: Int64[np.ndarray, " 3"],
    field: Float64[np.ndarray, "a b c"],
    affine: Float64[np.ndarray, "4 4"],
) -> Float32[np.ndarray, "i j k"]:
    """Return the unsteadiness near a surface; 0 elsewhere. ``first`` is the box's first voxel."""
    places = np.nonzero(near)
    at = (np.stack(places, axis=1) + first) * (geometry.spacing_mm(affine) / JITTER_PITCH_MM)
    values = np.zeros(len(at))
    phantom_noise.sample_into(values, at, field)
    out = np.zeros(near.shape, dtype=np.float32, order="F")
    out[places] = values
    return out
