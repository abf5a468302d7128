"""The language-model planner against a real HTTP server and the real openai client."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from research.design.compiler import accept_hypotheses
from research.design.pricing import make_pricing
from research.errors import BadTopic, PlannerFailed
from research.planners.context import Check, PlannerContext, PlannerTurn, field_specs
from research.planners.endpoint import OpenAiEndpoint
from research.planners.llm import LlmPlanner, PlannerOptions, UnusableAnswer, parse_json_object
from research.planners.prompts import parse_action
from research.planners.topic import find_uncovered
from research.proposals.actions import Decline, Propose, ProposeDesign
from studies.records.base import canonical
from studies.records.design import Budget
from swarm.job import Job
from tests.research.compiling import refusal
from tests.research.factories import make_verdict
from tests.research.planners.scripted_endpoint import TOKENS, Endpoint, Reply, fails, says, scripted_endpoint

KEY = "sk-secret-of-the-test"
HYPOTHESIS = {
    "statement": "Larger groups learn more.", "mechanism": "Less noisy baselines.", "variable": "group_size",
    "control": 4, "treatment": 16, "direction": "increase", "predicted_low": 0, "predicted_high": 0.2,
    "probability": 0.4, "smallest_effect": 0.1, "falsifier": "They learn less on fresh seeds.", "kill_if": "",
    "confounds": [],
}  # fmt: skip
PROPOSAL = {"action": "propose", "hypotheses": [HYPOTHESIS]}
DRAFT = json.dumps({"action": "propose", "hypotheses": [{**HYPOTHESIS, "treatment": 2}]})
DESIGN = {"action": "design", "environment": "guess", "steps": None, "constants": []}
TOPIC = "Do larger groups learn faster?"
SOURCE = "def reward(task, messages, outcome):\n    return float(outcome['success'])\n"
MakeDigest = Callable[..., PlannerContext]
Replies = list[Reply] | Callable[[dict[str, Any]], Reply]
RECORDS = accept_hypotheses(Propose.model_validate(PROPOSAL))


def compiled(budget_s: float = 600.0, code_allowed: bool = False) -> Check:
    budget = Budget(wall_clock_s=budget_s)
    return lambda action: refusal(action, RECORDS, price=make_pricing(2), budget=budget, code_allowed=code_allowed)


def planner(endpoint: Endpoint, **settings: Any) -> LlmPlanner:
    return LlmPlanner("scripted", OpenAiEndpoint(KEY, endpoint.url), **{"patience_s": 0.0, **settings})


def ask(replies: Replies, digest: PlannerContext, budget_s: float = 600.0) -> tuple[PlannerTurn, Endpoint]:
    with scripted_endpoint(replies) as endpoint:
        return planner(endpoint).act(digest, compiled(budget_s, digest.code_allowed)), endpoint


def failure(replies: Replies, digest: PlannerContext, budget_s: float = 600.0, **settings: Any) -> tuple[str, Endpoint]:
    with scripted_endpoint(replies) as endpoint, pytest.raises(PlannerFailed) as caught:
        planner(endpoint, **settings).act(digest, compiled(budget_s))
    assert "\n" not in caught.value.message
    assert KEY not in caught.value.message
    return caught.value.message, endpoint


def test_a_good_answer_is_taken_at_once_and_no_key_comes_into_the_study(digest: MakeDigest) -> None:
    kill_if = "verdict == 'inconclusive' and p > 0.5"
    turn, endpoint = ask([says(changed(kill_if=kill_if, statement=f"It is {KEY}."))], digest(TOPIC))
    assert turn.action == Propose.model_validate(changed(kill_if=kill_if, statement="It is ***."))
    assert turn.payload() == {
        "action": "propose", "tries": 1, "tokens": TOKENS,
        "rejected": [], "note": "", "not_tested": [], "spent": {"propose": TOKENS}, "models": ["scripted"],
    }  # fmt: skip
    assert endpoint.paths == ["/v1/chat/completions"]
    assert endpoint.keys == [f"Bearer {KEY}"]
    (request,) = endpoint.requests
    assert [word for word in (TOPIC, "learning_rate") if word not in request["messages"][1]["content"]] == []
    named = request["response_format"]["json_schema"]
    assert (named["name"], named["strict"]) == ("propose", True)
    assert named["schema"]["required"] == ["action", "hypotheses", "metric", "search", "tested", "not_tested", "reason"]
    assert named["schema"]["additionalProperties"] is False


@pytest.mark.parametrize("answer", [
    f"<think>Is it {{this}}?</think>\n{json.dumps(PROPOSAL)}", f"```json\n{json.dumps(PROPOSAL)}\n```",
    f"Here you are: {json.dumps(PROPOSAL)} Good luck {{}}!", f"{{}} {json.dumps(PROPOSAL)}",
    f"{DRAFT} no, rather {json.dumps(PROPOSAL)}", f"{DRAFT} or\n```json\n{json.dumps(PROPOSAL)}\n```\nThat is all.",
    f"{{}}{'{not this} ' * 90}{json.dumps({'x': [{}] * 200})} {json.dumps(PROPOSAL)}",
    f"{DRAFT}\n\nAt last:\n```json\n{json.dumps(PROPOSAL)}\n```\n",
    *(f"{mark}A draft: {DRAFT}{end}\n{json.dumps(PROPOSAL)}" for mark, end in (
        ("", "</think>"), ("<think>", "</think>"), ("<THINK>", "</Think>"), ("[THINK]", "[/THINK]"),
        ("<thinking>", "</thinking>"), ("<seed:think>", "</seed:think>"), ("◁think▷", "◁/think▷"),
        ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|channel|>analysis", "<|channel|>final<|message|>"),
        ("<think>one</think> and <think>", "</think>"),
    )),
])  # fmt: skip
def test_thinking_fences_and_chatter_around_the_object_are_tolerated(answer: str, digest: MakeDigest) -> None:
    turn, _ = ask([says(answer)], digest(TOPIC))
    assert turn.tries == 1
    assert turn.action.hypotheses[0].treatment == HYPOTHESIS["treatment"]


@pytest.mark.parametrize(("answer", "why"), [
    (f"<think>A draft: {DRAFT}", "does not end"), (f"[THINK] {DRAFT}", "does not end"),
    (f"{json.dumps(PROPOSAL)} rather than {DRAFT}, which is too small", "found 2"),
    (f"[{json.dumps(PROPOSAL)}, {DRAFT}]", "found 2"), (f"{DRAFT} no: {json.dumps(PROPOSAL)[:-3]}", "cut short"),
    (json.dumps(PROPOSAL)[:-3], "cut short"), (json.dumps(PROPOSAL)[:-60], "cut short"),
    (f"```json\n{json.dumps(PROPOSAL)[:-3]}\n```", "cut short"), ("{this} is no {answer}", "expected one JSON"),
])  # fmt: skip
def test_a_draft_and_half_an_object_are_no_answer(answer: str, why: str) -> None:
    with pytest.raises(UnusableAnswer, match=why):
        parse_json_object(answer)


def test_parts_of_a_content_are_joined_without_thinking_and_an_endpoint_need_not_count(digest: MakeDigest) -> None:
    parts = [{"type": "thinking", "thinking": DRAFT}, {"type": "text", "text": json.dumps(PROPOSAL)}]
    usage = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}
    turn, _ = ask([Reply(body={"choices": [{"message": {"content": parts}}], "usage": usage})], digest(TOPIC))
    assert (turn.tries, turn.prompt_tokens, turn.completion_tokens) == (1, 0, 0)
    assert turn.action.hypotheses[0].treatment == HYPOTHESIS["treatment"]


def changed(**changes: Any) -> dict[str, Any]:
    claim = {name: value for name, value in {**HYPOTHESIS, **changes}.items() if value is not LEFT_OUT}
    return {"action": "propose", "hypotheses": [claim]}


LEFT_OUT = object()
TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "propose", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (says('{"action": "propose", '), "expected one JSON"),
        (says(changed(variable="dropout")), "'dropout'"),
        (says(changed(treatment=None)), "treatment"),
        (says(changed(treatment=1)), "greater than or equal to 2"),
        (says(changed(predicted_low=0.3)), "must not exceed"),
        (says(changed(predicted_low=-0.3, predicted_high=-0.1)), "contradicts it"),
        (says(changed(probability=1.5)), "probability"),
        (says(changed(seed=7)), "seed"),
        (says(changed(smallest_effect=0.6)), "the study's; found 0.6"),
        (says(changed(falsifier=LEFT_OUT)), "falsifier: expected"),
        (says({"action": "propose", "hypotheses": []}), "found neither"),
        (says({**PROPOSAL, "search": True}), "found both"),
        (says({"action": "conclude", "reason": "done"}), "action"),
        (says({"action": "decline", "reason": ""}), "reason"),
        (says(changed(variable="reward", control="built-in", treatment="plain", code=SOURCE)), "runs in containers"),
        (says(None, tool_calls=[TOOL_CALL]), "content; found a tool call"),
        (says("", finish_reason="tool_calls"), "content; found a tool call"),
    ],
)
def test_an_answer_that_cannot_be_taken_is_returned_with_the_error(reply: Reply, told: str, digest: MakeDigest) -> None:
    turn, endpoint = ask([reply, says(PROPOSAL)], digest(TOPIC))
    assert (turn.tries, turn.action) == (2, Propose.model_validate(PROPOSAL))
    assert told in turn.rejected[0]
    assert (turn.prompt_tokens, turn.completion_tokens) == (2 * TOKENS["prompt"], 2 * TOKENS["completion"])
    assert told in endpoint.requests[1]["messages"][-1]["content"]
    schema = endpoint.requests[0]["response_format"]["json_schema"]["schema"]["$defs"]["ProposedHypothesis"]
    assert {"smallest_effect", "falsifier"} <= set(schema["required"])


def test_a_design_over_budget_three_times_fails_with_the_price(digest: MakeDigest) -> None:
    tries = [says({**DESIGN, "steps": steps}) for steps in (40, 39, 38)]
    message, endpoint = failure(tries, digest(TOPIC, hypotheses=RECORDS), budget_s=30)
    assert "the budget is 30 s" in message
    assert "--budget" in message  # the person at the terminal is told of the flags
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(("nonsense", "tries"), [([f"I like {n} turtles." for n in range(4)], 3), (["turtles"], 2)])
def test_nonsense_fails_after_three_tries_or_two_alike(nonsense: list[str], tries: int, digest: MakeDigest) -> None:
    message, endpoint = failure([says(words) for words in nonsense], digest(TOPIC))
    assert len(endpoint.requests) == tries
    assert "turtles" in message
    assert f"{tries} refused" in message
    assert "--planner rules" in message
    assert ("answer as before" in message) == (tries == 2)


@pytest.mark.parametrize("reply", [
    Reply(body=b"<html>it works</html>"), Reply(body={"choices": []}), Reply(body={"choices": "none"}),
    Reply(body=[1, 2]), Reply(body=b'{"choices": [{"message"'), says(None), says(None, refusal="I must not."),
    says(PROPOSAL, finish_reason="length"), says("[" * 5000 + "{" * 5000), says('{"a":' * 9000),
    says('{"action": "propose", "hypotheses": NaN}'),
])  # fmt: skip
def test_any_strange_reply_fails_clearly(reply: Reply, digest: MakeDigest) -> None:
    message, endpoint = failure([reply], digest(TOPIC))
    assert len(endpoint.requests) in (2, 3)  # three tries, two where it says the same again
    assert message.startswith("expected a usable")


@pytest.mark.parametrize(("status", "told"), [
    (401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "--planner-model"), (429, "429"), (500, "500"),
    (400, "400"),
])  # fmt: skip
def test_a_refusing_endpoint_fails_in_one_line_without_the_key(status: int, told: str, digest: MakeDigest) -> None:
    pauses: list[float] = []
    patience_s = 0.0 if status in (429, 500) else 100.0  # those that pass are waited for
    settings: dict[str, Any] = {"patience_s": patience_s, "sleep": pauses.append}
    message, endpoint = failure([fails(status, f"no good: {KEY}")], digest(TOPIC), **settings)
    assert told in message
    assert (pauses, len(endpoint.requests)) == ([], 2 if status == 400 else 1)


@pytest.mark.parametrize(
    "reply", [Reply(hang=True), Reply(body=" " * 100_000, trickle=True)], ids=["hangs", "trickles"]
)
def test_an_endpoint_without_an_answer_fails_by_the_timeout(reply: Reply, digest: MakeDigest) -> None:
    message, _ = failure([reply], digest(TOPIC), options=PlannerOptions(planner_timeout=1))
    assert "within 1 s" in message


def test_an_empty_topic_asks_nobody(digest: MakeDigest) -> None:
    with scripted_endpoint([says(PROPOSAL)]) as endpoint, pytest.raises(BadTopic):
        planner(endpoint).act(digest("  "), compiled())
    assert endpoint.requests == []


def test_text_that_cannot_be_stored_is_refused_like_any_other_nonsense(digest: MakeDigest) -> None:
    broken = json.dumps(changed(statement="x", variable="y"))
    replies = [says(broken.replace('"x"', r'"\ud800"')), says(broken.replace('"y"', r'"\ud800"')), says(PROPOSAL)]
    turn, _ = ask(replies, digest(TOPIC))
    assert turn.tries == 3
    canonical(turn.payload()).encode()


REWARD_TOPIC = "Does a dense reward function help in the guessing game?"
CODED = {**HYPOTHESIS, "variable": "reward", "control": "built-in", "treatment": "plain", "code": SOURCE}


def test_a_reward_function_is_proposed_where_runs_are_in_containers(digest: MakeDigest) -> None:
    reply = says({"action": "propose", "hypotheses": [CODED, {**HYPOTHESIS, "code": None}]})
    turn, endpoint = ask([reply], digest(REWARD_TOPIC, code_allowed=True))
    assert [entry.code for entry in turn.action.hypotheses] == [SOURCE, None]
    assert (turn.tries, turn.note) == (1, "")
    (request,) = endpoint.requests
    assert '"code"' in json.dumps(request["response_format"])
    assert "def reward(task: dict, messages:" in request["messages"][1]["content"]
    assert "built_in" in request["messages"][1]["content"]


@pytest.mark.parametrize(("algorithm", "shown"), [("grpo", "stdev"), ("rloo", "rloo's own")])
def test_the_advantage_that_is_there_anyway_is_that_of_the_jobs_algorithm(
    algorithm: str, shown: str, digest: MakeDigest
) -> None:
    facts = digest(TOPIC, fields=field_specs(Job(algorithm=algorithm)), code_allowed=True).facts()
    assert shown in facts["code"]["built_in"]["advantage"]


@pytest.mark.parametrize(("variable", "left"), [("task_weights", ()), ("reward", ("order",))])
def test_a_slot_covers_the_words_of_what_it_does(variable: str, left: tuple[str, ...], digest: MakeDigest) -> None:
    claim = RECORDS[0].model_copy(update={"variable": variable, "control": "built-in", "treatment": "hard-last"})
    topic = f"{variable.replace('_', ' ')}: order on arith?"
    found = find_uncovered(digest(topic, hypotheses=(claim,)), ProposeDesign(environment="arith"))
    assert tuple(word for word in found if word == "order") == left


def test_who_answered_is_kept_by_the_name_that_the_endpoint_gives(digest: MakeDigest) -> None:
    other = {**says(PROPOSAL).body, "model": "scripted-\x1b[31m2"}
    turn, _ = ask([says("turtles"), Reply(body=other)], digest(TOPIC))
    assert turn.models == ("scripted", "scripted-2")
    assert turn.payload()["models"] == ["scripted", "scripted-2"]
    turn, _ = ask([Reply(body={**says(PROPOSAL).body, "model": "long" * 99})], digest(TOPIC))
    assert len(turn.models[0]) == 120


def test_a_refusal_names_unknown_fields_in_the_order_of_the_answer(digest: MakeDigest) -> None:
    strange = dict.fromkeys(("zeta", "alpha", "mu", "beta"), 1)
    with pytest.raises(ValidationError) as refused:
        parse_action(digest(TOPIC), {**PROPOSAL, **strange})
    assert [error["loc"][0] for error in refused.value.errors()] == [*strange]


@pytest.mark.parametrize("design", [False, True])
def test_a_topic_may_be_declined_before_the_lock_whatever_else_is_said(design: bool, digest: MakeDigest) -> None:
    hypotheses = RECORDS if design else ()
    answer = {**(DESIGN if design else PROPOSAL), "action": "decline", "reason": "No such field."}
    turn, endpoint = ask([says(answer)], digest(TOPIC, hypotheses=hypotheses))
    assert turn.action == Decline(reason="No such field.")
    schema = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["enum"] == ["design" if design else "propose", "decline"]
    bare, _ = ask([says({"action": "decline", "reason": "No."})], digest(TOPIC, hypotheses=hypotheses))
    assert bare.action == Decline(reason="No.")


def test_an_endpoint_that_was_never_there_is_not_waited_for_and_shows_no_password(digest: MakeDigest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    pauses: list[float] = []
    endpoint = OpenAiEndpoint(KEY, f"http://me:hush@127.0.0.1:{port}/v1?token=hush")
    alone = LlmPlanner("m", endpoint, patience_s=1e6, sleep=pauses.append)
    with pytest.raises(PlannerFailed, match="it, correct OPENAI_BASE_URL, or use --planner rules") as caught:
        alone.act(digest(TOPIC), compiled())
    assert (pauses, "\n" in caught.value.message) == ([], False)
    assert f"http://127.0.0.1:{port};" in caught.value.message
    assert "hush" not in caught.value.message


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_passes_is_waited_for_with_growing_pauses(status: int, digest: MakeDigest) -> None:
    pauses, told = list[float](), list[str]()
    with scripted_endpoint([fails(status, "later")] * 3 + [says(PROPOSAL)]) as endpoint:
        patient = planner(endpoint, patience_s=100.0, sleep=pauses.append, note=told.append)
        turn = patient.act(digest(TOPIC), compiled())
    assert [f"gives no answer ({status}); asked again in" in line for line in told] == [True] * 3
    assert turn.tries == 1
    assert f"3 times ({status})." in turn.note
    assert len(pauses) == 3
    for number, pause in enumerate(pauses):
        assert 2.0**number / 2 <= pause <= 2.0**number


@pytest.mark.parametrize("count", [0, -5, 10**400, 1.5, "many", True])
def test_what_is_no_count_of_tokens_is_as_if_nobody_counted_and_passes_no_cap(count: Any, digest: MakeDigest) -> None:
    odd = Reply(body={**says(PROPOSAL).body, "usage": {"prompt_tokens": count, "completion_tokens": count}})
    with scripted_endpoint([odd]) as endpoint:
        model = planner(endpoint, options=PlannerOptions(planner_max_tokens=12_000))
        assert model.act(digest(TOPIC), compiled()).payload()["tokens"] == {"prompt": 0, "completion": 0}
        with pytest.raises(PlannerFailed, match="no model is asked any more"):
            [model.act(digest(TOPIC), compiled()) for _ in range(3)]


class Slow:
    """An endpoint that says nothing of use, each time as late as it may."""

    where, api, redact = "here", "openai", staticmethod(str)

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        self.waits.append(timeout_s)
        self.now += timeout_s * 0.6
        return json.dumps(says(f"{len(self.waits)} turtles").body)


@pytest.mark.parametrize(("verdicts", "waits"), [((), [60.0] * 3), ((make_verdict(),), [60.0, 60.0, 48.0])])
def test_a_turn_after_the_lock_takes_a_share_of_the_time_left_and_no_more(
    verdicts: Any, waits: list[float], digest: MakeDigest, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr("research.planners.endpoint.time.monotonic", lambda: slow.now)
    model = LlmPlanner("slow", slow, options=PlannerOptions(planner_timeout=60))
    due = digest(TOPIC, hypotheses=RECORDS, verdicts=verdicts)
    with pytest.raises(PlannerFailed):
        model.act(due, compiled())
    assert slow.waits == waits


@pytest.mark.parametrize("reply", [fails(429, "later"), fails(503, "down"), Reply(hang=True)])
def test_an_answer_to_the_topic_waits_for_no_endpoint(reply: Reply, digest: MakeDigest) -> None:
    pauses: list[float] = []
    due = digest(TOPIC, hypotheses=RECORDS, verdicts=(make_verdict(),))
    options = PlannerOptions(planner_timeout=1 if reply.hang else 30)
    _, endpoint = failure([reply], due, patience_s=None, options=options, sleep=pauses.append)
    assert (pauses, len(endpoint.requests)) == ([], 1)


def test_tokens_are_counted_by_purpose_with_their_price_and_a_cap_is_kept_before_it_is_broken(
    digest: MakeDigest,
) -> None:
    options = PlannerOptions(
        planner_price="1,10", planner_max_cost=0.5, planner_max_tokens=100_000, planner_tokens=2000
    )
    with scripted_endpoint([says("turtles"), says(PROPOSAL)]) as endpoint:
        frugal = planner(endpoint, options=options)
        turn = frugal.act(digest(TOPIC), compiled())
        with pytest.raises(PlannerFailed, match=r"-max-tokens 100000 .* asked any more; `ajet study resume` takes"):
            planner(endpoint, options=options).act(digest(TOPIC, tokens_spent={"prompt": 99_990.0}), compiled())
        with pytest.raises(PlannerFailed, match=r"tokens spent for 0\.50"):
            planner(endpoint, options=options).act(digest(TOPIC, tokens_spent={"completion": 50_000.0}), compiled())
    assert turn.payload()["spent"] == {"propose": {"prompt": 22, "completion": 14, "cost": pytest.approx(162e-6)}}
    assert [request["max_completion_tokens"] for request in endpoint.requests] == [2000, 2000]
