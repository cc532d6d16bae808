"""Jobs side by side in threads: results as they come, and a quick end when one fails."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


def in_threads(work: Callable[[J], R], jobs: Sequence[J], workers: int) -> Iterator[R]:
    """Yield the results in the order in which they are ready.

    After an error or an interruption no further job is begun; those under way are waited for.
    """
    with ThreadPoolExecutor(workers) as pool:
        try:
            for task in as_completed([pool.submit(work, job) for job in jobs]):
                yield task.result()
        finally:
            pool.shutdown(cancel_futures=True)
