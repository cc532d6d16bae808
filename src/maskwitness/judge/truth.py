"""The truth folder of a phantom: what was planted, and the masks with and without it."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from maskwitness.errors import InputError
from maskwitness.geometry import same_grid
from maskwitness.io.volumes import read_volume


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedError:
    """One row of the truth's ``errors.csv``."""

    scan: str
    error: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The truth of one scan, on the grid of its drawn mask."""

    drawn: Bool[np.ndarray, "i j k"]
    true: Bool[np.ndarray, "i j k"]
    error: Shaped[np.ndarray, "i j k"]
    affine: Float64[np.ndarray, "4 4"]
    kinds: dict[int, str]


def read_errors(truth: Path) -> list[PlantedError]:
    """Return the planted errors that a truth folder lists."""
    path = truth / "truth" / "errors.csv"
    if not path.is_file():
        message = f"{truth} is no truth folder: it has no truth/errors.csv"
        raise InputError(message)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: it cannot be read as CSV ({error})"
        raise InputError(message) from error
    return [_planted(f"{path}: row {number}", row) for number, row in enumerate(rows, start=1)]


def _planted(where: str, row: Mapping[str, str | None]) -> PlantedError:
    scan, error, kind = (row.get(name) for name in ("scan", "error", "kind"))
    if scan is None or kind is None or error is None or not error.isdecimal():
        message = f"{where} is no planted error: scan {scan!r}, error {error!r}, kind {kind!r}"
        raise InputError(message)
    return PlantedError(scan=scan, error=int(error), kind=kind)


def read_truth(truth: Path, name: str, kinds: dict[int, str]) -> Truth:
    """Return the masks of one scan, with the kinds of its planted errors."""
    folders = ("labelsTr", "truth/masks", "truth/errors")
    volumes = []
    for folder in folders:
        path = truth / folder / f"{name}.nii.gz"
        if not path.is_file():
            message = f"the truth in {truth} has no scan {name!r}: {folder}/{path.name} is missing"
            raise InputError(message)
        volumes.append(read_volume(path))
    drawn, true, error = volumes
    for folder, volume in zip(folders[1:], volumes[1:], strict=True):
        if not same_grid(drawn.shape, drawn.affine, volume.shape, volume.affine):
            message = f"scan {name!r}: {folder} does not lie on the grid of its drawn mask"
            raise InputError(message)
    return Truth(
        drawn=drawn.data != 0,
        true=true.data != 0,
        error=error.data,
        affine=drawn.affine,
        kinds=kinds,
    )
