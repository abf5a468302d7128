"""Finds the splice of a long history by rendering a short one.

What follows an answer seldom depends on messages far before it. So the template is shown an anchored history: its
head, the turn with the last user message, the last turn that holds thinking, and the last two turns. Whether that
gives the same splice as the whole history is audited: at every doubling of its length, and for every new order of
roles. At the first disagreement anchoring is over for good, and whole histories are rendered.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import chain
from typing import Any

from swarm.backends.protocols import BackendError, Message, Renderer, Tool
from swarm.timelines.messages import normalise
from swarm.timelines.splice import TemplateSplice, splice

_LAST_TURNS = 3
"""Turns kept at the end: the served answer and the two before it."""


class TemplateSplices:
    """The splices of one episode's histories."""

    def __init__(self, renderer: Renderer, ends: Sequence[str]) -> None:
        self._renderer = renderer
        self._ends = ends
        self._audited: set[tuple[Any, ...]] = set()
        self.trusted = True
        """No anchored history disagreed with the whole one so far."""

    def find(
        self, known: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], *, whole: bool = False
    ) -> TemplateSplice | None:
        """Return where `known` goes on with `new` (`splice`); `before` is of the whole history only where `whole`."""
        short = known if whole or not self.trusted else anchored(known)
        if len(short) == len(known):
            return self._splice(known, new, tools)
        kind = (len(known).bit_length(), bool(tools), *dict.fromkeys(message.get("role") for message in new))
        if kind not in self._audited:
            self._audited.add(kind)
            return self._audit(short, known, new, tools)
        try:
            return self._splice(short, new, tools)
        except BackendError:  # the template takes whole histories only
            self.trusted = False
            return self._splice(known, new, tools)

    def _audit(
        self, short: Sequence[Message], known: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]
    ) -> TemplateSplice | None:
        found = self._splice(known, new, tools)
        try:
            expected = self._splice(short, new, tools)
        except BackendError:  # the template takes whole histories only
            self.trusted = False
        else:
            self.trusted = _cut(found) == _cut(expected)
        return found

    def _splice(self, known: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]) -> TemplateSplice | None:
        plain, further = [normalise(message) for message in known], [normalise(message) for message in new]
        return splice(self._renderer, plain, further, tools, self._ends)


def anchored(known: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of a history, which ends with an answer, that tell what its template writes next.

    A turn is an answer and what follows it; what comes before the first is the head.
    """
    roles = [message.get("role") for message in known]
    answers = [position for position, role in enumerate(roles) if role == "assistant"]
    if len(answers) <= _LAST_TURNS + 1:
        return known
    asked = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else -1
    thought = next((position for position in reversed(answers) if _thinks(known[position])), -1)
    kept = {
        *range(len(answers) - _LAST_TURNS, len(answers)),
        *(bisect(answers, place) - 1 for place in (asked, thought)),
    }
    ends = [*answers[1:], len(known)]
    turns = [known[answers[turn] : ends[turn]] for turn in sorted(kept - {-1})]
    return [*known[: answers[0]], *chain.from_iterable(turns)]


def _thinks(answer: Message) -> bool:
    content = answer.get("content")
    return bool(answer.get("reasoning_content")) or (isinstance(content, str) and "</think>" in content)


def _cut(found: TemplateSplice | None) -> tuple[str | None, str] | None:
    return None if found is None else (found.answer, found.rest)
