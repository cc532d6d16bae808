"""The run directory: what an audit writes, in a public format (docs/run-directory.md).

Nothing half-written is ever taken for finished: files and folders are made aside and renamed, and
``run.json``, which says what is finished, is written last. One process at a time may write.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import zarr
from jaxtyping import Int64, UInt8
from numcodecs import Blosc
from zarr.codecs import BloscCodec

from maskwitness.errors import StoreError
from maskwitness.io.files import write_whole
from maskwitness.records import Pairs

FORMAT = 1
PATCHES_A_CHUNK = 4096
PAIRS_A_CHUNK = 1 << 20
PAIR_ARRAYS: Mapping[str, str] = {
    "witness": "int32",
    "dist2": "int32",
    "intersection": "uint16",
    "union": "uint16",
}
STATE: Mapping[str, type] = {  # what run.json must hold besides its format
    "maskwitness": str,
    "config": dict,
    "dataset": dict,
    "stages": dict,
    "summary": dict,
}


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run directory and the names in it."""

    root: Path

    def path(self, name: str) -> Path:
        """Return the path of a file of the run."""
        return self.root / name

    @property
    def work(self) -> Path:
        """Unfinished things; safe to delete when no audit is running."""
        return self.root / ".work"

    def read_state(self) -> dict[str, Any]:
        """Return run.json, empty if there is none yet."""
        try:
            state = json.loads(self.path("run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            message = f"{self.path('run.json')} cannot be read: {error}"
            raise StoreError(message) from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format") if isinstance(state, dict) else None
            message = (
                f"{self.root} is a run of format {found}; this maskwitness reads format {FORMAT}"
            )
            raise StoreError(message)
        lacking = [key for key, kind in STATE.items() if not isinstance(state.get(key), kind)]
        lacking += [
            f"stages.{name}"
            for name, stage in (state["stages"].items() if not lacking else ())
            if not isinstance(stage, dict) or not {"key", "finished", "seconds"} <= stage.keys()
        ]
        if lacking:
            message = (
                f"{self.path('run.json')} is damaged: it has no {', no '.join(lacking)}; "
                "delete it and its folder, and audit again"
            )
            raise StoreError(message)
        return state

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace run.json as a whole."""
        text = json.dumps({"format": FORMAT, **state}, indent=2, ensure_ascii=False) + "\n"
        write_whole(self.path("run.json"), text.encode())

    def move_in(self, aside: Path, name: str) -> None:
        """Give a finished folder its name; what had that name before goes away."""
        self.remove(name)
        aside.replace(self.path(name))

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it is there, so that no half of it is ever seen."""
        place = self.path(name)
        if not place.is_dir():
            place.unlink(missing_ok=True)
            return
        old = self.work / f"old-{name}"
        shutil.rmtree(old, ignore_errors=True)
        self.work.mkdir(exist_ok=True)
        place.replace(old)
        shutil.rmtree(old)

    def fresh(self, name: str) -> Path:
        """Return an empty working folder."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


class Lock:
    """Hold a run directory for one process; tell a second one who the first is."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path(".lock")
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        file = self._path.open("a+", encoding="utf-8")
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            message = f"{self._path.parent} is being written by {holder}"
            raise StoreError(message) from error
        file.truncate(0)
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")
        file.flush()
        self._file = file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            # The file stays: deleting a locked file would let a third process lock a new one.
            self._file.truncate(0)
            self._file.close()


def _lock(file: IO[str]) -> None:
    # The kernel lets go of the lock when the process dies, however it dies.
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_run(root: Path) -> bool:
    """Say whether a folder is a run directory."""
    return (root / "run.json").is_file()


SMALL = BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle")
# Images are noise and hardly get smaller: 476 bytes a patch with the above, 524 with this, which is
# unpacked in a sixth of the time.
FAST = BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle")


def _create(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    chunk: int,
    codec: BloscCodec = SMALL,
) -> Any:
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=(chunk, *shape[1:]),
        compressors=codec,
        fill_value=0,
    )


class PatchWriter:
    """Write images and masks of known number, scan by scan, in whole chunks."""

    def __init__(self, path: Path, patches: int, size: int, mask_bytes: int) -> None:
        group = zarr.open_group(path, mode="w")
        self._arrays = [
            _create(group, "image", (patches, size, size), "uint8", PATCHES_A_CHUNK, FAST),
            _create(group, "mask", (patches, mask_bytes), "uint8", PATCHES_A_CHUNK),
        ]
        self._waiting: list[list[np.ndarray]] = [[], []]
        self._written = 0

    def append(self, image: UInt8[np.ndarray, "n u v"], mask: UInt8[np.ndarray, "n bytes"]) -> None:
        """Add the patches of a scan."""
        self._waiting[0].append(image)
        self._waiting[1].append(mask)
        waiting = sum(map(len, self._waiting[0]))
        if waiting >= PATCHES_A_CHUNK:
            self._flush(waiting // PATCHES_A_CHUNK * PATCHES_A_CHUNK)

    def close(self) -> None:
        """Write what is left."""
        self._flush(sum(map(len, self._waiting[0])))

    def _flush(self, rows: int) -> None:
        if rows == 0:
            return
        for n, array in enumerate(self._arrays):
            whole = np.concatenate(self._waiting[n])
            array[self._written : self._written + rows] = whole[:rows]
            self._waiting[n] = [whole[rows:]]
        self._written += rows


class PairWriter:
    """Write pairs of unknown number, block by block, in whole chunks."""

    def __init__(self, path: Path, patches: int) -> None:
        self._group = zarr.open_group(path, mode="w")
        self._offset = np.zeros(patches + 1, np.int64)
        self._arrays = {
            name: _create(self._group, name, (0,), dtype, PAIRS_A_CHUNK)
            for name, dtype in PAIR_ARRAYS.items()
        }
        self._waiting: dict[str, list[np.ndarray]] = {name: [] for name in PAIR_ARRAYS}
        self._count = 0
        self._written = 0

    def append(self, pairs: Pairs) -> None:
        """Add the next rows."""
        rows = slice(pairs.first, pairs.first + len(pairs.offset))
        self._offset[rows] = self._count + pairs.offset
        self._count += len(pairs.witness)
        for name, waiting in self._waiting.items():
            waiting.append(getattr(pairs, name))
        if self._count - self._written >= PAIRS_A_CHUNK:
            self._flush((self._count - self._written) // PAIRS_A_CHUNK * PAIRS_A_CHUNK)

    def close(self) -> int:
        """Write what is left; return the number of pairs."""
        self._flush(self._count - self._written)
        array = _create(self._group, "offset", self._offset.shape, "int64", PAIRS_A_CHUNK)
        array[:] = self._offset
        return self._count

    def _flush(self, count: int) -> None:
        for name, array in self._arrays.items():
            whole = np.concatenate(self._waiting[name] or [np.empty(0, PAIR_ARRAYS[name])])
            array.resize((self._written + count,))
            array[self._written :] = whole[:count]
            self._waiting[name] = [whole[count:]]
        self._written += count


def open_arrays(path: Path) -> zarr.Group:
    """Open a Zarr group for reading."""
    try:
        return zarr.open_group(path, mode="r")
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read as Zarr: {error}"
        raise StoreError(message) from error


def read_array(group: zarr.Group, name: str, rows: slice = slice(None)) -> Any:
    """Return rows of an array as NumPy."""
    return np.asarray(_array(group, name)[rows])


def read_whole(path: Path, name: str, empty: Callable[..., np.ndarray] = np.empty) -> Any:
    """Return a whole array of a store, its chunks unpacked on all cores, each into its place.

    Zarr unpacks a chunk elsewhere and then copies it. An array that is not as
    :class:`PatchWriter` writes it is left to Zarr. ``empty`` says where the array lies, as it does
    in NumPy.
    """
    array = _array(open_arrays(path), name)
    if not _is_plain(array):
        return np.asarray(array[:])
    out = empty(array.shape, array.dtype)
    rows = array.chunks[0]

    def unpack(number: int) -> None:
        place = path / name / array.metadata.encode_chunk_key((number,) + (0,) * (out.ndim - 1))
        part = out[number * rows : (number + 1) * rows]
        if not place.exists():  # a chunk that is nothing but the fill value is not written
            part[:] = array.fill_value
            return
        whole = part if len(part) == rows else np.empty(array.chunks, array.dtype)
        _unpack_into(place, whole)
        if whole is not part:
            part[:] = whole[: len(part)]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(unpack, range(-(-len(out) // rows))))
    return out


def _unpack_into(place: Path, whole: np.ndarray) -> None:
    packed = place.read_bytes()
    try:
        # Blosc's header says how many bytes there are, unpacked and packed.
        said = tuple(int.from_bytes(packed[at : at + 4], "little") for at in (4, 12))
        if said != (whole.nbytes, len(packed)):
            message = f"{whole.nbytes} bytes in {len(packed)} were expected, it says {said}"
            raise ValueError(message)
        Blosc().decode(packed, whole)
    except (RuntimeError, ValueError) as error:
        message = f"{place} is damaged: {error}"
        raise StoreError(message) from error


def _is_plain(array: Any) -> bool:
    return (
        array.metadata.zarr_format == 3
        and array.shards is None
        and not array.filters
        and [type(codec) for codec in array.compressors] == [BloscCodec]
        and array.chunks[1:] == array.shape[1:]
        and array.dtype == np.uint8
    )


def _array(group: zarr.Group, name: str) -> Any:
    array = group[name]
    if not isinstance(array, zarr.Array):
        message = f"{name} is not an array"
        raise StoreError(message)
    return array


def pair_blocks(path: Path, most: int = 4 * PAIRS_A_CHUNK) -> Iterator[Pairs]:
    """Yield the pairs of a run in blocks of whole rows, ``most`` pairs at a time.

    A row with more pairs than that is a block of its own.
    """
    group = open_arrays(path)
    offset = read_array(group, "offset")
    first = 0
    while first < len(offset) - 1:
        end = int(np.searchsorted(offset, offset[first] + most, side="right")) - 1
        end = max(end, first + 1)
        yield read_pairs(group, offset, first, end)
        first = end


def read_pairs(
    group: zarr.Group, offset: Int64[np.ndarray, " patches_plus_1"], first: int, end: int
) -> Pairs:
    """Return the witnesses of the patches ``first … end - 1``."""
    part = slice(int(offset[first]), int(offset[end]))
    return Pairs(
        first=first,
        offset=offset[first : end + 1] - offset[first],
        **{name: read_array(group, name, part) for name in PAIR_ARRAYS},
    )
