"""One scan: is it what the settings say, and does every error do what its name says?"""

from functools import cache

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, binary_erosion, label

from maskwitness import geometry
from maskwitness.errors import ConfigError, InputError
from maskwitness.phantom import KINDS, PhantomScan, PhantomSettings, make_scan
from maskwitness.phantom.drawing import Masks, draw_faithfully, fill_masks
from maskwitness.phantom.make import Layout, lay_out, plant
from maskwitness.phantom.mistakes import plant_one
from maskwitness.phantom.planting import Plot
from maskwitness.phantom.scanner import blur_table, draw_style, place_grid
from maskwitness.phantom.settings import SIZES, random_streams


@cache
def a_scan(noise: str = "local", index: int = 0, seed: int = 3) -> PhantomScan:
    return make_scan(PhantomSettings(noise=noise, seed=seed), index)  # type: ignore[arg-type]


def dice(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a > 0, b > 0
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


@cache
def one_mistake(kind: str, index: int = 0) -> tuple[Plot, Masks]:
    """A drawing without jitter and with one error."""
    settings = PhantomSettings(noise="none", seed=7)
    plan, plot = bare_plot(settings, index)
    assert plant_one(plot, kind, 60.0) > 0
    truth = draw_faithfully(plan.arteries)
    rng = np.random.default_rng(1)
    return plot, fill_masks(truth, plot.drawing, plan.affine, plan.style.shape, 0.0, rng)


def bare_plot(settings: PhantomSettings, index: int) -> tuple[Layout, Plot]:
    streams = random_streams(settings, index)
    plan = lay_out(settings, streams)
    return plan, plant(settings, plan, streams["errors"])


def changed(masks: Masks) -> tuple[np.ndarray, np.ndarray]:
    truth, drawn = masks.truth > 0, masks.drawn > 0
    return drawn & ~truth, truth & ~drawn


def voxels_of_path(plot: Plot, masks: Masks) -> np.ndarray:
    at = geometry.to_world(plot.errors[0].path_mm, geometry.invert(plot.affine))
    nearest = np.floor(at + 0.5).astype(int)
    inside = ((nearest >= 0) & (nearest < masks.truth.shape)).all(axis=1)
    return nearest[inside]


def test_a_scan_has_one_grid_and_the_promised_types():
    scan = a_scan()
    assert scan.name == "phantom_000"
    assert scan.image.data.dtype == np.int16
    assert scan.image.shape == (96, 96, 80)
    for mask in (scan.drawn, scan.truth, scan.error_map):
        assert mask.shape == scan.image.shape
        assert mask.flags.f_contiguous
    assert set(np.unique(scan.drawn)) == {0, 1}
    assert set(np.unique(scan.truth)) == {0, 1}
    assert scan.scan.mask is scan.drawn


def test_the_image_holds_lung_fat_muscle_and_blood():
    image, truth = a_scan().image.data, a_scan().truth > 0
    inner = binary_erosion(truth)
    assert image[inner].mean() > 230
    around = binary_dilation(truth, iterations=6) & ~binary_dilation(truth, iterations=3)
    assert -120 < np.median(image[around]) < 130  # fat and muscle
    assert image.min() < -800
    assert image.max() > 330


def test_vessels_that_are_not_annotated_are_in_the_image():
    """Veins are brighter than the fat round them and rightly not in the mask."""
    scan = a_scan()
    at = geometry.to_world(scan.veins.points_mm, geometry.invert(scan.image.affine))
    nearest = np.floor(at + 0.5).astype(int)
    inside = ((nearest >= 0) & (nearest < scan.image.shape)).all(axis=1)
    picked = tuple(nearest[inside & (scan.veins.radius_mm > 0.8)].T)
    assert np.median(scan.image.data[picked]) > 60
    assert scan.truth[picked].mean() < 0.2


def test_without_errors_only_the_jitter_is_left():
    """A boundary that wanders by 0.045 voxels (0.02 mm) on tubes about 1 mm wide costs 2 %."""
    for index in range(3):
        scan = a_scan("none", index)
        assert scan.errors == ()
        assert not scan.error_map.any()
        assert 0.97 < dice(scan.drawn, scan.truth) < 1.0
        apart = (scan.drawn > 0) ^ (scan.truth > 0)
        rim = binary_dilation(scan.truth > 0) & ~binary_erosion(scan.truth > 0)
        assert not (apart & ~rim).any()


def test_the_noise_setting_changes_the_drawing_alone():
    for noise in ("local", "heavy", "systematic"):
        assert np.array_equal(a_scan(noise).image.data, a_scan("none").image.data)
        assert np.array_equal(a_scan(noise).truth, a_scan("none").truth)


def test_the_noise_settings_are_as_bad_as_they_say():
    mean = {
        noise: np.mean([dice(a_scan(noise, i).drawn, a_scan(noise, i).truth) for i in range(3)])
        for noise in ("none", "local", "heavy", "systematic")
    }
    assert 0.94 < mean["local"] < 0.975 < mean["none"]
    assert 0.86 < mean["heavy"] < 0.94
    assert 0.82 < mean["systematic"] < 0.89


def test_the_error_map_marks_what_the_errors_changed_and_nothing_else():
    """Clean and noisy drawing share their jitter, so the rest of the two masks is the same."""
    for noise in ("local", "heavy", "systematic"):
        errors = a_scan(noise).error_map > 0
        apart = a_scan(noise).drawn != a_scan("none").drawn
        assert np.array_equal(errors, apart)


def test_the_table_says_what_the_map_shows():
    scan = a_scan("heavy")
    counts = np.bincount(scan.error_map.ravel())
    assert [error.error for error in scan.errors] == list(range(1, len(counts)))
    assert [error.changed_voxels for error in scan.errors] == counts[1:].tolist()
    for error in scan.errors:
        assert error.kind in KINDS
        places = np.argwhere(scan.error_map == error.error).astype(float)
        world = geometry.to_world(places, scan.image.affine)
        reach = error.length_mm + error.magnitude_mm + error.radius_mm + 2.0
        assert np.linalg.norm(world - error.centre_mm, axis=1).min() < reach


def test_too_wide_adds_a_rim_about_the_vessel():
    plot, masks = one_mistake("too_wide")
    added, removed = changed(masks)
    assert added.any()
    assert not removed.any()
    grown = binary_dilation(masks.truth > 0, iterations=6)
    assert not (added & ~grown).any()
    assert plot.errors[0].magnitude_mm >= 0.16 * plot.errors[0].radius_mm


def test_too_narrow_takes_from_the_rim_and_leaves_the_middle():
    plot, masks = one_mistake("too_narrow")
    added, removed = changed(masks)
    assert removed.any()
    assert not added.any()
    assert plot.errors[0].magnitude_mm < plot.errors[0].radius_mm


def test_shifted_adds_on_one_side_what_it_takes_from_the_other():
    _, masks = one_mistake("shifted")
    added, removed = changed(masks)
    assert added.any()
    assert removed.any()
    assert 0.4 < added.sum() / removed.sum() < 2.5


def test_a_gap_empties_its_stretch():
    plot, masks = one_mistake("gap")
    added, removed = changed(masks)
    assert not added.any()
    path = voxels_of_path(plot, masks)
    middle = path[len(path) // 3 : -len(path) // 3]
    assert not masks.drawn[tuple(middle.T)].any()
    assert removed.any()


def test_a_leak_runs_out_of_the_vessel_and_stays_joined_to_it():
    _, masks = one_mistake("leak")
    added, removed = changed(masks)
    assert added.any()
    assert not removed.any()
    assert label(masks.drawn, np.ones((3, 3, 3)))[1] <= label(masks.truth, np.ones((3, 3, 3)))[1]


def test_a_staircase_displaces_slices_against_each_other():
    plot, masks = one_mistake("staircase")
    added, removed = changed(masks)
    assert added.any()
    assert removed.any()
    assert (plot.drawing.stair_mm > 0).sum() >= 3


def test_a_missing_branch_is_gone_to_its_end():
    plot, masks = one_mistake("missing_branch")
    added, removed = changed(masks)
    assert not added.any()
    assert removed.any()
    last = np.flatnonzero(plot.drawing.error > 0)
    branch = plot.arteries.tubes.branch[last[-1]]
    own = plot.arteries.annotated & (plot.arteries.tubes.branch == branch)
    assert not plot.drawing.present[np.flatnonzero(own)[-1]]


def test_a_false_branch_adds_a_tube_where_no_vessel_is_annotated():
    plot, masks = one_mistake("false_branch")
    added, removed = changed(masks)
    assert added.any()
    assert not removed.any()
    path = voxels_of_path(plot, masks)
    assert masks.drawn[tuple(path.T)].all()
    assert masks.truth[tuple(path.T)].mean() < 0.5


def test_systematic_errors_lie_on_oblique_vessels_only():
    scan = a_scan("systematic")
    systematic = [error for error in scan.errors if error.systematic]
    assert len(systematic) > 5
    assert {error.kind for error in systematic} == {"too_wide"}
    assert np.mean([error.angle_deg > 30 for error in systematic]) > 0.9


def test_grids_are_oblique_and_left_handed_now_and_then():
    affines = []
    for index in range(40):
        style = draw_style(np.random.default_rng(index), SIZES["small"])
        affines.append(place_grid(style, np.zeros(3)))
    handed = [np.linalg.det(affine[:3, :3]) < 0 for affine in affines]
    oblique = [(np.abs(geometry.axes(affine)).max(axis=1) < 0.9999).any() for affine in affines]
    assert 10 < sum(handed) < 30
    assert 10 < sum(oblique) < 30
    assert {geometry.orientation(affine) for affine in affines} == {"LAS", "LPS", "RAS"}
    assert len({tuple(geometry.spacing_mm(affine).round(3)) for affine in affines}) > 30


def test_the_blur_table_keeps_wide_vessels_and_fades_thin_ones():
    table = blur_table()
    middle = [table[row, 60 - row] for row in (5, 10, 20, 40)]  # at the centre: distance 0
    assert middle == pytest.approx([1 - np.exp(-0.5 * (row / 10) ** 2) for row in (5, 10, 20, 40)])
    assert table[80, 60] == pytest.approx(0.5, abs=0.05)  # half at a wide vessel's edge


@pytest.mark.parametrize(
    "wrong", [{"scans": 0}, {"seed": -1}, {"oblique_bias": 0.5}, {"error_share": 0.9}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]):
    with pytest.raises(ConfigError, match="must"):
        make_scan(PhantomSettings(**wrong), 0)  # type: ignore[arg-type]


def test_a_scan_beyond_the_last_is_refused():
    with pytest.raises(InputError, match="no scan 12"):
        make_scan(PhantomSettings(), 12)
