"""Tables: what is not a number becomes null, and a file is whole or not there."""

import math

import numpy as np
import pyarrow as pa
import pytest

from maskwitness.errors import StoreError
from maskwitness.io.tables import (
    FINDINGS,
    PATCHES,
    SCANS,
    SCORES,
    read_table,
    table_of,
    write_table,
)

TYPES = {"name": pa.string(), "score": pa.float32(), "points": pa.int64()}


def test_a_table_comes_back_and_nothing_else_is_left(tmp_path):
    table = table_of({"points": [3, 1], "name": ["a", "β"], "score": [0.5, -2.0]}, TYPES)
    write_table(tmp_path / "t.parquet", table)
    assert read_table(tmp_path / "t.parquet").equals(table)
    assert table.column_names == list(TYPES)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_what_is_not_a_number_becomes_null_and_infinity_stays():
    values = np.array([np.nan, 1.0, np.inf])
    table = table_of({"name": ["a", "b", "c"], "score": values, "points": [1, 2, 3]}, TYPES)
    assert table["score"].to_pylist() == [None, 1.0, math.inf]


def test_a_column_that_the_table_does_not_have_is_left_out():
    table = table_of({"name": [], "score": [], "points": [], "more": []}, TYPES)
    assert table.column_names == list(TYPES)


@pytest.mark.parametrize("types", [SCANS, PATCHES, SCORES, FINDINGS])
def test_every_table_of_a_run_can_be_empty(types):
    table = table_of({name: [] for name in types}, types)
    assert len(table) == 0
    assert table.schema.types == list(types.values())


def test_a_missing_and_a_damaged_table_are_named(tmp_path):
    with pytest.raises(StoreError, match=r"scores\.parquet is not there"):
        read_table(tmp_path / "scores.parquet")
    (tmp_path / "scores.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(StoreError, match=r"scores\.parquet cannot be read as Parquet"):
        read_table(tmp_path / "scores.parquet")


def test_a_write_that_fails_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write_table(path, table_of({"name": ["old"], "score": [1.0], "points": [1]}, TYPES))
    monkeypatch.setattr("maskwitness.io.tables.pq.write_table", _half_written)
    with pytest.raises(OSError, match="no space"):
        write_table(path, table_of({"name": ["new"], "score": [2.0], "points": [2]}, TYPES))
    assert read_table(path)["name"].to_pylist() == ["old"]


def _half_written(_table, path, **_):
    path.write_bytes(b"PAR1")
    message = "no space left on device"
    raise OSError(message)
