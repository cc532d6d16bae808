"""Jobs side by side: every result once, no new job after a failure."""

import threading
import time

import pytest

from maskwitness.run.threads import in_threads


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_gives_its_result_once(workers):
    assert sorted(in_threads(lambda n: n * n, range(20), workers)) == [n * n for n in range(20)]
    assert list(in_threads(str, [], workers)) == []


def test_after_a_failure_no_further_job_is_begun():
    begun = []

    def work(n: int) -> int:
        begun.append(n)
        if n == 2:
            message = "the third"
            raise ValueError(message)
        time.sleep(0.01)  # a scan takes seconds, long enough to call the others off
        return n

    with pytest.raises(ValueError, match="the third"):
        list(in_threads(work, range(1000), 1))
    assert len(begun) < 100


def test_whoever_stops_listening_stops_the_jobs():
    begun, go = [], threading.Event()

    def work(n: int) -> int:
        begun.append(n)
        if n:
            go.wait(5)
        return n

    results = in_threads(work, range(1000), 1)
    assert next(results) == 0
    go.set()
    results.close()  # type: ignore[attr-defined]
    assert len(begun) < 1000
