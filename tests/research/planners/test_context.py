from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from research.errors import PlannerFailed
from research.planners.context import PlannerContext
from research.planners.history import Notebook
from research.planners.llm import MOST_ANSWERED, MOST_OF_ONE
from research.planners.prompts import MOST_TOOL_CALLS, due_schema, messages
from research.planners.tools import PLAYS, EpisodesRequest, RunsRequest, ToolError
from tests.research.factories import make_verdict
from tests.research.planners.scripted_endpoint import Reply, calls, fails, says, scripted_endpoint
from tests.research.planners.test_llm import KEY, PROPOSAL, RECORDS, TOPIC, ask, compiled, planner

MakeDigest = Callable[..., PlannerContext]


class Shelf:
    def __init__(self, filling: str = "") -> None:
        self.offered: Mapping[str, type[BaseModel]] = {"runs": RunsRequest, PLAYS: EpisodesRequest}
        self.filling = filling

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if name not in self.offered:
            raise ToolError(f"expected a look at runs; found {name!r}")
        return {"shown": name, "of": dict(arguments), "filling": self.filling}


def test_a_look_is_a_tool_call_whose_answer_goes_back_and_takes_no_try(digest: MakeDigest) -> None:
    turn, endpoint = ask([calls(("runs", '{"arm": "a"}')), says(PROPOSAL)], digest(TOPIC, tools=Shelf()))
    assert (turn.tries, turn.rejected) == (1, ())
    first, second = endpoint.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["runs", PLAYS]
    parameters = first["tools"][0]["function"]["parameters"]
    assert (parameters["required"], parameters["additionalProperties"]) == (["round", "arm"], False)
    assert "look" not in first["response_format"]["json_schema"]["schema"]["properties"]
    said, answer = second["messages"][-2:]
    assert said["tool_calls"][0]["id"] == answer["tool_call_id"] == "call-0"
    assert json.loads(answer["content"]) == {"shown": "runs", "of": {"arm": "a"}, "filling": ""}
    [look] = turn.tool_results
    assert look.payload() == {
        "name": "runs", "arguments": {"arm": "a"}, "characters": len(answer["content"]),
        "sha256": hashlib.sha256(answer["content"].encode()).hexdigest(),
    }  # fmt: skip
    assert turn.payload()["looks"] == [look.payload()]


def test_an_endpoint_that_takes_neither_tools_nor_a_format_is_asked_with_neither(digest: MakeDigest) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        bare = "tools" not in request and "response_format" not in request
        return says(PROPOSAL) if bare else fails(400, "what is this?")

    turn, endpoint = ask(answer, digest(TOPIC, tools=Shelf()))
    assert turn.tries == 1
    sent = [("tools" in request, "response_format" in request) for request in endpoint.requests]
    assert sent == [(True, True), (False, True), (True, False), (False, False)]
    assert "no response_format" in turn.note


def test_what_a_field_means_is_said_once_wherever_the_schema_goes(digest: MakeDigest) -> None:
    _, endpoint = ask(
        lambda request: says(PROPOSAL) if "response_format" not in request else fails(400, ""), digest(TOPIC)
    )
    carried, bare = (request["messages"][-1]["content"] for request in endpoint.requests)
    apart = json.dumps(endpoint.requests[0]["response_format"])
    assert ("falsifier" in apart, "falsifier" in bare) == (True, True)
    meaning = "The cheapest observation"
    assert (apart.count(meaning), carried.count(meaning), bare.count(meaning)) == (0, 1, 1)
    assert ("additionalProperties" in carried, "additionalProperties" in bare) == (False, True)


def test_an_environment_is_shown_with_kinds_tools_and_a_play_of_a_training_task(digest: MakeDigest) -> None:
    known = {entry["name"]: entry for entry in digest(TOPIC, environment="market").facts()["environments"]}
    quoted = known["market"]["quoted"]
    assert "price of an item" in quoted["tools"][0]
    assert quoted["training_tasks_by_kind"].keys() == {"total of one digit", "total of two digits"}
    assert [entry["role"] for entry in quoted["play_of_the_oracle"]] == ["user", "assistant", "tool", "assistant"]
    assert known["guess"].keys() == {"name", "title", "success_means"}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (calls(("shell", "{}")), "expected a look at runs; found 'shell'"),
        (calls(("runs", "not JSON")), "expected arguments that are a JSON object"),
        (calls(("runs", '{"arm": "\\ud800"}')), "whole characters"),
        (calls(("runs", '{"round": NaN}')), "expected finite numbers"),
    ],
)
def test_a_look_that_cannot_be_had_is_answered_with_the_reason(reply: Reply, told: str, digest: MakeDigest) -> None:
    turn, _ = ask([reply, says(PROPOSAL)], digest(TOPIC, tools=Shelf()))
    assert told in turn.tool_results[0].answer
    assert turn.tries == 1


@pytest.mark.parametrize("mangled", [["x"], [{"function": {"arguments": 3}}], [{"id": 3, "function": None}], [None]])
def test_a_mangled_tool_call_is_returned_with_the_error(mangled: list[Any], digest: MakeDigest) -> None:
    turn, _ = ask([says(None, tool_calls=mangled), says(PROPOSAL)], digest(TOPIC, tools=Shelf()))
    assert turn.tries == 2
    assert turn.tool_results == ()


@pytest.mark.slow
def test_who_looks_for_ever_is_told_to_act_and_fails(digest: MakeDigest) -> None:
    count = 0

    def answer(request: dict[str, Any]) -> Reply:
        nonlocal count
        count += 1
        return calls(("runs", json.dumps({"arm": str(count)})))

    with scripted_endpoint(answer) as endpoint, pytest.raises(PlannerFailed) as caught:
        planner(endpoint).act(digest(TOPIC, tools=Shelf()), compiled())
    assert len(endpoint.requests) == MOST_TOOL_CALLS + 3
    assert "this turn; act" in caught.value.message
    assert endpoint.requests[-1]["tool_choice"] == "none"
    assert "tool_choice" not in endpoint.requests[0]


def test_many_calls_at_once_are_counted_each_and_those_over_the_cap_are_refused(digest: MakeDigest) -> None:
    wishes = [("runs", json.dumps({"arm": str(number)})) for number in range(MOST_TOOL_CALLS + 2)]
    turn, endpoint = ask([calls(*wishes), says(PROPOSAL)], digest(TOPIC, tools=Shelf()))
    assert len(turn.tool_results) == MOST_TOOL_CALLS
    answers = [entry["content"] for entry in endpoint.requests[1]["messages"] if entry["role"] == "tool"]
    assert len(answers) == len(wishes)  # each call has its answer, or an endpoint would refuse the next request
    assert ["no look is" in answer for answer in answers[-3:]] == [False, True, True]


def test_the_characters_of_a_turn_are_capped(digest: MakeDigest) -> None:
    replies = [calls(("runs", "{}"))] * 3 + [says(PROPOSAL)]
    turn, endpoint = ask(replies, digest(TOPIC, tools=Shelf("x" * 100_000)))
    sizes = [len(look.answer) for look in turn.tool_results]
    assert all(size <= MOST_OF_ONE + 30 for size in sizes)
    assert sum(sizes) <= MOST_ANSWERED + 30 * len(sizes)
    assert endpoint.requests[-1]["tool_choice"] == "none"
    assert turn.tool_results[0].answer.endswith("(cut; ask for less)")


def test_no_secret_of_this_process_is_shown(digest: MakeDigest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    turn, endpoint = ask([calls(("runs", "{}")), says(PROPOSAL)], digest(TOPIC, tools=Shelf(f"the key is {KEY}")))
    assert KEY not in json.dumps(endpoint.requests)
    assert "the key is ***" in turn.tool_results[0].answer


def test_a_second_reader_is_offered_nothing_but_to_judge(digest: MakeDigest) -> None:
    due = digest(TOPIC, hypotheses=RECORDS, verdicts=(make_verdict(),), sentences=("So it is.",), notebook=Notebook())
    assert due_schema(due)["properties"]["action"]["enum"] == ["review"]
    assert "your_notebook" not in messages(due)[1]["content"]
