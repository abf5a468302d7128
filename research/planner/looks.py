"""The seam of looks: what a planner may look at before it acts, by name, and what it is answered.

A look reads and changes nothing. What it shows of somebody else's words is quoted as such. Who looked at the words of
plays on hidden tasks may write no reward function any more: it could hold their answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import BaseModel

PLAYS: Final = "episodes"
"""The look that shows plays on hidden tasks."""
NO_REWARD_NOW: Final = "plays of hidden tasks were looked at, and a reward function could hold their answers"


class LookRefused(Exception):
    """A look that cannot be had; the text says why, in one line for a planner."""


class Looks(Protocol):
    """What may be looked at in one turn."""

    @property
    def offered(self) -> Mapping[str, type[BaseModel]]:
        """The looks by name, with the arguments that each takes; its docstring says what it shows."""
        ...

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a look shows, as JSON values; raise LookRefused."""
        ...


class NoLooks:
    """Nothing to look at."""

    offered: Mapping[str, type[BaseModel]] = {}

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse."""
        raise LookRefused("there is nothing to look at")


NO_LOOKS: Final = NoLooks()


@dataclass(frozen=True, slots=True)
class TakenLook:
    """A look and what it was answered, word for word."""

    name: str
    arguments: Mapping[str, Any]
    answer: str

    def payload(self) -> dict[str, Any]:
        """Return it as the event of its turn counts it: with hash and size of the answer, in characters."""
        sha256 = hashlib.sha256(self.answer.encode()).hexdigest()
        return {
            "name": self.name,
            "arguments": dict(self.arguments),
            "sha256": sha256,
            "characters": len(self.answer),
        }

    def kept(self) -> dict[str, Any]:
        """Return it as the turn's file keeps it."""
        return {"name": self.name, "arguments": dict(self.arguments), "answer": self.answer}
