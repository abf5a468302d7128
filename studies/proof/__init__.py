"""A stranger's check."""

from studies.proof.evidence import Discrepancy
from studies.proof.export import export, exported, is_export
from studies.proof.verify import Proof, verify
from studies.verdicts.findings import DOES_NOT_FOLLOW, doubt

__all__ = ["DOES_NOT_FOLLOW", "Discrepancy", "Proof", "doubt", "export", "exported", "is_export", "verify"]
