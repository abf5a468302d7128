"""What a person is asked before a study begins something that costs, and where the answer may come from."""

from __future__ import annotations

from typing import Final, Literal

from studies.records.base import Record, digest

Origin = Literal["terminal", "command", "Prefect"]
"""Where an answer was given: in the terminal of the controller, by `ajet study`, or in a form of Prefect."""
ORIGINS: Final = {"terminal": "in the terminal", "command": "by a command", "Prefect": "in Prefect"}
"""The same as words in a sentence."""


class ApprovalQuestion(Record):
    """One question: what a yes lets begin, and what that costs at most."""

    study: str
    number: int
    """The how manieth question of its study, from 1: no two of a study have the same digest."""
    stage: str
    """What is to be approved: `noise`, `design` (all that is locked), `screen`, `look N` or `replication`."""
    lock: str
    """Hash of the noise plan or of the design that it is a part of."""
    runs: int
    """Most runs that it comes to."""
    seconds: float
    """What they take at the price of the moment of asking."""
    left_s: float
    """Seconds of the budget that were left then."""
    would: str
    """What a yes lets begin, as a phrase."""

    def digest(self) -> str:
        """Return the sha256 that an answer names."""
        return digest(self.model_dump(mode="json"))
