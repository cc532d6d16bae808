"""Draw docs/pictures/audit.png: one place that an audit found, and the witnesses against it.

    python docs/pictures/make_picture.py

A phantom is made and audited. Shown is the worst finding that is more than a speck and stands on
enough witnesses; the planted truth has no say in the choice.
"""

import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import maskwitness
from maskwitness.geometry import invert, spacing_mm
from maskwitness.io.volumes import read_volume
from maskwitness.phantom import PhantomSettings, write_phantom
from maskwitness.run import Evidence, Run

PLACE = Path(__file__).with_name("audit.png")
PHANTOM = PhantomSettings(scans=16, seed=3)
EPSILON = 0.004  # sixteen small, noisy scans have few pairs within the paper's 0.001
LEAST_POINTS, LEAST_WITNESSES = 3, 20
SLAB_MM = 8.0
WINDOW_HU = (-120.0, 560.0)
WIDTH, HEIGHT = 8.0, 5.3  # inches
OWN, THEIRS, INK = "#ff5a36", "#35c2ff", "#1b1b1b"


def main() -> None:
    """Make the phantom, audit it, draw."""
    with tempfile.TemporaryDirectory() as place:
        data, folder = Path(place) / "data", Path(place) / "run"
        write_phantom(data, PHANTOM)
        run = maskwitness.audit(
            data, folder, config={"preset": "paper", "join": {"epsilon": EPSILON}}
        )
        draw(run, choose(run)).savefig(PLACE, dpi=200, facecolor="white")
    print(PLACE)


def choose(run: Run) -> dict[str, Any]:
    """Return the worst finding of several points whose worst point has enough witnesses."""
    witnesses = run.scores["witnesses"].to_numpy()
    for finding in run.findings.to_pylist():
        enough = witnesses[finding["worst_patch"]] >= LEAST_WITNESSES
        if finding["points"] >= LEAST_POINTS and enough:
            return finding
    message = "no finding has enough points and witnesses to be shown"
    raise LookupError(message)


def draw(run: Run, finding: dict[str, Any]) -> Figure:
    """Return the whole picture."""
    plt.rcParams.update({"font.family": "DejaVu Sans", "text.color": INK, "font.size": 9})
    evidence = run.evidence(finding["worst_patch"])
    figure = plt.figure(figsize=(WIDTH, HEIGHT))
    _write(figure, 0.15, 5.02, "A mask that its look-alikes speak against", size=14, weight="bold")
    _write(
        figure, 0.15, 4.77,
        f"{run.summary['scans']} synthetic scans with planted annotation errors were audited: "
        f"{run.summary['patches']:,} points, ε = {run.config.join.epsilon:g}.",
    )  # fmt: skip
    score = f"{evidence.score:.1f}".replace("-", "−")
    _write(
        figure, 0.15, 4.57,
        f"This one scores {score}. It has {len(evidence.witness)} look-alikes; the median overlap "
        f"(IoU) of its mask with theirs is {np.median(evidence.iou):.2f}.",
    )  # fmt: skip
    _draw_scan(figure, run, evidence)
    _draw_patches(figure, run, evidence)
    return figure


def _write(figure: Figure, x: float, y: float, words: str, **style: Any) -> None:
    figure.text(x / WIDTH, y / HEIGHT, words, **style)


def _axes(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    # Places on the picture in inches, from its lower left corner.
    return figure.add_axes((x / WIDTH, y / HEIGHT, width / WIDTH, height / HEIGHT))


def _draw_scan(figure: Figure, run: Run, evidence: Evidence) -> None:
    row = next(r for r in run.scans.to_pylist() if r["name"] == evidence.scan)
    image, mask = read_volume(Path(row["image"])), read_volume(Path(row["mask"]))
    place = invert(image.affine) @ np.array([*evidence.place_mm, 1.0])
    steps = spacing_mm(image.affine)
    half, middle = round(SLAB_MM / steps[2] / 2), round(float(place[2]))
    slab = (slice(None), slice(None), slice(max(0, middle - half), middle + half + 1))
    hu = (image.data[slab] * image.slope + image.intercept).max(axis=2)
    drawn = mask.data[slab] != 0
    quality = np.where(drawn, run.quality(evidence.scan).data[slab], np.inf).min(axis=2)
    extent = (0.0, hu.shape[0] * steps[0], 0.0, hu.shape[1] * steps[1])

    axes = _axes(figure, 0.15, 0.6, 3.6, 3.6)
    shared: dict[str, Any] = {"origin": "lower", "extent": extent, "interpolation": "nearest"}
    axes.imshow(hu.T, cmap="gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1], **shared)
    painted = axes.imshow(
        np.ma.masked_where(np.isinf(quality), quality).T,
        cmap="RdYlBu", vmin=0.0, vmax=1.0, alpha=0.8, **shared,
    )  # fmt: skip
    axes.contour(drawn.any(axis=2).T, levels=[0.5], colors="white", linewidths=0.9, extent=extent)
    _mark(axes, (place[:2] + 0.5) * steps[:2], extent)
    axes.set_title(f"Axial slab of {SLAB_MM:g} mm, the mask as drawn", size=9, loc="left", pad=5)
    bar = figure.colorbar(
        painted, cax=_axes(figure, 0.15, 0.43, 3.6, 0.11), orientation="horizontal"
    )
    bar.set_ticks([])
    for x, words, side in (
        (0.15, "0: probably wrong", "left"), (1.95, "0.5", "center"), (3.75, "quality 1", "right")
    ):  # fmt: skip
        _write(figure, x, 0.24, words, ha=side, size=8.5)


def _mark(axes: Axes, place: np.ndarray, extent: tuple[float, float, float, float]) -> None:
    axes.plot(*place, "o", ms=28, mfc="none", mec=OWN, mew=2.2)
    axes.annotate(
        "shown on the right", tuple(place), (0.97, 0.035), textcoords="axes fraction",
        color="white", ha="right", size=9,
        bbox={"boxstyle": "round,pad=0.25", "fc": INK, "ec": "none", "alpha": 0.7},
        arrowprops={"arrowstyle": "-", "color": OWN, "lw": 1.3, "shrinkA": 0, "shrinkB": 14},
    )  # fmt: skip
    axes.plot((2.0, 12.0), (2.0, 2.0), color="white", lw=2.5, solid_capstyle="butt")
    axes.text(7.0, 2.7, "10 mm", color="white", ha="center", va="bottom", size=8.5)
    axes.set_xlim(extent[0], extent[1])
    axes.set_ylim(extent[2], extent[3])
    axes.set_axis_off()


def _draw_patches(figure: Figure, run: Run, evidence: Evidence) -> None:
    # The nearest witness of each of three other scans.
    names = run.scores["scan"].take(evidence.witness).to_pylist()
    first = {name: n for n, name in reversed(list(enumerate(names))) if name != evidence.scan}
    chosen = sorted(first.values())[:3]
    size = run.config.patches.size
    _draw_patch(
        _axes(figure, 4.02, 2.48, 1.72, 1.72), run, evidence.image, evidence.mask,
        (OWN, "The patch in question", evidence.scan),
    )  # fmt: skip
    for n, (x, y) in zip(chosen, ((6.12, 2.48), (4.02, 0.24), (6.12, 0.24)), strict=False):
        below = f"MSE {evidence.dist2[n] / (size**2 * 255**2):.4f}, IoU {evidence.iou[n]:.2f}"
        _draw_patch(
            _axes(figure, x, y, 1.72, 1.72), run,
            evidence.witness_image[n], evidence.witness_mask[n],
            (THEIRS, f"Witness: {names[n]}", below),
        )  # fmt: skip


def _draw_patch(
    axes: Axes, run: Run, image: np.ndarray, mask: np.ndarray, words: tuple[str, str, str]
) -> None:
    colour, title, below = words
    extent_mm, size = run.config.patches.extent_mm, run.config.patches.size
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=(0, extent_mm, extent_mm, 0))
    at = (np.arange(size) + 0.5) * extent_mm / size
    for tint, width in (("black", 3.4), (colour, 2.0)):
        axes.contour(at, at, mask, levels=[0.5], colors=tint, linewidths=width)
    axes.set_title(title, size=9, pad=4, weight="bold" if colour == OWN else "normal")
    axes.text(0.5, -0.03, below, transform=axes.transAxes, ha="center", va="top", size=8.5)
    axes.plot((0.15, 1.15), (2.85, 2.85), color="white", lw=2, solid_capstyle="butt")
    axes.text(0.65, 2.78, "1 mm", color="white", ha="center", va="bottom", size=8)
    axes.set_axis_off()


if __name__ == "__main__":
    main()
