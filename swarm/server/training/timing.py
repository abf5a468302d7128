"""Where the wall time of a training step goes, by verl's names.

timing_s/gen                waited for a batch;  timing_s/settle: for the store to have it
timing_s/update_actor       learned;  timing_s/save_checkpoint: where one was due
timing_s/step               all of it
trainer/idle_ratio          gen over step: the learner's idle part
rollouter/idle_ratio        the part of the step in which the engine worked on no answer: nobody asked, or was let
tokens/generated            sampled meanwhile, for whatever batch
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class EngineWork(NamedTuple):
    """What the engine did since it was started: seconds in which it worked on any answer, and ids it sampled."""

    busy_s: float
    sampled_tokens: int


class Stopwatch:
    """Measures one step, from when it is made; `work` tells what the engine has done."""

    def __init__(self, work: Callable[[], EngineWork], now: Callable[[], float] = time.perf_counter) -> None:
        self._work = work
        self._now = now
        self._began = self._lap = now()
        self._before = work()
        self._laps: dict[str, float] = {}

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
