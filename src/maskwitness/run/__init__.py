"""Edges meet the core: load, audit, check, save, resume, open."""

from maskwitness.run.checking import check
from maskwitness.run.opened import Check, Evidence, Run, open_check, open_run
from maskwitness.run.stages import audit

__all__ = ["Check", "Evidence", "Run", "audit", "check", "open_check", "open_run"]
