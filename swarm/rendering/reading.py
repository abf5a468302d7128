"""Incremental reading of answers, JSON as the model wrote it, and grammars of forced tool calls and JSON.

Text is given back as it was written, never parsed and written anew; only strict JSON counts (no NaN, no raw line break
in a string), for a client must be able to read it. Text that ends inside a string raises `UnterminatedString`: the mark
that was taken for the end of a call is a part of that string.

In a grammar a family's mark is a whole rule (`name: "mark"`) or a whole suffix (`name[suffix="mark"]: /.../`), so that
a special token can stand for it. JSON has one space after each colon and comma, as templates write it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swarm.rendering.messages import Piece, Reader, Reasoning, Thinking, ToolCall, Words

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
        pieces = self._advance(over=True)
        del self._step  # a method of this reader, which would be garbage
        return pieces

    def _advance(self, *, over: bool) -> Sequence[Piece]:
        while self._step(over):
            pass
        return self._pieces.take()

    def _give(self, kind: type[Words] | type[Reasoning], size: int) -> None:
        self._pieces.text(kind, self._text[:size])
        self._text = self._text[size:]


_ANY: Mapping[str, Any] = {"type": "object"}


def parameters(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters") or _ANY for function in functions}


def properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each member of an object; one that is no more than true or false says nothing."""
    declared = schema.get("properties")
    fields = declared.items() if isinstance(declared, Mapping) else ()
    return {name: field if isinstance(field, Mapping) else {} for name, field in fields}


def as_json(text: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON of a value without quotes: a string if `schema` says so, or it is no JSON of whole characters."""
    if is_text(schema):
        return quote(text)
    try:
        values = split_values(text)
    except UnterminatedString:
        values = None
    if values is None or len(values) != 1 or values[0].startswith('"') or is_broken(text):
        return quote(text)
    return values[0]


def is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", ["string"])


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


def json_of(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _SPACING}, ensure_ascii=False)}"


def grammar(call: str, rules: Mapping[str, str], thinking: Thinking | None = None) -> str:
    """Return the grammar of one `call` (an expression over `rules`), after the rest of an opened thought if any."""
    lines = [f"{name}: {rule}" for name, rule in rules.items()]
    if thinking is None:
        return "\n".join([f"start: {call}", *lines])
    thought = f"thought[suffix={quote(thinking.close)}]: /(?s:.*)/"
    return "\n".join([f'start: thought "\\n\\n" ({call})', *lines, thought])


def json_answer(schema: Mapping[str, Any], thinking: Thinking | None = None) -> str:
    if thinking is None:
        return f"start: {json_of(schema)}"
    return grammar("json", {"json": json_of(schema)}, thinking)


def json_calls(
    tools: Sequence[Mapping[str, Any]], before: str, between: str, after: str, mark: str = ""
) -> tuple[str, dict[str, str]]:
    """Return the choice of one tool, and its rules: `before` name `between`, the rule `mark`, arguments, `after`."""
    rules: dict[str, str] = {}
    for number, (name, schema) in enumerate(parameters(tools).items()):
        parts = (quote(before + name + between), mark, f"args_{number}", quote(after) if after else "")
        rules[f"call_{number}"] = " ".join(filter(None, parts))
        rules[f"args_{number}"] = json_of(schema)
    return " | ".join(name for name in rules if name.startswith("call_")), rules
