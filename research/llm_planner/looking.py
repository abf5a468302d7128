"""A model's looks within one turn: asked for by tool calls or in plain JSON, counted, capped, and kept for the record.

An endpoint that takes tools is given each look as one; any other is told to write `{"look": NAME, "arguments": {...}}`.
Both are understood at any time. Once the calls or the characters of a turn are used up, a look is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from research.llm_planner.completions import Unusable, json_object
from research.llm_planner.endpoint import short
from research.llm_planner.prompts import MOST_LOOKS
from research.llm_planner.strict_actions import LOOK, schema
from research.planner.looks import PLAYS, LookRefused, Looks, TakenLook
from research.planner.quoted import plain
from studies.records.base import canonical

MOST_ANSWERED: Final = 24_000
"""Characters of all answers of one turn."""
MOST_OF_ONE: Final = 8_000
"""Characters of one answer."""
_NO_MORE: Final = "no look is left in this turn; act now, with one JSON object that fits the schema"


class _Function(BaseModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolWish(BaseModel):
    """A call of a tool as a model writes it."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    function: _Function


class Looking:
    """The looks of one turn: what was taken, and what is left."""

    def __init__(self, looks: Looks, bare: Callable[[str], str]) -> None:
        """`bare` takes secrets out of a text."""
        self._looks = looks
        self._bare = bare
        self._left = MOST_ANSWERED
        self.taken: list[TakenLook] = []

    @property
    def offered(self) -> Mapping[str, type[BaseModel]]:
        """What may be looked at, by name."""
        return self._looks.offered

    @property
    def over(self) -> bool:
        """Whether no look is left."""
        return len(self.taken) >= MOST_LOOKS or self._left <= 0

    @property
    def plays_seen(self) -> bool:
        """Whether plays on hidden tasks were looked at."""
        return any(look.name == PLAYS for look in self.taken)

    def tools(self) -> list[dict[str, Any]]:
        """Return the looks as an endpoint's tools."""
        return [
            {"type": "function", "function": {"name": name, "description": _does(kind), "parameters": schema(kind)}}
            for name, kind in self.offered.items()
        ]

    def by_tools(self, calls: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the messages that a model's tool calls become, answers included; None for calls of no tools here.

        Raises Unusable where none is left.
        """
        if not self.offered or not calls:
            return None
        if self.over:
            raise Unusable(_NO_MORE)
        try:
            read = [ToolWish.model_validate(call) for call in calls]
        except ValidationError as error:
            raise Unusable(f"expected a tool call with a function's name; found {short(str(calls))}") from error
        named = [(call.id or f"look-{len(self.taken)}-{number}", call.function) for number, call in enumerate(read)]
        said = [
            {"id": known, "type": "function", "function": {"name": function.name, "arguments": _text(function)}}
            for known, function in named
        ]
        answers = [
            {"role": "tool", "tool_call_id": known, "content": self._answer(function.name, function.arguments)}
            for known, function in named
        ]
        return [{"role": "assistant", "content": None, "tool_calls": said}, *answers]

    def by_text(self, answer: str) -> list[dict[str, Any]] | None:
        """Return the messages that a look in plain JSON becomes; None for an answer that is none.

        Raises Unusable where none is left.
        """
        wish = _wish(answer) if self.offered else None
        if wish is None:
            return None
        if self.over:
            raise Unusable(_NO_MORE)
        name, arguments = wish
        told = f"What your look at {short(name)} shows:\n{self._answer(name, arguments)}\n{self._then()}"
        return [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]

    def _then(self) -> str:
        return "No look is left: act now." if self.over else "Look again, or act."

    def _answer(self, name: str, arguments: str | Mapping[str, Any] | None) -> str:
        """Take a look and return its answer as text; one that cannot be had is answered with the reason."""
        if self.over:
            return json.dumps({"refused": _NO_MORE})
        name, values = plain(name)[:60], dict[str, Any]()
        try:
            values = _kept(_arguments(arguments))
            shown = dict(self._looks.answer(name, values))
        except LookRefused as error:
            shown = {"refused": str(error)}
        text = self._cut(self._bare(json.dumps(shown, ensure_ascii=False)))
        self._left -= len(text)
        self.taken.append(TakenLook(name, values, text))
        return text

    def _cut(self, text: str) -> str:
        most = min(MOST_OF_ONE, self._left)
        return text if len(text) <= most else f"{text[:most]}… (cut; ask for less)"


def _does(kind: type[BaseModel]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _text(function: _Function) -> str:
    arguments = function.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _arguments(arguments: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the arguments of a look, which some endpoints give as an object and some as its text."""
    if isinstance(arguments, Mapping):
        return arguments
    if not (arguments or "").strip():
        return {}
    try:
        return json_object(str(arguments))
    except Unusable as error:
        raise LookRefused(f"expected arguments that are a JSON object; found {short(str(arguments))!r}") from error


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that the log can hold: JSON knows numbers and characters that no file takes."""
    try:
        canonical(dict(values)).encode()
    except ValueError as error:
        raise LookRefused(f"expected finite numbers and whole characters in the arguments; found {error}") from error
    return dict(values)


def _wish(answer: str) -> tuple[str, str | Mapping[str, Any] | None] | None:
    """Return the name and the arguments of a look in plain JSON; None for anything else."""
    try:
        value = json_object(answer)
    except Unusable:
        return None
    name = value.get(LOOK)
    name = plain(name) if isinstance(name, str) else ""
    if not name or value.get("action", LOOK) != LOOK:
        return None
    if "arguments" in value:
        arguments = value["arguments"]
        return name, arguments if isinstance(arguments, str | Mapping) else None
    return name, {key: entry for key, entry in value.items() if key not in (LOOK, "action")}
