"""A planner's plan with branches, scored: which of its questions were asked, and whether it went where it said.

A round is held to the plan as it stood when the round was locked, so that nobody draws the branches around the data. A
question's verdict is what all claims of its round came to; of claims that came to different ends no branch tells what
follows. Nothing is computed from a plan but this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from studies.log.entries import PlannerNote
from studies.log.study import StudyState
from studies.records.procedure import PlanNode
from studies.records.verdict import quoted
from studies.report.elements import Block, Row, Text, section, table
from studies.report.prose import mark
from studies.report.summary import words_at_end
from studies.report.wording import NONE, plural

END: Final = "the end"
OUTSIDE: Final = "a question outside the plan"
_BRANCHES: Final = {
    "supported": "if_supported", "refuted": "if_refuted", "equivalent": "if_equivalent", "inconclusive": "if_unknown",
    "invalid": "if_unknown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """A question of a plan as it stood before the data of its round, or stands now, and what came of it."""

    node: PlanNode
    round: int | None = None
    verdicts: str = ""
    branch: str | None = None
    """Where the branch of its verdict led: a node's id or the end; None where no branch tells."""
    came: str = ""
    """What came next: a node's id, another question, or the end; empty where nothing came that the planner chose."""

    @property
    def followed(self) -> bool | None:
        return None if self.branch is None or not self.came else self.branch == self.came


def score_plan(state: StudyState) -> tuple[NodeOutcome, ...]:
    """Return the questions of the planner's plan in its order, those that it dropped after asking them last."""
    plans = [note for note in state.notebook if note.kind == "plan"]
    if not plans:
        return ()
    rounds = [each for each in state.rounds if each.locked is not None]
    asked = [_find_node(state, each, plans) for each in rounds]
    outcomes = {node.id: NodeOutcome(node) for node in plans[-1].nodes}
    nexts = [OUTSIDE if node is None else node.id for node in asked[1:]] + [END if words_at_end(state) else ""]
    for each, node, came in zip(rounds, asked, nexts, strict=False):
        if node is not None:
            ends = {_BRANCHES[verdict.verdict] for verdict in each.verdicts} if not each.open_claims else set()
            branch = (getattr(node, ends.pop()) or END) if len(ends) == 1 else None
            verdicts = ", ".join(f"{verdict.hypothesis} {verdict.verdict}" for verdict in each.verdicts)
            outcomes[node.id] = NodeOutcome(node, each.round, verdicts, branch, came)
    return tuple(outcomes.values())


def _find_node(state: StudyState, asked: StudyState, plans: list[PlannerNote]) -> PlanNode | None:
    """Return the node that a round asked, of the plan that stood at its lock; None for a question of no plan."""
    turns = (act for act in reversed(state.planner_acts) if act.turn.startswith(f"{asked.round}/propose/"))
    name = next((act.node for act in turns if act.action in ("propose", "replicate")), "")
    before = [plan for plan in plans if asked.locked is not None and plan.seq < asked.locked.seq]
    return next((node for node in (before[-1].nodes if before else ()) if node.id == name), None)


def plan_section(state: StudyState) -> Block | None:
    """Return what the planner foresaw and what came; None where it made no plan."""
    if not (outcomes := score_plan(state)):
        return None
    went, rows = {True: "followed", False: "left", None: NONE}, list[Row]()
    for outcome in outcomes:
        question = quoted(mark(outcome.node.question, state.rounds))
        asked = "not asked" if outcome.round is None else f"round {outcome.round}"
        told = (cell or NONE for cell in (outcome.verdicts, outcome.branch, outcome.came))
        rows.append((outcome.node.id, question, asked, *told, went[outcome.followed]))
    versions = sum(note.kind == "plan" for note in state.notebook)
    turns = [outcome.followed for outcome in outcomes if outcome.followed is not None]
    said = (
        f"The planner's own plan, which binds nothing, in {plural(versions, 'version')} that its notebook holds; a "
        f"round is held to the one that stood before its data. Branches followed: {sum(turns)} of {len(turns)}."
    )
    columns = ("Node", "Question, quoted", "Asked in", "Verdicts", "Its branch leads to", "What came", "")
    return section("Planned, and what came", Text(said), table(columns, rows), id="plan")
