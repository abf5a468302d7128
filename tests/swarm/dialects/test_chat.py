"""The chat dialect reads every field or refuses it by name, and writes what OpenAI's clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.dialects.base import CompletionRequest, Token, ToolChoice
from swarm.dialects.chat import CHAT
from swarm.errors import InvalidRequest, LeaseLost
from swarm.rendering.messages import Piece, ToolCall, Words
from tests.lazily import lazy
from tests.swarm.dialects.support import MODEL, NAME, answers, kept, reply
from tests.swarm.server.agents import ADD

types = lazy("openai.types.chat")
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}

STORED = "provider_specific_fields"
HI = {"role": "user", "content": "hi"}


def parse(*messages: dict[str, Any], **fields: Any) -> CompletionRequest:
    body = {"model": MODEL, "messages": messages or [{"role": "user", "content": "hi"}], **fields}
    return CHAT.parse(json.dumps(body).encode(), MODEL)


def refused(*messages: dict[str, Any], **fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        parse(*messages, **fields)
    return caught.value.param


def test_every_honoured_field_is_read() -> None:
    ask = parse(
        tools=[ADD], tool_choice={"type": "function", "function": {"name": "add"}}, parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}},
        n=3, stop=["a", "b"], seed=-7, temperature=0.5, top_p=0.9, top_k=4, max_tokens=9, max_completion_tokens=7,
        logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}, logit_bias={"5": 1},
        frequency_penalty=0.5, presence_penalty=0.4, min_tokens=4,
    )  # fmt: skip
    assert (ask.tools, ask.tool_choice, ask.parallel_tool_calls) == ((ADD,), ToolChoice("required", "add"), False)
    assert (ask.n, ask.stream, ask.logprobs, ask.usage_in_stream) == (3, True, 2, True)
    wishes = ask.sampling
    assert (wishes.max_tokens, wishes.temperature, wishes.top_p, wishes.top_k, wishes.seed) == (7, 0.5, 0.9, 4, -7)
    others = {"logit_bias": {"5": 1}, "frequency_penalty": 0.5, "presence_penalty": 0.4, "min_tokens": 4}
    assert (wishes.stop, wishes.json_schema, wishes.others) == (("a", "b"), {"type": "array"}, others)
    assert parse(response_format={"type": "json_schema", "json_schema": {}}).sampling.json_schema == {}


def test_messages_are_read_as_templates_want_them() -> None:
    ask = parse(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ada"},
        {**CALLED, "reasoning": "hm", "refusal": None, "annotations": [], "audio": None, "function_call": None},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    )
    assert ask.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab", "name": "Ada"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({}, "role"),
        ({"role": "robot", "content": "x"}, "role"),
        ({"role": "function", "name": "f", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "content.0"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "content.0"),
        ({"role": "user", "content": [{"type": "text"}]}, "content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "weight": 3}]}, "content.0.weight"),
        ({"role": "user", "content": ["x"]}, "content.0"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "file", "file": {}}]}, "content.1"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "user", "content": "x", "mood": "good"}, "mood"),
        ({"role": "assistant", "tool_calls": {"name": "f"}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "function", "function": CALL["function"]}]}, "tool_calls.0.id"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
         "tool_calls.0.function.arguments"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": ""}}, "function_call"),
        ({"role": "tool", "content": "2"}, "tool_call_id"),
        ({"role": "tool", "content": "2", "tool_call_id": "c2"}, "tool_call_id"),
    ],
)  # fmt: skip
def test_a_message_that_is_wrong_is_refused_by_its_place(message: dict[str, Any], param: str) -> None:
    before: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"}, CALLED, {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]  # fmt: skip
    assert refused(*before, message) == f"messages.3.{param}"


@given(pieces=st.lists(answers, min_size=1, max_size=3))
def test_what_is_served_comes_back_as_the_message_the_timeline_keeps(pieces: list[list[Piece]]) -> None:
    ask = parse(n=len(pieces))
    body = json.loads(CHAT.format_reply(NAME, MODEL, ask, [reply(one) for one in pieces]))
    types.ChatCompletion.model_validate(body)
    for one, choice in zip(pieces, body["choices"], strict=True):
        found = reply(one)
        last = [{"role": "tool", "tool_call_id": name, "content": ""} for name in found.call_ids]
        assert parse(choice["message"], *last).messages[0] == kept(found)
        assert choice["finish_reason"] == ("tool_calls" if found.call_ids else "stop")


@pytest.mark.parametrize("calls", [[], [ToolCall("add", "{}")]])
def test_an_answer_that_was_cut_says_so_whatever_it_called_before(calls: list[Piece]) -> None:
    found = reply([*calls, Words("<tool_call>{")], finish="length")
    body = json.loads(CHAT.format_reply(NAME, MODEL, parse(), [found]))
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["message"].get("tool_calls", [])) == len(calls)


@given(pieces=answers)
def test_a_stream_says_what_the_whole_answer_says(pieces: list[Piece]) -> None:
    ask, found = parse(stream=True, stream_options={"include_usage": True}), reply(pieces)
    writer = CHAT.writer(NAME, MODEL, ask, 3, 40)
    raw, calls = writer.opening(), iter(found.call_ids)
    for piece in pieces:
        raw += writer.piece(0, piece, (), next(calls) if isinstance(piece, ToolCall) else None)
    raw += writer.closing([found])
    *events, end = [event.removeprefix(b"data: ") for event in raw.split(b"\n\n")[:-1]]
    chunks = [json.loads(event) for event in events]
    for chunk in chunks:
        types.ChatCompletionChunk.model_validate(chunk)
    whole = json.loads(CHAT.format_reply(NAME, MODEL, ask, [found]))
    assert end == b"[DONE]"
    assert chunks[-1]["usage"] == whole["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call.pop("index") for call in streamed] == list(range(len(streamed)))
    assert streamed == message.get("tool_calls", [])
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_log_probs_go_out_with_their_alternatives_and_bytes() -> None:
    tokens = (Token("hé", -0.5, (("hé", -0.5), ("ha", -1.5))),)
    found = reply([Words("hé")], tokens=tokens)
    body = json.loads(CHAT.format_reply(NAME, MODEL, parse(logprobs=True, top_logprobs=2), [found]))
    (token,) = body["choices"][0]["logprobs"]["content"]
    assert (token["token"], token["logprob"], bytes(token["bytes"])) == ("hé", -0.5, "hé".encode())
    assert [other["token"] for other in token["top_logprobs"]] == ["hé", "ha"]
    writer = CHAT.writer(NAME, MODEL, parse(logprobs=True, stream=True), 3, 40)
    chunk = json.loads(writer.piece(0, Words("hé"), tokens).removeprefix(b"data: "))
    assert chunk["choices"][0]["logprobs"]["content"] == [token]


def test_a_stream_that_fails_ends_with_the_error_and_no_end_mark() -> None:
    raw = CHAT.writer(NAME, MODEL, parse(stream=True), 3, 40).fail(LeaseLost("gone"))
    assert json.loads(raw.removeprefix(b"data: "))["error"]["code"] == "lease_lost"
    assert b"[DONE]" not in raw


def test_what_litellm_stored_of_an_answer_is_taken_back() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}", STORED: {}}, STORED: {}}
    said = {"role": "assistant", "content": "x", STORED: {"refusal": None, "reasoning_content": "hm"}}
    plain = {"role": "assistant", "content": "x"}
    assert parse(HI, said, HI).messages == parse(HI, plain, HI).messages
    assert parse(HI, {**said, "tool_calls": [call]}).messages[1]["tool_calls"][0]["function"] == {
        "name": "add", "arguments": "{}",
    }  # fmt: skip
    for stored in ({"refusal": "no"}, {"citations": ["x"]}):
        assert refused(HI, {**plain, STORED: stored}) == f"messages.1.{STORED}.{next(iter(stored))}"
