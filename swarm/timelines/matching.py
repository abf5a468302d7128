"""Which served calls a list of messages begins with, by canonical keys in a trie.

Two messages have equal keys exactly when they say the same: absent, null and empty optional fields are one; text parts
equal the joined string; a tool call is its function's name and its arguments as JSON, whatever its id; outer whitespace
of an assistant's words and thinking does not count. Arguments with half a character, or nested hundreds deep, stay
text.

Matching begins where one of the latest histories ended, compared as plain values; from there a message in the form it
had last time costs one comparison.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from swarm.rendering.messages import Message
from swarm.timelines.node import Node

_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())
_IDS = frozenset({"id", "tool_call_id"})
"""Fields that only tie a result to its call: clients and dialects write them anew."""


def normalise(message: Message) -> dict[str, Any]:
    """Return the message as templates want it. It has no null or empty optional field, its text parts are joined, and
    the arguments of its tool calls are objects where they are valid JSON objects."""
    kept = {name: value for name, value in message.items() if name == "role" or value not in _EMPTY}
    content, calls = kept.get("content", ""), kept.get("tool_calls")
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    kept["content"] = content
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        kept["tool_calls"] = plain = list(calls)
        for place, call in enumerate(plain):
            function = called_function(call)
            arguments = _parse_arguments(function.get("arguments"))
            if isinstance(arguments, Mapping):
                plain[place] = {**call, "function": {**function, "arguments": arguments}}
    return kept


def canonical(message: Message) -> Hashable:
    """Return a key that equal messages share; a plain message's is the pair of its role and text."""
    role = message.get("role")
    if len(message) == 2 and type(message.get("content")) is str and "role" in message:
        return role, message["content"].strip() if role == "assistant" else message["content"]
    plain = {name: value for name, value in normalise(message).items() if name not in _IDS}
    if role == "assistant":
        trimmed = {name: value.strip() if isinstance(value, str) else value for name, value in plain.items()}
        plain = {name: value for name, value in trimmed.items() if value != "" or name in ("role", "content")}
    if plain.keys() == {"role", "content"} and isinstance(plain["content"], str):
        return role, plain["content"]
    if isinstance(calls := plain.get("tool_calls"), list):
        functions = [(call, called_function(call)) for call in calls]
        plain["tool_calls"] = [
            [of.get("name"), _parse_arguments(of.get("arguments"))] if of else call for call, of in functions
        ]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str)


def called_function(call: object) -> Mapping[str, Any]:
    """Return the function that a tool call names, with its arguments; empty for what is no call."""
    function = call.get("function") if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _parse_arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return from_json(arguments)  # unlike json's, it refuses half characters, and depths that others fail on
    except ValueError:
        return arguments


@dataclass(slots=True, eq=False)
class History:
    """Where one list of messages ends. `node` is the call that served the last of them, if one did. form: the message
    in the form it last came in, None until it came in a request. answered: calls were served here."""

    children: dict[Hashable, History] = field(default_factory=dict)
    node: Node | None = None
    answered: bool = False
    form: Message | None = None
    _last: History | None = None

    def find_child(self, message: Message) -> History | None:
        if self._last is not None and self._last.form == message:
            return self._last
        found = self.children.get(canonical(message))
        if found is not None:
            self._last = found
        return found

    def extend(self, messages: Sequence[Message]) -> History:
        history = self
        for message in messages:
            following = history.find_child(message)
            if following is None:
                following = history.children.setdefault(canonical(message), History(form=message))
                history._last = following
            history = following
        return history


@dataclass(frozen=True, slots=True)
class Match:
    """How far a list of messages is known. node: the last call that served one of them, whose answer is message number
    `length` (None, 0 where no call did). at: where its answer ends in the trie. departs: behind it, another answer
    stands where one was served. restated: a known message came back in a form that templates may render differently."""

    node: Node | None
    length: int
    at: History
    departs: bool
    restated: bool


_LATEST = 4
"""Histories a matcher remembers: about as many as an agent goes on with in turns."""


class Matcher:
    """Matches the requests that were told of the same tools."""

    def __init__(self) -> None:
        self.root = History()
        self._latest: list[tuple[tuple[Message, ...], Match]] = []

    def match(self, messages: tuple[Message, ...]) -> Match:
        """Return the longest served history that `messages` begin with."""
        matches = (match for history, match in self._latest if messages[: len(history)] == history)
        start = next(matches, Match(None, 0, self.root, False, False))
        node, length, at = start.node, start.length, start.at
        departs, altered = False, False
        history = at
        for position, message in enumerate(messages[length:], start=length + 1):
            following = history.find_child(message)
            served = following is not None and following.node is not None
            departs = departs or (history.answered and message.get("role") == "assistant" and not served)
            if following is None:
                break
            history, before = following, following.form
            if before is None or before != message or _has_object_arguments(message):
                history.form = message  # templates may see the difference
                altered = altered or (before is not None and _form_key(before) != _form_key(message))
            if history.node is not None:
                node, length, at, departs = history.node, position, history, False
        result = Match(node, length, at, departs, altered)
        if result.restated:
            self._latest.clear()
        if result.node is not None and not any(map(_has_object_arguments, messages[start.length : result.length])):
            self._latest = [(messages[: result.length], result), *self._latest[: _LATEST - 1]]
        return result


def _has_object_arguments(message: Message) -> bool:
    """Tell whether tool arguments came as objects, whose order templates show and plain comparison does not."""
    calls = message.get("tool_calls")
    return isinstance(calls, list) and not all(isinstance(called_function(c).get("arguments"), str) for c in calls)


def _form_key(message: Message) -> str:
    """Return all that a template can tell of a message, in the order it can tell it."""
    return repr(sorted(normalise(message).items()))
