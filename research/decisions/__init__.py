"""Decisions: a small language over verdicts, a table of rules in it, and the checks it passes before a lock."""

from research.decisions.checks import Defect, check_condition, check_table
from research.decisions.language import FIELDS, VERDICTS, Fields, Predicate, RuleError, holds, parse
from research.decisions.table import DEFAULT_TABLE, KILL, decide, fields_of, rules_for

__all__ = [
    "DEFAULT_TABLE", "FIELDS", "KILL", "VERDICTS", "Defect", "Fields", "Predicate", "RuleError", "check_condition",
    "check_table", "decide", "fields_of", "holds", "parse", "rules_for",
]  # fmt: skip
