"""What a controller takes for a study of so many runs: its first look, idle ticks, and one with work to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rig.orchestration.long_study import LongStudy, Pattern

IDLE_TICKS = 9
BUSY_TICKS = 3
Result = TypeVar("Result")


def ticked(folder: Path, pattern: Pattern, runs: int, events: int) -> dict[str, Any]:
    """Return the seconds of a core that a controller takes: to read the log, to look in vain, for an attempt's end."""
    study = LongStudy(folder / f"{runs}-{events}", pattern, runs, events)
    controller, first_s = timed(study.controller)
    begun, launch_s = timed(controller.tick)
    assert len(begun.launched) == 2
    idle = [timed(controller.tick)[1] for _ in range(IDLE_TICKS)]
    busy = []
    for _ in range(min(BUSY_TICKS, runs // 4 - 1)):
        study.clock.advance(3600.0)
        result, seconds = timed(controller.tick)
        assert len(result.ended) == len(result.launched) == 2, "two attempts ended, and the next two began"
        busy.append(seconds / 2)
    study.log.close()
    return {
        "runs": runs, "events": study.events, "first look": first_s, "launch": launch_s / 2, "idle tick": median(idle),
        "attempt ended": median(busy),
    }  # fmt: skip


def timed(do: Callable[[], Result]) -> tuple[Result, float]:
    """Return what came of something, and the seconds of a core that it took: what else runs here counts for nothing."""
    began = time.process_time()
    found = do()
    return found, time.process_time() - began
