"""The Messages API: turns and blocks in, blocks and events out, and a history that comes back as it was served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from swarm import errors
from swarm.dialects.base import CompletionRequest, ToolChoice, seal, signature
from swarm.dialects.messages import MESSAGES, parse_count
from swarm.rendering.messages import Piece, ToolCall, Words
from swarm.timelines.tree import canonical
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.swarm.dialects.support import MODEL, NAME, answers, events, kept, reply, streamed, whole

streaming = lazy("anthropic.lib.streaming._messages")
types = lazy("anthropic.types")
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 9, "messages": [USER], **fields}


def parse(**fields: Any) -> CompletionRequest:
    return MESSAGES.parse(json.dumps(body(**fields)).encode(), MODEL)


def turns(*found: Any) -> tuple[Any, ...]:
    return parse(messages=list(found)).messages


CALLS = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": f"call{n}", "name": "add", "input": {}} for n in range(3)],
}


def result(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call0", **fields}]}


def test_a_system_prompt_is_the_clients_and_comes_first() -> None:
    assert parse().messages == (USER,)
    assert parse(system="be brief").messages == ({"role": "system", "content": "be brief"}, USER)
    blocks = [{"type": "text", "text": "be ", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "kind"}]
    assert parse(system=blocks).messages == ({"role": "system", "content": "be kind"}, USER)
    late = {"role": "system", "content": "now be long"}
    assert turns(USER, late, USER) == (USER, late, USER)


def test_tool_results_and_words_keep_their_order() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "call0", "content": "1"},
        {"type": "tool_result", "tool_use_id": "call1", "content": [{"type": "text", "text": "2"}]},
        {"type": "tool_result", "tool_use_id": "call2"},
        {"type": "text", "text": "go "},
        {"type": "text", "text": "on"},
    ]
    assert turns(USER, CALLS, {"role": "user", "content": content})[2:] == (
        {"role": "tool", "tool_call_id": "call0", "content": "1"},
        {"role": "tool", "tool_call_id": "call1", "content": "2"},
        {"role": "tool", "tool_call_id": "call2", "content": ""},
        {"role": "user", "content": "go on"},
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": "no file", "is_error": True}, "Error: no file"), ({"is_error": True}, "Error: "),
        ({"content": "error: no file", "is_error": True}, "error: no file"),
        ({"content": "fine", "is_error": False}, "fine"),
    ],
)  # fmt: skip
def test_the_model_sees_that_a_result_is_an_error(fields: dict[str, Any], text: str) -> None:
    assert turns(USER, CALLS, result(**fields))[2]["content"] == text


@cache  # building it takes seconds
def stream_event() -> TypeAdapter[Any]:
    return TypeAdapter(types.RawMessageStreamEvent)


@given(answers, st.booleans())
def test_what_was_served_comes_back_as_the_message_that_was_kept(pieces: Sequence[Piece], omitted: bool) -> None:
    found = reply(pieces)
    asked = body(thinking={"type": "adaptive", "display": "omitted"}) if omitted else body()
    answer = types.Message.model_validate(whole(MESSAGES, asked, found))
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in streamed(MESSAGES, asked, pieces, found):
        seen = stream_event().validate_python(event)
        snapshot = streaming.accumulate_event(event=seen, current_snapshot=snapshot, json_bufs=buffers)
    for message in (answer, snapshot):
        back = {"role": "assistant", "content": [block.model_dump(mode="json") for block in message.content]}
        first, turn, last = turns(USER, back, USER)
        assert (first, last) == (USER, USER)
        assert canonical(turn) == canonical(kept(found))
    assert snapshot.usage.model_dump() == answer.usage.model_dump()
    assert (snapshot.stop_reason, snapshot.id) == (answer.stop_reason, answer.id)


@given(answers)
def test_blocks_of_a_stream_open_and_close_in_turn(pieces: Sequence[Piece]) -> None:
    seen = streamed(MESSAGES, body(), pieces, reply(pieces))
    assert [event["type"] for event in (seen[0], *seen[-2:])] == ["message_start", "message_delta", "message_stop"]
    place, is_open = 0, False
    for event in seen[1:-2]:
        assert event["index"] == place
        assert is_open == (event["type"] != "content_block_start")
        is_open = event["type"] != "content_block_stop"
        place += not is_open
    assert not is_open
    assert place >= 1


@pytest.mark.parametrize(
    ("pieces", "fields", "reason", "sequence"),
    [
        ([Words("x")], {}, "end_turn", None),
        ([Words("x")], {"stop": "END"}, "stop_sequence", "END"),
        ([ToolCall("add", "{}")], {}, "tool_use", None),
        ([ToolCall("add", "{}")], {"finish": "length"}, "max_tokens", None),
    ],
)
def test_why_an_answer_ended(pieces: list[Piece], fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    found = reply(pieces, **fields)
    ends = [whole(MESSAGES, body(), found), streamed(MESSAGES, body(), pieces, found)[-2]["delta"]]
    assert [(end["stop_reason"], end["stop_sequence"]) for end in ends] == [(reason, sequence)] * 2


@pytest.mark.parametrize("arguments", ['{"a": 1e999}', '{"a":' * 300 + "1" + "}" * 300, "{\n}"])
def test_arguments_are_served_as_the_model_wrote_them(arguments: str) -> None:
    ask, found = parse(), reply([ToolCall("add", arguments)])
    raw = MESSAGES.format_reply(NAME, MODEL, ask, [found])
    assert arguments.encode() in raw
    assert json.loads(raw)["content"][0]["input"] == json.loads(arguments)
    (delta,) = [
        event["delta"]
        for event in streamed(MESSAGES, body(), [*found.answer.tool_calls], found)
        if event["type"] == "content_block_delta"
    ]
    assert delta["partial_json"] == arguments


def test_usage_counts_each_prompt_token_once() -> None:
    used = whole(MESSAGES, body(), reply([Words("x")]))["usage"]
    assert used == {
        "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 30, "output_tokens": 7,
    }  # fmt: skip


def test_sampling_tools_and_choices_are_understood() -> None:
    wishes = parse(temperature=1, top_p=0.5, top_k=4, stop_sequences=["a", "b"]).sampling
    assert (wishes.max_tokens, wishes.temperature, wishes.top_p, wishes.top_k, wishes.stop) == (
        9, 1.0, 0.5, 4, ("a", "b"),
    )  # fmt: skip
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert parse(tools=[TOOL]).tools == ({"type": "function", "function": function},)
    for choice, understood in [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "add"}, ToolChoice("required", "add")),
        ({"type": "none"}, ToolChoice("none")),
    ]:
        assert parse(tool_choice=choice, tools=[TOOL]).tool_choice == understood
    assert parse().parallel_tool_calls
    assert not parse(tool_choice={"type": "auto", "disable_parallel_tool_use": True}).parallel_tool_calls
    format_ = {"type": "json_schema", "schema": {"type": "object"}}
    assert parse(output_config={"format": format_}).sampling.json_schema == {"type": "object"}
    advised = parse(output_config={"effort": "high"})
    assert (advised.left_out, advised.sampling.others) == (("output_config.effort",), {})


@pytest.mark.parametrize(
    ("block", "place"),
    [
        ({"type": "thinking", "thinking": "other", "signature": signature("hm")}, "signature"),
        ({"type": "thinking", "thinking": "other", "signature": seal("hm")}, "signature"),
        ({"type": "thinking", "thinking": "hm", "signature": ""}, "signature"),
        ({"type": "thinking", "thinking": "hm"}, "signature"),
        ({"type": "redacted_thinking", "data": "EmwK"}, "data"),
    ],
)
def test_thinking_that_is_not_ours_is_refused(block: dict[str, Any], place: str) -> None:
    with pytest.raises(errors.InvalidRequest) as found:
        turns(USER, {"role": "assistant", "content": [block]}, USER)
    assert found.value.param == f"messages.1.content.0.{place}"


def test_a_count_shows_the_model_what_a_call_would() -> None:
    asked = {"model": MODEL, "messages": [USER], "system": "be brief", "tools": [TOOL]}
    counted = parse_count(json.dumps(asked).encode(), MODEL)
    called = parse(system="be brief", tools=[TOOL])
    assert (counted.messages, counted.tools) == (called.messages, called.tools)
    with pytest.raises(errors.InvalidRequest, match="max_tokens"):
        parse_count(json.dumps({**asked, "max_tokens": 3}).encode(), MODEL)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidRequest("x", param="top_k"), "invalid_request_error"),
        (errors.InvalidKey("x"), "authentication_error"), (errors.NotFound("x"), "not_found_error"),
        (errors.EngineUnavailable("x"), "overloaded_error"), (errors.LeaseLost("x"), "conflict_error"),
        (errors.EpisodeEnded("x"), "invalid_request_error"), (errors.Throttled("x"), "rate_limit_error"),
        (errors.SwarmError("x"), "api_error"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_form_and_keep_our_code(error: errors.SwarmError, kind: str) -> None:
    wire = {"type": kind, "message": "x", "code": error.code, "param": error.param}
    assert json.loads(MESSAGES.error(error)) == {"type": "error", "error": wire}
    writer = MESSAGES.writer(NAME, MODEL, parse(), 0, 40)
    assert events(writer.fail(error)) == [{"type": "error", "error": wire}]


def test_a_prompt_that_is_too_long_is_told_in_the_words_agents_look_for() -> None:
    told = json.loads(MESSAGES.error(errors.ContextExceeded("expected 200 tokens", param="messages")))["error"]
    assert_golden(told["message"])
    assert (told["type"], told["code"]) == ("invalid_request_error", "context_length_exceeded")


def test_tools_that_the_provider_would_run_are_left_out_and_told_once_a_kind() -> None:
    """A name that the server has not heard before is a count, a metric and a line of its log."""
    sent = [{"type": f"web_search_{number:08}", "name": "search", "max_uses": 8} for number in range(1000)]
    asked = parse(tools=[TOOL, *sent, {"type": "mcp_toolset"}])
    assert (asked.tools, asked.left_out) == (parse(tools=[TOOL]).tools, ("web_search", "mcp_toolset"))


@pytest.mark.parametrize(
    ("thread", "code"),
    [
        ({}, "thread_unsupported_request"), ({"type": "create"}, "thread_unsupported_request"),
        ({"type": "continue", "previous_message_id": "msg_1"}, "thread_not_found"),
    ],
)  # fmt: skip
def test_a_thread_is_refused_in_the_protocols_own_words(thread: dict[str, Any], code: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        parse(thread=thread)
    error = json.loads(MESSAGES.error(refused.value))["error"]
    assert (error["type"], error["param"], error["details"]["error_code"]) == ("invalid_request_error", "thread", code)
