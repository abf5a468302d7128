"""Proof that a stranger can check: a study verified from its files and its log, and exported so that it can be.

May enter: what computes stored things again and compares them, and the export for it. How they are computed the first
time is in `studies.verdicts` and `studies.report`, which are called from here.
"""

from studies.proof.export import export, exported, is_export
from studies.proof.findings import Discrepancy
from studies.proof.following import DOES_NOT_FOLLOW, doubt
from studies.proof.verify import Proof, verify

__all__ = ["DOES_NOT_FOLLOW", "Discrepancy", "Proof", "doubt", "export", "exported", "is_export", "verify"]
