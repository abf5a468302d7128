"""A planner's words on a study: quotations that tell who said them, and what in them no fact bears out.

Nothing follows from them. What a study found is in its verdicts, and why it ended is told by code. A verdict's name
counts as said of the claims that its clause names by their ids, else of all of them; after `not` it does not count.
This reads words, not meanings: what it passes is still the planner's voice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, get_args

from studies.records.base import Record
from studies.records.verdict import Verdict, VerdictName

_SAME: Final = {"proven": "supported", "proved": "supported", "confirmed": "supported", "disproved": "refuted"}
_VERDICT: Final = re.compile(rf"\b(?:{'|'.join((*get_args(VerdictName), *_SAME))})\b", re.IGNORECASE)
_CLAUSE: Final = re.compile(r"[.;:!?]\s|,|\b(?:and|but|while|whereas)\b", re.IGNORECASE)
_NEGATED: Final = re.compile(r"(?:\b(?:not|nor|neither|never|no)|n't)\s+$", re.IGNORECASE)


class PlannerWords(Record):
    """What a planner said."""

    by: str
    """Who: the planner, and the model behind it where there is one."""
    text: str
    """Its words, unchanged."""
    unfounded: tuple[str, ...] | None = None
    """Numbers in them that are in no fact the planner was shown; None where nobody looked."""
    contradicted: tuple[str, ...] = ()
    """Verdicts that they name and that not every claim they speak of has."""


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


def contradicted(text: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the verdicts that a text names and the claims it speaks of do not have; none while nothing is judged."""
    return tuple(dict.fromkeys(_contradicted(text, verdicts))) if verdicts else ()


def checked(text: str, verdicts: Sequence[Verdict]) -> str:
    """Return a planner's words on one line, with the verdicts that they name and that were not reached."""
    wrong = contradicted(text, verdicts)
    return " ".join(text.split()) + (f" (verdicts that were not reached: {', '.join(wrong)})" if wrong else "")


def _contradicted(text: str, verdicts: Sequence[Verdict]) -> Iterator[str]:
    for clause in _CLAUSE.split(text):
        named = [v for v in verdicts if re.search(rf"\b{re.escape(v.hypothesis)}\b", clause, re.IGNORECASE)]
        reached = {verdict.verdict for verdict in named or verdicts}
        for found in _VERDICT.finditer(clause):
            name = _SAME.get(found[0].lower(), found[0].lower())
            if reached != {name} and not _NEGATED.search(clause[: found.start()]):
                yield found[0]
