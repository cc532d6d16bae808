"""The audit, stage by stage: patches, pairs, scores, quality.

Each stage has a key, the digest of everything its result depends on. A stage whose key stands in
``run.json`` and whose files are there is finished and not done again; that is the whole of
resuming. Other settings or changed data give other keys: that is said, and nothing is replaced
unless the user asks for it. Before a stage is done again, its old results and all that rests on
them go away, so that they never pass for those of the new settings.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from maskwitness.config import Config, as_dict, differences, digest_of, from_dict, preset
from maskwitness.errors import ConfigError, InputError, StoreError
from maskwitness.io.datasets import Case, Dataset, find_cases, find_cases_in
from maskwitness.io.store import FORMAT, Lock, PairWriter, RunFolder, is_run
from maskwitness.io.tables import SCANS, read_table, table_of, write_table
from maskwitness.io.volumes import write_volume
from maskwitness.join import Device, Memory, range_pairs
from maskwitness.join.plan import cores
from maskwitness.quality import paint_quality
from maskwitness.run.extract import (
    digest_if_readable,
    extract,
    refusal_of,
    stamp_of,
    where_from,
)
from maskwitness.run.opened import Run, open_run
from maskwitness.run.scoring import read_bank, write_scores
from maskwitness.run.threads import in_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the audit: what it writes, and which counts of the summary are its own."""

    files: tuple[str, ...]
    counts: tuple[str, ...] = ()


STAGES: Mapping[str, Stage] = {
    "patches": Stage(
        files=("scans.parquet", "patches.parquet", "patches.zarr"),
        counts=("scans", "scans_audited", "patches", "wider_than_patch", "widest_mm", "wide_mm"),
    ),
    "pairs": Stage(files=("pairs.zarr",), counts=("pairs",)),
    "scores": Stage(
        files=("baseline.parquet", "scores.parquet", "findings.parquet"),
        counts=("scored", "unscored", "findings", "bad_points"),
    ),
    "quality": Stage(files=("quality",)),
}


WIDE = 0.995  # of the points are no wider than what the summary calls wide_mm

# What is told while an audit runs: the stage, how much of it is done, of how much. It is called
# from the thread that called the audit.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


def audit(  # noqa: PLR0913 - all but two by name
    dataset: str | Path | None = None,
    run: str | Path | None = None,
    *,
    images: str | Path | None = None,
    masks: str | Path | None = None,
    config: Config | Mapping[str, Any] | str = "paper",
    workers: int | None = None,
    device: Device = "auto",
    redo: bool = False,
    progress: Progress = silent,
) -> Run:
    """Audit a data set into a run directory and return the opened run.

    Parameters
    ----------
    dataset
        An nnU-Net raw folder, an ImageCAS folder, a decathlon or MONAI datalist, or a table with
        the columns image and mask. Instead of it, ``images`` and ``masks`` name two folders.
    run
        The run directory to write. One that was begun is continued, a finished one only opened.
    config
        A preset's name, a whole :class:`~maskwitness.config.Config`, or tables of settings such as
        ``{"preset": "paper", "patches": {"extent_mm": 6.0}}``.
    workers
        Scans read at the same time, and threads of the search; none given: one a core. The result
        does not depend on it.
    device
        Where the search for witnesses runs: ``cpu``; ``cuda``, where there is such a device and
        the extra ``gpu``, else on the processor; ``auto``: on a device if the data set is large
        enough to gain by it. The result does not depend on it.
    redo
        Replace what other settings or changed data have made stale, instead of refusing.
    """
    if run is None:
        message = "an audit needs a run directory to write: run='...'"
        raise ConfigError(message)
    settings = _settings(config)
    found = _find(dataset, images, masks)
    root = Path(run)
    if root.exists() and not is_run(root) and (not root.is_dir() or any(root.iterdir())):
        message = f"{root} is there already and is no run directory; choose another place"
        raise StoreError(message)
    root.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(root)
    with Lock(folder):
        _Audit(folder, found, settings, workers or cores(), device, progress).run(redo)
    return open_run(root)


def _settings(config: Config | Mapping[str, Any] | str) -> Config:
    if isinstance(config, Config):
        return config
    return preset(config) if isinstance(config, str) else from_dict(config)


def _find(
    dataset: str | Path | None, images: str | Path | None, masks: str | Path | None
) -> Dataset:
    if dataset is not None and images is None and masks is None:
        return find_cases(Path(dataset))
    if dataset is None and images is not None and masks is not None:
        return find_cases_in(Path(images), Path(masks))
    message = "name either a data set, or a folder of images and a folder of masks"
    raise InputError(message)


@dataclass(slots=True)
class _Audit:
    folder: RunFolder
    dataset: Dataset
    config: Config
    workers: int
    device: Device
    progress: Progress
    state: dict[str, Any] = field(default_factory=dict)

    def run(self, redo: bool) -> None:
        self.state = self.folder.read_state()
        scans = self._scans_so_far()
        changed = list(_changes(scans, self.dataset.cases)) if scans else []
        reasons = self._try_refused(scans)
        changed += [f"{name} can be read now" for name, reason in reasons.items() if not reason]
        self._refuse_stale(changed, redo)
        if changed:
            self.state = {}
        elif scans:
            self._follow(scans, reasons)
        self.state = {
            "maskwitness": self.state.get("maskwitness", version()),
            "created": self.state.get("created", now()),
            "config": as_dict(self.config),
            "config_digest": self.config.digest(),
            "dataset": self.state.get("dataset", {}),
            "stages": self.state.get("stages", {}),
            "summary": self.state.get("summary", {}),
        }
        self._do("patches", self._patches)
        if self.state["summary"]["scans_audited"]:
            self._do("pairs", self._pairs)
            self._do("scores", self._scores)
            self._do("quality", self._quality)
            shutil.rmtree(self.folder.work, ignore_errors=True)

    def _scans_so_far(self) -> dict[str, dict[str, Any]]:
        if "patches" not in self.state.get("stages", {}) or not self._is_whole("patches"):
            return {}
        table = read_table(self.folder.path("scans.parquet"))
        return {row["name"]: row for row in table.to_pylist()}

    def _try_refused(self, scans: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        # A scan may have been refused for what is not in its files: SimpleITK was not there.
        refused = [
            case
            for case in self.dataset.cases
            if case.name in scans and scans[case.name]["status"] == "refused"
        ]
        reasons = in_threads(
            lambda case: (case.name, refusal_of(case, self.config)), refused, self.workers
        )
        return dict(sorted(reasons))

    def _follow(self, scans: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]) -> None:
        # The same content at another place or with another time: remember where it is now.
        case_of = {case.name: case for case in self.dataset.cases}
        rows = [
            {**row, **where_from(case_of[name]), "reason": reasons.get(name, row["reason"])}
            for name, row in scans.items()
        ]
        if rows != list(scans.values()):
            table = table_of({name: [row[name] for row in rows] for name in SCANS}, SCANS)
            write_table(self.folder.path("scans.parquet"), table)
            self.state["dataset"] |= self._source()
            self.folder.write_state(self.state)

    def _source(self) -> dict[str, Any]:
        return {
            "kind": self.dataset.kind,
            "root": str(self.dataset.root),
            "notes": list(self.dataset.notes),
        }

    def _is_whole(self, stage: str) -> bool:
        return all(self.folder.path(name).exists() for name in STAGES[stage].files)

    def _refuse_stale(self, changed: list[str], redo: bool) -> None:
        if redo or not self.state:
            return
        other = differences(
            _without_memory(self.state.get("config", {})), _without_memory(as_dict(self.config))
        )
        for title, lines in (("with other settings", other), ("from other data", changed)):
            if lines:
                listed = "\n".join(f"  {line}" for line in lines[:20])
                more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
                message = (
                    f"{self.folder.root} was made {title}:\n{listed}{more}\n"
                    "Choose another place with -o, or say --redo to replace what is stale."
                )
                raise ConfigError(message)

    def _do(self, stage: str, work: Callable[[], Mapping[str, Any]]) -> None:
        kept = self.state["stages"].get(stage)
        if kept and kept["key"] == self._key(stage) and self._is_whole(stage):
            return
        self._drop_from(stage)
        begun = time.monotonic()
        self.state["summary"] |= work()
        if stage != "patches" or self.state["summary"]["scans_audited"]:
            seconds = round(time.monotonic() - begun, 3)
            self.state["stages"][stage] = {
                "key": self._key(stage), "finished": now(), "seconds": seconds
            }  # fmt: skip
        self.folder.write_state(self.state)

    def _drop_from(self, first: str) -> None:
        names = list(STAGES)
        for stage in names[names.index(first) :]:
            self.state["stages"].pop(stage, None)
            for count in STAGES[stage].counts:
                self.state["summary"].pop(count, None)
        self.state["maskwitness"] = version()
        self.folder.write_state(self.state)
        for stage in names[names.index(first) :]:
            for name in STAGES[stage].files:
                self.folder.remove(name)

    def _key(self, stage: str) -> str:
        # Each stage depends on its own settings and on the stage before it.
        settings = _without_memory(as_dict(self.config))
        own = {
            "patches": {**settings["data"], **settings["patches"]},
            "pairs": settings["join"],
            "scores": {**settings["residuals"], **settings["findings"]},
            "quality": settings["quality"],
        }[stage]
        before = list(STAGES).index(stage) - 1
        content = self.state["dataset"].get("fingerprint")
        basis = self._key(list(STAGES)[before]) if before >= 0 else content
        return digest_of([FORMAT, stage, own, basis])

    def _patches(self) -> Mapping[str, Any]:
        rows = extract(
            self.dataset.cases,
            self.config,
            self.folder,
            self.workers,
            lambda done, total: self.progress("patches", done, total),
        )
        audited = [row for row in rows if row["status"] == "audited"]
        content = sorted([row["name"], row["image_sha256"], row["mask_sha256"]] for row in audited)
        self.state["dataset"] = {**self._source(), "fingerprint": digest_of(content)}
        return {
            "scans": len(rows),
            "scans_audited": len(audited),
            "patches": sum(row["points"] for row in audited),
            **self._fit(len(audited)),
        }

    def _fit(self, audited: int) -> Mapping[str, Any]:
        # How many points lie in vessels that are wider than the patch.
        if not audited:
            return {}
        radius = read_table(self.folder.path("patches.parquet"), ["radius_mm"])["radius_mm"]
        diameter_mm = radius.to_numpy() * 2
        return {
            "wider_than_patch": int((diameter_mm > self.config.patches.extent_mm).sum()),
            "widest_mm": round(float(diameter_mm.max()), 3),
            "wide_mm": round(float(np.quantile(diameter_mm, WIDE)), 3),
        }

    def _pairs(self) -> Mapping[str, Any]:
        memory = Memory.of(self.config.join, self.folder.work)
        bank = read_bank(self.folder, self.config, memory)
        store = self.folder.fresh("pairs.zarr")
        writer = PairWriter(store, len(bank.image))
        found = range_pairs(
            bank,
            self.config.join,
            device=self.device,
            threads=self.workers,
            memory=memory,
        )
        for pairs in found:
            writer.append(pairs)
            self.progress("pairs", pairs.first + len(pairs.offset) - 1, len(bank.image))
        count = writer.close()
        self.folder.move_in(store, "pairs.zarr")
        return {"pairs": count}

    def _scores(self) -> Mapping[str, Any]:
        return write_scores(
            self.folder, self.config, lambda done, total: self.progress("scores", done, total)
        )

    def _quality(self) -> Mapping[str, Any]:
        scans = read_table(self.folder.path("scans.parquet")).to_pylist()
        audited = [row for row in scans if row["status"] == "audited"]
        # Maps of an interrupted audit are kept: the folder carries the key of the stage.
        aside = self.folder.work / f"quality-{self._key('quality')[:16]}"
        aside.mkdir(parents=True, exist_ok=True)
        scores = read_table(self.folder.path("scores.parquet"), ["x_mm", "y_mm", "z_mm", "score"])
        points_mm = np.stack([scores[f"{axis}_mm"].to_numpy() for axis in "xyz"], axis=1)
        score = scores["score"].to_numpy().astype(np.float64)
        ends = np.cumsum([row["points"] for row in audited])

        def paint(job: tuple[Mapping[str, Any], np.int64]) -> None:
            row, end = job
            place = aside / f"{row['name']}.nii.gz"
            if place.exists():
                return
            own = slice(end - row["points"], end)
            i, j, k = row["shape"]
            affine = np.array(row["affine"]).reshape(4, 4)
            quality = paint_quality(
                points_mm[own], score[own], (i, j, k), affine, self.config.quality
            )
            write_volume(place, quality, affine)

        jobs = list(zip(audited, ends, strict=True))
        for done, _ in enumerate(in_threads(paint, jobs, self.workers), start=1):
            self.progress("quality", done, len(jobs))
        self.folder.move_in(aside, "quality")
        return {}


def _changes(rows: Mapping[str, Mapping[str, Any]], cases: Sequence[Case]) -> Iterable[str]:
    for case in cases:
        row = rows.get(case.name)
        if row is None:
            yield f"{case.name} is new"
            continue
        for what, path in (("image", case.image), ("mask", case.mask)):
            if row[f"{what}_stamp"] == stamp_of(path) and row[what] == str(path):
                continue
            if digest_if_readable(path) != row[f"{what}_sha256"]:
                yield f"{case.name}: the {what} has changed ({path})"
    for name in sorted(rows.keys() - {case.name for case in cases}):
        yield f"{name} is gone"


def _without_memory(config: Mapping[str, Any]) -> dict[str, Any]:
    # How much the join may hold changes nothing in its result.
    join = {key: value for key, value in config.get("join", {}).items() if key != "memory_mb"}
    return {**config, "join": join}


def version() -> str:
    """Return the version of maskwitness."""
    from maskwitness import __version__

    return __version__


def now() -> str:
    """Return the time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
