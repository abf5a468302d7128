"""The decision table: what is done with a hypothesis after a look, by the first rule.

A table allots runs, it makes no verdict: whatever it says, a claim rests on the locked test. `continue` gathers the
next look's seeds, `settle` gathers no more, `replicate` settles and repeats the comparison in another setting. A
hypothesis' own kill condition stands before the table, and what no rule covers settles. A rule's `when` is one of six
conditions, which designs hold as these texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from studies.records.design import Hypothesis
from studies.records.procedure import Rule
from studies.records.verdict import Verdict

Condition = Literal[
    "verdict in ('supported', 'refuted', 'equivalent')",
    "verdict in ('inconclusive', 'invalid') and looks_left > 0",
    "verdict in ('inconclusive', 'invalid') and looks_left == 0",
    "verdict == 'supported'",
    "verdict in ('refuted', 'equivalent')",
    "verdict == 'inconclusive' and p > 0.5",
]
"""What a rule may ask of the verdict at a look. The last one is futility: so far there is no sign of a difference."""
_HOLDS: Final[Mapping[str, Callable[[Verdict, int], bool]]] = {
    "verdict in ('supported', 'refuted', 'equivalent')": lambda verdict, _: not _is_undecided(verdict),
    "verdict in ('inconclusive', 'invalid') and looks_left > 0": lambda verdict, left: (
        _is_undecided(verdict) and left > 0
    ),
    "verdict in ('inconclusive', 'invalid') and looks_left == 0": lambda verdict, left: (
        _is_undecided(verdict) and left == 0
    ),
    "verdict == 'supported'": lambda verdict, _: verdict.verdict == "supported",
    "verdict in ('refuted', 'equivalent')": lambda verdict, _: verdict.verdict in ("refuted", "equivalent"),
    "verdict == 'inconclusive' and p > 0.5": lambda verdict, _: (
        verdict.verdict == "inconclusive" and verdict.p is not None and verdict.p > 0.5
    ),
}
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


def rules_for(hypothesis: Hypothesis, table: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that decide on a hypothesis: its kill condition first, then the table (default: the default)."""
    kill = (Rule(name=KILL, when=hypothesis.kill_if, then="settle"),) if hypothesis.kill_if else ()
    return (*kill, *(table or DEFAULT_TABLE))


def decide(rules: Sequence[Rule], verdict: Verdict, analyses: int) -> Rule:
    """Return the first rule that holds of a verdict, else `UNRULED`; a condition of another version does not hold."""
    left = max(0, analyses - verdict.look)
    return next((rule for rule in rules if rule.when in _HOLDS and _HOLDS[rule.when](verdict, left)), UNRULED)


def _is_undecided(verdict: Verdict) -> bool:
    return verdict.verdict in ("inconclusive", "invalid")
