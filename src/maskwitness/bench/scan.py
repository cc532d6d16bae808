"""One scan, step by step: ours beside what one would use instead, in one run, on one core."""

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

from maskwitness.centreline import thin, trace_graph
from maskwitness.config import PatchSettings, QualitySettings
from maskwitness.frames import transport_frames
from maskwitness.io.datasets import find_cases
from maskwitness.io.volumes import read_scan, read_volume, write_volume
from maskwitness.patches import sample_patches
from maskwitness.phantom import PhantomSettings, write_phantom
from maskwitness.quality import paint_quality, reach_limit_mm
from maskwitness.records import Frames, Graph, Scan

Row = dict[str, Any]


def bench_scan(repeats: int) -> dict[str, Any]:
    """Measure one ImageCAS-size phantom from files to patches, and its quality map."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_phantom(folder / "data", PhantomSettings(scans=1, size="imagecas", seed=1))
        case = find_cases(folder / "data").cases[0]
        scan = read_scan(case)
        graph = trace_graph(scan.mask, scan.affine)
        frames = transport_frames(graph, scan.affine)
        settings, quality_settings = PatchSettings(), QualitySettings()
        score = np.random.default_rng(0).normal(size=len(graph.branch))

        def quality() -> np.ndarray:
            return paint_quality(
                graph.points_mm, score, scan.image.shape, scan.affine, quality_settings
            )

        painted = quality()
        out = folder / "quality.nii.gz"
        rows = [
            _row("read image and mask", repeats, lambda: read_scan(case),
                 "nibabel", lambda: (_nibabel(case.image), _nibabel(case.mask))),
            _row("thinning", repeats, lambda: thin(scan.mask), *_skimage(scan.mask)),
            _row("centreline graph", repeats, lambda: trace_graph(scan.mask, scan.affine)),
            _row("frames", repeats, lambda: transport_frames(graph, scan.affine)),
            _row("patches", repeats, lambda: sample_patches(scan, graph, frames, settings),
                 "scipy map_coordinates", lambda: _map_coordinates(scan, graph, frames, settings)),
            _row("paint quality map", repeats, quality,
                 "scipy cKDTree", lambda: _tree(scan, graph, quality_settings)),
            _row("write quality map", repeats, lambda: write_volume(out, painted, scan.affine),
                 "nibabel", lambda: _nibabel_write(out, painted, scan.affine)),
        ]  # fmt: skip
    seconds = {row["step"]: row["ours_s"] for row in rows}
    to_patches = sum(
        seconds[s] for s in ("read image and mask", "centreline graph", "frames", "patches")
    )
    to_quality = seconds["paint quality map"] + seconds["write quality map"]
    i, j, k = scan.image.shape
    return {
        "title": f"One scan, {i} × {j} × {k} voxels, {len(graph.branch)} points; best of {repeats}",
        "rows": rows,
        "files_to_patches_s": to_patches,
        "quality_map_s": to_quality,
        "notes": [
            f"files to patches: {to_patches:.2f} s (budget 2 s)",
            f"quality map painted and written: {to_quality:.2f} s (budget 2 s)",
        ],
    }


def bench_thinning(repeats: int, mask: Path) -> dict[str, Any]:
    """Measure the thinning of a mask of the user's, files left out."""
    volume = read_volume(mask)
    drawn = np.asfortranarray(volume.data != 0).view(np.uint8)
    i, j, k = drawn.shape
    rows = [
        _row("thinning", repeats, lambda: thin(drawn), *_skimage(drawn)),
        _row("thinning, graph and radii", repeats, lambda: trace_graph(drawn, volume.affine)),
    ]
    return {
        "title": f"{i} × {j} × {k} voxels, {np.count_nonzero(drawn):,} of them mask; "
        f"best of {repeats}",
        "rows": rows,
        "notes": [],
    }


def _row(
    step: str,
    repeats: int,
    ours: Callable[[], Any],
    peer: str = "",
    theirs: Callable[[], Any] | None = None,
) -> Row:
    row: Row = {"step": step, "ours_s": _best(ours, repeats)}
    if theirs is not None:
        row |= {"peer": peer, "peer_s": _best(theirs, repeats)}
    return row


def _best(work: Callable[[], Any], repeats: int) -> float:
    work()  # the first run compiles
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _nibabel(path: Path) -> np.ndarray:
    return np.asanyarray(nib.nifti1.load(path).dataobj)  # type: ignore[no-untyped-call]


def _nibabel_write(path: Path, data: np.ndarray, affine: np.ndarray) -> None:
    nib.save(nib.nifti1.Nifti1Image(data, affine), path)  # type: ignore[no-untyped-call]


def _skimage(mask: np.ndarray) -> tuple[str, Callable[[], Any] | None]:
    if importlib.util.find_spec("skimage") is None:
        return "scikit-image is not installed", None
    from skimage.morphology import skeletonize

    # What somebody who knows the library would do: cut out the bounding box first, in every call.
    def box_and_thin() -> Any:
        sides = []
        for axis in range(3):
            filled = np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {axis})))
            sides.append(slice(filled[0], filled[-1] + 1))
        return skeletonize(mask[tuple(sides)] != 0)  # type: ignore[no-untyped-call]

    return "scikit-image, bounding box", box_and_thin


def _map_coordinates(
    scan: Scan, graph: Graph, frames: Frames, settings: PatchSettings
) -> np.ndarray:
    offset = (np.arange(settings.size) - (settings.size - 1) / 2) * settings.step_mm
    plane = (
        graph.points_mm[:, None, None]
        + offset[:, None, None] * frames.normal[:, None, None]
        + offset[None, :, None] * frames.binormal[:, None, None]
    )
    inverse = np.linalg.inv(scan.affine)
    at = plane @ inverse[:3, :3].T + inverse[:3, 3]
    places = np.moveaxis(at, -1, 0).reshape(3, -1)
    image = ndimage.map_coordinates(scan.image.data, places, np.float32, order=1, mode="nearest")
    mask = ndimage.map_coordinates(scan.mask, places, order=0, mode="nearest")
    return np.stack([image, mask])


def _tree(scan: Scan, graph: Graph, settings: QualitySettings) -> np.ndarray:
    # The usual way: the nearest point of every voxel near the vessel, by k-d tree.
    spacing = np.sqrt((scan.affine[:3, :3] ** 2).sum(axis=0))
    reach = np.ceil(reach_limit_mm(settings) / spacing).astype(int)
    low = np.maximum(graph.points_vox.min(axis=0).astype(int) - reach, 0)
    high = np.minimum(graph.points_vox.max(axis=0).astype(int) + reach + 1, scan.image.shape)
    grid = np.stack(np.meshgrid(*map(np.arange, low, high), indexing="ij"), axis=-1)
    voxels = grid.reshape(-1, 3) @ scan.affine[:3, :3].T + scan.affine[:3, 3]
    tree = cKDTree(graph.points_mm)
    return np.asarray(tree.query(voxels, distance_upper_bound=reach_limit_mm(settings))[0])
