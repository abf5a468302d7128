"""Message histories as a trie: which served calls a list of messages has behind it.

Matching costs one comparison of plain values a message where it comes back in the form it had last time; only a
message in a new form is brought to its canonical key.
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
    restated: an earlier message came back in a form that templates may render differently.
    """

    node: Node | None
    length: int
    at: History
    departs: bool
    restated: bool


def match(root: History, messages: Sequence[Message]) -> Match:
    """Return the longest served history that `messages` begin with."""
    node, length, at, departs, restated, altered = None, 0, root, False, False, False
    history = root
    for position, message in enumerate(messages, start=1):
        following = history.following(message)
        if history.answered and message.get("role") == "assistant" and (following is None or following.node is None):
            departs = True
        if following is None:
            break
        altered = _reform(following, message) or altered
        history = following
        if history.node is not None:
            node, length, at, departs, restated = history.node, position, history, False, altered
    return Match(node, length, at, departs, restated)


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
