"""The join on a CUDA device at full scale, with what there is to compare it with.

    python benchmarks/join_device.py --patches 3000000 --views 9

Patches are those of many small phantom scans, filled up with their eight turned and mirrored
copies (each a scan of its own), because drawing as many scans would take longer than the search.
Prints seconds, pairs, and arithmetic; every part goes on where another fails.
"""

import argparse
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Self

import numpy as np
import torch

from maskwitness.config import JoinSettings, PatchSettings
from maskwitness.join import ANY_DISTANCE, dist2_limit, gpu, range_pairs
from maskwitness.join.gpu_kernels import TILE
from maskwitness.patches import circle
from maskwitness.phantom.make import make_scan
from maskwitness.phantom.settings import PhantomSettings
from maskwitness.pipeline import describe
from maskwitness.records import Bank, Pairs, Scan

SEED = 4711
PATCHES_A_SCAN = 600  # a little less than a small scan has


def describe_scan(job: tuple[int, int]) -> tuple[np.ndarray, ...]:
    scans, index = job
    scan = make_scan(PhantomSettings(scans=scans, size="small", seed=SEED), index)
    described = describe(Scan(name=scan.name, image=scan.image, mask=scan.drawn), PatchSettings())
    patches = described.patches
    return patches.image, patches.mask, patches.has_image, described.graph.arc_mm


def phantom_bank(patches: int) -> Bank:
    scans = -(-patches // 8 // PATCHES_A_SCAN)
    with ProcessPoolExecutor() as pool:
        parts = list(pool.map(describe_scan, [(scans, n) for n in range(scans)], chunksize=4))
    image, mask, has_image, arc_mm = (np.concatenate(column) for column in zip(*parts, strict=True))
    scan = np.repeat(np.arange(scans), [len(part[0]) for part in parts])
    bits = np.unpackbits(mask, axis=1).reshape(-1, 24, 24)
    turned = [(image, bits)]
    for view in range(1, 8):
        flip = np.s_[:, :, ::-1] if view >= 4 else np.s_[:]
        turned.append(tuple(np.rot90(a[flip], view % 4, axes=(1, 2)) for a in (image, bits)))
    return cut(
        Bank(
            image=np.concatenate([np.ascontiguousarray(a) for a, _ in turned]),
            mask=np.concatenate([np.packbits(b.reshape(len(b), -1), axis=1) for _, b in turned]),
            has_image=np.tile(has_image, 8),
            group=np.concatenate([scan + view * scans for view in range(8)]),
            position_um=np.tile(np.rint(arc_mm * 1000).astype(np.int64), 8),
        ),
        patches,
    )


def shifted_views(bank: Bank, views: int) -> Bank:
    """Return the bank with copies cut off-centre by one sample along u, v or both."""
    steps = [(u, v) for u in (0, -1, 1) for v in (0, -1, 1)][:views]
    image = np.empty((len(bank.image) * views, *bank.image.shape[1:]), np.uint8)
    for n, step in enumerate(steps):
        part = image[n * len(bank.image) : (n + 1) * len(bank.image)]
        part[:] = np.roll(bank.image, step, axis=(1, 2))
    return Bank(
        image=image,
        mask=np.tile(bank.mask, (views, 1)),
        has_image=np.tile(bank.has_image, views),
        group=np.tile(bank.group, views),
        position_um=np.tile(bank.position_um, views),
    )


def cut(bank: Bank, patches: int) -> Bank:
    return Bank(**{name: getattr(bank, name)[:patches] for name in Bank.__slots__})


class Meter:
    """Count the products that the device does, and how long they and the rest take."""

    def __init__(self) -> None:
        self.tiles, self.product_s, self.bank_s = 0, 0.0, 0.0
        self._add, self._cloud = gpu.Hits._add, gpu.cloud_of

    def __enter__(self) -> Self:
        meter = self

        def add(hits: Any, slab: Any, block: Any, tile: Any) -> None:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            meter._add(hits, slab, block, tile)
            torch.cuda.synchronize()
            meter.product_s += time.perf_counter() - begun
            meter.tiles += len(block)

        def cloud(bank: Bank, rows: np.ndarray, *rest: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            made = meter._cloud(bank, rows, *rest, **more)
            torch.cuda.synchronize()
            if len(rows) > gpu.MOST_ROWS:
                meter.bank_s += time.perf_counter() - begun
            return made

        gpu.Hits._add, gpu.cloud_of = add, cloud  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        gpu.Hits._add, gpu.cloud_of = self._add, self._cloud  # type: ignore[method-assign]

    def __str__(self) -> str:
        done = self.tiles * TILE * TILE * 448 * 2 / max(self.product_s, 1e-9) / 1e12
        return (
            f"bank {self.bank_s:.2f} s; {self.tiles:,} tile products with their hits sorted in "
            f"{self.product_s:.2f} s: {done:.0f} tera-operations a second"
        )


def total_of(blocks: Iterable[Pairs], rows: int, most_s: float = 1e9) -> str:
    begun, pairs, count, check, done = time.perf_counter(), 0, 0, 0, 0
    for block in blocks:
        pairs += len(block.witness)
        done = block.first + len(block.offset) - 1
        count += 1
        weights = np.arange(1, len(block.witness) + 1, dtype=np.uint64)
        check ^= int((block.witness.astype(np.uint64) * 1_000_003 + weights).sum()) if pairs else 0
        if time.perf_counter() - begun > most_s:
            break
    seconds = time.perf_counter() - begun
    whole = "" if done == rows else f", stopped: {seconds * rows / max(done, 1):.1f} s for all"
    return f"{seconds:.2f} s{whole}, {pairs:,} pairs, {count} blocks, check {check & 0xFFFF:x}"


def part(name: str, work: Callable[[], Any]) -> None:
    begun = time.perf_counter()
    try:
        print(f"{name}: {work()} [{time.perf_counter() - begun:.1f} s]", flush=True)
    except Exception:  # noqa: BLE001 - the other parts are still worth their time
        print(name, flush=True)
        traceback.print_exc()


def top_k(bank: Bank, k: int, rows: int = 2048) -> str:
    """Return the time of a matrix product with top-k, as torch does it."""
    inside = torch.from_numpy(np.flatnonzero(circle(24))).cuda()
    flat = torch.from_numpy(bank.image.reshape(len(bank.image), -1)).cuda()
    code = flat[:, inside].float() - 128
    norm = (code**2).sum(1)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for first in range(0, len(code), rows):
        some = code[first : first + rows]
        dist2 = norm[first : first + rows, None] + norm[None] - 2 * (some @ code.T)
        dist2.topk(k + 1, largest=False)
    torch.cuda.synchronize()
    return f"{time.perf_counter() - begun:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=3_000_000)
    parser.add_argument("--views", type=int, default=9, help="copies for the nearest")
    parser.add_argument("--most-s", type=float, default=1e9, help="of the nearest, then stop")
    parser.add_argument("--epsilon", type=float, default=0.001)
    asked = parser.parse_args()
    paper, others = JoinSettings(epsilon=asked.epsilon), JoinSettings(testify="other_scan")
    begun = time.perf_counter()
    bank = phantom_bank(asked.patches)
    count = len(bank.image)
    print(f"{count:,} patches made in {time.perf_counter() - begun:.1f} s", flush=True)

    def range_of(some: Bank, queries: Bank | None = None, memory_bytes: int | None = None) -> str:
        wanted = gpu.Wanted(
            limit=dist2_limit(paper.epsilon, 24), k=paper.k, reach_um=-1, waves=False
        )
        asking = some if queries is None else queries
        with Meter() as meter:
            found = gpu.blocks(some, asking, queries is None, wanted, memory_bytes)
            return f"{total_of(found, len(asking.image))} ({meter})"

    small = cut(bank, 100_000)
    part("100 000 patches, first call", lambda: range_of(small))
    part("100 000 patches", lambda: range_of(small))
    part("100 000 patches, on the processor", lambda: total_of(range_pairs(small, paper), 100_000))
    part("100 000 patches, torch product and top-k", lambda: top_k(small, 2047))
    for warps in (4, 8):
        gpu.WARPS = warps
        part(f"{warps} warps", lambda: range_of(cut(bank, 1_000_000)))
    part(f"{count:,} patches", lambda: range_of(bank))
    part("3000 queries", lambda: range_of(bank, cut(bank, 3000)))

    def nearest() -> str:
        views = shifted_views(bank, asked.views)
        wanted = gpu.Wanted(limit=ANY_DISTANCE, k=32, reach_um=2**62, waves=True)
        assert others.testify == "other_scan"
        with Meter() as meter:
            found = gpu.blocks(views, bank, False, wanted)
            return f"bank of {len(views.image):,}: {total_of(found, count, asked.most_s)} ({meter})"

    part("32 nearest", nearest)
    part("in 8 GiB", lambda: range_of(bank, memory_bytes=8 * 2**30))
    part("on the processor", lambda: total_of(range_pairs(bank, paper), count))


if __name__ == "__main__":
    main()
