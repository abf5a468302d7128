"""What a planner's plan with branches is scored by: the plan before the data, the verdicts, and what was asked next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from studies.log.entries import PlannerAct, PlannerNote, Stamp
from studies.log.study import StudyState
from studies.records.procedure import PlanNode
from studies.report.answer import END, OUTSIDE, score_plan

NODES = (
    PlanNode(id="n1", question="Do groups help?", if_supported="n2", if_equivalent="n3"),
    PlanNode(id="n2", question="Elsewhere, too?"),
    PlanNode(id="n3", question="Does the rate?"),
)
OTHER = (PlanNode(id="n1", question="Do groups help?", if_equivalent="n2"), *NODES[1:])


def plan(seq: int, nodes: tuple[PlanNode, ...] = NODES, round: int = 1) -> PlannerNote:
    return PlannerNote(seq, "", "plan", "Why.", round, f"{round}/propose/1", 0, nodes=nodes)


def study(*rounds: tuple[str, tuple[str, ...]], plans: tuple[PlannerNote, ...] = (), ended: str = "") -> StudyState:
    """Return what is scored of a study: of each round the node that its proposal names, and its verdicts.

    Round number n is locked by event 10 n; a refused proposal of node n9 came before each.
    """
    states = [
        SimpleNamespace(
            round=number, locked=Stamp(10 * number, ""), open_claims=[] if verdicts else ["h1"],
            verdicts=[SimpleNamespace(hypothesis=f"h{n}", verdict=name) for n, name in enumerate(verdicts, 1)],
        )
        for number, (_, verdicts) in enumerate(rounds, start=1)
    ]  # fmt: skip
    acts = [
        PlannerAct("propose", 1, {}, (), "", turn=f"{number}/propose/{attempt}", node=node)
        for number, (own, _) in enumerate(rounds, start=1)
        for attempt, node in ((1, "n9"), (2, own))
    ]
    decisions = (SimpleNamespace(rule="ask on while level and budget tell something", action="end", reason=ended),)
    whole = SimpleNamespace(
        notebook=plans or (plan(5),), rounds=states, planner_acts=acts, decisions=decisions if ended else ()
    )
    return cast(StudyState, cast(Any, whole))


IN_WORDS = "nothing more is asked, in the words of llm: “Enough.”"


@pytest.mark.parametrize(("scored", "expected"), [
    (study(("n1", ("supported",)), ("n2", ("inconclusive",)), ended=IN_WORDS),
     [("n1", 1, "n2", "n2", True), ("n2", 2, END, END, True), ("n3", None, None, "", None)]),
    (study(("n1", ("supported",)), ("n3", ())),
     [("n1", 1, "n2", "n3", False), ("n2", None, None, "", None), ("n3", 2, None, "", None)]),
    (study(("n1", ("equivalent", "supported")), ("n2", ())),  # of two ends no branch tells
     [("n1", 1, None, "n2", None), ("n2", 2, None, "", None), ("n3", None, None, "", None)]),
    (study(("n1", ("supported",)), ended="no further question could be had"),  # nothing that it chose
     [("n1", 1, "n2", "", None), ("n2", None, None, "", None), ("n3", None, None, "", None)]),
    (study(("n1", ("refuted",)), ("", ("supported",))),
     [("n1", 1, END, OUTSIDE, False), ("n2", None, None, "", None), ("n3", None, None, "", None)]),
    (study(("n1", ("equivalent",)), ("n2", ()), plans=(plan(5), plan(15, OTHER, 2))),  # held to what stood before
     [("n1", 1, "n3", "n2", False), ("n2", 2, None, "", None), ("n3", None, None, "", None)]),
    (study(), [(node.id, None, None, "", None) for node in NODES]),  # nothing is locked yet
    (study(("n1", ("equivalent",)), plans=(plan(15, round=2),)),  # a plan after the lock planned nothing of it
     [("n1", None, None, "", None), ("n2", None, None, "", None), ("n3", None, None, "", None)]),
])  # fmt: skip
def test_a_plan_is_scored_by_what_stood_before_the_data(scored: StudyState, expected: list[Any]) -> None:
    assert [(o.node.id, o.round, o.branch, o.came, o.followed) for o in score_plan(scored)] == expected


def test_without_a_plan_nothing_is_scored() -> None:
    whole = cast(StudyState, cast(Any, SimpleNamespace(notebook=())))
    assert score_plan(whole) == ()
