"""Where a template's text goes on after a served answer.

The template alone is asked: with what came before the answer, with all messages, and with the first new message begun
differently. The last two part inside the first new message, and the last end of an answer before that is where the
served one ends. Only that special tokens end an answer is assumed.

Long histories are rendered anchored: the head, the turn with the last user message, the last turn with thinking, and
the last two turns. It is audited against the whole history at every doubling and every new order of roles; after the
first disagreement whole histories are rendered for good.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from swarm.rendering.messages import BackendError, Message, Renderer, Tool
from swarm.timelines.matching import called_function, normalise
from swarm.timelines.node import common_length

_TAG = re.compile(r"\s*<\w+>")


@dataclass(frozen=True, slots=True)
class TemplateSplice:
    """A template's text, cut at the end of a served answer.

    before: all text up to there. answer: the answer as the template writes it, without its opening and its end mark;
    None where it opens it otherwise than it was asked for. rest: what follows, from the end mark (or, in a template
    that writes none, the next role's opening) through the opening of the next answer.
    """

    before: str
    answer: str | None
    rest: str


def _vary_beginning(new: Sequence[Message]) -> list[Message]:
    """Return `new` with another letter for the words of its first message, or with a message where there is none. A tag
    that the words begin with stays, since some templates tell tool results from questions by it."""
    if not new:
        return [{"role": "user", "content": "a"}]
    content = new[0].get("content")
    words = content if isinstance(content, str) else ""
    tag = _TAG.match(words)
    kept = tag[0] if tag else ""
    letter = "b" if words[len(kept) :].lstrip().startswith("a") else "a"
    return [{**new[0], "content": kept + letter}, *new[1:]]


_LAST_TURNS = 3
"""Turns kept at the end: the served answer and the two before it."""


class TemplateSplices:
    """The splices of one episode's histories; `ends` are the texts that may follow an answer."""

    def __init__(self, renderer: Renderer, ends: Sequence[str]) -> None:
        self._renderer = renderer
        self._ends = tuple(ends)
        self._closing: bool | None = None
        self._audited: set[tuple[Any, ...]] = set()
        self.trusted = True
        """No anchored history disagreed with the whole one so far: long ones are bridged by a few of their messages."""

    def find(
        self, known: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], *, whole: bool = False
    ) -> TemplateSplice | None:
        """Return where `known`, whose last message is a served answer, goes on with `new`.

        None where the template changes what comes before the answer because of what follows it, or leaves out
        something the answer says. `before` is of the whole history only where `whole`.
        """
        short = known if whole or not self.trusted else select_anchors(known)
        if len(short) == len(known):
            return self._splice(known, new, tools)
        kind = (len(known).bit_length(), bool(tools), *dict.fromkeys(message.get("role") for message in new))
        audit = kind not in self._audited
        self._audited.add(kind)
        result = self._splice(known, new, tools) if audit else None
        try:
            cut = self._splice(short, new, tools)
        except BackendError:  # the template takes whole histories only
            self.trusted = False
            return result if audit else self._splice(known, new, tools)
        if not audit:
            return cut
        texts = [(found.answer, found.rest) if found else None for found in (result, cut)]
        self.trusted = texts[0] == texts[1]
        return result

    def _splice(
        self, history: Sequence[Message], following: Sequence[Message], tools: Sequence[Tool]
    ) -> TemplateSplice | None:
        known, new = [normalise(message) for message in history], [normalise(message) for message in following]
        text = self._renderer.render([*known, *new], tools=tools, generation_prompt=True)
        opened = self._renderer.render(known[:-1], tools=tools, generation_prompt=True)
        same = text.startswith(opened)
        asked = opened if same else self._renderer.render(known[:-1], tools=tools, generation_prompt=False)
        if not text.startswith(asked):
            return None
        varied = self._renderer.render([*known, *_vary_beginning(new)], tools=tools, generation_prompt=True)
        if new and varied == text:
            return None  # the new message's words are not shown: there is no telling where it begins
        written = text[len(asked) : len(asked) + common_length(text[len(asked) :], varied[len(asked) :])]
        end = max(written.rfind(mark) for mark in self._ends)
        said = [known[-1].get("content"), known[-1].get("reasoning_content")]
        said += [called_function(call).get("name") for call in known[-1].get("tool_calls", ())]
        squeezed = "".join(written[: max(end, 0)].split())  # whatever its spaces
        if end < 0 or not all("".join(part.split()) in squeezed for part in said if isinstance(part, str)):
            return None
        end += len(asked)
        return TemplateSplice(text[:end], text[len(asked) : end] if same else None, text[end:])

    def closes(self, known: Sequence[Message], tools: Sequence[Tool]) -> bool:
        """Tell whether the template itself ends an answer with a mark, whatever follows; it is asked once."""
        if self._closing is None:
            plain = [normalise(message) for message in known]
            shown = self._renderer.render(plain, tools=tools, generation_prompt=False)
            self._closing = shown.rstrip().endswith(self._ends)
        return self._closing


def select_anchors(known: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of a history, which ends with an answer, that tell what its template writes next. A turn is
    an answer and what follows it; what comes before the first is the head."""
    roles = [message.get("role") for message in known]
    answers = [position for position, role in enumerate(roles) if role == "assistant"]
    if len(answers) <= _LAST_TURNS + 1:
        return known
    asked = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else -1
    thoughts = [
        place
        for place in answers
        if known[place].get("reasoning_content") or "</think>" in str(known[place].get("content"))
    ]
    thought = thoughts[-1] if thoughts else -1
    kept = {
        *range(len(answers) - _LAST_TURNS, len(answers)),
        *(bisect(answers, place) - 1 for place in (asked, thought)),
    }
    ends = [*answers[1:], len(known)]
    turns = [known[answers[turn] : ends[turn]] for turn in sorted(kept - {-1})]
    return [*known[: answers[0]], *chain.from_iterable(turns)]
