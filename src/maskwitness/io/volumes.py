"""Volumes: image and mask files in, a :class:`~maskwitness.records.Scan` out, and back.

Whatever the format, what leaves here is (i, j, k) in Fortran order with a RAS+ affine in
millimetres, in the file's own voxel type. A volume that cannot be audited as it is is refused with
the one sentence that its owner needs. Nothing is repaired on the quiet: a mask that had to be
guessed onto its image's grid would blame the annotator for the guess.
"""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped, UInt8

from maskwitness.errors import GeometryError, InputError
from maskwitness.geometry import check_affine, describe_grid, orientation, same_grid, spacing_mm
from maskwitness.io import itk, nifti
from maskwitness.records import Scan, Volume

VOLUME_ENDINGS = (*nifti.ENDINGS, *itk.ENDINGS)

_BLOCK = 1 << 18  # voxels looked at together: they and their flags stay in the cache
_ROUNDING = 1e-4  # a label may be this far from a whole number: files store scaled values
_LISTED = 12  # label values named in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Where one scan lies: its name in the data set, its image, its mask."""

    name: str
    image: Path
    mask: Path


def read_volume(path: Path) -> Volume:
    """Return the volume of a file, or of a folder that holds one DICOM series.

    ``data`` keeps the file's own voxel type; ``slope`` and ``intercept`` are handed on, not
    applied. Raises :class:`InputError` with the file's name and what is wrong with it.
    """
    try:
        volume = _read(path)
        check_affine(volume.affine)
    except (InputError, GeometryError) as error:
        message = f"{path}: {error}"
        raise InputError(message) from error
    except OSError as error:
        message = f"{path}: it cannot be read ({error.strerror or error})"
        raise InputError(message) from error
    return volume


def read_scan(case: Case, labels: tuple[int, ...] = ()) -> Scan:
    """Return image and mask of a case, the mask as 0 and 1.

    ``labels`` are the label values that count as vessel; none given: every non-zero one.
    """
    image, mask = read_volume(case.image), read_volume(case.mask)
    if not same_grid(image.shape, image.affine, mask.shape, mask.affine):
        raise InputError(_describe_mismatch(case, image, mask))
    _check_finite(case.image, image)
    try:
        marked = _mark(mask, labels)
    except InputError as error:
        message = f"{case.mask}: {error}"
        raise InputError(message) from error
    return Scan(name=case.name, image=image, mask=marked)


def write_volume(
    path: Path, data: Shaped[np.ndarray, "i j k"], affine: Float64[np.ndarray, "4 4"]
) -> None:
    """Write a NIfTI file (``.nii.gz`` or ``.nii``), whole or not at all.

    It is written under another name in the same folder and then renamed. The affine goes into the
    sform, and into the qform too unless it is sheared, which a qform cannot say.
    """
    ending = split_ending(path.name)[1].lower()
    if ending not in (".nii.gz", ".nii") or data.dtype.str[1:] not in nifti.KINDS | {"b1"}:
        message = f"{path}: voxels of type {data.dtype} cannot be written there as NIfTI"
        raise InputError(message)
    check_affine(affine)
    aside = path.with_name(f".{uuid.uuid4().hex[:12]}.part{ending}")
    try:
        nifti.write_nifti(aside, data, affine)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def files_of(path: Path) -> list[Path]:
    """Return the files that a volume lies in: one, or a folder's, or a header and its voxels.

    They come in the order of their names, a header first. Raises OSError where a folder or header
    cannot be read; whether the files are there is not looked at.
    """
    if path.is_dir():
        return sorted(part for part in path.iterdir() if part.is_file())
    ending = split_ending(path.name)[1].lower()
    if ending in (".hdr", ".img"):
        return [path.with_suffix(".hdr"), path.with_suffix(".img")]
    if ending in (".mhd", ".nhdr") and path.is_file():
        return [path, *sorted(itk.detached_files(path))]
    return [path]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a volume, to know it again.

    That of the file, for a volume in one file. For one in several (a folder of DICOM files, a
    header with the voxels elsewhere), that of the files' own digests, in the order of their names.
    """
    try:
        digests = [_digest(part) for part in files_of(path)]
    except OSError as error:
        message = f"{path}: it cannot be read ({error.strerror or error})"
        raise InputError(message) from error
    if len(digests) == 1 and not path.is_dir():
        return digests[0].hex()
    return hashlib.sha256(b"".join(digests)).hexdigest()


def split_ending(name: str) -> tuple[str, str]:
    """Return a file's name without its ending, and the ending: ``.nii.gz`` is one.

    The ending is empty where it is none of a volume. ``Path.stem`` would leave ``case.nii``.
    """
    for ending in VOLUME_ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)], name[-len(ending) :]
    return name, ""


def _read(path: Path) -> Volume:
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:  # other errors are told as the system tells them
        linked = path.is_symlink()
        message = "it links to a file that is not here" if linked else "there is no such file"
        raise InputError(message) from error
    if path.is_dir():
        return itk.read_series(path)
    if size == 0:
        message = "it is empty"
        raise InputError(message)
    ending = split_ending(path.name)[1].lower()
    if ending in nifti.ENDINGS:
        return nifti.read_nifti(path)
    if ending in itk.ENDINGS:
        return itk.read_itk(path)
    message = (
        f"it is no volume by its name, which would end in {', '.join(VOLUME_ENDINGS)}, or be that "
        "of a folder with a DICOM series"
    )
    raise InputError(message)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _blocks(data: Shaped[np.ndarray, "i j k"]) -> Iterator[tuple[int, np.ndarray]]:
    """Cut the voxels into pieces that fit the cache; each with the place of its first voxel."""
    flat = data.ravel(order="F")  # a view: volumes are in Fortran order
    for first in range(0, flat.size, _BLOCK):
        yield first, flat[first : first + _BLOCK]


def _describe_voxel(shape: tuple[int, int, int], place: int) -> str:
    return f"({', '.join(str(int(at)) for at in np.unravel_index(place, shape, order='F'))})"


def _check_finite(path: Path, image: Volume) -> None:
    if image.data.dtype.kind != "f":
        return
    bad, first_bad = 0, -1
    for first, block in _blocks(image.data):
        finite = np.isfinite(block)
        if not finite.all():
            bad += finite.size - int(np.count_nonzero(finite))
            first_bad = first_bad if first_bad >= 0 else first + int(finite.argmin())
    if bad:
        message = (
            f"{path}: {bad:,} voxels are not finite numbers, the first at "
            f"{_describe_voxel(image.shape, first_bad)}; give them a value (air is −1000 HU)"
        )
        raise InputError(message)


def _mark(mask: Volume, labels: tuple[int, ...]) -> UInt8[np.ndarray, "i j k"]:
    """Return 1 where a voxel has one of the labels, 0 elsewhere."""
    marked = np.empty(mask.data.size, np.bool_)
    for first, block in _blocks(mask.data):
        values = _label_values(mask, first, block)
        marked[first : first + block.size] = _has_label(values, labels)
        if not labels and values.dtype.kind != "u" and values.min(initial=0) < 0:
            message = (
                f"it holds {_number(values.min())}, and labels are not negative: is it an image? "
                "Or say which labels are vessel, with --label"
            )
            raise InputError(message)
    if not marked.any():
        raise InputError(_describe_empty(mask, labels))
    return marked.view(np.uint8).reshape(mask.shape, order="F")


def _has_label(
    values: Shaped[np.ndarray, " voxels"], labels: tuple[int, ...]
) -> Bool[np.ndarray, " voxels"]:
    if not labels:
        return values != 0
    found = values == labels[0]
    for label in labels[1:]:
        found |= values == label
    return found


def _label_values(mask: Volume, first: int, block: np.ndarray) -> np.ndarray:
    """Return the labels of a block of voxels as whole numbers, rescaled if the file says so."""
    rescaled = mask.slope != 1.0 or mask.intercept != 0.0
    if block.dtype.kind != "f" and not rescaled:
        return block
    values = block * mask.slope + mask.intercept if rescaled else block
    whole = np.rint(values)
    with np.errstate(invalid="ignore"):  # infinity has no distance to itself
        right = np.abs(values - whole) <= _ROUNDING
    if not right.all():
        at = int(right.argmin())
        message = (
            f"it holds {_number(values[at])} at voxel {_describe_voxel(mask.shape, first + at)}, "
            "and labels are whole numbers; if it is a probability map or was resampled, "
            "threshold it first"
        )
        raise InputError(message)
    return whole


def _describe_empty(mask: Volume, labels: tuple[int, ...]) -> str:
    if not labels:
        return "no voxel is marked: the mask is empty"
    held = np.unique(
        np.concatenate([np.unique(_label_values(mask, *block)) for block in _blocks(mask.data)])
    )
    held = held[held != 0]
    wanted = ", ".join(map(str, labels))
    if not held.size:
        return f"no voxel has label {wanted}: the mask is empty"
    there = ", ".join(_number(value) for value in held[:_LISTED])
    more = f" and {held.size - _LISTED} more" if held.size > _LISTED else ""
    return f"no voxel has label {wanted}; the labels in it are {there}{more}"


def _describe_mismatch(case: Case, image: Volume, mask: Volume) -> str:
    return (
        f"{case.mask}: it does not lie on the grid of its image {case.image}; "
        f"image: {describe_grid(image.shape, image.affine)}; "
        f"mask: {describe_grid(mask.shape, mask.affine)}; {_how_to_align(image, mask)}"
    )


def _how_to_align(image: Volume, mask: Volume) -> str:
    """Say what the owner of two grids most likely has to do."""
    if orientation(image.affine) != orientation(mask.affine):
        return (
            f"the axes point {orientation(image.affine)} and {orientation(mask.affine)}: turn both "
            "the same way (nibabel.as_closest_canonical), or resample the mask onto the image's "
            "grid with nearest neighbour"
        )
    if image.shape == mask.shape and np.allclose(
        spacing_mm(image.affine), spacing_mm(mask.affine), rtol=0.01
    ):
        return (
            "they have as many voxels of the same size: if the mask was drawn on this image, copy "
            "the image's affine into the mask; if not, resample the mask onto the image's grid "
            "with nearest neighbour"
        )
    return (
        "resample the mask onto the image's grid with nearest neighbour, e.g. "
        "nibabel.processing.resample_from_to(mask, image, order=0)"
    )


def _number(value: Any) -> str:
    return f"{float(value):.7g}".replace("-", "−", 1)
