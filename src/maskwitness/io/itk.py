"""NRRD, MetaImage and DICOM series, by way of SimpleITK (the extra ``itk``).

ITK's world is LPS and its arrays are (k, j, i); what leaves here is RAS+ and (i, j, k). ITK has
rescaled DICOM values already. A DICOM series is placed by the position that each of its slices
gives, not by ITK's summary of them: so a tilted gantry becomes the sheared affine that it is, and
a missing slice is seen.

The errors raised here state the fact alone; :mod:`maskwitness.io.volumes` adds the file's name.
"""

# mypy: allow-untyped-calls

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from maskwitness.errors import InputError
from maskwitness.io.nifti import three_axes
from maskwitness.records import Volume

ENDINGS = (".nrrd", ".nhdr", ".mha", ".mhd")

_LPS_TO_RAS = np.array([-1.0, -1.0, 1.0])
_SLACK = 0.1  # of a slice step: positions are often rounded to a tenth of a millimetre


def read_itk(path: Path) -> Volume:
    """Return the volume of a NRRD or MetaImage file."""
    with _simpleitk() as sitk:
        reader = sitk.ImageFileReader()
        reader.SetFileName(str(path))
        reader.ReadImageInformation()
        _check_kind(reader)
        shape = three_axes(reader.GetSize())
        axes = reader.GetDimension()
        direction = np.array(reader.GetDirection()).reshape(axes, axes)[:3, :3]
        steps = direction * np.array(reader.GetSpacing()[:3])
        affine = _ras(steps, np.array(reader.GetOrigin()[:3]))
        return Volume(data=_voxels(sitk, reader.Execute(), shape), affine=affine)


def read_series(folder: Path) -> Volume:
    """Return the volume of a folder that holds one DICOM series."""
    with _simpleitk() as sitk:
        names = _one_series(sitk, folder)
        slices = [_read_place(sitk, Path(name)) for name in names]
        if len(slices) == 1 and slices[0].size[2:] not in ((), (1,)):
            return read_itk(slices[0].path)  # one file with many frames
        slices, step = _in_order(slices)
        reader = sitk.ImageSeriesReader()
        reader.SetFileNames([str(one.path) for one in slices])
        columns, rows = slices[0].size[:2]
        shape = three_axes((columns, rows, len(slices)))
        steps = np.column_stack([slices[0].across_mm, slices[0].down_mm, step])
        affine = _ras(steps, slices[0].position_mm)
        return Volume(data=_voxels(sitk, reader.Execute(), shape), affine=affine)


def detached_files(path: Path) -> tuple[Path, ...]:
    """Return the files that hold the voxels of a ``.mhd`` or ``.nhdr`` header, in its order."""
    lines = path.read_bytes()[: 1 << 20].decode("latin-1").splitlines()
    names: list[str] = []
    for number, line in enumerate(lines):
        found = re.match(
            r"\s*(?:ElementDataFile\s*=|data ?file:)\s*(\S.*?)\s*$", line, re.IGNORECASE
        )
        if found:
            value = found[1]
            listed = value.split()[0].upper() == "LIST"
            names = [rest.strip() for rest in lines[number + 1 :]] if listed else [value]
            break
    found_files: list[Path] = []
    for name in filter(None, names):
        pattern = re.search(r"%\d*d", name)  # "slice%03d.raw 1 275 1"
        if pattern:
            found_files += sorted(path.parent.glob(re.sub(r"%\d*d", "*", name.split()[0])))
        elif name.upper() != "LOCAL":
            found_files.append(path.parent / name)
    return tuple(found_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """One DICOM file and where it says that it lies (LPS)."""

    path: Path
    size: tuple[int, ...]
    pixel: int
    position_mm: Float64[np.ndarray, " 3"]
    across_mm: Float64[np.ndarray, " 3"]
    down_mm: Float64[np.ndarray, " 3"]

    @property
    def depth_mm(self) -> float:
        """How far along the normal of the slice it lies."""
        normal = np.cross(self.across_mm, self.down_mm)
        length = float(np.sqrt((normal**2).sum())) or 1.0
        return float((self.position_mm * normal).sum()) / length


@contextmanager
def _simpleitk() -> Iterator[Any]:
    """Lend SimpleITK: late, silent, and with its errors in one sentence."""
    try:
        import SimpleITK as sitk
    except ImportError as error:
        message = "NRRD, MetaImage and DICOM need SimpleITK: pip install maskwitness[itk]"
        raise InputError(message) from error
    loud = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield sitk
    except RuntimeError as error:
        lines = [line.strip(" \n:") for line in str(error).splitlines() if line.strip()]
        message = f"ITK cannot read it ({lines[-1] if lines else type(error).__name__})"
        raise InputError(message) from error
    finally:
        sitk.ProcessObject.SetGlobalWarningDisplay(loud)


def _check_kind(reader: Any) -> None:
    """Refuse colours, vectors and complex numbers."""
    import SimpleITK as sitk

    kind = sitk.GetPixelIDValueAsString(reader.GetPixelIDValue())
    if reader.GetNumberOfComponents() > 1 or "complex" in kind or "vector" in kind:
        message = (
            f"each voxel holds {reader.GetNumberOfComponents()} numbers ({kind}), and one is wanted"
        )
        raise InputError(message)


def _ras(
    steps_lps: Float64[np.ndarray, "3 3"], origin_lps: Float64[np.ndarray, " 3"]
) -> Float64[np.ndarray, "4 4"]:
    affine = np.eye(4)
    affine[:3, :3] = steps_lps * _LPS_TO_RAS[:, np.newaxis]
    affine[:3, 3] = origin_lps * _LPS_TO_RAS
    return affine


def _voxels(sitk: Any, image: Any, shape: tuple[int, int, int]) -> Shaped[np.ndarray, "i j k"]:
    # A copy, not a view: a view outlives the image that owns its memory.
    return sitk.GetArrayFromImage(image).reshape(shape[::-1]).T


def _one_series(sitk: Any, folder: Path) -> tuple[str, ...]:
    series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
    files = {uid: sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), uid) for uid in series}
    if len(files) == 1:
        return next(iter(files.values()))
    if not files:
        message = "the folder holds no DICOM series; one series' files must lie directly in it"
        raise InputError(message)
    listed = "; ".join(f"{uid} ({len(files[uid])} files)" for uid in sorted(files)[:5])
    message = (
        f"the folder holds {len(files)} DICOM series ({listed}{'; …' if len(files) > 5 else ''}); "
        "put the one to be audited into a folder of its own"
    )
    raise InputError(message)


def _read_place(sitk: Any, path: Path) -> _Slice:
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    _check_kind(reader)
    axes = reader.GetDimension()
    direction = np.array(reader.GetDirection()).reshape(axes, axes)
    spacing = reader.GetSpacing()
    if axes < 3:
        message = f"{path.name} does not say where it lies"
        raise InputError(message)
    return _Slice(
        path=path,
        size=tuple(reader.GetSize()),
        pixel=reader.GetPixelIDValue(),
        position_mm=np.array(reader.GetOrigin()[:3]),
        across_mm=direction[:3, 0] * spacing[0],
        down_mm=direction[:3, 1] * spacing[1],
    )


def _in_order(slices: list[_Slice]) -> tuple[list[_Slice], Float64[np.ndarray, " 3"]]:
    """Return the slices along their normal and the step between two, or say what is wrong."""
    ordered = sorted(slices, key=lambda one: (one.depth_mm, one.path.name))
    first, last = ordered[0], ordered[-1]
    if len(ordered) == 1:
        message = f"the series is a single slice ({first.path.name}), and a volume is wanted"
        raise InputError(message)
    for one in ordered:
        if one.size[:2] != first.size[:2] or one.pixel != first.pixel:
            message = f"{one.path.name} and {first.path.name} differ in size or voxel type"
            raise InputError(message)
        turned = np.abs([one.across_mm - first.across_mm, one.down_mm - first.down_mm]).max()
        if turned > 1e-3 * np.abs(first.across_mm).max():
            message = f"{one.path.name} and {first.path.name} point different ways"
            raise InputError(message)
    step = (last.position_mm - first.position_mm) / (len(ordered) - 1)
    _check_gaps(ordered)
    _check_line(ordered, step)
    return ordered, step


def _check_gaps(ordered: list[_Slice]) -> None:
    gaps_mm = np.diff([one.depth_mm for one in ordered])
    usual_mm = float(np.median(gaps_mm))
    for before, after, gap_mm in zip(ordered, ordered[1:], gaps_mm, strict=False):
        names = f"{before.path.name} and {after.path.name}"
        if gap_mm <= max(0.01 * usual_mm, 1e-6):
            message = (
                f"{names} lie in the same place: "
                "put one phase or reconstruction into a folder of its own"
            )
            raise InputError(message)
        if gap_mm > 1.5 * usual_mm:
            message = (
                f"slices are missing: {names} lie {gap_mm:.3g} mm apart, and its slices are "
                f"{usual_mm:.3g} mm apart; export the whole series again"
            )
            raise InputError(message)


def _check_line(ordered: list[_Slice], step: Float64[np.ndarray, " 3"]) -> None:
    first, length_mm = ordered[0], float(np.sqrt((step**2).sum()))
    for number, one in enumerate(ordered):
        off = first.position_mm + number * step - one.position_mm
        off_mm = float(np.sqrt((off**2).sum()))
        if off_mm > _SLACK * length_mm:
            message = (
                f"its slices are not evenly spaced: {one.path.name} lies {off_mm:.3g} mm from "
                f"where steps of {length_mm:.3g} mm would put it; resample the series first"
            )
            raise InputError(message)
