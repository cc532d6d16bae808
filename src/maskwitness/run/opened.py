"""A finished run or check, opened for reading: scores, findings, evidence, quality maps."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int32, Int64, UInt8

from maskwitness.config import Config, from_dict
from maskwitness.errors import StoreError
from maskwitness.io.store import FORMAT, RunFolder, is_run, open_arrays, read_array, read_pairs
from maskwitness.io.tables import read_table
from maskwitness.io.volumes import read_volume
from maskwitness.records import Baseline, Volume
from maskwitness.residuals import bin_edges, residuals_of

CHECK = "check.json"  # in a check, what run.json is in a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A patch and its witnesses, nearest first: all that its score rests on."""

    patch: int
    scan: str
    place_mm: tuple[float, float, float]
    score: float  # NaN: unscored
    reason: str
    image: UInt8[np.ndarray, "u v"]
    mask: Bool[np.ndarray, "u v"]
    witness: Int64[np.ndarray, " witnesses"]
    witness_image: UInt8[np.ndarray, "witnesses u v"]
    witness_mask: Bool[np.ndarray, "witnesses u v"]
    dist2: Int32[np.ndarray, " witnesses"]
    iou: Float64[np.ndarray, " witnesses"]
    residual: Float64[np.ndarray, " witnesses"]  # NaN where the pair's bin is not used


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory opened for reading.

    Tables are Arrow tables: ``.to_pandas()`` and ``polars.from_arrow`` make data frames of them.
    """

    folder: RunFolder
    state: dict[str, Any]

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.folder.root

    @property
    def config(self) -> Config:
        """The settings of the audit."""
        return from_dict(self.state["config"])

    @property
    def summary(self) -> dict[str, Any]:
        """Counts of scans, patches, pairs, scores and findings."""
        return dict(self.state["summary"])

    @property
    def is_finished(self) -> bool:
        """Whether all stages of the audit are."""
        return "quality" in self.state["stages"]

    @property
    def scans(self) -> pa.Table:
        """One row a scan, the refused ones with their reason."""
        return read_table(self.folder.path("scans.parquet"))

    @property
    def patches(self) -> pa.Table:
        """One row a patch: where it lies and what was measured on it."""
        self._need("patches")
        return read_table(self.folder.path("patches.parquet"))

    @property
    def scores(self) -> pa.Table:
        """One row a patch: its score, low is bad, null is unscored."""
        self._need("scores")
        return read_table(self.folder.path("scores.parquet"))

    @property
    def findings(self) -> pa.Table:
        """The places to look at, worst first."""
        self._need("scores")
        return read_table(self.folder.path("findings.parquet"))

    @property
    def baseline(self) -> Baseline:
        """The mask disagreement that is usual at each image distance."""
        self._need("scores")
        table = read_table(self.folder.path("baseline.parquet"))
        columns = {name: table[name].to_numpy() for name in table.column_names if name != "bin"}
        return Baseline(**columns)

    def evidence(self, patch: int, most: int | None = None) -> Evidence:
        """Return a patch with its nearest witnesses, all of them unless ``most`` is given."""
        self._need("scores")
        return _evidence(self, self, patch, most)

    def quality(self, name: str) -> Volume:
        """Return the quality map of a scan."""
        self._need("quality")
        return read_volume(self.folder.path("quality") / f"{name}.nii.gz")

    def _need(self, stage: str) -> None:
        if stage not in self.state["stages"] and self.summary.get("scans_audited") == 0:
            message = (
                f"no scan of {self.path} could be audited, and so it has no {stage}; "
                "maskwitness info and scans.parquet say why"
            )
            raise StoreError(message)
        if stage not in self.state["stages"]:
            message = (
                f"the audit of {self.path} is not finished: it has no {stage} yet; "
                "run the same audit again to go on"
            )
            raise StoreError(message)


@dataclass(frozen=True, slots=True)
class Check:
    """One scan that was checked against a run, opened for reading; tables as in :class:`Run`."""

    folder: RunFolder
    state: dict[str, Any]

    @property
    def path(self) -> Path:
        """The folder of the check."""
        return self.folder.root

    @property
    def name(self) -> str:
        """The name of the scan."""
        return self.state["scan"]["name"]

    @property
    def summary(self) -> dict[str, Any]:
        """Counts of patches, pairs, scores and findings."""
        return dict(self.state["summary"])

    @property
    def patches(self) -> pa.Table:
        """One row a patch: where it lies and what was measured on it."""
        return read_table(self.folder.path("patches.parquet"))

    @property
    def scores(self) -> pa.Table:
        """One row a patch: its score, low is bad, null is unscored."""
        return read_table(self.folder.path("scores.parquet"))

    @property
    def findings(self) -> pa.Table:
        """The places to look at, worst first."""
        return read_table(self.folder.path("findings.parquet"))

    def run(self) -> Run:
        """Open the run that was checked against, as long as it is the one it was."""
        then = self.state["run"]
        run = open_run(then["path"])
        if run_identity(run) != then:
            message = (
                f"{run.path} is no longer the run that {self.path} was checked against; "
                "check the scan again"
            )
            raise StoreError(message)
        return run

    def evidence(self, patch: int, most: int | None = None) -> Evidence:
        """Return a patch of the scan with its nearest witnesses, which are patches of the run."""
        return _evidence(self, self.run(), patch, most)

    def quality(self) -> Volume:
        """Return the quality map of the scan."""
        return read_volume(self.folder.path("quality") / f"{self.name}.nii.gz")


def open_check(path: str | Path) -> Check:
    """Open a folder that a check has written."""
    folder = RunFolder(Path(path))
    try:
        state = json.loads(folder.path(CHECK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{folder.root} is no check: its {CHECK} is not there or cannot be read"
        raise StoreError(message) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        message = f"{folder.root} is no check of format {FORMAT}, which this maskwitness reads"
        raise StoreError(message)
    return Check(folder, state)


def run_identity(run: Run) -> dict[str, Any]:
    """Return what tells a run from others, and from what it becomes when it is done again."""
    return {
        "path": str(run.path.resolve()),
        "maskwitness": run.state["maskwitness"],
        "config_digest": run.state["config_digest"],
        "fingerprint": run.state["dataset"]["fingerprint"],
    }


def _evidence(asking: Run | Check, run: Run, patch: int, most: int | None) -> Evidence:
    # The witnesses are patches of the run, whoever asks.
    own = open_arrays(asking.folder.path("patches.zarr"))
    patches = open_arrays(run.folder.path("patches.zarr"))
    count = int(asking.summary["patches"])
    if not 0 <= patch < count:
        what = type(asking).__name__.lower()
        message = f"there is no patch {patch}: this {what} has 0 to {count - 1}"
        raise StoreError(message)
    group = open_arrays(asking.folder.path("pairs.zarr"))
    pairs = read_pairs(group, read_array(group, "offset"), patch, patch + 1)
    config = run.config
    edges = bin_edges(config.join.epsilon, config.patches.size, config.residuals.bins)
    residual = residuals_of(pairs, run.baseline, edges)
    keep = slice(most)
    witness = pairs.witness[keep].astype(np.int64)
    either = np.maximum(pairs.union[keep], 1)
    row = asking.scores.slice(patch, 1).to_pylist()[0]
    both_empty = pairs.union[keep] == 0
    size = config.patches.size
    return Evidence(
        patch=patch,
        scan=row["scan"],
        place_mm=(row["x_mm"], row["y_mm"], row["z_mm"]),
        score=np.nan if row["score"] is None else row["score"],
        reason=row["reason"],
        image=_rows(own["image"], np.array([patch]))[0],
        mask=_unpack(_rows(own["mask"], np.array([patch])), size)[0],
        witness=witness,
        witness_image=_rows(patches["image"], witness),
        witness_mask=_unpack(_rows(patches["mask"], witness), size),
        dist2=pairs.dist2[keep],
        iou=np.where(both_empty, 1.0, pairs.intersection[keep] / either),
        residual=residual[keep],
    )


def _unpack(packed: UInt8[np.ndarray, "n bytes"], size: int) -> Bool[np.ndarray, "n u v"]:
    bits = np.unpackbits(packed, axis=1, count=size * size)
    return bits.reshape(len(packed), size, size).astype(bool)


def open_run(path: str | Path) -> Run:
    """Open a run directory that an audit has written."""
    root = Path(path)
    if not is_run(root):
        message = f"{root} is no run directory: it has no run.json"
        raise StoreError(message)
    folder = RunFolder(root)
    return Run(folder, folder.read_state())


def _rows(array: Any, rows: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n ..."]:
    # Orthogonal selection reads each chunk once, however the rows are spread.
    return np.asarray(array.oindex[rows])
