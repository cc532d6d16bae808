"""How a search is cut into pieces: pure numbers, from a memory budget and the cores there are."""

import os
from dataclasses import dataclass

from maskwitness.config import JoinSettings

MOST_ROWS = 32_768  # rows a block: enough for tight groups, few enough to show progress
GROUP_BYTES = 2**26  # keys of one group
PAIR_BYTES = 24  # a pair of a block: once in its group's part, once in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What may be held, and by how many threads it is worked on."""

    rows: int  # of a block, at most
    threads: int
    held_bytes: int  # finished pairs of a block


def plan_search(settings: JoinSettings, threads: int | None) -> Plan:
    """Return how to stay within the budget of the settings.

    Half of it is for bank and tree, a quarter for finished pairs, the rest for what is under way.
    """
    budget = settings.memory_mb * 2**20
    threads = threads or cores()
    # Each thread's keys, and codes of the queries of a block, must fit into the last quarter.
    return Plan(
        rows=max(256, min(MOST_ROWS, budget // 8 // 1024)),
        threads=max(1, min(threads, budget // 4 // GROUP_BYTES)),
        held_bytes=budget // 4,
    )


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
