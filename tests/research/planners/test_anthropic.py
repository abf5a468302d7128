"""The planner at a fake of Anthropic's endpoint: the real client asks, its own types read the request and reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter

from research.errors import PlannerFailed
from research.planners.context import PlannerContext, PlannerTurn
from research.planners.endpoint import THINKING, AnthropicEndpoint, Recorder, Replay
from research.planners.llm import LlmPlanner, PlannerOptions
from tests.research.planners.scripted_endpoint import Endpoint, Reply, fails, says, scripted_endpoint
from tests.research.planners.test_context import Shelf
from tests.research.planners.test_llm import KEY, PROPOSAL, TOPIC, compiled
from tests.research.planners.test_llm import planner as openai_planner

MakeDigest = Callable[..., PlannerContext]
THOUGHT = {"type": "thinking", "thinking": "Groups?", "signature": "c2lnbmVk"}
LOOK = {"type": "tool_use", "id": "toolu_1", "name": "runs", "input": {"arm": "a"}}


def fake(*blocks: dict[str, Any], stop: str = "end_turn") -> Reply:
    """A reply of the fake endpoint, in the client's own type."""
    usage = {"input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 5}
    return Reply(body=Message.model_validate({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": list(blocks),
        "stop_reason": stop, "stop_sequence": None, "usage": usage,
    }).model_dump(mode="json"))  # fmt: skip


def text(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": json.dumps(value)}


def act(
    replies: list[Reply], digest: PlannerContext, file: Path | None = None, **options: Any
) -> tuple[PlannerTurn, Endpoint]:
    with scripted_endpoint(replies) as endpoint:
        source: Any = AnthropicEndpoint(KEY, endpoint.url.removesuffix("/v1"))
        source = Recorder(source, file) if file else source
        planner = LlmPlanner("fake", source, options=PlannerOptions(**options), patience_s=0.0)
        return planner.act(digest, compiled()), endpoint


def test_a_turn_with_a_look_is_asked_in_the_form_of_messages_and_replayed_from_its_recording(
    digest: MakeDigest, tmp_path: Path
) -> None:
    due, replies = digest(TOPIC, tools=Shelf()), [fake(THOUGHT, LOOK, stop="tool_use"), fake(text(PROPOSAL))]
    turn, endpoint = act(replies, due, tmp_path / "said.jsonl", planner_effort="high", planner_tokens=5000)
    first, _ = (TypeAdapter(MessageCreateParamsNonStreaming).validate_python(one) for one in endpoint.requests)
    assert endpoint.paths == ["/v1/messages"] * 2
    assert (turn.action.action, turn.note, turn.rejected, first["max_tokens"]) == ("propose", "", (), 5000)
    assert (turn.prompt_tokens, turn.completion_tokens, set(turn.spent)) == (30, 14, {"tools", "propose"})
    assert turn.models == ("fake",)
    assert (first["output_config"]["effort"], first["output_config"]["format"]["type"]) == ("high", "json_schema")
    assert [tool["name"] for tool in first["tools"]] == ["runs", "episodes"]
    asked, called, shown = endpoint.requests[1]["messages"]
    assert [each["role"] for each in (asked, called, shown)] == ["user", "assistant", "user"]
    assert called["content"] == [THOUGHT, LOOK]
    assert (shown["content"][0]["type"], shown["content"][0]["tool_use_id"]) == ("tool_result", "toolu_1")
    replayed = LlmPlanner("fake", Replay(tmp_path / "said.jsonl"), options=PlannerOptions(planner_effort="high"))
    assert replayed.act(due, compiled()) == turn
    assert KEY not in (tmp_path / "said.jsonl").read_text()


@pytest.mark.parametrize(("reply", "told"), [
    (fake(stop="refusal"), "refused"), (fake({"type": "text", "text": "{"}, stop="max_tokens"), "cut off"),
    (Reply(body=b"<html>it works</html>"), "no chat completion"), (fake(text(PROPOSAL), LOOK), "no tool"),
])  # fmt: skip
def test_what_is_no_answer_is_returned_with_the_reason(reply: Reply, told: str, digest: MakeDigest) -> None:
    turn, endpoint = act([reply, fake(text(PROPOSAL))], digest(TOPIC))
    if turn.rejected:
        assert told in turn.rejected[0]
        assert endpoint.requests[1]["messages"][-1]["role"] == "user"


@pytest.mark.parametrize(("status", "told"), [(401, "ANTHROPIC_API_KEY"), (404, "with model 'fake'"), (529, "529")])
def test_a_refusing_endpoint_is_named_as_such(status: int, told: str, digest: MakeDigest) -> None:
    with pytest.raises(PlannerFailed, match=told) as caught:
        act([fails(status, f"no: {KEY}")], digest(TOPIC))
    assert KEY not in caught.value.message
    assert "Anthropic's" in caught.value.message


def test_a_second_endpoint_answers_where_the_first_does_not_and_the_turn_says_so(digest: MakeDigest) -> None:
    with (
        scripted_endpoint([fake(THOUGHT, LOOK, stop="tool_use"), fails(500, "down")]) as first,
        scripted_endpoint([says(PROPOSAL)]) as second,
    ):
        fallback = "other", openai_planner(second)._endpoints[0][1]
        planner = LlmPlanner(
            "fake", AnthropicEndpoint(KEY, first.url.removesuffix("/v1")), fallback=fallback, patience_s=0.0
        )
        turn = planner.act(digest(TOPIC, tools=Shelf()), compiled())
    assert "other was asked instead" in turn.note
    assert (turn.tries, len(second.requests), len(turn.tool_results)) == (1, 1, 1)
    assert [each["role"] for each in second.requests[0]["messages"]] == ["system", "user", "assistant", "tool"]
    assert THINKING not in json.dumps(second.requests)
