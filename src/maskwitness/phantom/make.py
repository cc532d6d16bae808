"""One phantom scan from its settings: anatomy, image, truth, and the mask as drawn."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt16

from maskwitness.errors import InputError
from maskwitness.phantom import anatomy, drawing, lesions, mistakes, planting, scanner, tissue
from maskwitness.phantom import vessels as growth
from maskwitness.phantom.anatomy import Heart
from maskwitness.phantom.lesions import Calcium
from maskwitness.phantom.planting import Planted, Plot
from maskwitness.phantom.records import Arteries, PhantomScan, PlantedError, Tubes
from maskwitness.phantom.scanner import Style
from maskwitness.phantom.settings import (
    SIZES,
    PhantomSettings,
    check_settings,
    random_streams,
)
from maskwitness.records import Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything of a scan that is decided before a voxel is painted or drawn."""

    style: Style
    heart: Heart
    arteries: Arteries
    veins: Tubes
    calcium: Calcium
    affine: Float64[np.ndarray, "4 4"]


def make_scan(settings: PhantomSettings, index: int) -> PhantomScan:
    """Return scan number ``index`` (from 0). The same settings give the same scan, bit for bit.

    Image and truth depend on size, seed and index alone: the noise setting and the biases change
    only what the annotator drew.
    """
    check_settings(settings)
    if not 0 <= index < settings.scans:
        message = f"there is no scan {index}: the settings ask for {settings.scans}, from 0"
        raise InputError(message)
    streams = random_streams(settings, index)
    plan = lay_out(settings, streams)
    truth = drawing.draw_faithfully(plan.arteries)
    plot = plant(settings, plan, streams["errors"])
    masks = drawing.fill_masks(
        truth, plot.drawing, plan.affine, plan.style.shape, settings.jitter_vox, streams["jitter"]
    )
    error_map, errors = _count(masks.error_map, plot.errors)
    canvas = tissue.Canvas(plan.style, plan.affine, streams["anatomy"])
    volume = tissue.paint_scan(
        canvas, plan.style, plan.heart, plan.arteries, plan.veins, plan.calcium
    )
    voxels = scanner.expose(volume, plan.style, streams["noise"])
    return PhantomScan(
        name=f"phantom_{index:03d}",
        image=Volume(data=voxels, affine=plan.affine),
        drawn=masks.drawn,
        truth=masks.truth,
        error_map=error_map,
        errors=errors,
        arteries=plan.arteries,
        veins=plan.veins,
    )


def lay_out(settings: PhantomSettings, streams: dict[str, np.random.Generator]) -> Layout:
    """Draw patient, vessels, disease and field of view."""
    size = SIZES[settings.size]
    style = scanner.draw_style(streams["style"], size)
    heart = anatomy.build_heart(streams["anatomy"])
    arteries = growth.grow_arteries(heart, streams["vessels"], style.cutoff_mm)
    veins = growth.grow_veins(arteries, heart, streams["vessels"])
    arteries, calcium = lesions.add_lesions(arteries, streams["lesions"])
    arteries = lesions.add_motion(arteries, style.motion_mm, streams["lesions"])
    middle = _look_where(arteries, style, size.whole_heart, streams["style"])
    return Layout(
        style=style,
        heart=heart,
        arteries=arteries,
        veins=veins,
        calcium=calcium,
        affine=scanner.place_grid(style, middle),
    )


def plant(settings: PhantomSettings, plan: Layout, rng: np.random.Generator) -> Plot:
    """Return the drawing of the plan with the planted errors in it."""
    plot = planting.survey(
        plan.arteries,
        plan.veins,
        plan.heart,
        drawing.draw_faithfully(plan.arteries),
        settings,
        (plan.affine, plan.style.shape),
        rng,
    )
    mistakes.plant_errors(plot)
    return plot


def _look_where(
    arteries: Arteries, style: Style, whole: bool, rng: np.random.Generator
) -> Float64[np.ndarray, " 3"]:
    """Return the middle of the field of view: the heart's, or where there is much to draw."""
    if whole:
        return rng.normal(0.0, 3.0, 3)
    points = arteries.tubes.points_mm[arteries.annotated]
    inverse = np.linalg.inv(style.linear)
    half = np.array(style.shape) / 2 - 4
    candidates = points[::20]
    seen = [_inside(points, middle, inverse, half).sum() for middle in candidates]
    best = np.argsort(seen, kind="stable")[-max(1, len(seen) // 6) :]
    middle = candidates[int(rng.choice(best))]
    return 0.5 * (middle + points[_inside(points, middle, inverse, half)].mean(axis=0))


def _inside(
    points: Float64[np.ndarray, "points 3"],
    middle: Float64[np.ndarray, " 3"],
    inverse: Float64[np.ndarray, "3 3"],
    half_vox: Float64[np.ndarray, " 3"],
) -> np.ndarray:
    return (np.abs((points - middle) @ inverse.T) < half_vox).all(axis=1)


def _count(
    error_map: UInt16[np.ndarray, "i j k"], planted: list[Planted]
) -> tuple[UInt16[np.ndarray, "i j k"], tuple[PlantedError, ...]]:
    """Renumber the errors that changed any voxel, alike in map and table."""
    counts = np.bincount(error_map[error_map > 0], minlength=len(planted) + 1)
    number = np.zeros(len(planted) + 1, dtype=np.uint16)
    rows: list[PlantedError] = []
    for old, error in enumerate(planted, start=1):
        if counts[old] == 0:  # outside the volume, or smaller than a voxel
            continue
        number[old] = len(rows) + 1
        rows.append(_row(error, len(rows) + 1, int(counts[old])))
    renumbered = np.asfortranarray(number[error_map])
    return renumbered, tuple(rows)


def _row(error: Planted, number: int, changed: int) -> PlantedError:
    path = error.path_mm
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    # a missing branch has several arms: what joins the end of one to the next is no vessel
    length = error.magnitude_mm if error.kind == "missing_branch" else float(steps.sum())
    return PlantedError(
        error=number,
        kind=error.kind,
        branch=error.branch,
        start_mm=_place(path[0]),
        centre_mm=_place(error.centre_mm),
        end_mm=_place(path[-1]),
        length_mm=length,
        magnitude_mm=error.magnitude_mm,
        angle_deg=error.angle_deg,
        radius_mm=error.radius_mm,
        changed_voxels=changed,
        systematic=error.systematic,
    )


def _place(point: Float64[np.ndarray, " 3"]) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in point)
    return x, y, z
