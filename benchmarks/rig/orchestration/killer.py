"""Kills processes of an installation at random times: SIGKILL to one of a kind that is drawn among those alive."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from research.installation.tiny_model import MOST_TRIES
from research.orchestration.deployment import MOST_FRUITLESS
from research.scheduler.next_step import MOST_ATTEMPTS
from rig.orchestration.victims import BRINGING_BACK, CONTROLLER, KINDS, MAKER, OF_A_RUN, Victim
from studies import StudyState


@dataclass
class Killer:
    """Who is killed next, and who was. A kind that was never killed comes first, the shortest-lived before others.

    After that kinds are drawn, those that were killed less often with more weight. A kind is left alone for `rest_s`
    after each kill. What died in every start would never serve: so controllers, and those that bring them back, are
    left alone from their start on for up to twice as long, each for a time of its own; and while there is no controller
    one of the latter is killed at most. Times are seconds from the start.
    """

    chance: random.Random
    pause_s: tuple[float, float]
    rest_s: float
    kills: list[dict[str, Any]] = field(default_factory=list)
    _due_s: float = 0.0
    _since_controller: int = 0
    """Kills of those that bring one back since a controller was seen."""
    _safe_s: dict[int, float] = field(default_factory=dict)
    """Until when each such process is left alone, by its id."""

    def __post_init__(self) -> None:
        self._wait(0.0)

    def look(self, now_s: float, alive: Callable[[], Sequence[Victim]], state: StudyState) -> Victim | None:
        """Kill one of those alive if it is time, and there is one that may be; return it."""
        if now_s < self._due_s:
            return None
        living = alive()
        if any(each.kind == CONTROLLER for each in living):
            self._since_controller = 0
        victim = self._drawn([each for each in living if not self._spares(each, state, now_s)])
        if victim is not None:
            self._since_controller += victim.kind in BRINGING_BACK
            with suppress(psutil.NoSuchProcess):
                victim.process.kill()
            self.kills.append(
                {"after_s": round(now_s, 1), "kind": victim.kind, "run": victim.run, "attempt": victim.attempt}
            )
            self._wait(now_s)
        return victim

    def by_kind(self) -> dict[str, int]:
        """Return how many of each kind were killed; kinds that were never are there with 0."""
        times = Counter(kill["kind"] for kill in self.kills)
        return {kind: times[kind] for kind in KINDS}

    def _wait(self, now_s: float) -> None:
        self._due_s = now_s + self.chance.uniform(*self.pause_s)

    def _drawn(self, alive: Sequence[Victim]) -> Victim | None:
        times = self.by_kind()
        kinds = [kind for kind in KINDS if any(each.kind == kind for each in alive)]
        if not kinds:
            return None
        new = [kind for kind in kinds if not times[kind]]
        (drawn,) = new[:1] or self.chance.choices(kinds, [1 / (1 + times[kind]) for kind in kinds])
        return self.chance.choice([each for each in alive if each.kind == drawn])

    def _spares(self, victim: Victim, state: StudyState, now_s: float) -> bool:
        """Return whether it rests, or its death could use up what the policy gives a number of tries only."""
        if any(kill["kind"] == victim.kind and now_s - kill["after_s"] < self.rest_s for kill in self.kills):
            return True
        if victim.kind in BRINGING_BACK and self._since_controller:
            return True
        if victim.kind in (CONTROLLER, *BRINGING_BACK) and now_s < self._safe_until(victim.process.pid, now_s):
            return True
        most = MOST_ATTEMPTS if state.design is None else state.design.max_attempts
        if victim.kind == CONTROLLER:
            return state.fruitless >= MOST_FRUITLESS - 1
        if victim.kind == MAKER:
            return self.by_kind()[victim.kind] >= MOST_TRIES - 1
        return victim.attempt >= most or self._is_kept_for_another(victim)

    def _is_kept_for_another(self, victim: Victim) -> bool:
        """Return whether its death would cost a try while another kind of those that work on runs was never met."""
        times = self.by_kind()
        return victim.kind in OF_A_RUN and times[victim.kind] > 0 and any(not times[kind] for kind in OF_A_RUN)

    def _safe_until(self, pid: int, now_s: float) -> float:
        """Return until when a process is left alone that is seen now, the first time or again."""
        return self._safe_s.setdefault(pid, now_s + self.chance.uniform(0.0, 2 * self.rest_s))
