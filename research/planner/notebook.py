"""The planner's notebook: what it noted and revised in earlier turns, and what it asked the user.

It is the planner's own voice, and no fact: it is shown back, bounded, and nothing is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from research.planner.quoted import plain
from research.proposals.actions import Aside, Note, Revise
from studies import StudyState
from studies.log.study_state import PlannerNote

MOST_SHOWN: Final = 20
"""Ideas that are shown: the latest; of questions as many."""


@dataclass(frozen=True, slots=True)
class Notebook:
    """What a planner wrote down in one study."""

    notes: tuple[PlannerNote, ...] = ()

    @classmethod
    def of(cls, state: StudyState) -> Notebook:
        """Return the notebook of a study."""
        return cls(state.notebook)

    @property
    def ideas(self) -> Mapping[str, PlannerNote]:
        """The notes that are ideas, by their ids."""
        return {note.id: note for note in self.notes if note.kind == "note"}

    @property
    def revisions(self) -> Mapping[str, PlannerNote]:
        """The last revision of each idea that was revised, by the idea's id."""
        return {note.about: note for note in self.notes if note.kind == "revise"}

    def refuses(self, aside: Aside) -> str | None:
        """Return why something cannot be written down, in one line for a planner; None for what can."""
        if isinstance(aside, Revise):
            return self._refuses_revision(aside)
        kind = "note" if isinstance(aside, Note) else "ask"
        if any((note.kind, note.text) == (kind, aside.text) for note in self.notes):
            return (
                f"expected something new; found what {'your notebook holds' if kind == 'note' else 'was asked'} already"
            )
        return None

    def _refuses_revision(self, aside: Revise) -> str | None:
        known = self.ideas
        if aside.about not in known:
            return f"expected an idea of your notebook ({', '.join(known) or 'it holds none'}); found {aside.about!r}"
        last = self.revisions.get(aside.about)
        if last is not None and not last.text:
            return f"{aside.about} was withdrawn before; note a new idea instead"
        if aside.text and aside.text == (last or known[aside.about]).text:
            return f"expected {aside.about} to be narrowed; found the same words"
        return None

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values; nothing where it is empty."""
        ideas = [self._idea(note) for note in self.ideas.values()]
        asked = [{"id": note.id, "text": plain(note.text)} for note in self.notes if note.kind == "ask"]
        told: dict[str, Any] = {}
        if ideas:
            told["your_notebook"] = ideas[-MOST_SHOWN:]
        if asked:
            told["you_asked_the_user"] = asked[-MOST_SHOWN:]
        left = max(0, len(ideas) - MOST_SHOWN) + max(0, len(asked) - MOST_SHOWN)
        return told | ({"left_out_of_your_notebook": f"{left} older entries"} if left else {})

    def _idea(self, note: PlannerNote) -> dict[str, Any]:
        told = {"id": note.id, "round": note.round, "text": plain(note.text)}
        if (last := self.revisions.get(note.id)) is None:
            return told
        now = {"withdrawn_because": plain(last.reason)}
        return told | ({"now": plain(last.text), "because": plain(last.reason)} if last.text else now)
