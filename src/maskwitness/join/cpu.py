"""Search a tree on all cores: blocks of rows, cut into groups of near queries, one task each.

A group's result depends on nothing but the group, so threads, blocks and groups change no bit. Key
buffers are small and a thread's own; only the finished pairs of one block are held.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt16, UInt64

from maskwitness.join.plan import GROUP_BYTES, PAIR_BYTES, Plan
from maskwitness.join.tree import Tree, words
from maskwitness.kernels.pairs import write_pairs
from maskwitness.kernels.tree import (
    LEAF,
    NONE,
    Found,
    Queries,
    Rule,
    cut_into_leaves,
    search_leaves,
)
from maskwitness.records import Bank, Pairs


class Part(NamedTuple):
    """The pairs of some queries, one query after the other."""

    rows: Int64[np.ndarray, " queries"]
    size: Int64[np.ndarray, " queries"]
    witness: Int32[np.ndarray, " pairs"]
    dist2: Int32[np.ndarray, " pairs"]
    intersection: UInt16[np.ndarray, " pairs"]
    union: UInt16[np.ndarray, " pairs"]


class TooManyPairs(Exception):
    """A block has more pairs than may be held at once."""


@dataclass(slots=True)
class Searcher:
    """One search: the bank and its tree, who asks, who is a witness."""

    bank: Bank
    tree: Tree
    queries: Bank
    own: bool  # the queries are the bank
    rule: Rule
    plan: Plan
    masks: UInt64[np.ndarray, "patches words"] = field(init=False)
    _room: int = field(init=False)
    _held: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.masks = words(self.bank.mask, np.uint64)
        k = self.rule.k
        self._room = min(len(self.bank.image), 2 * k) if k > 0 else 1024

    def blocks(self) -> Iterator[Pairs]:
        """Yield the witnesses of all queries, in blocks of consecutive rows."""
        total, first, rows = len(self.queries.image), 0, self.plan.rows
        with ThreadPoolExecutor(self.plan.threads) as pool:
            while first < total:
                block = range(first, min(first + rows, total))
                try:
                    pairs = self._block(block, pool)
                except TooManyPairs:
                    rows = max(1, len(block) // 2)
                    continue
                yield pairs
                first = block.stop
                if len(pairs.witness) * PAIR_BYTES * 4 < self.plan.held_bytes:
                    rows = min(self.plan.rows, rows * 2)

    def _block(self, block: range, pool: ThreadPoolExecutor) -> Pairs:
        rows = block.start + np.flatnonzero(self.queries.has_image[block.start : block.stop])
        self._held = 0 if len(block) > 1 else -(2**62)  # a single row is never too much
        asked = self.tree.ask(self.queries, rows, self.own)
        tasks = [
            pool.submit(self._search, rows[group], _some(asked, group))
            for group in _groups(asked, self.plan.threads)
        ]
        try:
            parts = [part for task in tasks for part in task.result()]
        finally:
            for task in tasks:
                task.cancel()
            wait(tasks)  # what runs on would count into the next block
        return _as_pairs(block, parts)

    def _search(self, rows: Int64[np.ndarray, " rows"], asked: Queries) -> list[Part]:
        # Without a limit on the witnesses a row may need more room than it has: try again then.
        room = self._room
        while True:
            if len(rows) > 1 and len(rows) * room * 8 > GROUP_BYTES:
                half = len(rows) // 2
                return [
                    part
                    for some in (slice(half), slice(half, None))
                    for part in self._search(rows[some], _some(asked, some))
                ]
            found = Found(
                keys=np.empty((len(rows), room), np.int64),
                size=np.zeros(len(rows), np.int64),
                farthest=np.full(len(rows), NONE),
            )
            search_leaves(asked, self.tree.leaves, self.rule, found)
            most = int(found.size.max(initial=0))
            if most <= room:
                return [self._part(rows, found)]
            room = self._room = max(self._room, most)

    def _part(self, rows: Int64[np.ndarray, " rows"], found: Found) -> Part:
        _sort_rows(found, self.rule.k)
        pairs = int(found.size.sum())
        with self._lock:
            self._held += pairs
            if self._held * PAIR_BYTES > self.plan.held_bytes:
                raise TooManyPairs
        part = Part(
            rows=rows,
            size=found.size,
            witness=np.empty(pairs, np.int32),
            dist2=np.empty(pairs, np.int32),
            intersection=np.empty(pairs, np.uint16),
            union=np.empty(pairs, np.uint16),
        )
        own = words(self.queries.mask[rows], np.uint64)
        write_pairs(found.keys, found.size, own, self.masks, *part[2:])
        return part


def _sort_rows(found: Found, k: int) -> None:
    # NumPy sorts a row with vector instructions, many times as fast as a loop in a kernel.
    for row in np.flatnonzero(found.size > 1):
        found.keys[row, : found.size[row]].sort()
    if k > 0:
        np.minimum(found.size, k, out=found.size)


def _groups(asked: Queries, threads: int) -> list[Int64[np.ndarray, " queries"]]:
    order = np.arange(len(asked.patch))
    cut_into_leaves(asked.points, order)
    size = max(1, min(LEAF, -(-len(order) // threads)))
    return [order[first : first + size] for first in range(0, len(order), size)]


def _some(asked: Queries, which: Int64[np.ndarray, " some"] | slice) -> Queries:
    return Queries(
        coords=np.ascontiguousarray(asked.coords[:, which]),
        points=asked.points[which],
        code=asked.code[which],
        patch=asked.patch[which],
        group=asked.group[which],
        position_um=asked.position_um[which],
    )


def _as_pairs(block: range, parts: list[Part]) -> Pairs:
    count = np.zeros(len(block), np.int64)
    for part in parts:
        count[part.rows - block.start] = part.size
    offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    total = int(offset[-1])
    pairs = Pairs(
        first=block.start,
        offset=offset,
        witness=np.empty(total, np.int32),
        dist2=np.empty(total, np.int32),
        intersection=np.empty(total, np.uint16),
        union=np.empty(total, np.uint16),
    )
    while parts:
        part = parts.pop()
        place = offset[part.rows - block.start]
        within = np.arange(len(part.witness)) - np.repeat(
            np.cumsum(part.size) - part.size, part.size
        )
        place = np.repeat(place, part.size) + within
        for name in ("witness", "dist2", "intersection", "union"):
            getattr(pairs, name)[place] = getattr(part, name)
    return pairs
