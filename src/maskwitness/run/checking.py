"""One new scan against a finished run: its patches ask, the run's patches testify.

The scores are what they would be if the run's baseline were all that is known: the run's settings,
labels, baseline and limit of what is bad hold, and the run is only read. What comes out is a folder
like a small run; it is written under another name and renamed when it is whole.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from maskwitness.config import Config
from maskwitness.errors import GeometryError, InputError, StoreError
from maskwitness.findings import bad_limit
from maskwitness.geometry import spacing_mm
from maskwitness.io.datasets import Case
from maskwitness.io.files import write_whole
from maskwitness.io.naming import derive_names, safe_name
from maskwitness.io.store import FORMAT, PairWriter, PatchWriter, RunFolder
from maskwitness.io.tables import read_table, write_table
from maskwitness.io.volumes import file_digest, read_scan, write_volume
from maskwitness.join import Device, Memory, range_pairs
from maskwitness.pipeline import describe, judge, mask_areas, positions_um
from maskwitness.records import Bank, Description, Scan, Scores
from maskwitness.residuals import bin_edges, score_patches
from maskwitness.run.extract import patch_table
from maskwitness.run.opened import CHECK, Check, Run, open_check, open_run, run_identity
from maskwitness.run.scoring import read_bank, write_judgement
from maskwitness.run.stages import Progress, now, silent, version

NO_SCAN = -1  # number of the scan, and group of its patches: one that no scan of a run has
SAME = (
    ("image_sha256", "the same image"),
    ("mask_sha256", "the same mask"),
    ("name", "the same name"),
)


def check(
    run: str | Path | Run,
    *,
    image: str | Path,
    mask: str | Path,
    output: str | Path,
    device: Device = "auto",
    redo: bool = False,
    progress: Progress = silent,
) -> Check:
    """Check one new scan against a finished run and return the opened check.

    A scan of the run that is this one by its image, its mask or its name does not testify: a mask
    must not acquit itself.

    Parameters
    ----------
    run
        A finished run, opened or as a path. It is not changed.
    image, mask
        The scan. The run's labels say what of the mask is vessel.
    output
        The folder to write. It must not exist, or be empty.
    device
        Where the search for witnesses runs, as in :func:`~maskwitness.audit`.
    redo
        Replace a former check at ``output``.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    if not opened.is_finished:
        message = (
            f"the audit of {opened.path} is not finished; a check needs a finished run: "
            "run the same audit again to go on"
        )
        raise StoreError(message)
    place = Path(output)
    _refuse_place(place, opened, redo)
    case = _case(Path(image), Path(mask))
    with _aside(place) as folder:
        _Check(opened, case, folder, device, progress).write()
    return open_check(place)


def _case(image: Path, mask: Path) -> Case:
    name = safe_name(derive_names([image])[0])
    return Case(name=name, image=image.absolute(), mask=mask.absolute())


def _refuse_place(place: Path, run: Run, redo: bool) -> None:
    if place.resolve().is_relative_to(run.path.resolve()):
        message = f"{place} lies in the run {run.path}, which is not changed; choose another place"
        raise StoreError(message)
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    try:
        open_check(place)
    except StoreError as error:
        message = f"{place} is there already and is no former check; choose another place"
        raise StoreError(message) from error
    if not redo:
        message = (
            f"{place} holds a former check.\n"
            "Choose another place with -o, or say --redo to replace it."
        )
        raise StoreError(message)


@contextmanager
def _aside(place: Path) -> Iterator[RunFolder]:
    # A folder beside the place, which takes its name at the end; nothing is left of a failure.
    aside = place.with_name(f".{place.name}.{os.getpid()}.part")
    old = aside.with_suffix(".old")
    aside.mkdir(parents=True)
    try:
        yield RunFolder(aside)
        if place.exists():
            place.replace(old)
        aside.replace(place)
    finally:
        if old.exists() and not place.exists():
            old.replace(place)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@dataclass(slots=True)
class _Check:
    run: Run
    case: Case
    folder: RunFolder
    device: Device
    progress: Progress
    config: Config = field(init=False)
    memory: Memory = field(init=False)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = self.run.config
        self.memory = Memory.of(self.config.join, self.folder.root)

    def write(self) -> None:
        """Write all files of the check, check.json last."""
        with ThreadPoolExecutor(1) as aside:
            # The run's patches are read while the scan is described.
            reading = aside.submit(read_bank, self.run.folder, self.config, self.memory)
            with self._timed("describe"):
                scan, description = self._describe()
                facts = self._facts(scan)
            with self._timed("read"):
                excluded = self._same_scans(facts)
                bank = self._bank(reading, excluded)
        with self._timed("search"):
            pairs, blocks = self._compare(description, bank)
        with self._timed("write"):
            limit = self._bad_below()
            summary = self._judge(scan, description, blocks, limit)
        state = {
            "format": FORMAT,
            "maskwitness": version(),
            "created": now(),
            "run": run_identity(self.run),
            "scan": facts,
            "excluded": excluded,
            "bad_below": limit,
            "summary": {"patches": len(description.graph.branch), "pairs": pairs, **summary},
            "seconds": self.seconds,
        }
        text = json.dumps(state, indent=2, ensure_ascii=False) + "\n"
        write_whole(self.folder.path(CHECK), text.encode())

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - begun, 3)

    def _describe(self) -> tuple[Scan, Description]:
        self.progress("patches", 0, 1)
        scan = read_scan(self.case, self.config.data.labels)
        try:
            description = describe(scan, self.config.patches)
        except (InputError, GeometryError) as error:
            error.add_note(f"while describing {self.case.image}")
            raise
        self.progress("patches", 1, 1)
        return scan, description

    def _facts(self, scan: Scan) -> dict[str, Any]:
        return {
            "name": self.case.name,
            "image": str(self.case.image),
            "mask": str(self.case.mask),
            "image_sha256": file_digest(self.case.image),
            "mask_sha256": file_digest(self.case.mask),
            "shape": list(scan.image.shape),
            "spacing_mm": spacing_mm(scan.affine).tolist(),
            "affine": scan.affine.ravel().tolist(),
        }

    def _same_scans(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for row in self.run.scans.to_pylist():
            because = [words for key, words in SAME if row[key] == facts[key]]
            if row["status"] == "audited" and because:
                found.append({"scan": row["scan"], "name": row["name"], "because": because[0]})
        return found

    def _bank(self, reading: "Future[Bank]", excluded: list[dict[str, Any]]) -> Bank:
        self.progress("bank", 0, 1)
        bank = reading.result()
        if excluded:
            own = read_table(self.run.folder.path("patches.parquet"), ["scan"])["scan"].to_numpy()
            others = ~np.isin(own, [scan["scan"] for scan in excluded])
            bank = replace(bank, has_image=bank.has_image & others)
        self.progress("bank", 1, 1)
        return bank

    def _compare(self, description: Description, bank: Bank) -> tuple[int, list[Scores]]:
        patches, points = description.patches, len(description.graph.branch)
        queries = Bank(
            image=patches.image,
            mask=patches.mask,
            has_image=patches.has_image,
            group=np.full(points, NO_SCAN, np.int64),
            position_um=positions_um(description.graph.arc_mm),
        )
        settings = self.config
        edges = bin_edges(settings.join.epsilon, settings.patches.size, settings.residuals.bins)
        baseline, area, blocks = self.run.baseline, mask_areas(bank.mask), []
        writer = PairWriter(self.folder.path("pairs.zarr"), points)
        self.progress("pairs", 0, points)
        found = range_pairs(bank, settings.join, queries, device=self.device, memory=self.memory)
        for pairs in found:
            writer.append(pairs)
            blocks.append(score_patches(pairs, baseline, edges, patches.has_image, area))
            self.progress("pairs", pairs.first + len(pairs.offset) - 1, points)
        return writer.close(), blocks

    def _bad_below(self) -> float:
        # What is bad is said by the run: of a clean scan no worst share must be found.
        score = read_table(self.run.folder.path("scores.parquet"), ["score"])["score"]
        return bad_limit(score.to_numpy().astype(np.float64), self.config.findings)

    def _judge(
        self, scan: Scan, description: Description, blocks: list[Scores], limit: float
    ) -> dict[str, Any]:
        patches, graph = description.patches, description.graph
        points, size, _ = patches.image.shape
        arrays = PatchWriter(self.folder.path("patches.zarr"), points, size, patches.mask.shape[1])
        arrays.append(patches.image, patches.mask)
        arrays.close()
        table = patch_table(description, NO_SCAN, self.case.name)
        write_table(self.folder.path("patches.parquet"), table)
        summary = write_judgement(self.folder, table, blocks, self.config, limit)
        self.progress("quality", 0, 1)
        score = read_table(self.folder.path("scores.parquet"), ["score"])["score"].to_numpy()
        quality = judge(scan, graph.points_mm, score.astype(np.float64), self.config)
        self.folder.path("quality").mkdir()
        write_volume(self.folder.path("quality") / f"{self.case.name}.nii.gz", quality, scan.affine)
        self.progress("quality", 1, 1)
        wide = graph.radius_mm * 2 > self.config.patches.extent_mm
        return {**summary, "wider_than_patch": int(wide.sum())}
