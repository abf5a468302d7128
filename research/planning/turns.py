"""Where a planner's turn has its place: by round, stage and number, in the study's folder and in its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from research.planner.digest import Stage
from studies import EventType, StudyState


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """One turn: it is taken once, and found again by its place."""

    round: int
    stage: Stage
    number: int
    """Which of its stage and round, from 1."""

    @property
    def key(self) -> str:
        """Its name in the log."""
        return f"{self.round}/{self.stage}/{self.number}"

    @classmethod
    def named(cls, key: str) -> TurnPlace:
        """Return the place of a key."""
        number, stage, index = key.split("/")
        return cls(int(number), cast(Stage, stage), int(index))

    def path(self, folder: Path) -> Path:
        """Return the turn's file; those of the first round lie in the folder itself."""
        name = f"{self.stage}.json" if self.number == 1 else f"{self.stage}-{self.number}.json"
        return folder / name if self.round == 1 else folder / f"round-{self.round}" / name

    def asides(
        self, said: Sequence[Mapping[str, Any]], state: StudyState
    ) -> Iterator[tuple[EventType, dict[str, Any]]]:
        """Yield the events of what was said beside the turn's action, as far as the log lacks them."""
        known = {note.index for note in state.notebook if note.turn == self.key}
        for index, aside in enumerate(said):
            if index not in known:
                event = EventType.PLANNER_ASKED if aside["action"] == "ask" else EventType.PLANNER_NOTED
                words = {name: value for name, value in aside.items() if name != "action"}
                yield event, {**words, "turn": self.key, "index": index}

    def is_told(self, state: StudyState) -> bool:
        """Return whether its event is in the log; events of earlier versions do not name their turn.

        A planner that declined took no other turn: its act stood in the place of the one that was due.
        """
        if any(act.turn == self.key for act in state.planner_acts):
            return True
        unnamed = [act for act in state.planner_acts if not act.turn]
        return self.round == 1 and sum(act.action in (self.stage, "decline") for act in unnamed) >= self.number
