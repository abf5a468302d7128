"""The Harmony format of gpt-oss: an answer is messages on channels, each with a header and a body.

analysis is thinking, final is words, commentary is words too unless its header is addressed to a function, which
makes it a call. The mark that ends a call is a stop id and may be missing from the text: a call whose arguments
are whole JSON is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swarm.answers.answer import Piece, Reader, Reasoning, Thinking, ToolCall, Words
from swarm.answers.objects import MOST_CUTS, Cut, members
from swarm.answers.tagged import Pieces, beginning

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_HEADERS = (_START, _CHANNEL, " to=", "<|constrain|>", _MESSAGE)
"""What a header may begin with; text that begins otherwise is words."""
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_end = re.compile("|".join(map(re.escape, _ENDS)))
_recipient = re.compile(r"to=([^\s<]+)")
_channel = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")
_FUNCTIONS = "functions."
_LONGEST = 256
"""Characters within which a header must end; text without its end is words."""


class _Reader:
    def __init__(self, opening: str, tools: bool) -> None:
        self._tools = tools
        self._pieces = Pieces()
        self._text = ""
        self._raw = ""  # the present message's header, as it was sampled
        self._name = ""
        self._searched = self._cuts = 0
        self._step: Callable[[bool], bool] = self._between
        self._prompted = opening
        if _MESSAGE in opening:
            self._enter(opening)

    def feed(self, text: str) -> Sequence[Piece]:
        self._text += text
        return self._advance(over=False)

    def finish(self) -> Sequence[Piece]:
        return self._advance(over=True)

    def _advance(self, *, over: bool) -> Sequence[Piece]:
        while self._step(over):
            pass
        return self._pieces.take()

    def _between(self, over: bool) -> bool:
        """Before a message: read its header, or take what is none as words."""
        text = self._text
        if not over and (not text or any(mark.startswith(text) for mark in _HEADERS)):
            return False
        if not text.startswith(_HEADERS):
            self._step = self._words
            return bool(text)
        head, mark, rest = text.partition(_MESSAGE)
        if not mark and not over and len(text) < _LONGEST:
            return False
        if not mark or len(head) + len(mark) > _LONGEST:
            self._step = self._words
            return True
        self._raw, self._text = head + mark, rest
        self._enter(self._prompted + head)
        return True

    def _enter(self, header: str) -> None:
        recipient, channel = _recipient.search(header), _channel.search(header)
        self._prompted = ""
        if recipient:
            self._name = recipient[1].removeprefix(_FUNCTIONS)
            known = self._tools and self._name and self._name != recipient[1]
            self._step = self._call if known else self._unread
            self._searched = self._cuts = 0
        else:
            self._step = self._think if channel and channel[1] == "analysis" else self._words

    def _words(self, over: bool) -> bool:
        return self._stream(Words, over)

    def _think(self, over: bool) -> bool:
        return self._stream(Reasoning, over)

    def _stream(self, kind: type[Words] | type[Reasoning], over: bool) -> bool:
        end = _end.search(self._text)
        if end:
            self._pieces.text(kind, self._text[: end.start()])
            self._text = self._text[end.end() :]
            self._step = self._between
            return True
        held = 0 if over else max(beginning(self._text, mark) for mark in _ENDS)
        self._give(kind, len(self._text) - held)
        return False

    def _give(self, kind: type[Words] | type[Reasoning], size: int) -> None:
        self._pieces.text(kind, self._text[:size])
        self._text = self._text[size:]

    def _call(self, over: bool) -> bool:
        end = _end.search(self._text, self._searched)
        if end is None and not over:
            self._searched = max(self._searched, len(self._text) - max(map(len, _ENDS)) + 1)
            return False
        body = self._text[: end.start()] if end else self._text
        try:
            whole = members(body) is not None
        except Cut:
            self._cuts += 1
            if end and self._cuts < MOST_CUTS:
                self._searched = end.end()
                return True
            whole = False
        if not whole:
            self._step = self._unread
            return True
        self._pieces.calls([ToolCall(self._name, body.strip())])
        self._text = self._text[end.end() :] if end else ""
        self._step = self._between
        return True

    def _unread(self, over: bool) -> bool:
        """A message that is for nobody here: words, header and all."""
        self._pieces.text(Words, self._raw)
        self._step = self._words
        return True


class HarmonyFormat:
    """Implements `AnswerFormat`."""

    name = "harmony"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return True: a tokenizer may have its marks as tokens."""
        return True

    def thinking(self, prompt: str) -> Thinking | None:
        """Return None: a thought is a message of its own, which the answer may leave out."""
        return None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`, whose last header may be open."""
        return _Reader(prompt[prompt.rfind(_START) :] if _START in prompt else "", bool(tools))

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return None: the call's marks are special ids that text cannot name."""
        return None
