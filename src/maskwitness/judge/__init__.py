"""How well a run found the errors that were planted: the marks against the truth.

In goes what a run says (scores, findings, quality maps) and a truth folder as the phantom writes
it; out comes a :class:`Judgement`. A point is bad where the drawn mask and the true one disagree
around it, whether or not an error was planted there: the planting may overlap a junction or leave
the vessel's wall as it was, and a score is right to follow the voxels and not the intention.

An unscored point says neither good nor bad. It counts as an unremarkable one, score 0, so that a
run gains nothing by keeping silent; the figures over scored points alone stand beside. What every
figure means is written in docs/phantom.md.
"""

from maskwitness.judge.findings import findings_of
from maskwitness.judge.points import PointTruth, judge_points
from maskwitness.judge.ranking import auroc, average_precision
from maskwitness.judge.runs import Judgement, judge_run
from maskwitness.judge.truth import PlantedError, read_errors

__all__ = [
    "Judgement",
    "PlantedError",
    "PointTruth",
    "auroc",
    "average_precision",
    "findings_of",
    "judge_points",
    "judge_run",
    "read_errors",
]
