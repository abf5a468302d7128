"""A stranger's check."""

from studies.proof.evidence import Discrepancy
from studies.proof.export import export, is_export, read_export, read_exported_reviews
from studies.proof.verify import Proof, verify
from studies.verdicts.judge import DOES_NOT_FOLLOW, verdict_fault

__all__ = [
    "DOES_NOT_FOLLOW", "Discrepancy", "Proof", "export", "is_export", "read_export", "read_exported_reviews",
    "verdict_fault", "verify",
]  # fmt: skip
