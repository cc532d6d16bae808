"""Scans to patches on disk: each scan is read, described and saved on its own, then all are joined.

A scan's part is finished when its ``.json`` is there; an audit that was interrupted goes on with
the parts it has. A scan that cannot be audited becomes a row with its reason, and the others go on.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maskwitness.config import Config, as_dict, digest_of
from maskwitness.errors import GeometryError, InputError, explain
from maskwitness.geometry import spacing_mm
from maskwitness.io.datasets import Case
from maskwitness.io.files import write_whole
from maskwitness.io.store import PatchWriter, RunFolder
from maskwitness.io.tables import PATCHES, SCANS, table_of, write_table
from maskwitness.io.volumes import file_digest, files_of, read_scan
from maskwitness.pipeline import describe
from maskwitness.records import Description
from maskwitness.run.threads import in_threads

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Where the description of one scan waits to be joined with the others."""

    folder: Path
    index: int

    @property
    def arrays(self) -> Path:
        """Patches and all that was measured on them."""
        return self.folder / f"{self.index:06d}.npz"

    @property
    def row(self) -> Path:
        """The scan's row of scans.parquet, and the key it was made under."""
        return self.folder / f"{self.index:06d}.json"


def extract(
    cases: Sequence[Case],
    config: Config,
    folder: RunFolder,
    workers: int,
    on_scan: Callable[[int, int], None],
) -> list[Row]:
    """Write scans.parquet, patches.parquet and patches.zarr; return the rows of the scans."""
    parts = folder.work / "scans"
    parts.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = [{}] * len(cases)

    def one(job: tuple[int, Case]) -> Row:
        number, case = job
        return {**_extract_scan(case, Part(parts, number), config), "scan": number}

    for done, row in enumerate(in_threads(one, list(enumerate(cases)), workers), start=1):
        rows[row["scan"]] = row
        on_scan(done, len(cases))
    if any(row["status"] == "audited" for row in rows):
        _join_parts(rows, parts, folder)
    columns = {name: [row[name] for row in rows] for name in SCANS}
    write_table(folder.path("scans.parquet"), table_of(columns, SCANS))
    return rows


def stamp_of(path: Path) -> str:
    """Return number, size and times of change of a volume's files: cheap to compare."""
    try:
        stats = [file.stat() for file in files_of(path)]
    except OSError:
        return "missing"
    # The sum of the times, not the latest: whichever file is replaced, it is another one.
    size, times = sum(s.st_size for s in stats), sum(s.st_mtime_ns for s in stats)
    return f"{len(stats)}:{size}:{times}"


def digest_if_readable(path: Path) -> str | None:
    """Return the digest of a volume, or None where it cannot be read."""
    try:
        return file_digest(path)
    except InputError:
        return None


def where_from(case: Case) -> Row:
    """Return where the files of a case lie, and what tells at a glance whether they changed."""
    return {
        "image": str(case.image),
        "mask": str(case.mask),
        "image_stamp": stamp_of(case.image),
        "mask_stamp": stamp_of(case.mask),
    }


def refusal_of(case: Case, config: Config) -> str:
    """Return why a scan cannot be audited, empty where it can."""
    try:
        describe(read_scan(case, config.data.labels), config.patches)
    except (InputError, GeometryError) as error:
        return explain(error)
    return ""


def _digests(case: Case) -> Row:
    # Of refused files too: else one that was only touched would pass for a changed one.
    return {
        "image_sha256": digest_if_readable(case.image),
        "mask_sha256": digest_if_readable(case.mask),
    }


def _extract_scan(case: Case, part: Part, config: Config) -> Row:
    source = where_from(case)
    settings = {step: as_dict(config)[step] for step in ("data", "patches")}
    key = digest_of([case.name, source, settings])
    try:
        kept = json.loads(part.row.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return kept["row"]
    except (OSError, ValueError, KeyError):
        pass
    row: Row = {"name": case.name, **source, **_digests(case)}
    try:
        row |= _describe_into(case, part, config)
    except (InputError, GeometryError) as error:
        return dict.fromkeys(SCANS) | row | {"status": "refused", "reason": explain(error)}
    row |= {"status": "audited", "reason": ""}
    write_whole(part.row, json.dumps({"key": key, "row": row}).encode())
    return row


def _describe_into(case: Case, part: Part, config: Config) -> Row:
    scan = read_scan(case, config.data.labels)
    description = describe(scan, config.patches)
    aside = part.arrays.with_suffix(".part.npz")
    np.savez(aside, **_columns(description))  # type: ignore[arg-type]
    aside.replace(part.arrays)
    return {
        "shape": list(scan.image.shape),
        "spacing_mm": spacing_mm(scan.affine).tolist(),
        "affine": scan.affine.ravel().tolist(),
        "points": len(description.graph.branch),
    }


def _columns(description: Description) -> dict[str, np.ndarray]:
    graph, frames, patches = description.graph, description.frames, description.patches
    vectors = {"t": frames.tangent, "n": frames.normal, "b": frames.binormal}
    return {
        "image": patches.image,
        "mask": patches.mask,
        "branch": graph.branch,
        "order": graph.order,
        **{f"{axis}_mm": graph.points_mm[:, n] for n, axis in enumerate("xyz")},
        **{f"{v}_{axis}": vectors[v][:, n] for v in "tnb" for n, axis in enumerate("xyz")},
        "arc_mm": graph.arc_mm,
        "radius_mm": graph.radius_mm,
        "area_mm2": patches.area_mm2,
        "lumen_hu": patches.lumen_hu,
        "angle_deg": patches.angle_deg,
        "hu_low": patches.low_hu,
        "hu_high": patches.high_hu,
        "outside": patches.outside,
        "has_image": patches.has_image,
    }


def patch_table(description: Description, scan: int, name: str) -> pa.Table:
    """Return the patches of one scan as a table of their own, numbered from 0."""
    points = len(description.graph.branch)
    numbers = {"patch": np.arange(points), "scan": np.full(points, scan), "name": [name] * points}
    return table_of(_columns(description) | numbers, PATCHES)


def _join_parts(rows: Sequence[Row], parts: Path, folder: RunFolder) -> None:
    # One scan in memory at a time, whatever their number.
    total = sum(row["points"] for row in rows if row["status"] == "audited")
    store = folder.fresh("patches.zarr")
    aside = folder.path(".patches.parquet.part")
    writer: PatchWriter | None = None
    first = 0
    with pq.ParquetWriter(
        aside, table_of({name: [] for name in PATCHES}, PATCHES).schema
    ) as tables:
        for row, arrays in _audited(rows, parts):
            image, mask = arrays.pop("image"), arrays.pop("mask")
            if writer is None:
                writer = PatchWriter(store, total, image.shape[1], mask.shape[1])
            writer.append(image, mask)
            points = len(image)
            arrays["patch"] = np.arange(first, first + points)
            arrays["scan"] = np.full(points, row["scan"])
            tables.write_table(table_of(arrays | {"name": [row["name"]] * points}, PATCHES))
            first += points
    if writer is not None:
        writer.close()
    folder.move_in(store, "patches.zarr")
    aside.replace(folder.path("patches.parquet"))


def _audited(rows: Sequence[Row], parts: Path) -> Iterator[tuple[Row, dict[str, Any]]]:
    for row in rows:
        if row["status"] == "audited":
            with np.load(Part(parts, row["scan"]).arrays, allow_pickle=False) as arrays:
                yield row, dict(arrays)
