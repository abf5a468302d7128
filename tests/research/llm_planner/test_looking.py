"""Looks over HTTP: by tool calls and in plain JSON, counted, capped, recorded, and powerless."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from research.errors import PlannerFailed
from research.planners.context import PLAYS, Digest, LookRefused
from research.planners.llm import MOST_ANSWERED, MOST_OF_ONE
from research.planners.prompts import MOST_LOOKS
from research.planners.tools import LookAtEpisodes, LookAtRuns
from research.proposals.actions import Propose
from tests.research.factories import make_verdict
from tests.research.llm_planner.test_planner import (
    CODED,
    HYPOTHESIS,
    KEY,
    PROPOSAL,
    RECORDS,
    REWARD_TOPIC,
    TOPIC,
    ask,
    compiled,
    planner,
)
from tests.research.planner.scripted_endpoint import Reply, fails, says, scripted_endpoint

MakeDigest = Callable[..., Digest]


class Shelf:
    def __init__(self, filling: str = "") -> None:
        self.offered: Mapping[str, type[BaseModel]] = {"runs": LookAtRuns, PLAYS: LookAtEpisodes}
        self.filling = filling

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if name not in self.offered:
            raise LookRefused(f"expected a look at runs; found {name!r}")
        return {"shown": name, "of": dict(arguments), "filling": self.filling}


def calls(*wishes: tuple[str, Any]) -> Reply:
    made = [
        {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(wishes)
    ]
    return says(None, tool_calls=made, finish_reason="tool_calls")


def looks_for(arm: str) -> dict[str, Any]:
    return {"action": "look", "look": "runs", "arguments": json.dumps({"arm": arm})}


def test_a_look_is_a_tool_call_whose_answer_goes_back_and_takes_no_try(digest: MakeDigest) -> None:
    turn, endpoint = ask([calls(("runs", '{"arm": "a"}')), says(PROPOSAL)], digest(TOPIC, may_look=Shelf()))
    assert (turn.tries, turn.rejected) == (1, ())
    first, second = endpoint.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["runs", PLAYS]
    parameters = first["tools"][0]["function"]["parameters"]
    assert (parameters["required"], parameters["additionalProperties"]) == (["round", "arm"], False)
    assert "look" not in first["response_format"]["json_schema"]["schema"]["properties"]
    said, answer = second["messages"][-2:]
    assert said["tool_calls"][0]["id"] == answer["tool_call_id"] == "call-0"
    assert json.loads(answer["content"]) == {"shown": "runs", "of": {"arm": "a"}, "filling": ""}
    [look] = turn.looks
    assert look.payload() == {
        "name": "runs", "arguments": {"arm": "a"}, "characters": len(answer["content"]),
        "sha256": hashlib.sha256(answer["content"].encode()).hexdigest(),
    }  # fmt: skip
    assert turn.payload()["looks"] == [look.payload()]


@pytest.mark.parametrize("status", [400, 422])
def test_where_an_endpoint_takes_no_tools_looks_are_asked_for_in_json(status: int, digest: MakeDigest) -> None:
    replies = [fails(status, "tools are not supported"), says(looks_for("a")), says(PROPOSAL)]
    turn, endpoint = ask(replies, digest(TOPIC, may_look=Shelf()))
    assert turn.looks[0].arguments == {"arm": "a"}
    assert "for in JSON." in turn.note
    first, second, third = endpoint.requests
    assert "tools" in first
    assert "tools" not in second
    schema = second["response_format"]["json_schema"]["schema"]
    assert "look" in schema["properties"]["action"]["enum"]
    assert schema["properties"]["look"]["enum"] == ["", "runs", PLAYS]
    assert "of the study's runs" in second["messages"][1]["content"]
    assert '"of": {"arm": "a"}' in third["messages"][-1]["content"]


def test_an_endpoint_that_takes_neither_tools_nor_a_format_is_asked_with_neither(digest: MakeDigest) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        bare = "tools" not in request and "response_format" not in request
        return says(PROPOSAL) if bare else fails(400, "what is this?")

    turn, endpoint = ask(answer, digest(TOPIC, may_look=Shelf()))
    assert turn.tries == 1
    sent = [("tools" in request, "response_format" in request) for request in endpoint.requests]
    assert sent == [(True, True), (False, True), (True, False), (False, False)]
    assert "no response_format" in turn.note


@pytest.mark.parametrize(
    "wish",
    [
        {"look": "runs", "arguments": {"arm": "b"}}, {"look": "runs", "arm": "b"},
        {"action": "look", "look": "runs", "arguments": '```json\n{"arm": "b"}\n```'}, {**PROPOSAL, **looks_for("b")},
    ],
)  # fmt: skip
def test_a_look_in_json_is_understood_in_any_dress(wish: dict[str, Any], digest: MakeDigest) -> None:
    turn, _ = ask([says(wish), says({**PROPOSAL, "look": "", "arguments": ""})], digest(TOPIC, may_look=Shelf()))
    assert [(look.name, look.arguments) for look in turn.looks] == [("runs", {"arm": "b"})]
    assert turn.tries == 1


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (calls(("shell", "{}")), "expected a look at runs; found 'shell'"),
        (calls(("runs", "not JSON")), "expected arguments that are a JSON object"),
        (says({"look": "shell", "arguments": {}}), "expected a look at runs; found 'shell'"),
    ],
)
def test_a_look_that_cannot_be_had_is_answered_with_the_reason(reply: Reply, told: str, digest: MakeDigest) -> None:
    turn, _ = ask([reply, says(PROPOSAL)], digest(TOPIC, may_look=Shelf()))
    assert told in turn.looks[0].answer
    assert turn.tries == 1


@pytest.mark.parametrize("mangled", [["x"], [{"function": {"arguments": 3}}], [{"id": 3, "function": None}], [None]])
def test_a_mangled_tool_call_is_returned_with_the_error(mangled: list[Any], digest: MakeDigest) -> None:
    turn, _ = ask([says(None, tool_calls=mangled), says(PROPOSAL)], digest(TOPIC, may_look=Shelf()))
    assert turn.tries == 2
    assert turn.looks == ()


@pytest.mark.parametrize("by_tools", [True, False])
@pytest.mark.slow
def test_who_looks_for_ever_is_told_to_act_and_fails(by_tools: bool, digest: MakeDigest) -> None:
    count = 0

    def answer(request: dict[str, Any]) -> Reply:
        nonlocal count
        count += 1
        return calls(("runs", json.dumps({"arm": str(count)}))) if by_tools else says(looks_for(str(count)))

    with scripted_endpoint(answer) as endpoint, pytest.raises(PlannerFailed) as caught:
        planner(endpoint).act(digest(TOPIC, may_look=Shelf()), compiled())
    assert len(endpoint.requests) == MOST_LOOKS + 3
    assert "this turn; act" in caught.value.message
    assert endpoint.requests[-1]["tool_choice"] == "none"
    assert "tool_choice" not in endpoint.requests[0]


def test_many_calls_at_once_are_counted_each_and_those_over_the_cap_are_refused(digest: MakeDigest) -> None:
    wishes = [("runs", json.dumps({"arm": str(number)})) for number in range(MOST_LOOKS + 2)]
    turn, endpoint = ask([calls(*wishes), says(PROPOSAL)], digest(TOPIC, may_look=Shelf()))
    assert len(turn.looks) == MOST_LOOKS
    answers = [entry["content"] for entry in endpoint.requests[1]["messages"] if entry["role"] == "tool"]
    assert len(answers) == len(wishes), "each call has its answer, or an endpoint would refuse the next request"
    assert ["no look is" in answer for answer in answers[-3:]] == [False, True, True]


def test_the_characters_of_a_turn_are_capped(digest: MakeDigest) -> None:
    replies = [calls(("runs", "{}"))] * 3 + [says(PROPOSAL)]
    turn, endpoint = ask(replies, digest(TOPIC, may_look=Shelf("x" * 100_000)))
    sizes = [len(look.answer) for look in turn.looks]
    assert all(size <= MOST_OF_ONE + 30 for size in sizes)
    assert sum(sizes) <= MOST_ANSWERED + 30 * len(sizes)
    assert endpoint.requests[-1]["tool_choice"] == "none"
    assert turn.looks[0].answer.endswith("(cut; ask for less)")


def test_no_secret_of_this_process_is_shown(digest: MakeDigest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    turn, endpoint = ask([calls(("runs", "{}")), says(PROPOSAL)], digest(TOPIC, may_look=Shelf(f"the key is {KEY}")))
    assert KEY not in json.dumps(endpoint.requests)
    assert "the key is ***" in turn.looks[0].answer


def test_who_saw_plays_of_hidden_tasks_writes_no_reward_function(digest: MakeDigest) -> None:
    coded = {"action": "propose", "hypotheses": [CODED]}
    plain = {"action": "propose", "hypotheses": [{**HYPOTHESIS, "code": None}]}
    shown = digest(REWARD_TOPIC, may_look=Shelf(), code_allowed=True)
    turn, _ = ask([calls((PLAYS, '{"run": "a"}')), says(coded), says(plain)], shown)
    assert "reward function could" in turn.rejected[0]
    assert isinstance(turn.action, Propose)
    assert turn.action.hypotheses[0].variable == "group_size"
    unseen, _ = ask([calls(("runs", "{}")), says(coded)], shown)
    assert unseen.tries == 1


def test_a_conclusion_is_drawn_without_looks(digest: MakeDigest) -> None:
    due = digest(TOPIC, hypotheses=RECORDS, verdicts=(make_verdict(),), may_look=Shelf())
    _, endpoint = ask([says({"action": "conclude", "reason": "Nothing was shown."})], due)
    assert "tools" not in endpoint.requests[0]
