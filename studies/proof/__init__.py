"""Proof that a stranger can check: a study verified from its files and its log, and exported so that it can be."""

from studies.proof.export import export, exported, is_export
from studies.proof.findings import Discrepancy
from studies.proof.following import DOES_NOT_FOLLOW, doubt
from studies.proof.verify import Proof, verify

__all__ = ["DOES_NOT_FOLLOW", "Discrepancy", "Proof", "doubt", "export", "exported", "is_export", "verify"]
