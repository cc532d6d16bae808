"""Names of cases: fit to be file names, different from each other, in an order people expect."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from maskwitness.io.volumes import split_ending

_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')  # in file names, on one system or another
_LONGEST = 180  # bytes of a name: file systems allow 255, and endings are added


def safe_name(text: str) -> str:
    """Return a name that can be that of a file on any system, alike for the same text."""
    plain = _FORBIDDEN.sub("_", unicodedata.normalize("NFC", text))
    plain = plain.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
    return plain.strip(" .") or "scan"


def unique_names(texts: Iterable[str]) -> Iterator[str]:
    """Make names safe, and different even where capitals do not count."""
    taken: set[str] = set()
    for text in texts:
        name = base = safe_name(text)
        number = 2
        while name.casefold() in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name.casefold())
        yield name


def derive_names(images: Sequence[Path]) -> list[str]:
    """Name images after their files, with as many folders in front as tell them apart."""
    stems = [split_ending(image.name)[0] for image in images]
    for ending in ("_0000", ".img"):  # nnU-Net's first channel, ImageCAS' images
        if all(stem.endswith(ending) and stem != ending for stem in stems):
            stems = [stem.removesuffix(ending) for stem in stems]
    folders = [[part for part in image.parts[1:-1] if part != ".."] for image in images]
    names = stems
    for depth in range(1, max(map(len, folders), default=0) + 1):
        if len(set(names)) == len(names):
            break
        names = ["_".join([*f[-depth:], stem]) for f, stem in zip(folders, stems, strict=True)]
    return names


def natural_order(text: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sorting key that puts 2 before 10, and every text in one place."""
    pieces = re.split(r"([0-9]+)", text.casefold())
    return [(int(p), "") if n % 2 else (-1, p) for n, p in enumerate(pieces)], text
