"""Reads JSON objects of a request field by field, and refuses by name what nobody took.

Each field is read (and so honoured), named as one without influence, compared with the values that ask for nothing, or
refused with an InvalidRequest that carries its path. A field that is null counts as absent.
"""

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from reprlib import Repr
from typing import Any, TypeGuard, TypeVar

from pydantic_core import from_json

from swarm.dialects.base import ToolChoice
from swarm.errors import HALF_A_CHARACTER, InvalidRequest, NotFound
from swarm.rendering.messages import Message, Tool

T = TypeVar("T")
_SHOWN = 80
_brief = Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = _SHOWN
_brief.maxlist = _brief.maxdict = _brief.maxlevel = 4
_HALF = re.compile("[\ud800-\udfff]")
MOST_STOPS = 64
LONGEST_STOP = 1000


def field_error(where: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{where or 'body'}: {message}", param=where or None)


class Fields:
    """One JSON object at the path `where` ("" for the body); read it, then `close` it."""

    absent = False
    """There is no such object, not even one that says nothing."""

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise field_error(where, f"expected an object, found {abbreviate(value)}")
        self.where = where
        self._left = {name: found for name, found in value.items() if found is not None}
        self._inner: list[Fields] = []

    @property
    def empty(self) -> bool:
        return not self._left

    def at(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        return self._take_typed(name, str, "a string")

    def required_text(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise field_error(self.at(name), "expected a string, found none")
        return found

    def require_model(self, served: str) -> None:
        name = self.required_text("model")
        if name != served:
            raise NotFound(f"expected model {served!r}, found {name!r}", param="model")

    def flag(self, name: str) -> bool | None:
        return self._take_typed(name, bool, "true or false")

    def items(self, name: str) -> list[Any] | None:
        return self._take_typed(name, list, "a list")

    def object(self, name: str) -> dict[str, Any] | None:
        return self._take_typed(name, dict, "an object")

    def inner(self, name: str) -> "Fields":
        """Return the fields of an object, which is closed with this one; none where it is absent."""
        found = self.take(name)
        fields = Fields({} if found is None else found, self.at(name))
        fields.absent = found is None
        self._inner.append(fields)
        return fields

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        found = self.take(name)
        if found is None:
            return None
        if type(found) is not int or found < least or (most is not None and found > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise field_error(self.at(name), f"expected a whole number {bounds}, found {abbreviate(found)}")
        return found

    def number(self, name: str, least: float, most: float) -> float | None:
        found = self.take(name)
        if found is None:
            return None
        if type(found) not in (int, float) or not least <= found <= most:
            raise field_error(self.at(name), f"expected a number from {least:g} to {most:g}, found {abbreviate(found)}")
        return float(found)

    def choice(self, name: str, values: Sequence[str]) -> str | None:
        found = self.take(name)
        if found is not None and found not in values:
            raise field_error(self.at(name), f"expected one of {', '.join(values)}, found {abbreviate(found)}")
        return None if found is None else str(found)

    def required_choice(self, name: str, values: Sequence[str], described: str) -> str:
        found = self.choice(name, values)
        if found is None:
            raise field_error(self.at(name), f"expected {described}, found none")
        return found

    def stops(self, name: str, *, alone: bool = False) -> tuple[str, ...]:
        """Return the strings that end an answer; () if absent. `alone`: one may stand without a list around it."""
        found = self.take(name)
        stops = [] if found is None else [found] if alone and isinstance(found, str) else found
        if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
            raise field_error(
                self.at(name), f"expected a list of strings, none of them empty, found {abbreviate(found)}"
            )
        if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
            bounds = f"{MOST_STOPS} strings of at most {LONGEST_STOP} characters"
            raise field_error(self.at(name), f"expected at most {bounds}, found more: each is looked for at each token")
        return tuple(stops)

    def call_id(self, name: str, called: Container[str]) -> str:
        call_id = self.required_text(name)
        if call_id not in called:
            raise field_error(self.at(name), f"expected a tool call made before it, found {abbreviate(call_id)}")
        return call_id

    def tools(
        self, read: "Callable[[Fields], Tool]", left_out: re.Pattern[str]
    ) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
        """Return the tools offered, and each kind left out once: `left_out` matches types, its first group is the
        kind."""
        tools: list[Tool] = []
        kinds: dict[str, None] = {}
        for number, tool in enumerate(self.items("tools") or []):
            kind = tool.get("type") if isinstance(tool, dict) else None
            if isinstance(kind, str) and (known := left_out.fullmatch(kind)):
                kinds[known[known.lastindex or 0]] = None
            else:
                tools.append(read(Fields(tool, f"tools.{number}")))
        return tuple(tools), tuple(kinds)

    def tool_choice(self, tools: Sequence[Tool], *, nested: bool) -> ToolChoice:
        """Return what OpenAI's APIs choose: a word or a function, whose name may stand in an object of its own."""
        found = self.take("tool_choice")
        if found in (None, "auto", "none"):
            return ToolChoice(found or "auto")
        name = None
        if found != "required":
            if not isinstance(found, dict) or found.get("type") != "function":
                wrong = f"expected none, auto, required or a function, found {abbreviate(found)}"
                raise field_error("tool_choice", wrong)
            named = Fields(found, "tool_choice")
            named.take("type")
            name = (named.inner("function") if nested else named).required_text("name")
            named.close()
        return self.check_choice(ToolChoice("required", name), tools)

    def check_choice(self, choice: ToolChoice, tools: Sequence[Tool]) -> ToolChoice:
        known = [tool["function"]["name"] for tool in tools]
        if choice.mode == "required" and (not known or choice.name not in (None, *known)):
            wanted = "a tool" if choice.name is None else abbreviate(choice.name)
            expected = f"expected one of `tools` ({', '.join(known) or 'none given'})"
            raise field_error(self.at("tool_choice"), f"{expected}, found {wanted}")
        return choice

    def ignore(self, *names: str) -> None:
        for name in names:
            self._left.pop(name, None)

    def require_neutral(self, **values: tuple[Any, ...]) -> None:
        """Take fields that are known, but honoured only where they ask for nothing: one of these values."""
        for name, allowed in values.items():
            found = self.take(name)
            equal = (found == value and isinstance(found, bool) == isinstance(value, bool) for value in allowed)
            if found is not None and not any(equal):
                asks = f"only {' or '.join(abbreviate(value) for value in allowed)}" if allowed else "nothing here"
                raise field_error(
                    self.at(name), f"{asks} is honoured by this server, found {abbreviate(found)}; leave it out"
                )

    def close(self) -> None:
        for inner in self._inner:
            inner.close()
        for name in self._left:
            raise field_error(self.at(name), "is not honoured by this server; leave it out")

    def _take_typed(self, name: str, kind: type[T], described: str) -> T | None:
        found = self.take(name)
        if found is not None and not isinstance(found, kind):
            raise field_error(self.at(name), f"expected {described}, found {abbreviate(found)}")
        return found


def body_fields(body: bytes) -> Fields:
    try:
        return Fields(from_json(body, allow_inf_nan=False))
    except ValueError as error:
        half = None
        with suppress(ValueError, RecursionError):
            half = _find_half(body)
        raise half or InvalidRequest(f"body: expected JSON, found text that is none: {error}") from None


def _find_half(body: bytes) -> InvalidRequest | None:
    left: list[tuple[Any, Any]] = [(json.loads(body), None)]  # a value, and its place: the place above it, and a key
    while left:
        value, place = left.pop()
        if isinstance(value, str) and _HALF.search(value):
            keys: list[str] = []
            while place is not None:
                place, key = place
                keys.insert(0, str(key))
            return field_error(".".join(keys), HALF_A_CHARACTER)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        left += reversed([(below, (place, key)) for key, below in inner])
        left += [(key, place) for key in value] if isinstance(value, dict) else []
    return None


def join_text(found: Any, where: str, kinds: Mapping[str, Sequence[str]]) -> str:
    """Return the text of content: a string, or joined parts; `kinds`: types of text, with fields without influence."""
    if isinstance(found, str):
        return found
    if not isinstance(found, list):
        raise field_error(where, f"expected a string or a list of text parts, found {abbreviate(found)}")
    texts = []
    for number, value in enumerate(found):
        part = Fields(value, f"{where}.{number}")
        kind = part.required_text("type")
        if kind not in kinds:
            raise field_error(part.where, f"only text content is honoured ({', '.join(kinds)}), found {kind!r}")
        texts.append(part.required_text("text"))
        part.ignore(*kinds[kind])
        part.close()
    return "".join(texts)


def is_plain(found: Any) -> TypeGuard[Message]:
    """Tell whether a message has nothing but a role that needs no more, and text, as most of a long history have."""
    return (
        type(found) is dict
        and len(found) == 2
        and type(found.get("content")) is str
        and found.get("role") in ("system", "user", "assistant")
    )


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Tool:
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": {**function, "parameters": parameters or {}}}


def abbreviate(value: Any) -> str:
    return _brief.repr(value)[:_SHOWN]
