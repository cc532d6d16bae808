"""Edges meet the core: load, audit, save, resume, open."""

from maskwitness.run.opened import Evidence, Run, open_run
from maskwitness.run.stages import audit

__all__ = ["Evidence", "Run", "audit", "open_run"]
