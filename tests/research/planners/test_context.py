from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from research.design.compiler import accept_hypotheses
from research.errors import PlannerFailed
from research.installation.base_job import model_folder
from research.planners import unsupported
from research.planners.context import PLAYS, PlannerContext, ToolError, field_specs
from research.planners.llm import MOST_ANSWERED, MOST_OF_ONE
from research.planners.prompts import MOST_TOOL_CALLS, find_omission, messages
from research.planners.tools import EpisodesRequest, RunsRequest
from research.planners.topic import normalize_topic
from research.proposals import actions
from research.proposals.actions import Constant, Propose, ProposeDesign, ProposedReplication
from research.proposals.arms import ComparedModels
from research.proposals.flags import RequestedComparison
from studies.records.design import MODEL
from tests.golden import assert_golden
from tests.research.factories import make_claim, make_verdict
from tests.research.model_folders import model_at
from tests.research.planners.scripted_endpoint import Reply, fails, says, scripted_endpoint
from tests.research.planners.test_llm import CODED, KEY, PROPOSAL, RECORDS, TOPIC, ask, changed, compiled, planner

BATCH = Constant(field="episodes_per_step", value=32)


def claims(variable: str = "group_size", control: Any = 8, treatment: Any = 16) -> Propose:
    return Propose(hypotheses=(make_claim(variable, control, treatment),))


def found(topic: str, proposal: Propose | None = None, **wish: Any) -> str | None:
    """Return what a plan for a topic leaves out: by default 8 against 16 in a group, played as `guess`."""
    proposed = claims() if proposal is None else proposal
    digest = PlannerContext(
        topic=topic, seconds_left=600.0, seconds_per_run=58.0, parallel=2, hypotheses=accept_hypotheses(proposed),
        not_tested=proposed.not_tested,
    )  # fmt: skip
    return find_omission(digest, ProposeDesign(**{"environment": "guess", **wish}))


@pytest.mark.parametrize(
    ("topic", "wish"),
    [
        ("Does a larger group help?", {}),
        ("group size 8 vs 16 on guess", {}),
        ("group size 8 vs 16 with 32 episodes per step", {"constants": (BATCH,)}),
        ("group size 8 vs 16, trained for 20 steps", {"steps": 20}),
        ("Compare 2 values: group size 8 vs 16", {}),
        ("group size 8 vs 16; use seed 42", {}),
        ("group size 8 vs 16 at learning rate 0.001", {}),
        ("group size 8 vs 16 on guess, replicated on arith", {"replication": ProposedReplication(environment="arith")}),
        ("At a lower temperature of 0.7, larger groups?", {"constants": (Constant(field="temperature", value=0.7),)}),
    ],
)
def test_what_the_topic_names_and_the_plan_has_is_not_left_out(topic: str, wish: dict[str, Any]) -> None:
    assert found(topic, **wish) is None


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("group size 4 vs 16", "group_size 4"), ("group size 8 vs 16 at learning rate 0.003", "learning_rate 0.003"),
        ("Does a hotter temperature help larger groups?", "temperature"), ("group size 8 vs 16 with 128 frobs", "128"),
        ("group size 8 vs 16 on guess, replicated on arith", "the environment arith"),
    ],
)  # fmt: skip
def test_what_the_topic_names_and_the_plan_has_not_is_said_in_one_line_and_may_be_left_out_in_the_open(
    topic: str, named: str
) -> None:
    told = found(topic)
    assert named in told
    assert_golden(told)
    excuse = f"Left out for want of time: {named.replace('_', ' ')}."
    assert found(topic, not_tested=excuse) is None
    assert found(topic, claims().model_copy(update={"not_tested": excuse})) is None


def test_all_that_is_missing_is_said_at_once() -> None:
    told = found("group size 4 vs 16 at temperature 0.7")
    assert "topic names group_size 4 and temperature 0.7, which are in" in told


@pytest.mark.parametrize("topic", ["Does a hotter temperature help?", "Does the temperature matter?"])
def test_what_is_asked_about_cannot_be_held_constant_unsaid(topic: str) -> None:
    held = (Constant(field="temperature", value=1.0),)
    assert_golden(found(topic, constants=held))
    assert found(topic, constants=held, not_tested="Temperature 1 is left.") is None
    assert found(topic, claims("temperature", 1.0, 1.3)) is None


def test_no_other_environment_is_played_than_the_one_that_is_named_whatever_is_left_out() -> None:
    assert_golden(found("group size 8 vs 16 on arith", not_tested="arith is too slow here."))


def test_the_values_of_a_screens_knobs_are_in_the_plan() -> None:
    topic, search = "Which learning rate is best, 0.0003, 0.001 or 0.003?", Propose(search=True)

    def screen(*values: float) -> actions.ProposedScreen:
        knob = actions.ProposedKnob(field="learning_rate", values=values)
        return actions.ProposedScreen(knobs=(knob,), predicted_low=0.0, predicted_high=0.2, probability=0.5)

    assert found(topic, search, screen=screen(0.0003, 0.003)) is None, "the control holds the default"
    assert "0.0003" in (found(topic, search, screen=screen(0.001, 0.003)) or "")


@pytest.fixture
def models(tmp_path: Path) -> ComparedModels:
    folders = [model_at(tmp_path / "qwen-0.5b"), model_at(tmp_path / "smollm2", b"v")]
    return ComparedModels.load(map(str, folders), model_folder)


def digest(models: ComparedModels, proposed: bool = False) -> PlannerContext:
    entry = make_claim(MODEL, "qwen-0.5b", "smollm2")
    topic = "Which learns more, {} or {}?".format(*(known.folder for known in models.by_name.values()))
    return PlannerContext(
        topic, 1e6, 10.0, 2, wanted=RequestedComparison(models=models), fields=field_specs(models=models),
        hypotheses=accept_hypotheses(Propose(hypotheses=(entry,)), models) if proposed else (),
        fixed={"max_tokens": 64},
    )  # fmt: skip


def test_folders_that_a_topic_names_are_no_models_that_are_not_here(models: ComparedModels) -> None:
    assert unsupported.explain_unavailable(digest(models).topic, ["guess"]), "refused by its words alone"
    assert unsupported.explain_unavailable(normalize_topic(digest(models)), ["guess"]) is None
    assert find_omission(digest(models, proposed=True), ProposeDesign(environment="guess")) is None


def test_the_prompt_says_that_gains_are_judged_and_what_the_user_fixed(models: ComparedModels) -> None:
    said = messages(digest(models))[1]["content"]
    assert "`variable` may be 'model'" in said
    assert "what each gains" in said
    assert '"sensible_values": ["qwen-0.5b", "smollm2"]' in said, "and no folder"
    assert '"fixed_by_the_user": {"max_tokens": 64}' in said
    plain = messages(PlannerContext("q", 1e6, 10.0, 2))[1]["content"]
    assert "fixed_by_the_user" not in plain
    assert "may be 'model'" not in plain


MakeDigest = Callable[..., PlannerContext]


class Shelf:
    def __init__(self, filling: str = "") -> None:
        self.offered: Mapping[str, type[BaseModel]] = {"runs": RunsRequest, PLAYS: EpisodesRequest}
        self.filling = filling

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if name not in self.offered:
            raise ToolError(f"expected a look at runs; found {name!r}")
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


@pytest.mark.parametrize("status", [400, 422])
def test_where_an_endpoint_takes_no_tools_looks_are_asked_for_in_json(status: int, digest: MakeDigest) -> None:
    replies = [fails(status, "tools are not supported"), says(looks_for("a")), says(PROPOSAL)]
    turn, endpoint = ask(replies, digest(TOPIC, tools=Shelf()))
    assert turn.tool_results[0].arguments == {"arm": "a"}
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

    turn, endpoint = ask(answer, digest(TOPIC, tools=Shelf()))
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
    turn, _ = ask([says(wish), says({**PROPOSAL, "look": "", "arguments": ""})], digest(TOPIC, tools=Shelf()))
    assert [(look.name, look.arguments) for look in turn.tool_results] == [("runs", {"arm": "b"})]
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
    turn, _ = ask([reply, says(PROPOSAL)], digest(TOPIC, tools=Shelf()))
    assert told in turn.tool_results[0].answer
    assert turn.tries == 1


@pytest.mark.parametrize("mangled", [["x"], [{"function": {"arguments": 3}}], [{"id": 3, "function": None}], [None]])
def test_a_mangled_tool_call_is_returned_with_the_error(mangled: list[Any], digest: MakeDigest) -> None:
    turn, _ = ask([says(None, tool_calls=mangled), says(PROPOSAL)], digest(TOPIC, tools=Shelf()))
    assert turn.tries == 2
    assert turn.tool_results == ()


@pytest.mark.parametrize("by_tools", [True, False])
@pytest.mark.slow
def test_who_looks_for_ever_is_told_to_act_and_fails(by_tools: bool, digest: MakeDigest) -> None:
    count = 0

    def answer(request: dict[str, Any]) -> Reply:
        nonlocal count
        count += 1
        return calls(("runs", json.dumps({"arm": str(count)}))) if by_tools else says(looks_for(str(count)))

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
    assert len(answers) == len(wishes), "each call has its answer, or an endpoint would refuse the next request"
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


def test_who_saw_plays_of_hidden_tasks_writes_no_reward_function(digest: MakeDigest) -> None:
    coded = {"action": "propose", "hypotheses": [CODED]}
    shown = digest("Does a dense reward function help?", tools=Shelf(), code_allowed=True)
    turn, _ = ask([calls((PLAYS, '{"run": "a"}')), says(coded), says(changed(code=None))], shown)
    assert "reward function could" in turn.rejected[0]
    assert turn.action.hypotheses[0].variable == "group_size"
    unseen, _ = ask([calls(("runs", "{}")), says(coded)], shown)
    assert unseen.tries == 1


def test_a_conclusion_is_drawn_without_looks(digest: MakeDigest) -> None:
    due = digest(TOPIC, hypotheses=RECORDS, verdicts=(make_verdict(),), tools=Shelf())
    turn, endpoint = ask([says({"action": "conclude", "reason": "Nothing was shown."})], due)
    assert turn.action == actions.Conclude(reason="Nothing was shown.")
    assert "inconclusive" in endpoint.requests[0]["messages"][1]["content"]
    assert "tools" not in endpoint.requests[0]
