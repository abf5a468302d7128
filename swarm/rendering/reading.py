"""Incremental reading of answers, and JSON as the model wrote it.

Text is given back as it was written, never parsed and written anew; only strict JSON counts (no NaN, no raw line break
in a string), for a client must be able to read it. Text that ends inside a string raises `UnterminatedString`: the mark
that was taken for the end of a call is a part of that string. Readers are steps over the text that came so far;
neighbouring pieces of one kind become one, and a piece is given out once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from swarm.rendering.messages import Piece, Reader, Reasoning, ToolCall, Words

MAX_UNTERMINATED = 256
"""Most end marks within strings of one call: a model that repeats its mark for ever is not read anew at each."""


class UnterminatedString(Exception):
    """The text ends inside a JSON string; with more text it may be a whole value."""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).raw_decode
_space = re.compile(r"[ \t\n\r]*")


def parse_call(text: str, arguments: Sequence[str] = ("arguments",)) -> ToolCall | None:
    """Return the call that `{"name": ..., <one of `arguments`>: {...}}` is, or None; raises as `members`."""
    found = members(text)
    if found is None:
        return None
    name = json.loads(found.get("name", "null"))
    given = next((found[key] for key in arguments if key in found), "")
    if not isinstance(name, str) or not name or not is_sendable(name) or not given.startswith("{"):
        return None
    return ToolCall(name, given)


def members(text: str) -> dict[str, str] | None:
    """Return the text of each member's value, None if it is no JSON object; raise UnterminatedString."""
    start = _skip(text, 0)
    values = split_values(text)
    if values is None or len(values) != 1 or text[start] != "{" or is_broken(text):
        return None
    found: dict[str, str] = {}
    place = _skip(text, start + 1)
    while text[place] != "}":
        key, place = _decode(text, place)
        place = _skip(text, _skip(text, place) + 1)
        end = _decode(text, place)[1]
        found[key] = text[place:end]
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found


def is_sendable(text: str) -> bool:
    """Return whether text is Unicode that can be sent: an escape may have made half a character of it."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def is_broken(text: str) -> bool:
    """Return whether JSON holds half a character, which no template's text could hold, or is too deep to tell."""
    try:
        return "\\u" in text and not is_sendable(json.dumps(json.loads(text), ensure_ascii=False))
    except RecursionError:
        return True


def split_values(text: str, separator: str = ",") -> list[str] | None:
    """Return the text of each JSON value of a list without brackets, None if it is none; raise UnterminatedString."""
    found: list[str] = []
    place = _skip(text, 0)
    try:
        while True:
            end = _decode(text, place)[1]
            found.append(text[place:end])
            place = _skip(text, end)
            if place == len(text):
                return found
            if text[place] != separator:
                return None
            place = _skip(text, place + 1)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise UnterminatedString from error
        return None
    except (ValueError, RecursionError):
        return None


def _skip(text: str, place: int) -> int:
    space = _space.match(text, place)
    return space.end() if space else place


def partial_match_size(text: str, mark: str) -> int:
    longest = min(len(mark) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)


class Pieces:
    """Collects pieces; neighbours of one kind become one."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def text(self, kind: type[Words] | type[Reasoning], text: str) -> None:
        if not text:
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, kind):
            self._pieces[-1] = kind(last.text + text)
        else:
            self._pieces.append(kind(text))

    def calls(self, calls: Sequence[ToolCall]) -> None:
        self._pieces += calls

    def take(self) -> Sequence[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def join_pieces(pieces: Sequence[Piece]) -> Sequence[Piece]:
    found = Pieces()
    for piece in pieces:
        if isinstance(piece, ToolCall):
            found.calls([piece])
        else:
            found.text(type(piece), piece.text)
    return found.take()


class StepReader(Reader):
    """Reads by steps over the unread `_text`: told if it is over, each returns if another may follow."""

    def __init__(self, first: Callable[[bool], bool]) -> None:
        self._pieces = Pieces()
        self._text = ""
        self._step = first

    def feed(self, text: str) -> Sequence[Piece]:
        self._text += text
        return self._advance(over=False)

    def finish(self) -> Sequence[Piece]:
        return self._advance(over=True)

    def _advance(self, *, over: bool) -> Sequence[Piece]:
        while self._step(over):
            pass
        return self._pieces.take()

    def _give(self, kind: type[Words] | type[Reasoning], size: int) -> None:
        self._pieces.text(kind, self._text[:size])
        self._text = self._text[size:]
