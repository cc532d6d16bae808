"""The join beside its peers: the same patches, the same threads, the same answer, side by side.

Each contender runs in a fresh process on patches that were saved for it. A contender whose package
is missing, that is too slow for a size, or that fails is a row that says so.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from json import loads
from pathlib import Path
from platform import machine, processor, python_version
from typing import Any

import numpy as np

from maskwitness.bench import patches as banks
from maskwitness.bench.measure import Job, job_text, save_bank
from maskwitness.bench.peers import CONTENDERS, Question
from maskwitness.errors import ConfigError
from maskwitness.join import ANY_DISTANCE, Device, dist2_limit, why_no_device
from maskwitness.join.plan import cores
from maskwitness.records import Bank

JOIN: Mapping[str, tuple[str, ...]] = {
    "cpu": ("ours", "faiss-topk", "faiss-range", "sklearn"),
    "cuda": ("ours", "torch-topk", "torch-limit"),
}
NEAREST: Mapping[str, tuple[str, ...]] = {
    "cpu": ("ours-nearest", "faiss-nearest"),
    "cuda": ("ours-nearest", "torch-nearest"),
}
LIMITS: Mapping[str, int] = {"sklearn": 25_000}  # it takes minutes beyond
PACKAGES = ("maskwitness", "numpy", "numba", "faiss-cpu", "scikit-learn", "torch", "triton")
THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR", "NUMBA")
Row = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is measured, and how."""

    sizes: tuple[int, ...] = (12_500, 25_000, 50_000, 100_000)
    hard: int = 25_000  # patches of the hard case, 0: none
    epsilon: float = 1e-3
    k: int = 2047
    threads: int | None = None  # none given: one a core
    device: Device = "cpu"
    repeats: int = 1
    scans: int = 220  # at most made, some 150 000 patches
    seed: int = 1
    limits: Mapping[str, int] | None = None  # of contenders: the largest size they run at

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            message = f"epsilon {self.epsilon:g}: it must lie between 0 and 1"
            raise ConfigError(message)
        for patches in (*self.sizes, self.hard or 2):
            if not 2 <= patches < 2**31:
                message = f"{patches:,} patches: a join needs at least two, and at most 2³¹ - 1"
                raise ConfigError(message)
        if self.device == "cuda" and (reason := why_no_device()):
            message = f"--device cuda: {reason}"
            raise ConfigError(message)


def bench_join(contest: Contest, tell: Tell) -> dict[str, Any]:
    """Measure who finds all near-identical patches: in phantoms, and where nothing helps."""
    question = _question(contest, dist2_limit(contest.epsilon, 24), contest.k, "any")
    # All patches first: what cannot be made is said before anything is measured.
    hard, hard_note = banks.hard_bank(contest.hard, contest.epsilon, contest.seed)
    pool, note = _phantom(contest, tell)
    notes = [f"phantom: {note}"]
    measured = (contest, question, JOIN)
    with tempfile.TemporaryDirectory() as place:
        rows: list[Row] = []
        for patches in contest.sizes:
            bank = banks.some(pool, slice(patches))
            rows += _measured("phantom", bank, None, measured, Path(place), tell)
        if contest.hard:
            rows += _measured("hard", hard, None, measured, Path(place), tell)
            notes.append(f"hard: {hard_note}")
    title = f"All witnesses below ε = {contest.epsilon:g}, at most {contest.k} a patch"
    return _result("join", title, rows, notes, (contest, question))


def bench_nearest(contest: Contest, tell: Tell) -> dict[str, Any]:
    """Measure who finds the k nearest patches of other scans, each shown in nine places."""
    question = _question(contest, ANY_DISTANCE, contest.k, "other_scan")
    pool, note = _phantom(contest, tell)
    with tempfile.TemporaryDirectory() as place:
        rows: list[Row] = []
        for patches in contest.sizes:
            queries = banks.some(pool, slice(patches))
            bank = banks.shifted(queries)
            measured = (contest, question, NEAREST)
            rows += _measured("phantom", bank, queries, measured, Path(place), tell)
    title = f"The {contest.k} nearest of other scans, nine times as many patches in the bank"
    return _result("nearest", title, rows, [f"phantom: {note}"], (contest, question))


def growth(rows: list[Row]) -> dict[str, float]:
    """Return x of time ~ patches^x for each contender that ran at two sizes or more."""
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["kind"] == "phantom" and "seconds" in row:
            times.setdefault(row["contender"], {})[row["patches"]] = row["seconds"]
    return {
        contender: float(np.polyfit(np.log(list(of)), np.log(list(of.values())), 1)[0])
        for contender, of in times.items()
        if len(of) > 1
    }


def _question(contest: Contest, limit: int, k: int, testify: Any) -> Question:
    threads = contest.threads or cores()
    return Question(contest.epsilon, limit, k, testify, threads, contest.device)


def _phantom(contest: Contest, tell: Tell) -> tuple[Bank, str]:
    tell("making phantom scans")
    return banks.phantom_bank(max(contest.sizes), contest.scans, contest.seed, cores())


def _measured(
    kind: str,
    bank: Bank,
    queries: Bank | None,
    measured: tuple[Contest, Question, Mapping[str, tuple[str, ...]]],
    place: Path,
    tell: Tell,
) -> list[Row]:
    contest, question, contenders = measured
    patches = len(bank.image if queries is None else queries.image)
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        save_bank(bank, folder / "bank")
        if queries is not None:
            save_bank(queries, folder / "queries")
        rows = []
        for contender in contenders[contest.device]:
            tell(f"{CONTENDERS[contender].label}: {kind}, {patches:,} patches")
            job = Job(
                contender=contender,
                bank=str(folder / "bank"),
                queries="" if queries is None else str(folder / "queries"),
                question=question,
                repeats=contest.repeats,
            )
            row = {"kind": kind, "patches": patches, "contender": contender}
            rows.append({**row, **_outcome(job, patches, contest.limits)})
    return list(_compared(rows))


def _outcome(job: Job, patches: int, limits: Mapping[str, int] | None) -> Row:
    contender = CONTENDERS[job.contender]
    if contender.package and find_spec(contender.package) is None:
        return {"skipped": f"{contender.install} is not installed"}
    most = {**LIMITS, **(limits or {})}.get(job.contender, patches)
    if patches > most:
        return {"skipped": f"only up to {most:,} patches"}
    threads = {f"{name}_NUM_THREADS": str(job.question.threads) for name in THREADS}
    done = subprocess.run(
        [sys.executable, "-m", "maskwitness.bench.measure"],
        input=job_text(job), capture_output=True, text=True, check=False,
        env={**os.environ, **threads},
    )  # fmt: skip
    if done.returncode == 0:
        return dict(loads(done.stdout.splitlines()[-1]))
    said = [*done.stderr.strip().splitlines(), f"ended by signal {-done.returncode}"]
    return {"skipped": f"failed: {said[-1 if done.returncode < 0 else -2]}"}


def _compared(rows: list[Row]) -> Iterator[Row]:
    ours = rows[0]
    for row in rows:
        if "seconds" in row and "seconds" in ours:
            row |= {
                "ratio": row["seconds"] / ours["seconds"],
                "same": row["digest"] == ours["digest"],
            }
        yield row


def _result(
    name: str,
    title: str,
    rows: list[Row],
    notes: list[str],
    asked: tuple[Contest, Question],
) -> dict[str, Any]:
    contest, question = asked
    threads = question.threads
    where = "CUDA device" if contest.device == "cuda" else f"{threads} thread{'s'[: threads > 1]}"
    return {
        "bench": name,
        "title": f"{title}; {where}; best of {contest.repeats}",
        "epsilon": contest.epsilon,
        "k": contest.k,
        "threads": threads,
        "device": contest.device,
        "seed": contest.seed,
        "repeats": contest.repeats,
        "machine": _machine(contest.device),
        "labels": {row["contender"]: CONTENDERS[row["contender"]].label for row in rows},
        "rows": rows,
        "growth": growth(rows),
        "notes": [
            *notes,
            "time: from 8-bit patches in memory to all pairs with their distances, compiled before",
            "memory: the peak of a process of its own above what the loaded patches take",
            "same: the k nearest witnesses of each patch; where there are k, their distances",
        ],
    }


def _machine(device: Device) -> dict[str, Any]:
    about: dict[str, Any] = {
        "processor": _processor(), "cores": cores(), "python": python_version()
    }  # fmt: skip
    if device == "cuda":
        import torch

        about["device"] = torch.cuda.get_device_name()
    for package in PACKAGES:
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    return about


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else processor() or machine()
