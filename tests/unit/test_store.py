"""The run directory's own files: whole or not there, in whole chunks, for one process at a time."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from maskwitness.errors import StoreError
from maskwitness.io import store
from maskwitness.io.store import (
    FORMAT,
    Lock,
    PairWriter,
    PatchWriter,
    RunFolder,
    is_run,
    open_arrays,
    pair_blocks,
    read_array,
    read_pairs,
    read_whole,
)
from maskwitness.records import Pairs


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def pairs_of(first: int, rows: list[list[int]]) -> Pairs:
    """Return a block in which every number can be told from the witness alone."""
    witness = np.array([w for row in rows for w in row], dtype=np.int32)
    return Pairs(
        first=first,
        offset=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        witness=witness,
        dist2=witness * 3,
        intersection=(witness % 7).astype(np.uint16),
        union=(witness % 7 + 5).astype(np.uint16),
    )


WHOLE: dict[str, Any] = {
    "maskwitness": "0.1.0",
    "config": {},
    "dataset": {"root": "Größe/β"},
    "stages": {"patches": {"key": "a", "finished": "now", "seconds": 1.0}},
    "summary": {"scans": 3},
}


def assert_same_pairs(one: Pairs, other: Pairs) -> None:
    assert one.first == other.first
    for name in ("offset", "witness", "dist2", "intersection", "union"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


class TestRunFolder:
    def test_state_comes_back_as_it_was_written(self, folder):
        assert folder.read_state() == {}
        assert not is_run(folder.root)
        folder.write_state(WHOLE)
        assert folder.read_state() == {"format": FORMAT, **WHOLE}
        assert is_run(folder.root)
        assert [path.name for path in folder.root.iterdir()] == ["run.json"]

    @pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"format": 2}', "{}"])
    def test_a_state_that_is_not_ours_is_refused(self, folder, text):
        folder.path("run.json").write_text(text)
        with pytest.raises(StoreError, match=r"cannot be read|is a run of format"):
            folder.read_state()

    @pytest.mark.parametrize(
        ("change", "lacking"),
        [
            ({"summary": None}, "no summary"),
            ({"stages": [], "config": "paper"}, "no config, no stages"),
            ({"stages": {"patches": {"key": "a"}}}, "no stages.patches"),
        ],
    )
    def test_a_state_that_lacks_something_is_refused(self, folder, change, lacking):
        folder.write_state({**WHOLE, **change})
        with pytest.raises(StoreError, match=f"run.json is damaged: it has {lacking};"):
            folder.read_state()

    def test_a_folder_moves_in_and_the_old_one_goes(self, folder):
        for number in (1, 2):
            aside = folder.fresh("patches.zarr")
            (aside / f"{number}").touch()
            folder.move_in(aside, "patches.zarr")
        assert [path.name for path in folder.path("patches.zarr").iterdir()] == ["2"]
        assert list(folder.work.iterdir()) == []

    def test_a_fresh_folder_is_empty(self, folder):
        (folder.fresh("pairs.zarr") / "left").touch()
        assert list(folder.fresh("pairs.zarr").iterdir()) == []


class TestLock:
    def test_a_second_holder_is_told_who_the_first_is(self, folder):
        with (
            Lock(folder),
            pytest.raises(StoreError, match=f"is being written by process {os.getpid()} on "),
            Lock(folder),
        ):
            pass

    def test_it_is_let_go_at_the_end_and_after_an_error(self, folder):
        with pytest.raises(ZeroDivisionError), Lock(folder):
            raise ZeroDivisionError
        with Lock(folder):
            assert "process" in folder.path(".lock").read_text()
        assert folder.path(".lock").read_text() == ""


class TestPatches:
    @pytest.mark.parametrize("sizes", [[], [0], [1], [4], [3, 0, 5, 1], [9], [4, 4, 4]])
    def test_they_come_back_whatever_the_scans_sizes(self, tmp_path, monkeypatch, sizes):
        monkeypatch.setattr(store, "PATCHES_A_CHUNK", 4)
        rng = np.random.default_rng(1)
        total = sum(sizes)
        image = rng.integers(0, 256, (total, 5, 5)).astype(np.uint8)
        mask = rng.integers(0, 256, (total, 4)).astype(np.uint8)
        writer = PatchWriter(tmp_path / "patches.zarr", total, 5, 4)
        for part in np.split(np.arange(total), np.cumsum(sizes)[:-1]) if sizes else []:
            writer.append(image[part], mask[part])
        writer.close()
        group = open_arrays(tmp_path / "patches.zarr")
        np.testing.assert_array_equal(read_array(group, "image"), image)
        np.testing.assert_array_equal(read_array(group, "mask"), mask)
        np.testing.assert_array_equal(read_whole(tmp_path / "patches.zarr", "image"), image)
        np.testing.assert_array_equal(read_whole(tmp_path / "patches.zarr", "mask"), mask)

    def test_a_chunk_of_nothing_but_zeros_is_read_though_it_is_not_written(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(store, "PATCHES_A_CHUNK", 4)
        image = np.zeros((11, 5, 5), np.uint8)
        image[9] = 7
        writer = PatchWriter(tmp_path, 11, 5, 4)
        writer.append(image, np.zeros((11, 4), np.uint8))
        writer.close()
        assert sorted(p.name for p in (tmp_path / "image" / "c").iterdir()) == ["2"]
        np.testing.assert_array_equal(read_whole(tmp_path, "image"), image)
        assert not read_whole(tmp_path, "mask").any()

    @pytest.mark.parametrize("spoil", ["cut", "swap", "noise"])
    def test_a_damaged_chunk_is_named(self, tmp_path, spoil):
        rng = np.random.default_rng(3)
        writer = PatchWriter(tmp_path, 6000, 5, 4)
        image = rng.integers(0, 256, (6000, 5, 5)).astype(np.uint8)
        writer.append(image, rng.integers(0, 256, (6000, 4)).astype(np.uint8))
        writer.close()
        place = tmp_path / "image" / "c" / "1" / "0" / "0"
        packed = place.read_bytes()
        other = tmp_path / "mask" / "c" / "1" / "0"
        place.write_bytes(
            {"cut": packed[:900], "swap": other.read_bytes(), "noise": b"\0" * 40}[spoil]
        )
        with pytest.raises(StoreError, match=r"image/c/1/0/0 is damaged"):
            read_whole(tmp_path, "image")

    def test_an_array_that_was_written_otherwise_is_left_to_zarr(self, tmp_path):
        group = zarr.open_group(tmp_path, mode="w")
        image = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
        for name, dtype, chunks in (("image", "uint8", (4, 2, 4)), ("wide", "int32", (4, 4, 4))):
            made = group.create_array(name, shape=image.shape, dtype=dtype, chunks=chunks)
            made[:] = image
        np.testing.assert_array_equal(read_whole(tmp_path, "image"), image)
        np.testing.assert_array_equal(read_whole(tmp_path, "wide"), image)
        group.create_group("inner")
        with pytest.raises(StoreError, match="inner is not an array"):
            read_whole(tmp_path, "inner")


class TestPairs:
    ROWS: tuple[list[list[int]], ...] = (
        [[5, 2, 9], [], [7]],
        [[], []],
        [[1] * 11],
        [[3, 4], [8, 6, 0]],
    )

    @pytest.fixture
    def written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(store, "PAIRS_A_CHUNK", 4)
        writer = PairWriter(tmp_path / "pairs.zarr", 8)
        first = 0
        for rows in self.ROWS:
            writer.append(pairs_of(first, rows))
            first += len(rows)
        assert writer.close() == 20
        return tmp_path / "pairs.zarr"

    @pytest.mark.parametrize("most", [1, 2, 5, 11, 100])
    def test_blocks_hold_whole_rows_and_all_of_them(self, written, most):
        rows = [row for block in self.ROWS for row in block]
        blocks = list(pair_blocks(written, most))
        assert [b.first for b in blocks] == np.cumsum(
            [0, *(len(b.offset) - 1 for b in blocks)][:-1]
        ).tolist()
        for block in blocks:
            own = rows[block.first : block.first + len(block.offset) - 1]
            assert_same_pairs(block, pairs_of(block.first, own))
            assert len(block.witness) <= max(most, len(own[0])) or len(own) == 1
        assert sum(len(b.offset) - 1 for b in blocks) == len(rows)

    def test_one_row_can_be_read_on_its_own(self, written):
        group = open_arrays(written)
        offset = read_array(group, "offset")
        assert_same_pairs(read_pairs(group, offset, 7, 8), pairs_of(7, [[3, 4, 8, 6, 0][2:]]))
        assert_same_pairs(read_pairs(group, offset, 1, 2), pairs_of(1, [[]]))

    def test_a_data_set_without_any_pair_is_written_and_read(self, tmp_path):
        writer = PairWriter(tmp_path / "pairs.zarr", 3)
        writer.append(pairs_of(0, [[], [], []]))
        assert writer.close() == 0
        (block,) = pair_blocks(tmp_path / "pairs.zarr")
        assert_same_pairs(block, pairs_of(0, [[], [], []]))

    def test_a_damaged_store_is_named(self, tmp_path):
        (tmp_path / "pairs.zarr").mkdir()
        (tmp_path / "pairs.zarr" / "zarr.json").write_text(json.dumps({"zarr_format": 99}))
        with pytest.raises(StoreError, match=r"pairs\.zarr cannot be read as Zarr"):
            open_arrays(tmp_path / "pairs.zarr")
        with pytest.raises(StoreError, match=r"none\.zarr cannot be read as Zarr"):
            open_arrays(tmp_path / "none.zarr")
