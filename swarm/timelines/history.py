"""Message histories as a trie: which served calls a list of messages begins with.

Matching begins where one of the latest histories ended that the messages begin with, compared as plain values. From
there on a message in the form it had last time costs one comparison; only one in a new form is brought to its
canonical key.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from swarm.backends.protocols import Message
from swarm.timelines.messages import canonical, normalise
from swarm.timelines.node import Node


@dataclass(slots=True, eq=False)
class History:
    """Where one list of messages ends. `node` is the call that served the last of them, if one did.

    form: the message in the form it last came in, None until it came in a request. answered: calls were served here.
    """

    children: dict[Hashable, History] = field(default_factory=dict)
    node: Node | None = None
    answered: bool = False
    form: Message | None = None
    _last: History | None = None

    def following(self, message: Message) -> History | None:
        """Return where `message` leads from here, or None if it never came here."""
        if self._last is not None and self._last.form == message:
            return self._last
        found = self.children.get(canonical(message))
        if found is not None:
            self._last = found
        return found

    def extended(self, messages: Sequence[Message]) -> History:
        """Return where `messages` lead from here, making the way."""
        history = self
        for message in messages:
            following = history.following(message)
            if following is None:
                following = history.children.setdefault(canonical(message), History(form=message))
                history._last = following
            history = following
        return history


@dataclass(frozen=True, slots=True)
class Match:
    """How far a list of messages is known.

    node: the last call that served one of them, whose answer is message number `length` (None, 0 where no call did).
    at: where its answer ends in the trie. departs: behind it, another answer stands where one was served.
    restated: a known message came back in a form that templates may render differently.
    """

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
        start = next((m for known, m in self._latest if messages[: len(known)] == known), None)
        found = _walked(start or Match(None, 0, self.root, False, False), messages)
        if found.restated:
            self._latest.clear()
        if found.node is not None and not any(map(_ordered, messages[start.length if start else 0 : found.length])):
            self._latest = [(messages[: found.length], found), *self._latest[: _LATEST - 1]]
        return found


def _walked(start: Match, messages: Sequence[Message]) -> Match:
    """Go on from where `start` ended."""
    node, length, at = start.node, start.length, start.at
    departs, altered = False, False
    history = at
    for position, message in enumerate(messages[length:], start=length + 1):
        following = history.following(message)
        if history.answered and message.get("role") == "assistant" and (following is None or following.node is None):
            departs = True
        if following is None:
            break
        altered = _reform(following, message) or altered
        history = following
        if history.node is not None:
            node, length, at, departs = history.node, position, history, False
    return Match(node, length, at, departs, altered)


def _reform(history: History, message: Message) -> bool:
    """Keep the form a message came in; tell whether templates may see the difference."""
    before = history.form
    if before is not None and before == message and not _ordered(message):
        return False
    history.form = message
    return before is not None and _shown(before) != _shown(message)


def _ordered(message: Message) -> bool:
    """Tell whether tool arguments came as objects, whose order templates show and plain comparison does not."""
    calls = message.get("tool_calls")
    return isinstance(calls, list) and not all(_textual(call) for call in calls)


def _textual(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("arguments"), str)


def _shown(message: Message) -> str:
    """Return all that a template can tell of a message, in the order it can tell it."""
    return repr(sorted(normalise(message).items()))
