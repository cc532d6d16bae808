from typing import Any

import numpy as np
import pytest

from maskwitness.train import weighted_loss


class Tape:
    """A tensor of another library, as far as a loss needs one; it writes down what is done."""

    def __init__(self, values: Any, log: list[str] | None = None) -> None:
        self.values = np.asarray(values, dtype=np.float64)
        self.log = [] if log is None else log

    def _with(self, name: str, values: Any) -> "Tape":
        self.log.append(name)
        return Tape(values, self.log)

    def sum(self) -> "Tape":
        return self._with("sum", self.values.sum())

    def __mul__(self, other: "Tape") -> "Tape":
        return self._with("mul", self.values * other.values)

    def __add__(self, other: "Tape") -> "Tape":
        return self._with("add", self.values + other.values)

    def __truediv__(self, other: "Tape") -> "Tape":
        return self._with("div", self.values / other.values)

    def __eq__(self, other: object) -> "Tape":  # type: ignore[override]
        return self._with("eq", self.values == other)

    def __bool__(self) -> bool:
        message = "a traced tensor has no truth value"
        raise TypeError(message)

    __hash__ = None  # type: ignore[assignment]


def test_where_all_is_trusted_the_loss_is_the_mean():
    loss = np.random.default_rng(0).random((4, 5, 6))
    assert weighted_loss(loss, np.ones((4, 5, 6))) == pytest.approx(loss.mean(), rel=1e-14)


def test_voxels_count_by_their_quality():
    loss, quality = np.array([1.0, 10.0, 100.0]), np.array([1.0, 0.5, 0.0])
    assert weighted_loss(loss, quality) == 6.0 / 1.5


def test_the_scale_of_the_quality_does_not_matter():
    rng = np.random.default_rng(1)
    loss, quality = rng.random(50), rng.random(50)
    assert weighted_loss(loss, quality * 8) == weighted_loss(loss, quality)


def test_a_voxel_without_quality_has_no_say():
    rng = np.random.default_rng(2)
    loss, quality = rng.random(50), rng.random(50)
    quality[7] = 0
    before = weighted_loss(loss, quality)
    loss[7] = 1e12
    assert weighted_loss(loss, quality) == before


def test_where_nothing_is_trusted_the_loss_is_nothing():
    assert weighted_loss(np.array([3.0, 5.0]), np.zeros(2)) == 0.0


def test_very_little_trust_is_still_trust():
    tiny = np.full(3, 1e-300)
    assert weighted_loss(np.array([1.0, 2.0, 3.0]), tiny) == pytest.approx(2.0)


def test_nothing_is_cast():
    found = weighted_loss(np.ones(3, np.float32), np.ones(3, np.float32))
    assert found.dtype == np.float32


@pytest.mark.parametrize(("quality", "expected"), [([1.0, 0.5], 2.0), ([0.0, 0.0], 0.0)])
def test_any_tensor_that_adds_and_multiplies_will_do_and_no_branch_is_taken(quality, expected):
    found = weighted_loss(Tape([1.0, 4.0]), Tape(quality))
    assert isinstance(found, Tape)
    assert float(found.values) == expected
    assert set(found.log) <= {"sum", "mul", "add", "div", "eq"}
