"""Data sets: which image belongs to which mask, in the layouts that people keep them in.

Nothing is decided by the order of a listing: a mask belongs to the image of its name, or to the one
that a table names. What was left out, and why, is in the notes of the data set. A file that a table
names and that is not there stays a case: it is refused by name when it is read, and the others are
audited.
"""

import csv
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from maskwitness.errors import InputError
from maskwitness.io.naming import derive_names, natural_order, unique_names
from maskwitness.io.volumes import VOLUME_ENDINGS, Case, split_ending

__all__ = ["Case", "Dataset", "find_cases", "find_cases_in"]

_LAYOUTS = (
    "an nnU-Net folder (imagesTr, labelsTr), an ImageCAS folder (N.img.nii.gz and "
    "N.label.nii.gz), a datalist (.json with a list 'training' of image and label) or a table "
    "(.csv or .parquet with the columns image and mask); two folders with files of the same "
    "names are given as --images DIR --masks DIR"
)
_CHANNEL = re.compile(r"_(\d{4})$")
_SHOWN = 5  # names in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The cases of a data set, sorted by name, and what is worth knowing about it."""

    kind: str  # nnU-Net, ImageCAS, datalist, table or folders
    root: Path
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A case as its data set gives it: perhaps without a name, perhaps with an odd one."""

    image: Path
    mask: Path
    name: str | None = None


def find_cases(dataset: Path) -> Dataset:
    """Return the cases of a folder or file, whichever layout it has."""
    place = dataset.absolute()
    if place.is_dir():
        return _find_in_folder(place)
    if not place.exists():
        message = f"{dataset}: there is no such file or folder"
        raise InputError(message)
    readers: dict[str, Callable[[Path], Dataset]] = {
        ".json": _read_json,
        ".csv": _read_table,
        ".tsv": _read_table,
        ".parquet": _read_table,
    }
    if place.suffix.lower() not in readers:
        message = f"{dataset}: not a data set; looked for {_LAYOUTS}"
        raise InputError(message)
    return readers[place.suffix.lower()](place)


def find_cases_in(images: Path, masks: Path) -> Dataset:
    """Return the cases of a folder of images and one of masks: files of the same name.

    An image may carry nnU-Net's ``_0000``. A sub-folder counts as a DICOM series.
    """
    image_folder, mask_folder = images.absolute(), masks.absolute()
    for folder in (image_folder, mask_folder):
        if not folder.is_dir():
            message = f"{folder}: there is no such folder"
            raise InputError(message)
    if image_folder == mask_folder:
        message = f"{images}: images and masks are the same folder; one of each is wanted"
        raise InputError(message)
    entries, notes = _pair_folders(image_folder, mask_folder, folders=True)
    return _dataset("folders", image_folder, entries, notes)


def _find_in_folder(folder: Path) -> Dataset:
    described = folder / "dataset.json"
    contents = _load_json(described) if described.is_file() else {}
    if isinstance(contents.get("dataset"), Mapping):
        return _find_nnunet_listed(folder, contents)
    images, masks = folder / "imagesTr", folder / "labelsTr"
    channels = images.is_dir() and any(_CHANNEL.search(stem) for stem in _volumes_in(images))
    if masks.is_dir() and (channels or (images.is_dir() and "training" not in contents)):
        return _find_nnunet(folder, contents)
    if "training" in contents:
        return _read_datalist(described, contents)
    found = _find_imagecas(folder)
    if found is None:
        message = f"{folder}: not a data set; looked for {_LAYOUTS}"
        raise InputError(message)
    return found


def _find_nnunet(folder: Path, contents: Mapping[str, Any]) -> Dataset:
    ending = contents.get("file_ending")
    if ending is not None and str(ending).lower() not in VOLUME_ENDINGS:
        message = (
            f"{folder / 'dataset.json'}: file_ending is {ending!r}, and volumes end in "
            f"{', '.join(VOLUME_ENDINGS)}"
        )
        raise InputError(message)
    entries, notes = _pair_folders(
        folder / "imagesTr", folder / "labelsTr", ending=str(ending or "")
    )
    return _dataset("nnU-Net", folder, entries, [*notes, *_label_notes(contents)])


def _find_nnunet_listed(folder: Path, contents: Mapping[str, Any]) -> Dataset:
    """Read the explicit paths that nnU-Net allows in dataset.json, variables expanded as there."""
    entries, without, several = [], [], []
    for name, item in contents["dataset"].items():
        item = item if isinstance(item, Mapping) else {}
        images, label = item.get("images"), item.get("label")
        if not isinstance(images, list) or not images or not isinstance(images[0], str):
            message = f"{folder / 'dataset.json'}: case {name!r} has no list 'images' of files"
            raise InputError(message)
        if not isinstance(label, str):
            without.append(name)
            continue
        if len(images) > 1:
            several.append(name)
        image, mask = (folder / os.path.expandvars(text) for text in (images[0], label))
        entries.append(_Entry(image=image, mask=mask, name=name))
    notes = [*_listed_note("cases without a label are left out", without)]
    notes += _listed_note("only channel 0 is looked at of cases with several", several)
    return _dataset("nnU-Net", folder, entries, [*notes, *_label_notes(contents)])


def _label_notes(contents: Mapping[str, Any]) -> list[str]:
    labels = contents.get("labels")
    if not isinstance(labels, Mapping):
        return []
    pairs = [pair for pair in labels.items() if "background" not in pair and 0 not in pair]
    if len(pairs) < 2:
        return []
    listed = ", ".join(f"{name}: {value}" for name, value in pairs)
    warning = "" if "ignore" not in labels else ", 'ignore' too"
    return [f"dataset.json has the labels {listed}; all count as vessel{warning}, unless --label"]


def _find_imagecas(folder: Path) -> Dataset | None:
    """Pair N.img with N.label, in the folder itself or up to two folders down."""
    parts: dict[str, dict[Path, Path]] = {".img": {}, ".label": {}}
    for pattern in ("*", "*/*", "*/*/*"):
        for file in folder.glob(f"{pattern}.*"):
            stem, ending = split_ending(file.name)
            kind = Path(stem).suffix.lower()
            if ending and kind in parts and not stem.startswith("."):
                key = file.parent / stem[: -len(kind)]
                _keep_one(parts[kind], key, file)
    images, masks = parts[".img"], parts[".label"]
    if not images and not masks:
        return None
    entries = [
        _Entry(image=images[key], mask=masks[key], name=key.name) for key in images.keys() & masks
    ]
    notes = _unpaired_notes(
        [str(key.relative_to(folder)) for key in images.keys() - masks.keys()],
        [str(key.relative_to(folder)) for key in masks.keys() - images.keys()],
    )
    return _dataset("ImageCAS", folder, entries, notes)


def _read_json(path: Path) -> Dataset:
    contents = _load_json(path)
    nnunet = "dataset" in contents or (path.parent / "labelsTr").is_dir()
    if path.name == "dataset.json" and nnunet:
        return _find_in_folder(path.parent)
    if "training" not in contents:
        held = ", ".join(map(str, contents)) or "nothing"
        message = f"{path}: a datalist has a list 'training', and this file holds {held}"
        raise InputError(message)
    return _read_datalist(path, contents)


def _read_datalist(path: Path, contents: Mapping[str, Any]) -> Dataset:
    entries, without = [], []
    for part in ("training", "validation"):
        items = contents.get(part, [])
        if not isinstance(items, list):
            message = f"{path}: '{part}' is no list"
            raise InputError(message)
        for number, item in enumerate(items):
            where = f"{path}: {part}[{number}]"
            fields = item if isinstance(item, Mapping) else {"image": item}
            image = _one_file(where, "image", fields.get("image"))
            if fields.get("label") is None:
                without.append(Path(image).name)
                continue
            mask = _one_file(where, "label", fields["label"])
            entries.append(_Entry(image=path.parent / image, mask=path.parent / mask))
    notes = _listed_note("images without a label are left out", without)
    return _dataset("datalist", path.parent, entries, notes, source=path)


def _one_file(where: str, key: str, value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        message = (
            f"{where} has {len(value)} files as its {key}, and one is wanted: name one of them"
        )
        raise InputError(message)
    if not isinstance(value, str) or not value.strip():
        message = f"{where} has no {key}: {value!r} is not the name of a file"
        raise InputError(message)
    return value


def _read_table(path: Path) -> Dataset:
    columns, rows = _load_parquet(path) if path.suffix.lower() == ".parquet" else _load_csv(path)
    missing = [name for name in ("image", "mask") if name not in columns]
    if missing:
        message = (
            f"{path}: the table has no column {' and no column '.join(missing)}; "
            f"its columns are {', '.join(columns) or 'none'}"
        )
        raise InputError(message)
    entries, without = [], []
    for number, row in enumerate(rows, start=1):
        image, mask, name = (_text(row.get(key)) for key in ("image", "mask", "name"))
        if not image or not mask:
            without.append(f"row {number}")
            continue
        entry = _Entry(image=path.parent / image, mask=path.parent / mask, name=name or None)
        entries.append(entry)
    notes = _listed_note("rows without an image or a mask are left out", without)
    return _dataset("table", path.parent, entries, notes, source=path)


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _load_csv(path: Path) -> tuple[list[str], Iterable[Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = max((",", ";", "\t"), key=text.partition("\n")[0].count)
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
        columns = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = columns
        return columns, list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: it cannot be read as CSV ({error}); save it as CSV in UTF-8"
        raise InputError(message) from error


def _load_parquet(path: Path) -> tuple[list[str], Iterable[Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        message = f"{path}: it cannot be read as parquet ({error})"
        raise InputError(message) from error
    known = [name for name in ("image", "mask", "name") if name in table.column_names]
    return table.column_names, table.select(known).to_pylist()


def _load_json(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        message = f"{path}: it cannot be read as JSON ({error})"
        raise InputError(message) from error
    if not isinstance(contents, dict):
        message = f"{path}: it holds a {type(contents).__name__}, and a datalist is an object"
        raise InputError(message)
    return contents


def _volumes_in(folder: Path, ending: str = "", *, folders: bool = False) -> dict[str, Path]:
    """Return the volumes of a folder by the name without the ending."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith("."):
            continue
        if folders and file.is_dir():
            _keep_one(found, file.name, file)
            continue
        stem, ended = split_ending(file.name)
        if ended and ended.lower() != ".img" and ended.lower() == (ending or ended).lower():
            _keep_one(found, stem, file)
    return found


def _keep_one(found: dict[Any, Path], key: Any, file: Path) -> None:
    if key in found:
        message = f"{found[key]} and {file} are both {Path(key).name!r}: remove one of them"
        raise InputError(message)
    found[key] = file


def _pair_folders(
    images: Path, masks: Path, ending: str = "", *, folders: bool = False
) -> tuple[list[_Entry], list[str]]:
    image_of = _volumes_in(images, ending, folders=folders)
    mask_of = _volumes_in(masks, ending, folders=folders)
    entries, used = [], set()
    several, others = [], defaultdict(list)
    for stem in image_of:
        if _CHANNEL.search(stem) and stem not in mask_of:
            others[_CHANNEL.sub("", stem)].append(stem)
    for name, mask in mask_of.items():
        fitting = [stem for stem in (name, f"{name}_0000") if stem in image_of]
        if len(fitting) == 2:
            pair = " and ".join(str(image_of[stem]) for stem in fitting)
            message = f"{pair} could both be the image of {mask}: remove one of them"
            raise InputError(message)
        if fitting:
            entries.append(_Entry(image=image_of[fitting[0]], mask=mask, name=name))
            used.update([name, *fitting, *others[name]])
            if len(others[name]) > 1:
                several.append(name)
    notes = _listed_note("only channel 0 is looked at of cases with several", several)
    unused = image_of.keys() - used
    return entries, [*notes, *_unpaired_notes(unused, mask_of.keys() - used)]


def _unpaired_notes(images: Iterable[str], masks: Iterable[str]) -> list[str]:
    return [
        *_listed_note("images without a mask are left out", images),
        *_listed_note("masks without an image are left out", masks),
    ]


def _listed_note(what: str, names: Iterable[str]) -> list[str]:
    ordered = sorted(names, key=natural_order)
    if not ordered:
        return []
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return [f"{what}: {', '.join(ordered[:_SHOWN])}{more}"]


def _dataset(
    kind: str,
    root: Path,
    entries: Sequence[_Entry],
    notes: Iterable[str],
    source: Path | None = None,
) -> Dataset:
    """Name the cases, sort them, and refuse a data set that has none."""
    notes = list(notes)
    if not entries:
        found = f" ({'; '.join(notes)})" if notes else ""
        message = (
            f"{source or root}: there is no image with a mask in it{found}; looked for {_LAYOUTS}"
        )
        raise InputError(message)
    for entry in entries:
        for path in (entry.image, entry.mask):
            if "\0" in str(path):
                message = f"{source or root}: {str(path)!r} is no file name: it holds a zero byte"
                raise InputError(message)
    derived = iter(derive_names([entry.image for entry in entries if entry.name is None]))
    wanted = [(entry.name if entry.name is not None else next(derived), entry) for entry in entries]
    wanted.sort(key=lambda pair: (natural_order(pair[0]), str(pair[1].image), str(pair[1].mask)))
    _refuse_twins(wanted)
    cases, changed = [], []
    for (text, entry), name in zip(wanted, unique_names(text for text, _ in wanted), strict=True):
        cases.append(Case(name=name, image=entry.image, mask=entry.mask))
        if name != text:
            changed.append(f"{text!r} is {name!r}")
    notes += _listed_note("names that files cannot have were changed", changed)
    return Dataset(kind=kind, root=root, cases=tuple(cases), notes=tuple(notes))


def _refuse_twins(wanted: Sequence[tuple[str, _Entry]]) -> None:
    for (name, one), (other, two) in pairwise(wanted):
        if name == other:
            message = (
                f"two cases are named {name!r}: {one.image} with {one.mask}, and {two.image} with "
                f"{two.mask}; give each a name of its own"
            )
            raise InputError(message)
