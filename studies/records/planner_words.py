"""A planner's last words on a study: a quotation that tells who said it, and what in it no fact bears out.

Nothing follows from them. What a study found is in its verdicts, and why it ended is told by code.
"""

from __future__ import annotations

from studies.records.base import Record


class PlannerWords(Record):
    """What a planner said."""

    by: str
    """Who: the planner, and the model behind it where there is one."""
    text: str
    """Its words, unchanged."""
    unfounded: tuple[str, ...] | None = None
    """Numbers in them that are in no fact the planner was shown; None where nobody looked."""
    contradicted: tuple[str, ...] = ()
    """Verdicts that they name and that none of the claims they speak of has."""


def who(name: str, model: str | None) -> str:
    """Return what a planner is called: its name, with its model's where it has one."""
    return f"{name} {model}" if model else name


def quotation(said: PlannerWords) -> str:
    """Return a planner's words as a quotation on one line, with who said them and what is wrong with them."""
    wrong = []
    if said.unfounded is None:
        wrong.append("its numbers were not checked")
    elif said.unfounded:
        wrong.append(f"numbers that are in no fact: {', '.join(said.unfounded)}")
    if said.contradicted:
        wrong.append(f"verdicts that were not reached: {', '.join(said.contradicted)}")
    quoted = f'{said.by}: "{" ".join(said.text.split())}"'
    return f"{quoted} ({'; '.join(wrong)})" if wrong else quoted
