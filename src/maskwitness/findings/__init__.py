"""Badly scored points to findings: the places a person should look at, each with its reason.

A finding is a run of bad points on one branch. Why it is odd is said by the first of the small
classes in :mod:`maskwitness.findings.kinds` that applies.
"""

from maskwitness.findings.kinds import KINDS, Evidence, kind_of
from maskwitness.findings.runs import bad_limit, find_runs, is_bad

__all__ = ["KINDS", "Evidence", "bad_limit", "find_runs", "is_bad", "kind_of"]
