"""Masks, graphs and scans for tests, and what topology says of a mask, counted cell by cell."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy import ndimage

from maskwitness.geometry import invert, to_world
from maskwitness.records import Bank, Graph, Scan, Volume

EVERY_NEIGHBOUR = np.ones((3, 3, 3), dtype=bool)
ONE = np.eye(4)


def drawing(text: str) -> np.ndarray:
    """One slice of a volume: rows are i, columns are j, # is foreground."""
    rows = [list(row) for row in text.split()]
    return (np.array(rows) == "#").astype(np.uint8)[:, :, None]


def tube(radius: float, start: Any, end: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """A round rod from ``start`` to ``end``, both in voxels, with flat ends."""
    first, last = np.array(start, float), np.array(end, float)
    away = np.moveaxis(np.indices(shape), 0, -1) - first
    length = float(np.linalg.norm(last - first))
    along = away @ ((last - first) / length)
    across2 = (away**2).sum(axis=-1) - along**2
    inside = (across2 <= radius**2 + 1e-9) & (along >= -1e-9) & (along <= length + 1e-9)
    return inside.astype(np.uint8)


def ball(radius: float, centre: Any, shape: tuple[int, int, int]) -> np.ndarray:
    away = np.moveaxis(np.indices(shape), 0, -1) - np.array(centre, float)
    return ((away**2).sum(axis=-1) <= radius**2).astype(np.uint8)


def torus(ring: float = 7.0, radius: float = 2.2) -> np.ndarray:
    i, j, k = np.indices((9, 23, 23)) - np.array([4, 11, 11]).reshape(3, 1, 1, 1)
    return ((np.hypot(j, k) - ring) ** 2 + i**2 <= radius**2).astype(np.uint8)


def noise(seed: int, shape: tuple[int, int, int], share: float, smooth: float = 0.0) -> np.ndarray:
    """A mask of noise: components, loops, cavities, diagonal contacts, all at once."""
    values = np.random.default_rng(seed).normal(size=shape)
    if smooth:
        values = ndimage.gaussian_filter(values, smooth)
    mask = (values > np.quantile(values, 1 - share)).astype(np.uint8)
    mask[tuple(n // 2 for n in shape)] = 1  # never empty
    return mask


def voxels_of(shape: tuple[int, ...]) -> np.ndarray:
    """The indices of all voxels, in C order, as places."""
    return np.moveaxis(np.indices(shape), 0, -1).reshape(-1, len(shape)).astype(np.float64)


def as_mask(points: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    mask = np.zeros(shape, np.uint8)
    mask[tuple(points.T)] = 1
    return mask


def euler(mask: np.ndarray) -> int:
    """Corners - edges + faces - cubes of the voxels, as closed cubes."""
    total = 0
    for across in product((False, True), repeat=3):
        cells = np.pad(mask != 0, 1)
        for axis in np.flatnonzero(across):
            cells = np.moveaxis(cells, axis, 0)
            cells = np.moveaxis(cells[:-1] | cells[1:], 0, axis)
        total += int(cells.sum()) * (-1 if sum(across) % 2 == 0 else 1)
    return total


def topology(mask: np.ndarray) -> tuple[int, int, int]:
    """Components, loops and cavities: 26-connected inside, 6-connected outside."""
    components = ndimage.label(mask, EVERY_NEIGHBOUR)[1]
    cavities = ndimage.label(np.pad(mask, 1) == 0)[1] - 1
    return components, components + cavities - euler(mask), cavities


def without_cavities(mask: np.ndarray) -> np.ndarray:
    """Cavities filled that only one component of the mask touches."""
    solid = np.pad(mask, 1).astype(np.uint8)
    parts = ndimage.label(solid, EVERY_NEIGHBOUR)[0]
    regions, count = ndimage.label(solid == 0)
    filled = solid.copy()
    for region in range(1, count + 1):
        here = regions == region
        rim = ndimage.binary_dilation(here) & ~here
        if not here[0, 0, 0] and len(np.unique(parts[rim])) == 1:
            filled[here] = 1
    return filled[1:-1, 1:-1, 1:-1]


def graph_of(
    paths_mm: Sequence[Any], parents: Sequence[int] = (-1,), affine: np.ndarray = ONE
) -> Graph:
    """A graph of the given branches, each a list of places in millimetres."""
    paths = [np.array(path, dtype=np.float64).reshape(-1, 3) for path in paths_mm]
    points = np.concatenate(paths)
    order = np.concatenate([np.arange(len(path)) for path in paths]).astype(np.int32)
    arcs = [np.r_[0, np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()] for path in paths]
    return Graph(
        points_vox=to_world(points, invert(affine)),
        points_mm=points,
        radius_mm=np.ones(len(points)),
        branch=np.repeat(np.arange(len(paths)), [len(path) for path in paths]).astype(np.int32),
        order=order,
        arc_mm=np.concatenate(arcs),
        parent=np.array(parents, dtype=np.int32),
    )


def scan_of(
    data: np.ndarray,
    mask: np.ndarray | None = None,
    affine: np.ndarray = ONE,
    *,
    name: str = "case",
    slope: float = 1.0,
    intercept: float = 0.0,
) -> Scan:
    drawn = np.ones(data.shape, np.uint8) if mask is None else mask
    image = Volume(data=data, affine=affine, slope=slope, intercept=intercept)
    return Scan(name=name, image=image, mask=drawn)


def bank_of_images(image: np.ndarray, mask: np.ndarray | None = None, **fields: Any) -> Bank:
    """Patches that may all testify for each other, unless ``fields`` say otherwise."""
    count, size, _ = image.shape
    drawn = np.zeros((count, size * size), bool) if mask is None else mask.reshape(count, -1)
    standard: dict[str, Any] = {
        "has_image": np.ones(count, bool),
        "group": np.arange(count),
        "position_um": np.zeros(count, np.int64),
    }
    return Bank(
        image=image.astype(np.uint8), mask=np.packbits(drawn, axis=1), **{**standard, **fields}
    )
