"""The join at full scale on the processor: seconds, and how much memory it holds of its own.

    python benchmarks/join_full_scale.py --patches 3000000
    python benchmarks/join_full_scale.py --patches 3000000 --nearest 65536 --folder /scratch

With --nearest so many of the patches look for their 32 nearest of other scans in nine shifted views
of all of them; these views lie in a file, as do the parts of the tree that memory has no room for.
The time for all patches is what one block takes, times the number of blocks.
"""

import argparse
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np

from maskwitness import join
from maskwitness.bench.patches import phantom_bank, some
from maskwitness.config import JoinSettings
from maskwitness.join.plan import cores
from maskwitness.records import Bank

SHIFTS = [(u, v) for u in (0, -1, 1) for v in (0, -1, 1)]


class Anonymous:
    """Watch how much memory is the process's own: files that are mapped can be taken back."""

    def __enter__(self) -> Self:
        self.most_gib, self._done = 0.0, threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            own = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            self.most_gib = max(self.most_gib, own / 2**20)


def views_in_file(bank: Bank, folder: Path) -> Bank:
    """Return nine shifted views of a bank, their images in a file that vanishes."""
    count = len(bank.image)
    with tempfile.TemporaryFile(dir=folder) as file:
        image = np.memmap(file, np.uint8, "w+", shape=(9 * count, *bank.image.shape[1:]))
    for n, shift in enumerate(SHIFTS):
        for first in range(0, count, 2**17):
            part = bank.image[first : first + 2**17]
            image[n * count + first :][: len(part)] = np.roll(part, shift, axis=(1, 2))
    return Bank(
        image=np.asarray(image),
        mask=np.tile(bank.mask, (9, 1)),
        has_image=np.tile(bank.has_image, 9),
        group=np.tile(bank.group, 9),
        position_um=np.tile(bank.position_um, 9),
    )


def in_files(bank: Bank, memory: join.Memory) -> Bank:
    """Return a bank whose images and masks lie where the memory has room, as in an audit."""
    image = memory.empty(bank.image.shape, np.uint8)
    mask = memory.empty(bank.mask.shape, np.uint8)
    image[:], mask[:] = bank.image, bank.mask
    return Bank(
        image=image,
        mask=mask,
        has_image=bank.has_image,
        group=bank.group,
        position_um=bank.position_um,
    )


def search_all(bank: Bank, settings: JoinSettings, memory: join.Memory) -> None:
    with Anonymous() as watched:
        begun = time.perf_counter()
        pairs = sum(len(block.witness) for block in join.range_pairs(bank, settings, memory=memory))
        seconds = time.perf_counter() - begun
    print(f"ε = {settings.epsilon}: {seconds:.1f} s, {pairs:,} pairs, {told(watched)}", flush=True)


def search_nearest(bank: Bank, queries: int, folder: Path) -> None:
    settings = JoinSettings(testify="other_scan")
    asking = some(bank, slice(0, queries))
    views = views_in_file(bank, folder)
    with Anonymous() as watched:
        begun = last = time.perf_counter()
        for block in join.nearest_pairs(
            views, 32, settings, asking, memory=join.Memory.of(settings, folder)
        ):
            now = time.perf_counter()
            rows = len(block.offset) - 1
            # The tree is grown before the first block.
            tree = "with the tree " if last == begun else ""
            print(f"{rows:,} rows {tree}{now - last:.1f} s, {told(watched)}", flush=True)
            last = now


def told(watched: Anonymous) -> str:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{watched.most_gib:.1f} GiB of its own, {peak:.1f} GiB with mapped files"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=3_000_000)
    parser.add_argument("--epsilon", type=float, default=0.001)
    parser.add_argument("--nearest", type=int, default=0, help="how many patches ask")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    bank, how = phantom_bank(asked.patches, asked.patches // 8 // 600 + 1, 4711, cores())
    print(how, flush=True)
    if asked.nearest:
        search_nearest(bank, asked.nearest, asked.folder)
    else:
        settings = JoinSettings(epsilon=asked.epsilon)
        memory = join.Memory.of(settings, asked.folder)
        bank = in_files(bank, memory)  # the first one goes
        search_all(bank, settings, memory)


if __name__ == "__main__":
    main()
