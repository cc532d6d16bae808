"""From quality maps to losses."""

from maskwitness.train.weights import weighted_loss

__all__ = ["weighted_loss"]
