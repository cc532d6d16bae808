"""How hard is a phantom for a segmentation network? Train a U-Net on clean masks, test on others.

    python benchmarks/phantom_hardness.py --train 40 --test 10 --minutes 4.5

Needs torch, and a CUDA card for anything but a try-out. A plain 3-D U-Net after nnU-Net's recipe
(instance norm, leaky ReLU, Dice + cross-entropy, half of the patches centred near foreground, SGD
with a polynomial rate, flips, zooms and intensity changes), trained on the true masks. Prints one
JSON object: Dice, sensitivity and precision of every test scan against its true mask.
"""

import argparse
import json
import multiprocessing
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from maskwitness.phantom import PhantomSettings, make_scan

PATCH = (128, 128, 96)
FEATURES = (32, 64, 128, 256, 320)
WINDOW_HU = (-200.0, 800.0)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Scan = tuple[np.ndarray, np.ndarray]  # int16 image, bool truth


class Block(nn.Sequential):
    """Two convolutions, each normalised."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        layers: list[nn.Module] = []
        for first, second, step in ((before, after, stride), (after, after, 1)):
            layers += [
                nn.Conv3d(first, second, 3, step, 1, bias=False),
                nn.InstanceNorm3d(second, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """Five resolutions, skip connections, one logit a voxel."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip((1, *FEATURES), FEATURES, strict=False))
        self.down = nn.ModuleList(Block(a, b, 2 if n else 1) for n, (a, b) in enumerate(pairs))
        steps = [(FEATURES[n + 1], FEATURES[n]) for n in reversed(range(len(FEATURES) - 1))]
        self.grow = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in steps)
        self.up = nn.ModuleList(Block(2 * b, b) for _, b in steps)
        self.last = nn.Conv3d(FEATURES[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        seen = []
        for block in self.down:
            x = block(x)
            seen.append(x)
        for skip, grow, block in zip(reversed(seen[:-1]), self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), skip], dim=1))
        return self.last(x)


def make(job: tuple[PhantomSettings, int]) -> Scan:
    """Make one scan in a worker."""
    scan = make_scan(*job)
    return scan.image.data, scan.truth > 0


def to_device(scans: list[Scan]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return image (int16), truth and the places of its foreground, on the card."""
    out = []
    for image, truth in scans:
        a = torch.from_numpy(np.ascontiguousarray(image)).to(DEVICE)
        b = torch.from_numpy(np.ascontiguousarray(truth)).to(DEVICE)
        out.append((a, b, b.nonzero()))
    return out


def normalised(image: torch.Tensor) -> torch.Tensor:
    """Return HU as the network takes them."""
    return (image.float().clamp(*WINDOW_HU) - 100.0) / 200.0


def draw_batch(
    scans: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    batch: int,
    rng: np.random.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return augmented patches; every second one is centred on foreground."""
    images, truths = [], []
    for n in range(batch):
        image, truth, places = scans[rng.integers(len(scans))]
        shape, size = np.array(image.shape), np.minimum(PATCH, image.shape)
        if n % 2 == 0:
            centre = places[rng.integers(len(places))].cpu().numpy() + rng.integers(-24, 25, 3)
        else:
            centre = rng.integers(0, shape)
        low = np.clip(centre - size // 2, 0, shape - size)
        box = tuple(slice(int(a), int(a + s)) for a, s in zip(low, size, strict=True))
        images.append(normalised(image[box]))
        truths.append(truth[box].float())
    x, y = torch.stack(images)[:, None], torch.stack(truths)[:, None]
    for axis in (2, 3, 4):
        if rng.random() < 0.5:
            x, y = x.flip(axis), y.flip(axis)
    if rng.random() < 0.3:
        x, y = zoomed(x, y, rng)
    if rng.random() < 0.5:
        x = x * float(rng.uniform(0.8, 1.25)) + float(rng.uniform(-0.2, 0.2))
    if rng.random() < 0.2:
        x = x + float(rng.uniform(0.0, 0.12)) * torch.randn_like(x)
    return x, y


def zoomed(
    x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches turned about one axis and zoomed."""
    angle, scale = rng.uniform(-0.5, 0.5), rng.uniform(0.75, 1.3)
    turn = np.eye(3)
    a, b = [(0, 1), (0, 2), (1, 2)][rng.integers(3)]
    turn[[a, a, b, b], [a, b, a, b]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    form = torch.tensor(np.hstack([turn * scale, np.zeros((3, 1))]), dtype=torch.float32).to(DEVICE)
    grid = F.affine_grid(form.expand(len(x), 3, 4), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return x, F.grid_sample(y, grid, mode="nearest", align_corners=False)


def loss_of(logit: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return soft Dice over the batch plus cross-entropy."""
    share = torch.sigmoid(logit)
    dice = (2 * (share * truth).sum() + 1) / (share.sum() + truth.sum() + 1)
    return F.binary_cross_entropy_with_logits(logit, truth) - dice


def train(scans: list[Any], minutes: float, batch: int, seed: int) -> tuple[UNet, int]:
    """Train for a fixed time; the rate falls with the time that is left."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = UNet().to(DEVICE).to(memory_format=torch.channels_last_3d)
    optimiser = torch.optim.SGD(
        net.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5
    )
    begun, steps = time.monotonic(), 0
    while (spent := (time.monotonic() - begun) / 60 / minutes) < 1:
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - spent) ** 0.9
        x, y = draw_batch(scans, batch, rng)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            logit = net(x.contiguous(memory_format=torch.channels_last_3d))
        loss = loss_of(logit.float(), y)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 12.0)
        optimiser.step()
        steps += 1
        if steps % 200 == 0:
            print(f"step {steps}, loss {loss.item():.3f}, {100 * spent:.0f} %", flush=True)
    return net, steps


@torch.no_grad()
def segment(net: UNet, image: torch.Tensor) -> torch.Tensor:
    """Return a scan's mask from overlapping patches, the middle of each counting most."""
    shape, size = image.shape, tuple(min(p, s) for p, s in zip(PATCH, image.shape, strict=True))
    total = torch.zeros(shape, device=DEVICE)
    weight = torch.zeros(shape, device=DEVICE)
    sides = [torch.linspace(-1, 1, s, device=DEVICE) for s in size]
    bump = torch.exp(-4 * sum(g**2 for g in torch.meshgrid(*sides, indexing="ij")))
    starts = [
        sorted({int(v) for v in np.linspace(0, n - s, max(1, -(-2 * (n - s) // s) + 1))})
        for n, s in zip(shape, size, strict=True)
    ]
    for i in starts[0]:
        for j in starts[1]:
            for k in starts[2]:
                box = (slice(i, i + size[0]), slice(j, j + size[1]), slice(k, k + size[2]))
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    logit = net(normalised(image[box])[None, None])
                total[box] += bump * logit[0, 0].float()
                weight[box] += bump
    return total / weight > 0


def main() -> None:
    """Make scans, train, test, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="imagecas")
    parser.add_argument("--train", type=int, default=40)
    parser.add_argument("--test", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    wanted = parser.parse_args()
    number = wanted.train + wanted.test
    settings = PhantomSettings(scans=number, size=wanted.size, seed=wanted.seed)
    with multiprocessing.get_context("spawn").Pool(wanted.workers) as pool:
        scans = pool.map(make, [(settings, n) for n in range(number)], chunksize=1)
    print("scans made", flush=True)
    net, steps = train(to_device(scans[: wanted.train]), wanted.minutes, wanted.batch, wanted.seed)
    net.eval()
    rows = []
    for image, truth in scans[wanted.train :]:
        found = segment(net, torch.from_numpy(np.ascontiguousarray(image)).to(DEVICE)).cpu().numpy()
        both = int((found & truth).sum())
        rows.append(
            {
                "dice": 2 * both / int(found.sum() + truth.sum()),
                "sensitivity": both / int(truth.sum()),
                "precision": both / max(1, int(found.sum())),
            }
        )
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    print(json.dumps({**vars(wanted), "steps": steps, "mean": mean, "scans": rows}))


if __name__ == "__main__":
    main()
