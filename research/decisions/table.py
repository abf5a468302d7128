"""The decision table: what is done with a hypothesis after a look, decided by the first rule that holds.

A table allots runs, it makes no verdict: whatever it says, a claim rests on the locked test. `continue` gathers the
next look's seeds, `settle` gathers no more, `replicate` settles and repeats the comparison in another setting. A
hypothesis' own kill condition stands before the table, and what no rule covers settles. Nothing is proven of a table
before the lock: whatever its rules say, each case has one act.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from research.decisions.language import DecisionFields, RuleError, holds, parse
from studies.records.design import Hypothesis
from studies.records.design_parts import Rule
from studies.records.verdict import Verdict

DEFAULT_TABLE: Final = (
    Rule(name="decided", when="verdict in ('supported', 'refuted', 'equivalent')", then="settle"),
    Rule(name="look-again", when="verdict in ('inconclusive', 'invalid') and looks_left > 0", then="continue"),
    Rule(name="out-of-looks", when="verdict in ('inconclusive', 'invalid') and looks_left == 0", then="settle"),
)
"""Stop as soon as a look decides; else go on to the last one."""
KILL: Final = "kill-condition"
"""Name of the rule that a hypothesis' kill condition becomes."""
UNRULED: Final = Rule(name="no-rule", when="no rule of the table holds", then="settle")
"""What is done where no rule holds; its `when` is for people."""
KEPT_NAMES: Final = (KILL, UNRULED.name)
"""Names that no rule of a table may have, so that a decision says whose it is."""


def fields_of(verdict: Verdict, *, looks: int, budget_left: float) -> DecisionFields:
    """Return what predicates see of a verdict of a design with `looks` looks."""
    return DecisionFields(
        verdict=verdict.verdict,
        lo=verdict.low,
        hi=verdict.high,
        est=verdict.estimate,
        p=verdict.p,
        n=min(verdict.n_control, verdict.n_treatment),
        budget_left=budget_left,
        look=verdict.look,
        looks_left=max(0, looks - verdict.look),
    )


def rules_for(hypothesis: Hypothesis, table: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that decide on a hypothesis: its kill condition first, then the table (default: the default)."""
    kill = (Rule(name=KILL, when=hypothesis.kill_if, then="settle"),) if hypothesis.kill_if else ()
    return (*kill, *(table or DEFAULT_TABLE))


def decide(rules: Sequence[Rule], fields: DecisionFields) -> Rule:
    """Return the first rule that holds, `UNRULED` when none does; a rule that this version cannot read does not."""
    return next((rule for rule in rules if _holds(rule, fields)), UNRULED)


def _holds(rule: Rule, fields: DecisionFields) -> bool:
    try:
        return holds(parse(rule.when), fields)
    except RuleError:  # no lock of this version has such a rule, and a study's end must not hang on one of another
        return False
