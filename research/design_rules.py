"""The decision table of a design: the planner's or the default."""

from __future__ import annotations

from research.decisions import DEFAULT_TABLE, KEPT_NAMES
from research.errors import DesignRefused
from research.planner.actions import ProposeDesign
from studies.procedure import Rule

REPLICATING_TABLE = (
    Rule(name="found", when="verdict == 'supported'", then="replicate"),
    Rule(name="decided", when="verdict in ('refuted', 'equivalent')", then="settle"),
    *DEFAULT_TABLE[1:],
)
"""The default table, where a supported claim is tried once more in another setting."""


def table_of(proposal: ProposeDesign) -> tuple[Rule, ...]:
    """Return the decision table: the planner's, or the default for a design with or without a replication.

    Raises DesignRefused for rules that share a name, or replicate where no replication is asked for. That each
    predicate is one, the action itself holds.
    """
    own = tuple(Rule(name=rule.name, when=rule.when, then=rule.then) for rule in proposal.decision_table)
    names = [*KEPT_NAMES, *(rule.name for rule in own)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        kept = f"{' and '.join(KEPT_NAMES)} are kept for code"
        raise DesignRefused(f"decision table: expected rules with names of their own ({kept}); found {twice} twice")
    if proposal.replication is None and (idle := next((rule for rule in own if rule.then == "replicate"), None)):
        raise DesignRefused(f"decision table: {idle.name} replicates, but no replication is designed; name its setting")
    return own or (REPLICATING_TABLE if proposal.replication else DEFAULT_TABLE)
