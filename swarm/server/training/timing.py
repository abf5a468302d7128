"""Where the wall time of a training step goes, by verl's names.

A step begins with its first training episode, or with the end of the step before where some go on by then: what is
evaluated, or waited for, before that is no part of any step.

timing_s/gen                waited for a batch;  timing_s/settle: for the store to have it
timing_s/update_actor       learned;  timing_s/save_checkpoint: where one was due
timing_s/step               all of it
trainer/idle_ratio          gen over step: the learner's idle part
rollouter/idle_ratio        the part of the step in which the engine worked on no answer: nobody asked, or was let
tokens/generated            sampled meanwhile in training episodes, for whatever batch
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

NOTHING_SPENT: Mapping[str, float] = MappingProxyType({})
_ROLLOUT = ("gen", "settle")
"""The laps before the learner's."""


class EngineWork(NamedTuple):
    """What the engine did since it was started: seconds in which it worked on any answer, and ids of training."""

    busy_s: float
    sampled_tokens: int


class Stopwatch:
    """Measures one step, from when it is made; `work` tells what the engine has done.

    `spent` is what was measured of its rollout in an earlier life of the server, which counts as this one's.
    """

    def __init__(
        self,
        work: Callable[[], EngineWork],
        now: Callable[[], float] = time.perf_counter,
        spent: Mapping[str, float] = NOTHING_SPENT,
    ) -> None:
        self._work = work
        self._now = now
        self._lap = now()
        self._laps = {name: spent[key] for name in _ROLLOUT if (key := f"timing_s/{name}") in spent}
        self._began = self._lap - sum(self._laps.values())
        busy, sampled = work()
        earlier = spent.get("timing_s/step", 0.0) * (1 - spent.get("rollouter/idle_ratio", 1.0))
        self._before = EngineWork(busy - earlier, sampled - int(spent.get("tokens/generated", 0)))

    def lap(self, name: str) -> None:
        """Book the time since the last lap as spent on `name`."""
        before, self._lap = self._lap, self._now()
        self._laps[name] = self._lap - before

    def metrics(self) -> dict[str, float]:
        """Return all that was measured (module docstring)."""
        step = max(self._now() - self._began, 1e-9)
        work = self._work()
        busy = work.busy_s - self._before.busy_s
        return {
            **{f"timing_s/{name}": seconds for name, seconds in self._laps.items()},
            "timing_s/step": step,
            "trainer/idle_ratio": self._laps.get("gen", 0.0) / step,
            "rollouter/idle_ratio": max(0.0, 1 - busy / step),
            "tokens/generated": float(work.sampled_tokens - self._before.sampled_tokens),
        }
