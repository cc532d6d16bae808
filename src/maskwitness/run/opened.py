"""A finished run, opened for reading: scores, findings, evidence, quality maps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int32, Int64, UInt8

from maskwitness.config import Config, from_dict
from maskwitness.errors import StoreError
from maskwitness.io.store import RunFolder, is_run, open_arrays, read_array, read_pairs
from maskwitness.io.tables import read_table
from maskwitness.io.volumes import read_volume
from maskwitness.records import Baseline, Volume
from maskwitness.residuals import bin_edges, residuals_of


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
        patches = open_arrays(self.folder.path("patches.zarr"))
        count = int(self.summary["patches"])
        if not 0 <= patch < count:
            message = f"there is no patch {patch}: this run has 0 to {count - 1}"
            raise StoreError(message)
        group = open_arrays(self.folder.path("pairs.zarr"))
        pairs = read_pairs(group, read_array(group, "offset"), patch, patch + 1)
        edges = bin_edges(
            self.config.join.epsilon, self.config.patches.size, self.config.residuals.bins
        )
        residual = residuals_of(pairs, self.baseline, edges)
        keep = slice(most)
        witness = pairs.witness[keep].astype(np.int64)
        either = np.maximum(pairs.union[keep], 1)
        row = self.scores.slice(patch, 1).to_pylist()[0]
        both_empty = pairs.union[keep] == 0
        return Evidence(
            patch=patch,
            scan=row["scan"],
            place_mm=(row["x_mm"], row["y_mm"], row["z_mm"]),
            score=np.nan if row["score"] is None else row["score"],
            reason=row["reason"],
            image=_rows(patches["image"], np.array([patch]))[0],
            mask=self._unpack(_rows(patches["mask"], np.array([patch])))[0],
            witness=witness,
            witness_image=_rows(patches["image"], witness),
            witness_mask=self._unpack(_rows(patches["mask"], witness)),
            dist2=pairs.dist2[keep],
            iou=np.where(both_empty, 1.0, pairs.intersection[keep] / either),
            residual=residual[keep],
        )

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

    def _unpack(self, packed: UInt8[np.ndarray, "n bytes"]) -> Bool[np.ndarray, "n u v"]:
        size = self.config.patches.size
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
