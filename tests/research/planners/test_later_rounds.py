"""A language model in the rounds after the first: what it is told, what it may do, and what happens without it."""

from __future__ import annotations

from typing import Any

import pytest

from research.planners.llm import PLANNER
from tests.research.planners.inquiring import DESIGN, KEY, RATES, Script, facts_of, flown, place_of, proposal
from tests.research.planners.scripted_endpoint import Endpoint, calls, fails

pytestmark = pytest.mark.slow

NONSENSE = [f"I like {count} turtles." for count in range(3)]


def requests_at(endpoint: Endpoint, round: int, stage: str) -> list[dict[str, Any]]:
    return [request for request in endpoint.requests if place_of(request) == (round, stage)]


def test_a_model_asks_on_is_told_what_was_found_and_may_conclude() -> None:
    landed, endpoint = flown(Script({(2, "propose"): [RATES]}), rounds=4)
    state = landed.state
    assert (state.status, state.round, landed.refused) == ("concluded", 2, None)
    assert [h.variable for entry in state.rounds for h in entry.hypotheses] == ["group_size", "learning_rate"]
    assert state.why_asked == RATES["why"]
    ended = next(d for d in state.decisions if d.action == "end")
    assert ended.reason.endswith(f'of {PLANNER} scripted: "That is all."')
    [asked] = requests_at(endpoint, 2, "propose")
    [found] = facts_of(asked)["inquiry"]["rounds_so_far"]
    assert found["claims"][0]["verdict"] == "supported"
    assert "Levels shrink" in asked["messages"][1]["content"]
    schema = asked["response_format"]["json_schema"]["schema"]
    assert set(schema["properties"]["action"]["enum"]) >= {"propose", "conclude", "decline"}
    assert "why" in schema["required"]
    [first] = requests_at(endpoint, 1, "propose")
    assert "conclude" not in first["response_format"]["json_schema"]["schema"]["properties"]["action"]["enum"]
    assert "why" not in first["response_format"]["json_schema"]["schema"]["required"]


def test_only_the_first_round_has_to_answer_all_of_the_topic() -> None:
    """The topic names group sizes; the later design is about learning rates, and says nothing of what it leaves out."""
    landed, endpoint = flown(Script({(2, "propose"): [RATES]}), rounds=2)
    assert landed.state.round == 2
    assert len(requests_at(endpoint, 2, "design")) == 1
    assert [act.rejected for act in landed.state.planner_acts] == [()] * len(landed.state.planner_acts)


@pytest.mark.parametrize("answers", [NONSENSE, [fails(503, f"down: {KEY}")]], ids=["nonsense", "outage"])
def test_the_rules_ask_on_where_no_model_does(answers: list[Any]) -> None:
    landed, endpoint = flown(Script({(2, "propose"): answers}), rounds=2)
    state = landed.state
    assert (state.status, state.round, landed.refused) == ("concluded", 2, None)
    assert state.why_asked.startswith("No model answers (")
    assert "found of group_size in guess" in state.why_asked
    assert KEY not in state.why_asked
    assert state.design.environment == "arith"
    assert len(requests_at(endpoint, 2, "propose")) == len(answers)
    turns = [act.turn for act in state.planner_acts if act.turn.startswith("2/")]
    assert turns[:2] == ["2/propose/2", "2/design/2"]


def test_a_question_of_which_no_design_is_accepted_goes_back_with_the_reason() -> None:
    fine = {**RATES, "hypotheses": [{**RATES["hypotheses"][0], "smallest_effect": 0.02}]}
    dear = [{**DESIGN, "not_tested": said} for said in ("", "Nothing.", "Nothing at all.")]
    script = Script({(2, "propose"): [fine, proposal("temperature", 1.0, 0.7, "Then this.")], (2, "design"): dear})
    landed, endpoint = flown(script, rounds=2, max_runs=36)
    assert landed.state.why_asked == "Then this."
    assert landed.state.question_try == 2
    [first, again] = requests_at(endpoint, 2, "propose")
    assert "could_not_be_had" not in facts_of(first)["inquiry"]
    [reason] = facts_of(again)["inquiry"]["could_not_be_had"]
    assert "an effect of 0.02" in reason
    assert "the budget is" in reason
    assert "--" not in reason, "a planner knows of no flag"
    assert [h.variable for h in landed.state.hypotheses] == ["temperature"]


@pytest.mark.parametrize(
    "wish",
    [
        ("runs", '{"arm": "\\ud800"}'),
        ("\\ud800", "{}"),
        ("curve", '{"run": "a", "metric": "b", "at": [NaN]}'),
    ],
    ids=["half-character", "half-name", "not-a-number"],
)
def test_a_look_with_what_no_file_takes_ends_no_study(wish: tuple[str, str]) -> None:
    landed, _ = flown(Script({(2, "propose"): [calls(wish), RATES]}), name="odd-look")
    assert (landed.refused, landed.state.status, landed.state.round) == (None, "concluded", 2)


def test_what_was_looked_at_in_a_turn_that_came_to_nothing_is_written_down() -> None:
    landed, _ = flown(Script({(2, "propose"): [calls(("runs", "{}")), *NONSENSE]}), rounds=2, name="vain-look")
    [failed] = [act for act in landed.state.planner_acts if act.action == "failed"]
    assert [entry["name"] for entry in failed.tool_calls] == ["runs"]
    assert len(failed.rejected) == 3
    assert landed.state.why_asked.startswith("No model answers (")
