"""What several tests share: a small phantom and its finished audit, made once."""

from pathlib import Path

import numpy as np
import pytest

from maskwitness.io.store import open_arrays, read_array
from maskwitness.phantom import PhantomSettings, write_phantom
from maskwitness.run import Check, Run, audit

# A wide ε: three small scans have few look-alikes, and the tests need pairs.
WIDE = {"join": {"epsilon": 0.01}}


@pytest.fixture(scope="session")
def phantom_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom") / "data"
    write_phantom(folder, PhantomSettings(scans=3, seed=11))
    return folder


@pytest.fixture(scope="session")
def finished_run(phantom_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return audit(phantom_data, tmp_path_factory.mktemp("finished") / "run", config=WIDE, workers=1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = Path(__file__).parents[2] / "shared" / "real"
    if not folder.is_dir():
        pytest.skip("the real scans of ../shared/real are not here")
    return folder


def arrays_of(run: Run | Check, store: str) -> dict[str, np.ndarray]:
    """Return the arrays of a Zarr store of a run or a check, read whole."""
    group = open_arrays(run.path / f"{store}.zarr")
    return {name: read_array(group, name) for name in group.array_keys()}


def assert_same_results(one: Run, other: Run) -> None:
    """Compare everything of two runs that is a result, to the last bit."""
    for table in ("patches", "scores", "findings", "baseline"):
        a = (one.path / f"{table}.parquet").read_bytes()
        b = (other.path / f"{table}.parquet").read_bytes()
        assert a == b, table
    for store in ("patches", "pairs"):
        first, second = arrays_of(one, store), arrays_of(other, store)
        assert first.keys() == second.keys()
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name], err_msg=name)
    maps = sorted(p.name for p in (one.path / "quality").iterdir())
    assert maps == sorted(p.name for p in (other.path / "quality").iterdir())
    for name in maps:
        a = (one.path / "quality" / name).read_bytes()
        assert a == (other.path / "quality" / name).read_bytes(), name
