"""The decision table of a design: the planner's or the default, checked before the lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from research.decisions import DEFAULT_TABLE, RuleError, check_condition, check_table
from research.errors import DesignRefused
from research.planner.actions import ProposeDesign
from studies.procedure import Rule
from studies.records import Hypothesis

REPLICATING_TABLE = (
    Rule(name="found", when="verdict == 'supported'", then="replicate"),
    Rule(name="decided", when="verdict in ('refuted', 'equivalent')", then="settle"),
    *DEFAULT_TABLE[1:],
)
"""The default table, where a supported claim is tried once more in another setting."""


def table_of(proposal: ProposeDesign) -> tuple[Rule, ...]:
    """Return the decision table: the planner's, or the default for a design with or without a replication."""
    own = tuple(Rule(name=rule.name, when=rule.when, then=rule.then) for rule in proposal.decision_table)
    return own or (REPLICATING_TABLE if proposal.replication else DEFAULT_TABLE)


def check_rules(hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, looks: int, most_looks: int) -> None:
    """Raise DesignRefused for a table, or a kill condition, that cannot do what it says."""
    try:
        defects = list(_defects(hypotheses, proposal, looks, most_looks))
    except RuleError as error:
        raise DesignRefused(f"decision table: {error}") from error
    if defects:
        raise DesignRefused(f"decision table: {'; '.join(dict.fromkeys(defects))}")


def _defects(hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, looks: int, most_looks: int) -> Iterator[str]:
    """Yield what is wrong. A rule for later looks is not dead because few seeds turn out to be looked at only once."""
    replicates = proposal.replication is not None
    directions: set[Literal["increase", "decrease"]] = {entry.direction for entry in hypotheses} or {"increase"}
    for direction in sorted(directions):
        for count in dict.fromkeys((looks, most_looks)):
            for defect in check_table(table_of(proposal), direction=direction, looks=count, replication=replicates):
                idle = defect.kind in ("dead", "unreachable")
                if count == most_looks > 1 if idle else count == looks:
                    yield defect.sentence
    for entry in hypotheses:
        if entry.kill_if and (found := check_condition(entry.kill_if, direction=entry.direction, looks=most_looks)):
            yield f"{entry.id}: {found.sentence}"
