"""Reads the items of a Responses request into messages in the form of OpenAI's chat completions.

What is decided here and nowhere else:

- Items of one assistant turn (reasoning, words, function calls) become one assistant message, as the turn was
  served. Where item ids are sent back they tell the turns apart; without them a second `message` opens a new one.
- A `reasoning` item must bring its `content` or its `encrypted_content`, for nothing is kept here.
- A function call's output must come after the call. `item_reference` and the items of built-in tools are refused.
- `developer` messages are `system` messages: chat templates know no other word for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.backends.protocols import Message
from swarm.server.dialects.opaque import unsealed
from swarm.server.dialects.reading import Fields, answered, is_plain, joined_text, refused, shown

_ITEM_ID = re.compile(r"(?:msg|rs|fc)_(.+)_\d+")


def messages_of(found: Any) -> tuple[Message, ...]:
    """Return the messages of an `input`: a string, or a list of items."""
    if isinstance(found, str):
        return ({"role": "user", "content": found},)
    if not isinstance(found, list) or not found:
        raise refused("input", f"expected a string or a list of items, found {shown(found)}")
    conversation = _Conversation()
    for number, item in enumerate(found):
        if is_plain(item):
            conversation.say(item["role"], item["content"], None)
        else:
            _read_item(Fields(item, f"input.{number}"), conversation)
    return conversation.messages()


@dataclass(slots=True)
class _AssistantTurn:
    """The items of one assistant turn, as they come; `response` names the response they were served in."""

    response: str | None = None
    words: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def takes(self, kind: str, response: str | None) -> bool:
        """Return whether an item belongs to this turn."""
        if self.response is not None and response is not None:
            return self.response == response
        return kind != "message" or not self.words

    def message(self) -> Message:
        """Return the turn in the form of OpenAI's chat completions."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.words)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Conversation:
    """Messages being made of items; `called` are the ids of the function calls so far."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self._messages: list[Message] = []
        self._turn: _AssistantTurn | None = None

    def messages(self) -> tuple[Message, ...]:
        self._close_turn()
        return tuple(self._messages)

    def add(self, message: Message) -> None:
        """Take what is not the assistant's."""
        self._close_turn()
        self._messages.append(message)

    def say(self, role: str, text: str, item_id: str | None) -> None:
        """Take words of anybody."""
        if role == "assistant":
            self.turn("message", item_id).words.append(text)
        else:
            self.add({"role": "user" if role == "user" else "system", "content": text})

    def turn(self, kind: str, item_id: str | None) -> _AssistantTurn:
        """Return the turn an item of the assistant belongs to."""
        found = _ITEM_ID.fullmatch(item_id) if item_id else None
        response = found[1] if found else None
        if self._turn is None or not self._turn.takes(kind, response):
            self._close_turn()
            self._turn = _AssistantTurn(response)
        self._turn.response = self._turn.response or response
        return self._turn

    def _close_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None


def _read_item(item: Fields, conversation: _Conversation) -> None:
    kind = item.text("type") or "message"
    if kind not in _ITEMS:
        raise refused(item.at("type"), f"items of type {kind!r} are not honoured by this server; leave them out")
    _ITEMS[kind](item, conversation)
    item.close()


def _read_message(item: Fields, conversation: _Conversation) -> None:
    role = item.choice("role", ("user", "assistant", "system", "developer"))
    if role is None:
        raise refused(item.at("role"), "expected a role, found none")
    content = joined_text(item.take("content"), item.at("content"), _TEXTS)
    item_id = item.text("id")
    item.without_influence("status", "phase")
    conversation.say(role, content, item_id)


def _read_call(item: Fields, conversation: _Conversation) -> None:
    function = {"name": item.words("name"), "arguments": item.words("arguments")}
    call_id = item.words("call_id")
    call = {"id": call_id, "type": "function", "function": function}
    conversation.turn("function_call", item.text("id")).calls.append(call)
    conversation.called.add(call_id)
    item.neutral(caller=({"type": "direct"},), **{"async": (False,)})
    item.without_influence("status", "parsed_arguments")


def _read_output(item: Fields, conversation: _Conversation) -> None:
    content = joined_text(item.take("output"), item.at("output"), _TEXTS)
    conversation.add(
        {"role": "tool", "tool_call_id": answered(item, "call_id", conversation.called), "content": content}
    )
    item.neutral(caller=({"type": "direct"},))
    item.without_influence("id", "status", "name")


def _read_reasoning(item: Fields, conversation: _Conversation) -> None:
    found, token = item.items("content") or None, item.text("encrypted_content")
    shown_text = None if found is None else joined_text(found, item.at("content"), {"reasoning_text": _nothing})
    carried = unsealed(token) if token is not None else None
    if token is not None and (carried is None or shown_text not in (None, carried)):
        raise refused(item.at("encrypted_content"), "was not made by this kind of server, or not for this `content`")
    text = shown_text if shown_text is not None else carried
    if text is None:
        raise refused(
            item.where, "expected the reasoning's `content` or `encrypted_content`, found neither; nothing is kept here"
        )
    conversation.turn("reasoning", item.text("id")).reasoning.append(text)
    item.without_influence("summary", "status")


def _nothing(part: Fields) -> None:
    """A part without further fields."""


def _served_text(part: Fields) -> None:
    part.without_influence("annotations", "logprobs", "parsed")


_TEXTS: Mapping[str, Callable[[Fields], None]] = {"input_text": _nothing, "output_text": _served_text}
_ITEMS: Mapping[str, Callable[[Fields, _Conversation], None]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "reasoning": _read_reasoning,
}
