"""Tissue: the anatomy as a volume of HU, with the scanner's blur in every edge.

Painted from the outside in: body wall, lungs, bones, the fat that wraps the heart, muscle, blood;
then veins, artery walls, lumens, calcium. Each later shape covers the earlier ones.
"""

import math

import numpy as np
from jaxtyping import Float32, Float64

from maskwitness import geometry
from maskwitness.kernels import phantom_paint
from maskwitness.phantom import anatomy
from maskwitness.phantom.anatomy import Ellipsoid, Heart, ellipsoid
from maskwitness.phantom.lesions import Calcium
from maskwitness.phantom.records import Arteries, Tubes
from maskwitness.phantom.scanner import Style, blur_table

LUNG_HU = -860.0


class Canvas:
    """A volume under the brush: it owns the voxels that everything is painted into."""

    def __init__(
        self, style: Style, affine: Float64[np.ndarray, "4 4"], rng: np.random.Generator
    ) -> None:
        self.volume = np.full(style.shape, 35.0, dtype=np.float32, order="F")
        self.affine = affine
        self.blur_mm = style.blur_mm
        self.rng = rng

    def solid(self, shape: Ellipsoid, value_hu: float, wave_mm: float = 0.0) -> None:
        """Paint an ellipsoid, its surface rippled by up to ``wave_mm``."""
        directions = self.rng.normal(size=(4, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        pitch = 2 * math.pi / self.rng.uniform(8.0, 40.0, (4, 1))
        wave = np.hstack([directions * pitch, self.rng.uniform(0, 2 * math.pi, (4, 1))])
        phantom_paint.paint_ellipsoid_into(
            self.volume,
            self.affine,
            shape.centre_mm,
            shape.form,
            value_hu,
            self.blur_mm,
            wave,
            wave_mm,
        )

    def tubes(
        self,
        tubes: Tubes,
        value_hu: float,
        strength: Float64[np.ndarray, " points"] | None = None,
        motion_mm: Float64[np.ndarray, "points 3"] | None = None,
        copies: int = 1,
    ) -> None:
        """Paint tubes, as one union: overlapping ends do not add up."""
        reach = float(tubes.radius_mm.max(initial=0.0)) + 4.0
        box = box_around(tubes.points_mm, reach, self.affine, self.volume.shape)
        window = self.volume[box]
        if 0 in window.shape:
            return
        affine = affine_of(box, self.affine)
        share = np.zeros(window.shape, dtype=np.float32, order="F")
        count = len(tubes.radius_mm)
        phantom_paint.cover_tubes_into(
            share,
            affine,
            geometry.invert(affine),
            tubes.points_mm,
            tubes.radius_mm,
            np.ones(count) if strength is None else strength,
            np.zeros((count, 3)) if motion_mm is None else motion_mm,
            copies,
            tubes.branch,
            self.blur_mm,
            blur_table(),
        )
        phantom_paint.blend_into(window, share, value_hu)


def paint_scan(
    canvas: Canvas,
    style: Style,
    heart: Heart,
    arteries: Arteries,
    veins: Tubes,
    calcium: Calcium,
) -> Float32[np.ndarray, "i j k"]:
    """Paint everything and return the volume."""
    _paint_chest(canvas, style, heart)
    _paint_heart(canvas, style, heart)
    canvas.tubes(veins, style.vein_hu)
    tubes = arteries.tubes
    wall = Tubes(points_mm=tubes.points_mm, radius_mm=arteries.wall_mm, branch=tubes.branch)
    visible = np.clip((arteries.wall_mm - 0.5) / 0.5, 0.0, 1.0)
    visible *= np.clip((arteries.wall_mm - tubes.radius_mm) / 0.25, 0.0, 1.0)
    canvas.tubes(wall, 55.0, visible, arteries.motion_mm, style.copies)
    canvas.tubes(tubes, style.lumen_hu, arteries.strength, arteries.motion_mm, style.copies)
    for n, value in enumerate(calcium.value_hu):
        pair = slice(2 * n, 2 * n + 2)
        one = Tubes(
            points_mm=calcium.tubes.points_mm[pair],
            radius_mm=calcium.tubes.radius_mm[pair],
            branch=calcium.tubes.branch[pair],
        )
        canvas.tubes(one, float(value))
    return canvas.volume


def _paint_chest(canvas: Canvas, style: Style, heart: Heart) -> None:
    at = heart.place
    turn = heart.turn.T
    vessels = anatomy.great_vessels(heart)
    canvas.solid(ellipsoid(at(0.0, 0.0, 0.0), (142.0, 108.0, 400.0), turn), style.fat_hu + 5, 1.0)
    canvas.solid(ellipsoid(at(0.0, -8.0, 0.0), (133.0, 94.0, 400.0), turn), 50.0, 1.5)
    canvas.solid(ellipsoid(at(0.0, -14.0, 0.0), (121.0, 81.0, 400.0), turn), style.fat_hu + 8, 2.0)
    canvas.solid(ellipsoid(at(0.0, -112.0, 0.0), (60.0, 34.0, 400.0), turn), 52.0, 2.0)
    canvas.solid(ellipsoid(at(66.0, -20.0, 30.0), (54.0, 76.0, 120.0), turn), LUNG_HU, 1.0)
    canvas.solid(ellipsoid(at(-68.0, -20.0, 30.0), (52.0, 76.0, 120.0), turn), LUNG_HU, 1.0)
    canvas.solid(ellipsoid(at(0.0, 76.0, -10.0), (26.0, 5.5, 140.0), turn), 190.0, 0.8)
    for bone, cortex_hu, marrow_hu in (
        (anatomy.ribs(), 420.0, 150.0),
        (anatomy.backbone(heart), 330.0, 150.0),
    ):
        canvas.tubes(bone, cortex_hu)
        canvas.tubes(_thinner(bone, 1.6), marrow_hu)
    canvas.tubes(anatomy.lung_vessels(heart, canvas.rng, 170), 0.6 * style.lumen_hu)
    canvas.solid(ellipsoid(at(46.0, 0.0, -112.0), (92.0, 84.0, 66.0), turn), 105.0, 0.8)
    canvas.solid(ellipsoid(at(-52.0, 8.0, -118.0), (78.0, 74.0, 62.0), turn), 30.0, 1.0)
    canvas.tubes(vessels["oesophagus"], 40.0)
    canvas.tubes(vessels["down"], style.lumen_hu * 0.95)


def _paint_heart(canvas: Canvas, style: Style, heart: Heart) -> None:
    at = heart.place
    rng = canvas.rng
    vessels = anatomy.great_vessels(heart)
    depth = rng.uniform(5.0, 8.0)
    around = [*heart.bodies, ellipsoid(at(4.0, 2.0, 14.0), (40.0, 34.0, 44.0), heart.turn.T)]
    for body in around:  # the pericardium, a thin grey line round the fat
        canvas.solid(body.grown(depth + 1.2), 15.0, 0.5)
    for body in around:
        canvas.solid(body.grown(depth), style.fat_hu, 0.5)
    blood, right = style.lumen_hu, style.right_heart_hu
    for name, wall_hu, value in (
        ("cava", 40.0, min(right * 1.6, 900.0)),
        ("cava_below", 40.0, 110.0),
        ("left_pulmonary", 40.0, 0.5 * (right + blood)),
        ("outflow", 40.0, 0.5 * (right + blood)),
        ("veins", 40.0, blood),
        ("aorta", 50.0, blood),
    ):
        _paint_pipe(canvas, vessels[name], wall_hu, value)
    bodies = heart.bodies
    chambers = (
        (anatomy.LEFT_ATRIUM, 2.0, blood * 0.97),
        (anatomy.RIGHT_ATRIUM, 2.2, right),
        (anatomy.OUTFLOW, 2.8, 0.6 * right + 0.4 * blood),
        (anatomy.RIGHT_VENTRICLE, 3.4, right),
    )
    for number, wall, value in chambers:
        canvas.solid(bodies[number], style.muscle_hu, 0.5)
        canvas.solid(bodies[number].grown(-wall), value, 1.1)
    _paint_right_trabeculae(canvas, style, bodies[anatomy.RIGHT_VENTRICLE])
    _paint_left_ventricle(canvas, style, heart)
    canvas.solid(bodies[anatomy.AORTIC_ROOT], 60.0, 0.3)
    canvas.solid(bodies[anatomy.AORTIC_ROOT].grown(-1.4), blood, 0.5)
    for place, size in (
        ((-27.0, -14.0, 24.0), (9.0, 7.0, 8.0)),
        ((-31.0, -6.0, 20.0), (6.0, 6.0, 5.0)),
        ((24.0, 17.0, 24.0), (10.0, 8.0, 9.0)),
    ):
        lobe = ellipsoid(at(*place), size, heart.turn.T)  # the appendages of the atria
        value = blood * 0.9 if place[0] < 0 else right
        canvas.solid(lobe, style.muscle_hu, 0.8)
        canvas.solid(lobe.grown(-1.3), value, 0.8)


def _paint_pipe(canvas: Canvas, tubes: Tubes, wall_hu: float, value_hu: float) -> None:
    canvas.tubes(tubes, wall_hu)
    canvas.tubes(_thinner(tubes, 1.3), value_hu)


def _thinner(tubes: Tubes, by_mm: float) -> Tubes:
    return Tubes(points_mm=tubes.points_mm, radius_mm=tubes.radius_mm - by_mm, branch=tubes.branch)


def _paint_left_ventricle(canvas: Canvas, style: Style, heart: Heart) -> None:
    """Muscle about 9 mm thick round blood, with two papillary muscles standing in it."""
    body = heart.bodies[anatomy.LEFT_VENTRICLE]
    canvas.solid(body, style.muscle_hu + 5, 0.6)
    axis = heart.apex_mm - body.centre_mm
    long = axis / np.linalg.norm(axis)
    cavity = body.grown(-canvas.rng.uniform(8.0, 10.5)).moved(-4.0 * long)
    canvas.solid(cavity, style.lumen_hu, 1.3)
    across = np.cross(long, [0.0, 0.0, 1.0])
    for angle in (0.7, 2.6):
        away = math.cos(angle) * across + math.sin(angle) * np.cross(long, across)
        foot = body.centre_mm + 20.0 * long + 13.0 * away
        tip = body.centre_mm - 6.0 * long + 9.0 * away
        canvas.tubes(
            anatomy.tube([foot, 0.5 * (foot + tip), tip], [5.0, 4.0, 1.2]), style.muscle_hu
        )


def _paint_right_trabeculae(canvas: Canvas, style: Style, body: Ellipsoid) -> None:
    """Bundles of muscle across the right ventricle: dark lines between bright pools."""
    back = np.linalg.inv(body.form)
    for _ in range(16):
        ends = canvas.rng.normal(size=(2, 3))
        ends = 0.9 * ends / np.linalg.norm(ends, axis=1, keepdims=True)
        first = ends[0] @ back.T + body.centre_mm
        last = (ends[0] + 0.55 * (ends[1] - ends[0])) @ back.T + body.centre_mm
        middle = 0.5 * (first + last) + canvas.rng.normal(0.0, 2.0, 3)
        radius = float(canvas.rng.uniform(0.6, 1.8))
        canvas.tubes(anatomy.tube([first, middle, last], [radius] * 3), style.muscle_hu)


def box_around(
    points_mm: Float64[np.ndarray, "points 3"],
    reach_mm: float,
    affine: Float64[np.ndarray, "4 4"],
    shape: tuple[int, ...],
) -> tuple[slice, slice, slice]:
    """Return the voxels within reach of any point, as slices clipped to the grid."""
    if len(points_mm) == 0:
        return slice(0, 0), slice(0, 0), slice(0, 0)
    inverse = geometry.invert(affine)
    at = geometry.to_world(points_mm, inverse)  # the same sum, the other way round
    reach = reach_mm * np.sqrt((inverse[:3, :3] ** 2).sum(axis=1))
    low = np.clip(np.floor(at.min(axis=0) - reach), 0, shape).astype(int)
    high = np.clip(np.ceil(at.max(axis=0) + reach) + 1, 0, shape).astype(int)
    high = np.maximum(low, high)
    i, j, k = (slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
    return i, j, k


def affine_of(
    box: tuple[slice, slice, slice], affine: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, "4 4"]:
    """Return the affine of a part of a grid."""
    part = affine.copy()
    first = np.array([[float(side.start) for side in box]])
    part[:3, 3] = geometry.to_world(first, affine)[0]
    return part
