"""Decisions: a small language over verdicts, and a table of rules in it.

May enter: how rules are written, checked and applied to a verdict. When a verdict or a decision is due is in
`research.scheduling`; how a verdict is reached is in `studies.verdicts`.
"""

from research.decisions.language import FIELDS, DecisionFields, RuleError, holds, parse
from research.decisions.table import DEFAULT_TABLE, KEPT_NAMES, KILL, UNRULED, decide, fields_of, rules_for

__all__ = [
    "DEFAULT_TABLE", "FIELDS", "KEPT_NAMES", "KILL", "UNRULED", "DecisionFields", "RuleError", "decide", "fields_of",
    "holds", "parse", "rules_for",
]  # fmt: skip
