"""Parquet tables: records in and out, written aside and then renamed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from maskwitness.errors import StoreError


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table under its name only when it is whole."""
    aside = path.with_name(f".{path.name}.part")
    pq.write_table(table, aside, compression="zstd")
    aside.replace(path)


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a table, or say which one is missing or damaged."""
    try:
        return pq.read_table(path, columns=columns)
    except FileNotFoundError as error:
        message = f"{path} is not there: the run is not finished, or this is no run directory"
        raise StoreError(message) from error
    except (pa.ArrowException, OSError) as error:
        message = f"{path} cannot be read as Parquet: {error}"
        raise StoreError(message) from error


def table_of(columns: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return a table with exactly the given columns and types; NaN in them becomes null."""
    arrays = [
        pa.array(columns[name], type=kind, from_pandas=pa.types.is_floating(kind))
        for name, kind in types.items()
    ]
    return pa.Table.from_arrays(arrays, names=list(types))


SCANS: Mapping[str, pa.DataType] = {
    "scan": pa.int32(),
    "name": pa.string(),
    "image": pa.string(),
    "mask": pa.string(),
    "image_sha256": pa.string(),
    "mask_sha256": pa.string(),
    "shape": pa.list_(pa.int32()),
    "spacing_mm": pa.list_(pa.float64()),
    "affine": pa.list_(pa.float64()),  # 4 × 4, row by row: voxel indices to world mm
    "status": pa.string(),
    "reason": pa.string(),
    "points": pa.int64(),
    "image_stamp": pa.string(),  # size and time of change: a quick look before hashing again
    "mask_stamp": pa.string(),
}
PATCHES: Mapping[str, pa.DataType] = {
    "patch": pa.int64(),
    "scan": pa.int32(),
    "name": pa.string(),
    "branch": pa.int32(),
    "order": pa.int32(),
    **{f"{axis}_mm": pa.float64() for axis in "xyz"},
    **{f"{vector}_{axis}": pa.float32() for vector in "tnb" for axis in "xyz"},
    "arc_mm": pa.float64(),
    "radius_mm": pa.float32(),
    "area_mm2": pa.float32(),
    "lumen_hu": pa.float32(),
    "angle_deg": pa.float32(),
    "hu_low": pa.float32(),
    "hu_high": pa.float32(),
    "outside": pa.float32(),
    "has_image": pa.bool_(),
}
BASELINE: Mapping[str, pa.DataType] = {
    "bin": pa.int32(),
    "low": pa.float64(),
    "high": pa.float64(),
    "count": pa.int64(),
    "mean": pa.float64(),
    "std": pa.float64(),
    "min_iou": pa.float64(),
    "used": pa.bool_(),
}
SCORES: Mapping[str, pa.DataType] = {
    "patch": pa.int64(),
    "scan": pa.string(),
    "branch": pa.int32(),
    **{f"{axis}_mm": pa.float64() for axis in "xyz"},
    "score": pa.float32(),
    "residual": pa.float32(),
    "witnesses": pa.int64(),
    "reason": pa.string(),
    "usual_area_mm2": pa.float32(),  # the median over the masks of the witnesses
}
FINDINGS: Mapping[str, pa.DataType] = {
    "finding": pa.int32(),
    "scan": pa.string(),
    "branch": pa.int32(),
    **{f"{at}_{axis}_mm": pa.float64() for at in ("start", "centre", "end") for axis in "xyz"},
    "length_mm": pa.float64(),
    "points": pa.int32(),
    "worst_patch": pa.int64(),
    "worst_score": pa.float32(),
    "mean_score": pa.float32(),
    "kind": pa.string(),
}
