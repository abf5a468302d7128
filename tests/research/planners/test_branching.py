"""A whole inquiry by a scripted model that plans with branches, gives up after a look, and says where it went."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from simlab.sim_run import Flight, fly_in, scratch
from simlab.suites.traps import ASK, world

from research.planners.endpoint import OpenAiEndpoint
from research.planners.llm import LlmPlanner
from studies import EventLog
from studies.log.event import row_of
from studies.log.study import LOOK_RULE
from studies.proof import verify
from tests.research.planners.flights import GROUPS, KEY, MODEL, RATES, Script, facts_of, place_of
from tests.research.planners.scripted_endpoint import scripted_endpoint

pytestmark = pytest.mark.slow


def node(name: str, question: str, **branches: str) -> dict[str, Any]:
    return {"id": name, "question": question, **branches}


FIRST = [
    node("groups", "Do <b>larger</b> groups help?", if_supported="rate", if_equivalent="heat"),
    node("rate", "Does the rate matter beside them?"),
    node("heat", "h1 is refuted; does the temperature matter?"),
]
AGAIN = [FIRST[0], node("rate", "Does the rate matter beside them?", if_unknown="heat"), FIRST[2]]
BAD = [node("groups", "Do groups help?", if_supported="nowhere")]
FINE = {**RATES, "hypotheses": [{**RATES["hypotheses"][0], "smallest_effect": 0.03}]}
"""So small an effect takes several looks."""
SCRIPT = {
    (1, "propose"): [
        {"action": "plan", "nodes": BAD, "text": "A wrong one."},
        {"action": "plan", "nodes": FIRST, "text": "What is cheap comes first."},
        {**GROUPS, "node": "groups"},
    ],
    (2, "propose"): [
        {"action": "plan", "nodes": AGAIN, "text": "The rate may stay open."},
        {**FINE, "node": "rate"},
    ],
    (2, "look"): [{"action": "settle", "reason": "Nothing shows."}],
}  # fmt: skip


def test_a_plan_is_shown_in_later_turns_revised_in_the_open_and_scored_and_a_look_given_up_verifies() -> None:
    with scripted_endpoint(Script(SCRIPT)) as endpoint, scratch() as folder:
        flight = Flight(
            "branches", ASK.topic, world(1, effect=0.2), budget_s=40 * 3600.0, asks={"rounds": 3}, report=True,
            planner=lambda clock: LlmPlanner(
                MODEL, OpenAiEndpoint(KEY, endpoint.url), patience_s=0.0, sleep=clock.advance
            ),
        )  # fmt: skip
        landed = fly_in(flight, folder)
        state = landed.state
        assert (landed.refused, state.status, state.round) == (None, "concluded", 2)
        with closing(EventLog(f"sqlite:///{folder / 'ajet.db'}")) as log:
            rows = [row_of(event) for event in log.read("branches")]
        assert verify("branches", rows, folder / "studies" / "branches").drifts == ()
    assert [(note.kind, note.round, len(note.nodes)) for note in state.notebook] == [("plan", 1, 3), ("plan", 1, 3)]
    assert [act.node for act in state.planner_acts if act.action == "propose"] == ["groups", "rate"]
    assert "found 'nowhere'" in state.planner_acts[0].rejected[0]
    assert [(d.rule, d.action) for d in state.decisions if d.hypothesis] == [(LOOK_RULE, "settle")]
    asked = {place_of(request): facts_of(request) for request in endpoint.requests}
    assert "your_plan" not in asked[1, "propose"]
    [groups, *_] = asked[2, "propose"]["your_plan"]
    assert (groups["asked_in_round"], groups["verdicts"], groups["branch_taken"]) == (1, "h1 supported", "rate")
    [_, rate, _] = asked[2, "look"]["your_plan"]
    assert (rate["if_unknown"], rate["asked_in_round"]) == ("heat", 2)
    assert asked[2, "look"]["look"]["to_the_next_look"]["runs"] > 0
    [part] = [part for part in str(landed.report).split("\n## ") if part.startswith("Planned, and what came")]
    rows_of = {line.split("|")[1].strip(): line for line in part.splitlines() if line.startswith("|")}
    assert [rows_of["groups"].split("|")[n].strip() for n in (3, 5, 6, 7)] == ["round 1", "rate", "rate", "followed"]
    assert [rows_of["rate"].split("|")[n].strip() for n in (3, 5, 6, 7)] == ["round 2", "heat", "the end", "left"]
    assert "<b>larger" not in part
    assert "not reached: refuted" in rows_of["heat"]
    assert "The rate may stay open." in str(landed.report)
