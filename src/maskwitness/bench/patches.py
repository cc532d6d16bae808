"""Banks to search: of phantom scans, of noise that nothing can be ruled out in, of shifted copies.

All patches have an image, and their groups, one a scan, are runs of consecutive patches.
"""

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import sqrt

import numpy as np
from scipy.stats import chi2

from maskwitness.config import PatchSettings
from maskwitness.errors import ConfigError
from maskwitness.join import dist2_limit
from maskwitness.patches import circle
from maskwitness.phantom import PhantomSettings, make_scan
from maskwitness.pipeline import bank_of, describe
from maskwitness.records import Bank, Scan

VIEWS = 8  # of a square: turned and mirrored
SHIFTS = (-1, 0, 1)
SEEDS = 2**20  # scans that the settings of a phantom may ask for, whatever is made of them
WITNESSES = 1e-4  # share of the hard pairs that are near-identical after all
BASE = 96  # of the hard patches: at least as far from both ends of the grey values
BLOCK = 4096


def phantom_bank(patches: int, scans: int, seed: int, workers: int) -> tuple[Bank, str]:
    """Return so many patches of at most so many small phantom scans, and how they were made.

    What the scans do not give is filled up with their patches turned and mirrored.
    """
    parts: list[Bank] = []
    found = 0
    one = partial(_patches_of, PhantomSettings(scans=SEEDS, size="small", seed=seed))
    # Workers are spawned and leave Ctrl-C to this process, as where a phantom is written.
    deaf = (signal.SIGINT, signal.SIG_IGN)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(min(workers, scans), signal.signal, deaf) as pool:
        for part in pool.imap(one, range(scans)):
            parts.append(part)
            found += len(part.image)
            if found >= patches:
                break
    made = joined(parts)
    note = f"{len(parts)} phantom scans, size small, seed {seed}: {found:,} patches"
    if found < patches:
        note += "; filled up with the same patches turned and mirrored, as scans of their own"
    return some(filled_up(made, patches), slice(patches)), note


def filled_up(bank: Bank, patches: int) -> Bank:
    """Return a bank with as many of its eight views as it takes, each with groups of its own."""
    views = -(-patches // len(bank.image))
    if views > VIEWS:
        message = (
            f"{patches:,} patches are more than {VIEWS} views of {len(bank.image):,}; "
            "make more scans: --scans"
        )
        raise ConfigError(message)
    groups = int(bank.group.max()) + 1
    return joined(
        [replace(turned(bank, view), group=bank.group + view * groups) for view in range(views)]
    )


def turned(bank: Bank, view: int) -> Bank:
    """Return the patches turned by ``view`` quarters, from the fifth view on mirrored too."""

    def turn(planes: np.ndarray) -> np.ndarray:
        planes = np.rot90(planes, view % 4, axes=(1, 2))
        return planes[:, :, ::-1] if view >= 4 else planes

    return replace(bank, **_moved(bank, turn))


def shifted(bank: Bank) -> Bank:
    """Return each patch in nine places, one sample apart; a scan's patches stay side by side."""
    inside = circle(bank.image.shape[1])

    def rolled(by: tuple[int, ...]) -> Bank:
        return replace(bank, **_moved(bank, lambda p: np.roll(p, by, axis=(1, 2)) * inside))

    every = joined([rolled(by) for by in product(SHIFTS, SHIFTS)])
    return some(every, np.argsort(every.group, kind="stable"))


def hard_bank(patches: int, epsilon: float, seed: int) -> tuple[Bank, str]:
    """Return one patch under noise so strong that hardly any pair is near-identical.

    White noise lies in all directions alike, so no projection on a few of them rules a pair out.
    Squared distances are 2 σ² χ² with as many degrees of freedom as there are samples.
    """
    model = _patches_of(PhantomSettings(scans=SEEDS, size="small", seed=seed), 0)
    size = model.image.shape[1]
    inside = circle(size)
    width = int(inside.sum())
    variance = dist2_limit(epsilon, size) / 2 / float(chi2.ppf(WITNESSES, width))
    noise = sqrt(max(0.0, variance - 1 / 12))  # rounding adds a twelfth
    if 4 * noise > BASE:
        message = f"epsilon {epsilon:g}: noise that strong does not fit into 8 bits; at most 0.01"
        raise ConfigError(message)
    rng = np.random.default_rng([seed, patches])
    base = BASE + model.image[0][inside].astype(np.float64) / 255 * (255 - 2 * BASE)
    image = np.zeros((patches, size, size), np.uint8)
    for first in range(0, patches, BLOCK):
        block = image[first : first + BLOCK]
        values = base + noise * rng.standard_normal((len(block), width))
        block[:, inside] = np.clip(np.rint(values), 0, 255)
    note = f"one patch under white noise of σ = {noise:.2f} of 255 grey values"
    return Bank(
        image=image,
        mask=np.repeat(model.mask[:1], patches, axis=0),
        has_image=np.ones(patches, bool),
        group=np.arange(patches, dtype=np.int64),
        position_um=np.zeros(patches, np.int64),
    ), note


def some(bank: Bank, which: np.ndarray | slice) -> Bank:
    """Return some of the patches."""
    return Bank(
        image=bank.image[which],
        mask=bank.mask[which],
        has_image=bank.has_image[which],
        group=bank.group[which],
        position_um=bank.position_um[which],
    )


def joined(banks: list[Bank]) -> Bank:
    """Return several banks as one."""
    return Bank(
        image=np.concatenate([bank.image for bank in banks]),
        mask=np.concatenate([bank.mask for bank in banks]),
        has_image=np.concatenate([bank.has_image for bank in banks]),
        group=np.concatenate([bank.group for bank in banks]),
        position_um=np.concatenate([bank.position_um for bank in banks]),
    )


def _patches_of(settings: PhantomSettings, index: int) -> Bank:
    made = make_scan(settings, index)
    scan = Scan(name=made.name, image=made.image, mask=made.drawn)
    bank = bank_of([describe(scan, PatchSettings())], "other_scan")
    return some(replace(bank, group=np.full_like(bank.group, index)), bank.has_image)


def _moved(bank: Bank, move: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    bits = np.unpackbits(bank.mask, axis=1, count=bank.image[0].size).reshape(bank.image.shape)
    return {
        "image": np.ascontiguousarray(move(bank.image)),
        "mask": np.packbits(move(bits).reshape(len(bits), -1), axis=1),
    }
