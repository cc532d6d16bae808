"""Edges meet the core: load, audit, save, resume, open."""

from maskwitness.run.audit import audit
from maskwitness.run.opened import Evidence, Run, open_run

__all__ = ["Evidence", "Run", "audit", "open_run"]
