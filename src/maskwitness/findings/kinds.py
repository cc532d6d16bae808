"""What is odd about a mask, seen beside its witnesses' masks: one class a reason.

A class has a title (its docstring's first line), an explanation for the reviewer (the rest of it)
and a ``check``. List, report and documentation print the same words. To add a reason, write the
class and name it in ``KINDS``, before ``Unlike``, which always applies.
"""

from dataclasses import dataclass
from inspect import cleandoc


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A patch's own mask beside those of its witnesses."""

    area_mm2: float
    usual_area_mm2: float  # the median over the masks of its witnesses


class Kind:
    """One reason to look again."""

    @staticmethod
    def check(evidence: Evidence) -> bool:
        """Say whether this reason applies."""
        raise NotImplementedError

    @classmethod
    def title(cls) -> str:
        """Return the few words that name the reason, as they stand in a table."""
        line = cleandoc(cls.__doc__ or "").splitlines()[0].removesuffix(".")
        return line[:1].lower() + line[1:]


class Alone(Kind):
    """Drawn where look-alikes have nothing.

    The patch has a mask; the masks of near-identical images are empty.
    """

    @staticmethod
    def check(evidence: Evidence) -> bool:  # noqa: D102
        return evidence.usual_area_mm2 == 0 and evidence.area_mm2 > 0


class Wider(Kind):
    """Wider than look-alikes.

    The mask covers at least a fifth more than the masks of near-identical images usually do.
    """

    @staticmethod
    def check(evidence: Evidence) -> bool:  # noqa: D102
        return evidence.area_mm2 >= 1.2 * evidence.usual_area_mm2 > 0


class Narrower(Kind):
    """Narrower than look-alikes.

    The mask covers at least a fifth less than the masks of near-identical images usually do.
    """

    @staticmethod
    def check(evidence: Evidence) -> bool:  # noqa: D102
        return evidence.area_mm2 <= 0.8 * evidence.usual_area_mm2 and evidence.usual_area_mm2 > 0


class Unlike(Kind):
    """Elsewhere than look-alikes.

    The mask is about as large as those of near-identical images, but lies or looks otherwise.
    """

    @staticmethod
    def check(evidence: Evidence) -> bool:  # noqa: D102
        return True


KINDS: tuple[type[Kind], ...] = (Alone, Wider, Narrower, Unlike)


def kind_of(evidence: Evidence) -> str:
    """Return the title of the first reason that applies."""
    return next(kind.title() for kind in KINDS if kind.check(evidence))
