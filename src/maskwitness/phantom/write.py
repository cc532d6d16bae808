"""Writes phantoms as an nnU-Net raw folder, with the truth beside it.

All is written into a hidden folder of the place it is for, and moved out when it is whole: a
phantom that was interrupted never passes for a finished one, and another can be made in the same
place. Gzip carries no time of writing, so the same settings give the same bytes, whatever the
number of workers.
"""

import csv
import dataclasses
import io
import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from maskwitness.errors import InputError
from maskwitness.io.files import write_whole
from maskwitness.io.volumes import write_volume
from maskwitness.phantom.make import make_scan
from maskwitness.phantom.records import PhantomScan, PlantedError
from maskwitness.phantom.settings import PhantomSettings, check_settings

UNFINISHED = ".unfinished"
PLACES = ("start", "centre", "end")
COLUMNS = (
    "scan",
    "error",
    "kind",
    "branch",
    *(f"{place}_{axis}_mm" for place in PLACES for axis in "xyz"),
    "length_mm",
    "magnitude_mm",
    "angle_deg",
    "radius_mm",
    "changed_voxels",
    "systematic",
)


def write_phantom(
    out: Path,
    settings: PhantomSettings,
    *,
    workers: int = 1,
    on_scan: Callable[[int, int], None] | None = None,
) -> None:
    """Write a whole data set into a new or empty folder.

    ``on_scan`` is called with the number of scans written and their total.

    Raises
    ------
    InputError
        If ``out`` exists and is not an empty folder.
    """
    check_settings(settings)
    aside = out / UNFINISHED
    if out.exists() and (not out.is_dir() or any(part != aside for part in out.iterdir())):
        message = f"{out} exists and is not an empty folder; choose another place for the phantom"
        raise InputError(message)
    is_new = not out.exists()
    shutil.rmtree(aside, ignore_errors=True)  # of a phantom that was killed
    try:
        _write_into(aside, settings, workers, on_scan)
        # dataset.json last, because a folder with one is a finished data set
        for name in ("truth", "imagesTr", "labelsTr", "dataset.json"):
            (aside / name).replace(out / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):  # it holds the phantom, which is how it should be
            if is_new:
                out.rmdir()


def _write_into(
    place: Path,
    settings: PhantomSettings,
    workers: int,
    on_scan: Callable[[int, int], None] | None,
) -> None:
    for folder in ("imagesTr", "labelsTr", "truth/masks", "truth/errors"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    # closing: after an interruption no worker may go on writing
    with closing(_write_scans(place, settings, workers)) as scans:
        for done, found in enumerate(scans, start=1):
            rows += found
            if on_scan is not None:
                on_scan(done, settings.scans)
    write_whole(place / "truth/errors.csv", _table(rows))
    about = {"package": version("maskwitness"), "settings": dataclasses.asdict(settings)}
    write_whole(place / "truth/phantom.json", _json(about))
    write_whole(place / "dataset.json", _json(_dataset(settings)))


def _write_scans(
    out: Path, settings: PhantomSettings, workers: int
) -> Generator[list[dict[str, Any]]]:
    one = partial(_write_scan, out, settings)
    if workers <= 1 or settings.scans == 1:
        yield from map(one, range(settings.scans))
        return
    # spawn: forking a process that has started threads can leave locks held for ever. Ctrl-C goes
    # to the workers too; they leave it to this process, which ends them.
    deaf = (signal.SIGINT, signal.SIG_IGN)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(min(workers, settings.scans), signal.signal, deaf) as pool:
        yield from pool.imap(one, range(settings.scans))


def _write_scan(out: Path, settings: PhantomSettings, index: int) -> list[dict[str, Any]]:
    scan = make_scan(settings, index)
    affine = scan.image.affine
    name = f"{scan.name}.nii.gz"
    write_volume(out / "imagesTr" / f"{scan.name}_0000.nii.gz", scan.image.data, affine)
    write_volume(out / "labelsTr" / name, scan.drawn, affine)
    write_volume(out / "truth/masks" / name, scan.truth, affine)
    write_volume(out / "truth/errors" / name, scan.error_map, affine)
    return [error_row(scan, error) for error in scan.errors]


def error_row(scan: PhantomScan, error: PlantedError) -> dict[str, Any]:
    """Return one row of the table of planted errors."""
    row: dict[str, Any] = {"scan": scan.name}
    for key, value in dataclasses.asdict(error).items():
        if isinstance(value, tuple):
            place = key.removesuffix("_mm")
            row |= {f"{place}_{axis}_mm": f"{x:.3f}" for axis, x in zip("xyz", value, strict=True)}
        elif isinstance(value, float):
            row[key] = f"{value:.3f}"
        else:
            row[key] = int(value) if isinstance(value, bool) else value
    return row


def _table(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _dataset(settings: PhantomSettings) -> dict[str, Any]:
    return {
        "channel_names": {"0": "CT"},
        "labels": {"background": 0, "vessel": 1},
        "numTraining": settings.scans,
        "file_ending": ".nii.gz",
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
