"""The Harmony format of gpt-oss: messages on channels, each with a header and a body.

analysis is thinking, final is words, commentary is words too unless its header is addressed to a function, which
makes it a call. The mark that ends a call is a stop id and may be missing from the text: a call whose arguments
are whole JSON is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from swarm.rendering.messages import AnswerFormat, Reader, Reasoning, ToolCall, Words
from swarm.rendering.reading import MAX_UNTERMINATED, StepReader, UnterminatedString, members, partial_match_size

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


class _HarmonyReader(StepReader):
    def __init__(self, opening: str, tools: bool) -> None:
        super().__init__(self._between)
        self._words = partial(self._stream, Words)
        self._tools = tools
        self._raw = ""  # the present message's header, as it was sampled
        self._name = ""
        self._searched = self._unterminated = 0
        self._prompted = opening
        if _MESSAGE in opening:
            self._enter(opening)

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
            self._searched = self._unterminated = 0
            if known:
                self._step = self._call
            else:
                self._refuse_call()
        else:
            analysis = channel is not None and channel[1] == "analysis"
            self._step = partial(self._stream, Reasoning) if analysis else self._words

    def _stream(self, kind: type[Words] | type[Reasoning], over: bool) -> bool:
        end = _end.search(self._text)
        if end:
            self._pieces.text(kind, self._text[: end.start()])
            self._text = self._text[end.end() :]
            self._step = self._between
            return True
        held = 0 if over else max(partial_match_size(self._text, mark) for mark in _ENDS)
        self._give(kind, len(self._text) - held)
        return False

    def _call(self, over: bool) -> bool:
        end = _end.search(self._text, self._searched)
        if end is None and not over:
            self._searched = max(self._searched, len(self._text) - max(map(len, _ENDS)) + 1)
            return False
        body = self._text[: end.start()] if end else self._text
        try:
            whole = members(body) is not None
        except UnterminatedString:
            self._unterminated += 1
            if end and self._unterminated < MAX_UNTERMINATED:
                self._searched = end.end()
                return True
            whole = False
        if not whole:
            self._refuse_call()
            return True
        self._pieces.calls([ToolCall(self._name, body.strip())])
        self._text = self._text[end.end() :] if end else ""
        self._step = self._between
        return True

    def _refuse_call(self) -> None:
        """Take a message to no known recipient, or one that cannot be read, as words, its header included."""
        self._pieces.text(Words, self._raw)
        self._step = self._words


class HarmonyFormat(AnswerFormat):
    """A thought is its own message; calls, marked by ids that no text names, cannot be forced."""

    name = "harmony"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        return True

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        return _HarmonyReader(prompt[prompt.rfind(_START) :] if _START in prompt else "", bool(tools))
