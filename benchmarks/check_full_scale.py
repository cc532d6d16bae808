"""Check one scan of ImageCAS size against a run of millions of patches: where the seconds go.

    python benchmarks/check_full_scale.py --patches 3000000

The run is that of three phantom scans, whose patches are then replaced by those of many small ones
and their turned and mirrored copies: an audit of thousands of scans would take longer.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maskwitness.bench.patches import phantom_bank
from maskwitness.io.store import PatchWriter
from maskwitness.join.plan import cores

CHUNK = 2**16


def call(*words: object) -> None:
    command = [sys.executable, "-m", "maskwitness", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def enlarge(run: Path, patches: int) -> None:
    """Replace the patches of a run by others; who they were of does not matter to a check."""
    bank, how = phantom_bank(patches, patches // 8 // 600 + 1, 4711, cores())
    print(how, flush=True)
    table = pq.read_table(run / "patches.parquet")
    table = table.take(pa.array(np.arange(patches) % len(table)))
    columns = {
        "patch": np.arange(patches),
        "scan": bank.group.astype(np.int32) + 100,
        "has_image": bank.has_image,
    }
    for name, values in columns.items():
        kind = table.schema.field(name).type
        table = table.set_column(table.column_names.index(name), name, pa.array(values, kind))
    pq.write_table(table, run / "patches.parquet")
    shutil.rmtree(run / "patches.zarr")
    writer = PatchWriter(run / "patches.zarr", patches, 24, bank.mask.shape[1])
    for first in range(0, patches, CHUNK):
        writer.append(bank.image[first : first + CHUNK], bank.mask[first : first + CHUNK])
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=3_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        call("phantom", place / "data", "--scans", 3, "--seed", 9)
        call("audit", place / "data", "-o", place / "run", "--set", "join.epsilon=0.01")
        state = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))
        state["config"]["join"]["epsilon"] = 0.001
        (place / "run" / "run.json").write_text(json.dumps(state), encoding="utf-8")
        enlarge(place / "run", asked.patches)
        call("phantom", place / "new", "--scans", 1, "--seed", 12, "--size", "imagecas")
        (image,) = (place / "new" / "imagesTr").iterdir()
        (mask,) = (place / "new" / "labelsTr").iterdir()
        for n in range(asked.repeats):
            begun = time.perf_counter()
            out = place / f"out{n}"
            call("check", place / "run", "--image", image, "--mask", mask, "-o", out)
            seconds = time.perf_counter() - begun
            told = json.loads((out / "check.json").read_text(encoding="utf-8"))
            print(f"{seconds:.1f} s in all; {told['summary']['patches']} patches,", told["seconds"])


if __name__ == "__main__":
    main()
