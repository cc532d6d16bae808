"""Measure one contender in this process and say what came out.

    python -m maskwitness.bench.measure < job.json

A process of its own has a peak of memory of its own, and its number of threads is set before
anything that starts threads is loaded. Loading and a small run that compiles are not counted.
"""

import hashlib
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from maskwitness.bench.patches import some
from maskwitness.bench.peers import CONTENDERS, Found, Question
from maskwitness.records import Bank

WARM = 512  # patches that are enough to compile and load everything
MIB = 2**20
ARRAYS = ("image", "mask", "has_image", "group", "position_um")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One contender at one size."""

    contender: str
    bank: str  # a folder
    queries: str  # a folder; empty: the bank itself
    question: Question
    repeats: int


def main() -> None:
    """Read a job, do it, and write its row."""
    given = json.loads(sys.stdin.read())
    job = Job(**{**given, "question": Question(*given["question"])})
    sys.stdout.write(json.dumps(measure(job)))


def job_text(job: Job) -> str:
    """Return a job as main reads it."""
    return json.dumps(asdict(job))


def measure(job: Job) -> dict[str, Any]:
    """Return seconds, memory, number of pairs, and a digest of what was found."""
    bank = load_bank(Path(job.bank))
    queries = load_bank(Path(job.queries)) if job.queries else None
    search, question = CONTENDERS[job.contender].search, job.question
    seconds: list[float] = []
    with _threads(question.threads):
        # On a device all is done once before: what is compiled there depends on the numbers.
        on_device = question.device == "cuda"
        few = (lambda b: b) if on_device else _few
        search(few(bank), None if queries is None else few(queries), question)
        before = _start_memory(on_device)
        for _ in range(job.repeats):
            found = None  # the answer before this one would count as memory
            begun = time.perf_counter()
            found = search(bank, queries, question)
            seconds.append(time.perf_counter() - begun)
        row: dict[str, Any] = {"seconds": min(seconds), **_memory(before, on_device)}
    assert found is not None
    pairs, digest = digest_of(found, question.k)
    return {**row, "pairs": pairs, "digest": digest}


def save_bank(bank: Bank, folder: Path) -> None:
    """Write a bank for other processes."""
    folder.mkdir()
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(bank, name))


def load_bank(folder: Path) -> Bank:
    """Return a bank that was saved, in memory: no page of it is read while the clock runs."""
    return Bank(**{name: np.array(np.load(folder / f"{name}.npy", "r")) for name in ARRAYS})


def digest_of(found: Found, k: int) -> tuple[int, str]:
    """Return the number of pairs and a digest that equal answers share.

    Of each row the k nearest count. In a row that has so many, the last may be one of several at
    the same distance, and peers take any of them: there the distances are compared, elsewhere the
    witnesses.
    """
    row, witness, dist2 = (np.asarray(part, np.int64) for part in found)
    count = np.bincount(row, minlength=1)
    if count.max() > k:
        order = np.lexsort((witness, dist2, row))
        row, witness, dist2 = row[order], witness[order], dist2[order]
        place = np.arange(len(row)) - (np.cumsum(count) - count)[row]
        nearest = place < k
        row, witness, dist2 = row[nearest], witness[nearest], dist2[nearest]
    key = row << 32 | np.where(count[row] >= k, dist2, witness)
    key.sort()
    return len(key), hashlib.blake2b(key.tobytes(), digest_size=8).hexdigest()


def _few(bank: Bank) -> Bank:
    # By numbers, not by a slice: kernels are compiled anew for arrays that are not contiguous.
    return some(bank, np.arange(0, len(bank.image), -(-len(bank.image) // WARM)))


def _threads(threads: int) -> AbstractContextManager[Any]:
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[Any] = threadpool_limits(threads)
    return limits


def _start_memory(on_device: bool) -> int | None:
    with suppress(OSError):  # Linux: from here on the peak is counted anew
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if on_device:
        import torch

        torch.cuda.reset_peak_memory_stats()
    return _peak_bytes()


def _memory(before: int | None, on_device: bool) -> dict[str, float | None]:
    after = _peak_bytes()
    above = None if after is None or before is None else (after - before) / MIB
    memory: dict[str, float | None] = {"peak_mib": above}
    if on_device:
        import torch

        memory["device_mib"] = torch.cuda.max_memory_allocated() / MIB
    return memory


def _peak_bytes() -> int | None:
    with suppress(OSError, IndexError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
