"""The quality-weighted loss, for anything that multiplies and sums: NumPy arrays, torch tensors."""

from typing import Any


def weighted_loss(loss: Any, quality: Any) -> Any:
    """Return Σ Q ℓ / Σ Q of a voxel-wise loss; 0 where all Q are 0.

    Nothing is cast or copied, so gradients flow and a voxel with Q = 0 has gradient exactly 0.

    Method: M17
    """
    total = quality.sum()
    # Where all Q are 0 the numerator is 0 too; adding 1 to the divisor only there avoids 0 / 0
    # without a branch, which a traced or compiled graph could not follow.
    return (quality * loss).sum() / (total + (total == 0))
