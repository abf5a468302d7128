"""The Responses API: items in, items and events out, and a history that comes back as it was served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter

from swarm.dialects.base import CompletionRequest, Token, ToolChoice, seal
from swarm.dialects.responses import RESPONSES
from swarm.errors import ContextExceeded, EngineUnavailable, InvalidRequest
from swarm.rendering.messages import Piece, Reasoning, ToolCall, Words
from tests.lazily import lazy
from tests.swarm.dialects.support import MODEL, NAME, answers, events, kept, reply, streamed, whole

types = lazy("openai.types.responses")
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}


def parse(**fields: Any) -> CompletionRequest:
    return RESPONSES.parse(json.dumps({"model": MODEL, "input": "hi", **fields}).encode(), MODEL)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hi", **fields}


def call(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call{number}", "name": "add", "arguments": "{}", **fields}


def call_of(number: int) -> dict[str, Any]:
    return {"id": f"call{number}", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_the_items_of_one_turn_are_one_assistant_message() -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "rs_x", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}, call(0), call(1),
        {"type": "function_call_output", "call_id": "call0", "output": "1"},
        {"type": "function_call_output", "call_id": "call1", "output": [{"type": "input_text", "text": "2"}]},
    ]  # fmt: skip
    turn = {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call_of(0), call_of(1)]}
    assert parse(input=items).messages == (
        USER, turn, {"role": "tool", "tool_call_id": "call0", "content": "1"},
        {"role": "tool", "tool_call_id": "call1", "content": "2"},
    )  # fmt: skip


def test_ids_and_second_messages_tell_turns_apart() -> None:
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    assert parse(input=[USER, *said]).messages == (USER, *said)
    same = [{**item, "id": f"msg_r1_{number}", "type": "message"} for number, item in enumerate(said)]
    assert parse(input=[USER, *same]).messages == (USER, {"role": "assistant", "content": "ab"})
    other = [call(0, id="fc_r1_0"), call(1, id="fc_r2_0")]
    assert [len(message["tool_calls"]) for message in parse(input=[USER, *other]).messages[1:]] == [1, 1]


@given(answers)
def test_what_was_served_comes_back_as_the_message_that_was_kept(pieces: Sequence[Piece]) -> None:
    found = reply(pieces)
    output = whole(RESPONSES, body(), found)["output"]
    types.Response.model_validate(whole(RESPONSES, body(), found))
    assert parse(input=[USER, *output, USER]).messages == (USER, kept(found), USER)
    seen = streamed(RESPONSES, body(), pieces, found)
    assert parse(input=[USER, *seen[-1]["response"]["output"], USER]).messages == (USER, kept(found), USER)


@cache  # building it takes seconds
def stream_event() -> TypeAdapter[Any]:
    return TypeAdapter(types.ResponseStreamEvent)


@given(answers)
def test_a_stream_ends_with_what_its_events_said(pieces: Sequence[Piece]) -> None:
    seen = streamed(RESPONSES, body(), pieces, reply(pieces))
    for event in seen:
        stream_event().validate_python(event)
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert [event["type"] for event in seen[:2]] == ["response.created", "response.in_progress"]
    done = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
    assert seen[-1]["type"] == "response.completed"
    assert seen[-1]["response"]["output"] == done
    for kind, item_type in (("output_text", "message"), ("reasoning_text", "reasoning")):
        deltas = "".join(event["delta"] for event in seen if event["type"] == f"response.{kind}.delta")
        assert deltas == "".join(item["content"][0]["text"] for item in done if item["type"] == item_type)
    added = [event["item"]["id"] for event in seen if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    assert len(set(added)) == len(added)


@pytest.mark.parametrize(
    ("pieces", "statuses"),
    [
        ([Reasoning("hm"), Words("so")], ["completed", "incomplete"]), ([Reasoning("hm")], ["incomplete"]),
        ([Words("so"), ToolCall("add", "{}")], ["completed", "completed"]), ([], ["incomplete"]),
    ],
)  # fmt: skip
def test_an_answer_cut_short_is_incomplete(pieces: list[Piece], statuses: list[str]) -> None:
    found = reply(pieces, finish="length")
    answer = whole(RESPONSES, body(), found)
    *_, last = streamed(RESPONSES, body(), pieces, found)
    assert last["type"] == "response.incomplete"
    for response in (answer, last["response"]):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in response["output"]] == statuses


def test_the_echo_says_what_held() -> None:
    fields = {"store": True, "metadata": {"a": "b"}, "tools": [TOOL], "temperature": 0.5, "max_output_tokens": 9}
    answer = whole(RESPONSES, body(instructions="be brief", parallel_tool_calls=False, **fields), reply([Words("x")]))
    assert answer["store"] is False
    assert answer["metadata"] == {"a": "b"}
    assert answer["tools"] == [{**TOOL, "strict": False}]
    assert (answer["temperature"], answer["max_output_tokens"], answer["instructions"]) == (0.5, 9, "be brief")
    assert (answer["parallel_tool_calls"], answer["tool_choice"], answer["truncation"]) == (False, "auto", "disabled")
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 30
    assert answer["usage"]["total_tokens"] == 47


def test_the_echo_is_json_whatever_numbers_were_sent() -> None:
    ask = RESPONSES.parse(b'{"model": "fake", "input": "hi", "metadata": {"a": 1e999}}', MODEL)
    assert b"Infinity" not in RESPONSES.format_reply(NAME, MODEL, ask, [reply([])])
    assert b"Infinity" not in RESPONSES.writer(NAME, MODEL, ask, 0, 40).opening()


def test_tools_choices_and_formats_are_understood() -> None:
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert parse(tools=[TOOL]).tools == ({"type": "function", "function": function},)
    assert parse(tools=[TOOL], tool_choice="required").tool_choice == ToolChoice("required")
    named = {"type": "function", "name": "add"}
    assert parse(tools=[TOOL], tool_choice=named).tool_choice == ToolChoice("required", "add")
    schema = {"type": "object"}
    format_ = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert parse(text={"format": format_}).sampling.json_schema == schema
    assert parse(text={"format": {"type": "json_object"}}).sampling.json_schema == {}
    assert parse(text={"format": {"type": "text"}}).sampling.json_schema is None
    advised = parse(reasoning={"effort": "high"}, text={"verbosity": "low"})
    assert (advised.left_out, advised.sampling.others) == (("reasoning.effort", "text.verbosity"), {})


def test_log_probs_of_the_words_are_served_where_they_are_asked_for() -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    assert parse(**asked).logprobs == 1
    assert parse(include=["reasoning.encrypted_content"]).logprobs is None
    tokens = [Token("<t>", -1.0), Token("4", -2.0), Token("4", -3.0, (("4", -3.0),)), Token("<e>", -4.0)]
    found = reply([Reasoning("4"), Words("4")], tokens=tokens)
    (part,) = whole(RESPONSES, body(**asked), found)["output"][1]["content"]
    likeliest = {"token": "4", "logprob": -3.0, "bytes": [52]}
    assert part["logprobs"] == [{**likeliest, "top_logprobs": [likeliest]}]


def test_reasoning_comes_back_sealed_or_shown_but_never_changed() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": seal("hm")}
    shown = {"content": [{"type": "reasoning_text", "text": "hm"}]}
    for given_back in (item, {**item, **shown}, {"type": "reasoning", **shown}):
        assert parse(input=[USER, given_back]).messages[1]["reasoning_content"] == "hm"
    changed = {**item, "content": [{"type": "reasoning_text", "text": "other"}]}
    for wrong in (changed, {**item, "encrypted_content": "gAAAA"}, {"type": "reasoning", "id": "rs_1", "summary": []}):
        with pytest.raises(InvalidRequest, match=r"input\.1"):
            parse(input=[USER, wrong])


def test_a_broken_stream_says_so_twice_and_an_error_is_openais() -> None:
    error = EngineUnavailable("no engine")
    writer = RESPONSES.writer(NAME, MODEL, parse(), 0, 40)
    seen = events(writer.opening() + writer.fail(error))
    assert [event["type"] for event in seen[2:]] == ["response.failed", "error"]
    assert seen[2]["response"]["error"] == {"code": "server_error", "message": "no engine"}
    assert (seen[3]["error"]["code"], seen[3]["code"]) == ("engine_unavailable", "engine_unavailable")
    assert json.loads(RESPONSES.error(error)) == error.to_wire()
    long = ContextExceeded("ask for fewer `max_tokens`", param="messages")
    told = json.loads(RESPONSES.error(long))["error"]
    assert (told["param"], told["message"]) == ("input", "ask for fewer `max_output_tokens`")
    assert writer.keep_alive.startswith(b":")


def test_tools_that_the_provider_would_run_are_left_out_and_told() -> None:
    """As the codex command line sends them."""
    group = {"type": "namespace", "name": "agents", "description": "d", "tools": [TOOL]}
    asked = parse(tools=[TOOL, group, {"type": "web_search", "external_web_access": True}])
    assert asked.tools == parse(tools=[TOOL]).tools
    assert asked.left_out == ("namespace", "web_search")
    dated = [{"type": f"web_search_preview_2025_01_{day:02}"} for day in range(10, 20)]
    assert parse(tools=dated).left_out == ("web_search_preview",)
