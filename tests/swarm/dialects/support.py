"""Answers for the tests of dialects, and what the timeline keeps of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from swarm.backends.protocols import Finish
from swarm.dialects.base import Dialect, Reply, Token
from swarm.rendering.messages import Message, Piece, Reasoning, ToolCall, Words, assemble_answer, chat_message

MODEL = "fake"
NAME = "abc123"

_scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
_arguments = st.dictionaries(st.text(max_size=5), _scalars | st.lists(_scalars, max_size=2), max_size=3)
_calls = st.builds(lambda name, found: ToolCall(name, json.dumps(found)), st.sampled_from(("add", "look")), _arguments)
_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
answers = st.lists(st.builds(Words, _texts) | st.builds(Reasoning, _texts) | _calls, max_size=6)
"""Pieces of an answer in any order."""

_TYPES = (
    "message reasoning function_call function_call_output user assistant system developer tool text input_text "
    "output_text reasoning_text tool_use tool_result thinking redacted_thinking custom function auto any call0"
)
_FIELDS = (
    "type role content text id call_id name arguments output summary encrypted_content thinking signature data input "
    "tool_use_id is_error status input_schema parameters strict format schema cache_control"
)
_WORDS = st.sampled_from(_TYPES.split())
_NAMES = st.sampled_from(_FIELDS.split())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=12,
)
"""Values made of the protocols' own words, put together in any way."""


def reply(
    pieces: Sequence[Piece], *, finish: Finish = "stop", stop: str | None = None, tokens: Sequence[Token] = ()
) -> Reply:
    """Return the finished generation of some pieces, with call ids `call0`, `call1`, ..."""
    answer = assemble_answer(pieces)
    ids = tuple(f"call{number}" for number in range(len(answer.tool_calls)))
    return Reply(answer, ids, finish, stop, 40, 30, 7, 3, "key", tuple(tokens))


def kept(found: Reply) -> Message:
    """Return the message the timeline keeps of an answer, in OpenAI's chat form."""
    return chat_message(found.answer, found.call_ids)


def streamed(dialect: Dialect, body: dict[str, Any], pieces: Sequence[Piece], found: Reply) -> list[dict[str, Any]]:
    ask = dialect.parse(json.dumps(body).encode(), MODEL)
    writer = dialect.writer(NAME, MODEL, ask, 3, found.prompt_tokens)
    raw = writer.opening()
    calls = iter(found.call_ids)
    for piece in pieces:
        raw += writer.piece(0, piece, (), next(calls) if isinstance(piece, ToolCall) else None)
    return events(raw + writer.closing([found]))


def events(raw: bytes) -> list[dict[str, Any]]:
    """Return the data of named events, each of which must bear its type as its name."""
    found = []
    for block in raw.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def whole(dialect: Dialect, body: dict[str, Any], found: Reply) -> Any:
    ask = dialect.parse(json.dumps(body).encode(), MODEL)
    return json.loads(dialect.format_reply(NAME, MODEL, ask, [found]))
