"""NIfTI files: voxels as they lie in the file, and the millimetres that the header means.

nibabel reads the header, for nobody knows NIfTI's corners better. The voxels do not go through it:
they are decompressed by ISA-L straight into the array that is handed on, in their own type and
order (Fortran, i fastest), and never turned into floats. A 512 x 512 x 275 int16 ``.nii.gz`` takes
0.3 s that way, and 1.0 s through nibabel.

The errors raised here state the fact alone; :mod:`maskwitness.io.volumes` adds the file's name.

What is decided here
    The affine is the sform, else the qform, else the spacing alone, as in nibabel. A header that
    gives its lengths in metres or micrometres is believed, as in ITK. A slope of 0 or NaN means
    that values are not rescaled. A header is never believed about its size before the file has
    been looked at: no more is kept than it promises. A gzip stream is read to its end all the same,
    because the checksum stands there: damage that makes the data longer would else go unnoticed.
"""

# mypy: allow-untyped-calls

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import igzip, isal_zlib
from jaxtyping import Float64, Shaped
from nibabel.spatialimages import HeaderDataError

from maskwitness.errors import InputError
from maskwitness.geometry import same_grid
from maskwitness.records import Volume

ENDINGS = (".nii.gz", ".nii", ".hdr", ".img")
MOST_VOXELS = 2**33
KINDS = frozenset({"i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"})

_IsalError: Any = isal_zlib.error  # isal's stub calls the class an instance
_DAMAGED: tuple[type[Exception], ...] = (igzip.BadGzipFile, _IsalError, zlib.error)
_PIECE = 1 << 20  # bytes per read: 0.29 s a scan, against 0.36 s in one read (cache)
_SLAB = 1 << 24  # bytes per write
_DENSEST_GZIP = 1032  # deflate cannot shrink by more
_MOST_AFTER = 1 << 28  # bytes that may follow the voxels in a gzip stream: a bomb is not unpacked
_FARTHEST_OFFSET = 1 << 28  # where voxels may begin: extensions are metadata, not data
_MM = {1: 1000.0, 2: 1.0, 3: 0.001}  # NIfTI's codes for metre, millimetre, micrometre


def read_nifti(path: Path) -> Volume:
    """Return the volume of a ``.nii``, ``.nii.gz`` or ``.hdr``/``.img`` file."""
    header_path, data_path = _header_and_data(path)
    with _open(header_path) as stream:
        header = _read_header(stream)
        shape = three_axes(header.get_data_shape())
        kind = _voxel_kind(header)
        slope, intercept = _rescaling(header)
        affine = _affine(header, shape)
        begin = _first_byte(header, single=header_path == data_path)
        size = shape[0] * shape[1] * shape[2] * kind.itemsize
        _check_promise(data_path, begin, size)
        if header_path == data_path:
            raw = _read_bytes(stream, begin - stream.tell(), size)
        else:
            with _open(data_path) as data_stream:
                raw = _read_bytes(data_stream, begin, size)
    data = raw.view(kind).reshape(shape, order="F")
    if not kind.isnative:
        data = data.byteswap(inplace=True).view(kind.newbyteorder("="))
    return Volume(data=data, affine=affine, slope=slope, intercept=intercept)


def write_nifti(
    path: Path, data: Shaped[np.ndarray, "i j k"], affine: Float64[np.ndarray, "4 4"]
) -> None:
    """Write voxels in their own type, gzipped where the name ends in ``.gz``.

    The same voxels give the same bytes on one machine; another processor may find another, equally
    good way to compress them. Besides ``data``, a slab of 16 MiB is held at most.
    """
    voxels = data.view(np.uint8) if data.dtype == np.bool_ else data
    header = _header_of(voxels, affine)
    slice_bytes = max(1, voxels.shape[0] * voxels.shape[1] * voxels.dtype.itemsize)
    step = max(1, _SLAB // slice_bytes)
    little = voxels.dtype.newbyteorder("<")
    with path.open("wb") as file, _compressor(file, path) as stream:
        stream.write(header.binaryblock + b"\0\0\0\0")  # no extensions
        for first in range(0, voxels.shape[2], step):
            slab = np.asfortranarray(voxels[:, :, first : first + step], dtype=little)
            stream.write(slab.T.data.cast("B"))


def three_axes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return a 3-D shape, or refuse it: axes of one voxel after the third do not count."""
    sizes = tuple(int(size) for size in shape)
    while len(sizes) > 3 and sizes[-1] == 1:
        sizes = sizes[:-1]
    described = " × ".join(map(str, sizes))
    if len(sizes) != 3:
        message = (
            f"it has {len(sizes)} axes ({described}), and one 3-D volume is wanted; "
            f"{'save each volume as a file of its own' if len(sizes) > 3 else 'stack the slices'}"
        )
        raise InputError(message)
    i, j, k = sizes
    if min(sizes) < 1:
        message = f"its header promises {described} voxels, which is no volume"
        raise InputError(message)
    if i * j * k > MOST_VOXELS:
        message = f"its header promises {described} voxels, more than any scan has"
        raise InputError(message)
    return i, j, k


def _header_and_data(path: Path) -> tuple[Path, Path]:
    if path.suffix.lower() not in (".hdr", ".img"):
        return path, path
    found = path.with_suffix(".hdr"), path.with_suffix(".img")
    for part in found:
        if not part.is_file():
            message = f"a .hdr file and its .img file go together, and there is no {part.name}"
            raise InputError(message)
    return found


@contextmanager
def _open(path: Path) -> Iterator[BufferedIOBase]:
    """Open a file for reading, gzipped or not: the first bytes decide, not the name."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            if not packed:
                yield file
            else:
                with igzip.open(file, "rb") as stream:
                    yield stream
        except EOFError as error:
            message = "it is cut short: the gzip data end too early; copy or download it again"
            raise InputError(message) from error
        except _DAMAGED as error:
            message = f"its gzip data are damaged ({error}); copy or download it again"
            raise InputError(message) from error


def _read_header(stream: BufferedIOBase) -> nib.Nifti1Header:
    block = stream.read(348)
    if not block:
        message = "it is empty"
        raise InputError(message)
    for kind in (nib.Nifti1Header, nib.Nifti2Header):
        more = kind.sizeof_hdr - 348
        if block[:4] in (kind.sizeof_hdr.to_bytes(4, order) for order in ("little", "big")):
            block += stream.read(more) if more else b""
            if len(block) < kind.sizeof_hdr:
                break
            header = kind(block, check=False)
            if bytes(header["magic"])[:2] in (b"n+", b"ni"):
                return header
    message = "it does not begin with a NIfTI header, whatever its name says"
    raise InputError(message)


def _voxel_kind(header: nib.Nifti1Header) -> np.dtype[Any]:
    try:
        kind = header.get_data_dtype()
    except (KeyError, HeaderDataError) as error:
        message = f"its header gives the voxel type {int(header['datatype'])}, which NIfTI has not"
        raise InputError(message) from error
    if kind.str[1:] not in KINDS:
        name = "RGB colour" if kind.fields else kind.name
        message = f"its voxels are of type {name}, and whole or real numbers are wanted"
        raise InputError(message)
    return kind


def _rescaling(header: nib.Nifti1Header) -> tuple[float, float]:
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or np.isnan(slope):
        return 1.0, 0.0
    if not np.isfinite([slope, intercept]).all():
        message = f"its header rescales values by {slope:g} and then adds {intercept:g}"
        raise InputError(message)
    return slope, intercept


def _affine(header: nib.Nifti1Header, shape: tuple[int, int, int]) -> Float64[np.ndarray, "4 4"]:
    if int(header["sform_code"]) <= 0 and int(header["qform_code"]) <= 0:
        header.set_data_shape(shape)  # the affine of last resort is centred: it needs 3 axes
    try:
        affine = np.array(header.get_best_affine(), dtype=np.float64)
    except (ValueError, HeaderDataError) as error:
        message = f"its header holds no rotation that can be used ({error})"
        raise InputError(message) from error
    affine[:3] *= _MM.get(int(header["xyzt_units"]) & 7, 1.0)
    return affine


def _first_byte(header: nib.Nifti1Header, *, single: bool) -> int:
    begin = float(header["vox_offset"])
    if not (header.sizeof_hdr if single else 0) <= begin <= _FARTHEST_OFFSET:
        message = f"its header says that the voxels begin at byte {begin:g}, where they cannot be"
        raise InputError(message)
    return int(begin)


def _check_promise(path: Path, begin: int, size: int) -> None:
    """Refuse a file that cannot hold what its header promises, before memory is asked for."""
    held = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            held *= _DENSEST_GZIP
    if held < begin + size:
        raise _cut_short(max(0, held - begin), size)


def _read_bytes(stream: BufferedIOBase, skip: int, size: int) -> np.ndarray:
    while skip > 0:
        passed = len(stream.read(min(skip, _PIECE)))
        if not passed:
            raise _cut_short(0, size)
        skip -= passed
    raw = np.empty(size, np.uint8)
    view, done = raw.data, 0
    while done < size:
        got = stream.readinto(view[done : done + _PIECE])
        if not got:
            raise _cut_short(done, size)
        done += got
    if isinstance(stream, igzip.IGzipFile):
        _read_to_end(stream)
    return raw


def _read_to_end(stream: BufferedIOBase) -> None:
    passed = 0
    while piece := len(stream.read(_PIECE)):
        passed += piece
        if passed > _MOST_AFTER:
            message = (
                f"its gzip data go on for more than {_MOST_AFTER:,} bytes after its voxels: they "
                "are damaged, or its header is wrong; copy or download it again"
            )
            raise InputError(message)


def _cut_short(held: int, size: int) -> InputError:
    return InputError(
        f"it is cut short: its header promises {size:,} bytes of voxels and at most {held:,} are "
        "there; copy or download it again"
    )


def _header_of(
    voxels: Shaped[np.ndarray, "i j k"], affine: Float64[np.ndarray, "4 4"]
) -> nib.Nifti1Header:
    header = nib.Nifti1Header(endianness="<")
    header.set_data_dtype(voxels.dtype.newbyteorder("<"))
    header.set_data_shape(voxels.shape)
    header.set_xyzt_units("mm")
    header.set_slope_inter(1.0, 0.0)
    header["vox_offset"] = header.sizeof_hdr + 4
    header["descrip"] = b"maskwitness"
    header.set_qform(affine, code=1, strip_shears=True)
    i, j, k = voxels.shape
    if not same_grid((i, j, k), affine, (i, j, k), header.get_qform()):
        header["qform_code"] = 0  # sheared: a rotation and a spacing cannot say it
    header.set_sform(affine, code=1)
    return header


@contextmanager
def _compressor(file: BufferedIOBase, path: Path) -> Iterator[BufferedIOBase]:
    if path.suffix.lower() != ".gz":
        yield file
        return
    with igzip.IGzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as stream:
        yield stream
