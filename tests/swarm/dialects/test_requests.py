"""What every dialect does with a request: each field is honoured, asks for nothing, or is refused by its name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.dialects.base import CompletionRequest, Dialect
from swarm.dialects.chat import CHAT
from swarm.dialects.messages import MESSAGES
from swarm.dialects.responses import RESPONSES
from swarm.errors import InvalidRequest, NotFound
from swarm.rendering.messages import Words
from tests.swarm.dialects.support import MODEL, NAME, json_values, reply
from tests.swarm.dialects.test_messages import CALLS, result
from tests.swarm.dialects.test_responses import TOOL
from tests.swarm.server.agents import ADD

USER = {"role": "user", "content": "hi"}
DIALECTS: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [USER]}),
    "messages": (MESSAGES, {"messages": [USER], "max_tokens": 9}),
    "responses": (RESPONSES, {"input": "hi"}),
}


def parse(name: str, **fields: Any) -> CompletionRequest:
    dialect, body = DIALECTS[name]
    return dialect.parse(json.dumps({"model": MODEL, **body, **fields}).encode(), MODEL)


CHAT_REFUSES: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"), ({"messages": []}, "messages"), ({"messages": {}}, "messages"),
    ({"tools": {}}, "tools"), ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"description": "?"}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "kind": 1}}]}, "tools.0.function.kind"),
    ({"tool_choice": "sometimes"}, "tool_choice"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"), ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"), ({"n": 0}, "n"),
    ({"n": 1.5}, "n"), ({"n": 129}, "n"), ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop"),
    ({"stop": 5}, "stop"), ({"stop": {}}, "stop"), ({"stop": ["x"] * 65}, "stop"), ({"stop": "x" * 1001}, "stop"),
    ({"seed": 2**63}, "seed"), ({"temperature": -1}, "temperature"), ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"max_tokens": 0}, "max_tokens"), ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True, "more": 1}}, "stream_options.more"),
    ({"functions": [{"name": "f"}]}, "functions"), ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"), ({"audio": {"voice": "v"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"), ({"no_such_field": 1}, "no_such_field"),
]  # fmt: skip
REFUSED: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"max_tokens": None}, {"max_tokens": 0}, {"messages": []}, {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [USER, {"role": "assistant", "content": "I think"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        {"messages": [USER, result(content="1")]},
        {"messages": [USER, CALLS, result(content=[{"type": "image", "source": {}}])]},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]},
        {"messages": [{**USER, "name": "bob"}]}, {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "web_search", "name": "web_search"}]}, {"tools": [{"name": "add"}]},
        {"tool_choice": {}}, {"thinking": {}}, {"output_config": {"format": {}}},
        {"tool_choice": {"type": "some"}}, {"tool_choice": {"type": "tool"}}, {"tool_choice": {"type": "any"}},
        {"thinking": {"type": "always"}}, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"stop_sequences": [""]}, {"stop_sequences": "x"}, {"stop_sequences": ["x"] * 65}, {"temperature": "hot"},
        {"container": "c"}, {"seed": 3},
    ],
    "responses": [
        {"previous_response_id": "resp_1"}, {"conversation": "c"}, {"background": True}, {"truncation": "auto"},
        {"reasoning": {"summary": "detailed"}}, {"text": {"verbosity": "huge"}},
        {"text": {"format": {"type": "grammar"}}}, {"text": {"format": {}}}, {"tools": [{"type": "local_shell"}]},
        {"tools": [{"type": "web_searches"}]}, {"tool_choice": "required", "tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function"}]}, {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        {"tool_choice": "sometimes"}, {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "name": "other"}, "tools": [TOOL]},
        {"include": ["file_search_call.results"]}, {"top_logprobs": 3}, {"max_output_tokens": 0}, {"temperature": -1},
        {"seed": 3}, {"stream_options": {"include_usage": True}},
        {"input": [{"type": "function_call_output", "call_id": "call0", "output": "1"}]}, {"input": []}, {"input": 3},
        {"input": [{"type": "item_reference", "id": "msg_1"}]}, {"input": [{"type": "computer_call", "id": "c"}]},
        {"input": [{"role": "tool", "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
    ],
}  # fmt: skip
NEUTRAL: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"n": 1, "tools": [], "tool_choice": "auto", "functions": [], "function_call": "none", "modalities": ["text"]},
        {"response_format": {"type": "text"}, "logit_bias": {}, "frequency_penalty": 0.0, "presence_penalty": 0},
        {"repetition_penalty": 1.0, "min_p": 0, "min_tokens": 0, "ignore_eos": False, "stop": []},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}},
        {"temperature": None, "seed": None, "logprobs": False, "top_logprobs": 0, "stream": False},
    ],
    "messages": [
        {"cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "me"}, "service_tier": "auto"},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"thinking": {"type": "disabled"}},
        {"tools": [], "stop_sequences": [], "speed": "standard", "output_config": {}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    ],
    "responses": [
        {"store": True, "user": "me", "prompt_cache_key": "k", "service_tier": "auto", "truncation": "disabled"},
        {"reasoning": {"summary": "auto", "effort": None}, "background": False, "text": {"verbosity": "medium"}},
        {"previous_response_id": None, "tools": [], "include": [], "max_tool_calls": 3},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        *(("chat", fields, param) for fields, param in CHAT_REFUSES),
        *((name, fields, next(iter(fields))) for name, rows in REFUSED.items() for fields in rows),
    ],
)
def test_what_is_wrong_or_not_honoured_is_refused_by_its_name(dialect: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(dialect, **fields)
    assert refusal.value.param is not None
    assert refusal.value.param == param or (dialect != "chat" and refusal.value.param.split(".")[0] == param)


@pytest.mark.parametrize(("dialect", "fields"), [(name, fields) for name, rows in NEUTRAL.items() for fields in rows])
def test_what_asks_for_nothing_passes(dialect: str, fields: dict[str, Any]) -> None:
    assert parse(dialect, **fields).sampling == parse(dialect).sampling
    assert dialect == "responses" or parse(dialect, **fields) == parse(dialect)


FIELDS = (
    "system", "instructions", "tools", "tool_choice", "thinking", "reasoning", "output_config", "text", "include",
    "stop", "stop_sequences", "metadata", "stream_options", "response_format", "top_k", "top_p",
)  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3),
    items=st.lists(json_values, min_size=1, max_size=4),
)
def test_whatever_is_sent_is_read_or_refused_by_name(name: str, fields: dict[str, Any], items: list[Any]) -> None:
    turns = [{"role": role, "content": items} for role in ("assistant", "user")]
    said = {"input": items} if name == "responses" else {"messages": [USER, *turns]}
    with contextlib.suppress(InvalidRequest):
        asked = parse(name, **{**said, **fields})
        assert all(isinstance(message["content"], str) for message in asked.messages)
        DIALECTS[name][0].format_reply(NAME, MODEL, asked, [reply([Words("x")])] * asked.n)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_model_is_not_found(dialect: str) -> None:
    with pytest.raises(NotFound):
        parse(dialect, model="other")
