"""The contenders: ours, and what one would use instead, each as somebody would who knows it.

Peers get the samples inside the circle as float32, minus 128: all products and sums up to 2²⁴ are
then whole numbers that float32 holds exactly, and a limit on them decides as ours does. What a peer
needs is imported only where it is used: each contender runs in a process of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Shaped

from maskwitness.config import JoinSettings, Testify
from maskwitness.join import Device, nearest_pairs, range_pairs
from maskwitness.patches import circle
from maskwitness.records import Bank, Pairs

BLOCK = 4096  # queries at a time, so that what a peer finds too much is soon dropped
CHUNK_BYTES = 2**30  # of a matrix of distances on the device


class Question(NamedTuple):
    """What all contenders are asked."""

    epsilon: float
    limit: int  # a witness is nearer than this
    k: int
    testify: Testify
    threads: int
    device: Device


class Found(NamedTuple):
    """Pairs in any order."""

    row: Shaped[np.ndarray, " pairs"]
    witness: Shaped[np.ndarray, " pairs"]
    dist2: Shaped[np.ndarray, " pairs"]


Search = Callable[[Bank, Bank | None, Question], Found]


class Contender(NamedTuple):
    """Who searches: the package that is needed, under the name to install and to import it by."""

    label: str
    search: Search
    install: str = ""
    package: str = ""


def ours_range(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with range_pairs."""
    device, threads = question.device, question.threads
    return _as_found(
        range_pairs(bank, _settings(question), queries, device=device, threads=threads)
    )


def ours_nearest(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with nearest_pairs."""
    device, threads = question.device, question.threads
    return _as_found(
        nearest_pairs(
            bank, question.k, _settings(question), queries, device=device, threads=threads
        )
    )


def faiss_topk(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with the flat index: the k nearest and the patch itself, then what is near enough."""
    index, points = _faiss_index(bank, question)
    most = min(question.k + 1, len(points))
    parts = []
    for first in range(0, len(points), BLOCK):
        dist2, witness = index.search(points[first : first + BLOCK], most)
        parts.append(_kept(first, dist2, witness, question.limit))
    return _collected(parts)


def faiss_range(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with the flat index: all that are near enough."""
    index, points = _faiss_index(bank, question)
    parts = []
    for first in range(0, len(points), BLOCK):
        # Between two whole numbers, so that neither < nor ≤ makes a difference.
        offset, dist2, witness = index.range_search(
            points[first : first + BLOCK], question.limit - 0.5
        )
        row = first + np.repeat(np.arange(len(offset) - 1), np.diff(offset.astype(np.int64)))
        parts.append(_others(row, witness, dist2))
    return _collected(parts)


def faiss_nearest(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search scan by scan in all that lies before and after the scan's own patches."""
    import faiss

    faiss.omp_set_num_threads(question.threads)
    asking = bank if queries is None else queries
    points, wanted = vectors(bank), vectors(asking)
    parts = []
    for group in np.unique(asking.group):
        first, end = np.searchsorted(asking.group, [group, group + 1])
        own, after = np.searchsorted(bank.group, [group, group + 1])
        sides = [
            (
                side,
                faiss.knn(wanted[first:end], points[side:stop], int(min(question.k, stop - side))),
            )
            for side, stop in ((0, own), (after, len(points)))
            if stop > side
        ]
        if sides:
            dist2 = np.concatenate([near for _, (near, _) in sides], axis=1)
            witness = np.concatenate([at + side for side, (_, at) in sides], axis=1)
            nearest = np.argsort(dist2, axis=1, kind="stable")[:, : question.k]
            row = np.repeat(np.arange(first, end), nearest.shape[1])
            parts.append(
                Found(
                    row,
                    np.take_along_axis(witness, nearest, axis=1).ravel(),
                    np.take_along_axis(dist2, nearest, axis=1).ravel(),
                )
            )
    return _collected(parts)


def sklearn_radius(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with the brute-force radius search."""
    from sklearn.neighbors import NearestNeighbors

    points = vectors(bank)
    # Its radius is a distance, its limit ≤: again between two whole numbers.
    model = NearestNeighbors(
        algorithm="brute", radius=np.sqrt(question.limit - 0.5), n_jobs=question.threads
    )
    model.fit(points)
    parts = []
    for first in range(0, len(points), BLOCK):
        distance, witness = model.radius_neighbors(points[first : first + BLOCK])
        row = first + np.repeat(np.arange(len(witness)), [len(found) for found in witness])
        dist2 = np.rint(np.concatenate(distance).astype(np.float64) ** 2)
        parts.append(_others(row, np.concatenate(witness), dist2))
    return _collected(parts)


def torch_topk(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with a matrix product and the k smallest of each row."""
    most = min(question.k + 1, len(bank.image))
    parts = []
    for first, distances in _torch_distances(bank, queries, question):
        near = distances.topk(most, largest=False)
        parts.append(
            _kept(first, near.values.cpu().numpy(), near.indices.cpu().numpy(), question.limit)
        )
    return _collected(parts)


def torch_limit(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with a matrix product and all that is below the limit."""
    parts = []
    for first, distances in _torch_distances(bank, queries, question):
        row, witness = (distances < question.limit).nonzero(as_tuple=True)
        dist2 = distances[row, witness].cpu().numpy()
        parts.append(_others(first + row.cpu().numpy(), witness.cpu().numpy(), dist2))
    return _collected(parts)


def torch_nearest(bank: Bank, queries: Bank | None, question: Question) -> Found:
    """Search with a matrix product and the k smallest of each row, the own scan left out."""
    import torch

    asking = bank if queries is None else queries
    group = torch.from_numpy(bank.group.copy()).to(question.device)
    parts = []
    for first, distances in _torch_distances(bank, queries, question):
        own = torch.from_numpy(asking.group[first : first + len(distances)].copy())
        distances[own.to(question.device)[:, None] == group] = torch.inf
        near = distances.topk(min(question.k, len(group)), largest=False)
        dist2, witness = near.values.cpu().numpy(), near.indices.cpu().numpy()
        row, column = np.nonzero(np.isfinite(dist2))
        parts.append(Found(first + row, witness[row, column], dist2[row, column]))
    return _collected(parts)


CONTENDERS: dict[str, Contender] = {
    "ours": Contender("maskwitness", ours_range),
    "faiss-topk": Contender("FAISS top-k", faiss_topk, "faiss-cpu", "faiss"),
    "faiss-range": Contender("FAISS range search", faiss_range, "faiss-cpu", "faiss"),
    "sklearn": Contender("scikit-learn radius", sklearn_radius, "scikit-learn", "sklearn"),
    "torch-topk": Contender("torch top-k", torch_topk, "torch", "torch"),
    "torch-limit": Contender("torch limit", torch_limit, "torch", "torch"),
    "ours-nearest": Contender("maskwitness", ours_nearest),
    "faiss-nearest": Contender("FAISS top-k", faiss_nearest, "faiss-cpu", "faiss"),
    "torch-nearest": Contender("torch top-k", torch_nearest, "torch", "torch"),
}


def vectors(bank: Bank) -> Float32[np.ndarray, "patches samples"]:
    """Return the patches as peers want them."""
    inside = np.flatnonzero(circle(bank.image.shape[1]))
    points = bank.image.reshape(len(bank.image), -1)[:, inside].astype(np.float32)
    points -= 128
    return np.ascontiguousarray(points)


def _settings(question: Question) -> JoinSettings:
    # 256 MB a thread, so that the budget never takes a thread away.
    return JoinSettings(
        epsilon=question.epsilon,
        k=question.k,
        testify=question.testify,
        memory_mb=max(JoinSettings().memory_mb, 256 * question.threads),
    )


def _as_found(blocks: Iterator[Pairs]) -> Found:
    return _collected(
        Found(
            np.repeat(
                np.arange(pairs.first, pairs.first + len(pairs.offset) - 1, dtype=np.int32),
                np.diff(pairs.offset),
            ),
            pairs.witness,
            pairs.dist2,
        )
        for pairs in blocks
    )


def _faiss_index(bank: Bank, question: Question) -> tuple[Any, np.ndarray]:
    import faiss

    faiss.omp_set_num_threads(question.threads)
    points = vectors(bank)
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points)
    return index, points


def _torch_distances(
    bank: Bank, queries: Bank | None, question: Question
) -> Iterator[tuple[int, Any]]:
    import torch

    torch.set_float32_matmul_precision("high")  # TF32 holds whole numbers of 8 bits exactly
    points = torch.from_numpy(vectors(bank)).to(question.device)
    asking = points
    if queries is not None:
        asking = torch.from_numpy(vectors(queries)).to(question.device)
    norm, own = (points**2).sum(1), (asking**2).sum(1)
    rows = max(1, CHUNK_BYTES // (4 * len(points)))
    for first in range(0, len(asking), rows):
        block = slice(first, first + rows)
        distances = torch.addmm(norm[None], asking[block], points.T, alpha=-2)
        distances += own[block, None]
        yield first, distances


def _kept(first: int, dist2: np.ndarray, witness: np.ndarray, limit: int) -> Found:
    row, column = np.nonzero(dist2 < limit)
    return _others(first + row, witness[row, column], dist2[row, column])


def _others(row: np.ndarray, witness: np.ndarray, dist2: np.ndarray) -> Found:
    # Everything that was found but the patch itself, as small as ours holds it.
    other = row != witness
    return Found(
        row[other].astype(np.int32), witness[other].astype(np.int32), dist2[other].astype(np.int32)
    )


def _collected(parts: Iterable[Found]) -> Found:
    every = list(parts)
    none = [np.empty(0, np.int32)]  # nothing found is an answer too
    return Found(*(np.concatenate([*none, *(part[n] for part in every)]) for n in range(3)))
