"""The decision table: what is done with a hypothesis after a look, decided by the first rule that holds.

A table allots runs, it makes no verdict: whatever it says, a claim rests on the locked test. `continue` gathers the
next look's seeds, `settle` gathers no more, `replicate` settles and repeats the comparison in another setting. A
hypothesis' own kill condition stands before the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from research.decisions.language import Fields, RuleError, holds, parse
from studies.procedure import Rule
from studies.records import Hypothesis, Verdict

DEFAULT_TABLE: Final = (
    Rule(name="decided", when="verdict in ('supported', 'refuted', 'equivalent')", then="settle"),
    Rule(name="look-again", when="verdict in ('inconclusive', 'invalid') and looks_left > 0", then="continue"),
    Rule(name="out-of-looks", when="verdict in ('inconclusive', 'invalid') and looks_left == 0", then="settle"),
)
"""Stop as soon as a look decides; else go on to the last one."""
KILL: Final = "kill-condition"
"""Name of the rule that a hypothesis' kill condition becomes."""


def fields_of(verdict: Verdict, *, looks: int, budget_left: float) -> Fields:
    """Return what predicates see of a verdict of a design with `looks` looks."""
    return Fields(
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


def decide(rules: Sequence[Rule], fields: Fields) -> Rule:
    """Return the first rule that holds; raise RuleError when none does, which `check_table` rules out."""
    for rule in rules:
        if holds(parse(rule.when), fields):
            return rule
    raise RuleError(f"expected a rule that holds for every verdict; found none for {fields}; add one")
