"""Whether what W&B holds of a run is what was logged: compared row by row, number by number.

The log on this machine is the truth: W&B's is a copy that somebody may have edited, and that may be late. What is not
there yet is `lacking`, and may come; what contradicts the log, or stands there twice, `differs` for good.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from research.results.wandb_reader import TrackedRun, take_row

Standing = Literal["sending", "same", "lacking", "differs"]
"""How W&B's copy of a log stands: being sent, or compared with these outcomes."""
_PRECISION = 1e-9
"""Relative; a number passes through JSON and whatever W&B stores it as."""


@dataclass(frozen=True, slots=True)
class OnlineRun:
    """A run as W&B's public API tells of it. `repeated` are the steps of which there is more than one row."""

    run: TrackedRun
    repeated: tuple[int, ...]


def online_run(found: Mapping[str, Any]) -> OnlineRun:
    """Return the run that the API told of; raises KeyError, TypeError or ValueError for rows that are none."""
    config = {key: value for key, value in found["config"].items() if not key.startswith("_")}
    run = TrackedRun(group=str(found["group"]), id=str(found["id"]), config=config)
    for row in found["rows"]:
        take_row(run, row)
    counts = Counter(int(row["_step"]) for row in found["rows"])
    return OnlineRun(run, tuple(sorted(step for step, count in counts.items() if count > 1)))


def compare(log: TrackedRun, online: OnlineRun | None) -> tuple[Standing, str]:
    """Return how W&B's copy of a whole log stands, and for what reason unless it is the same."""
    if online is None:
        return "lacking", "W&B knows no such run"
    if difference := next(_differences(log, online), None):
        return "differs", difference
    if lack := next(_lacks(log, online.run), None):
        return "lacking", lack
    return "same", ""


def _lacks(log: TrackedRun, run: TrackedRun) -> Iterator[str]:
    logged = log.history.keys() | log.not_finite.keys()
    missing = sorted(logged - (run.history.keys() | run.not_finite.keys()))
    if missing:
        yield f"W&B has {len(logged) - len(missing)} of {len(logged)} steps; step {missing[0]} is not there"
    for key in sorted(_shown(log.config).keys() - run.config.keys()):
        yield f"config {key} is not there"


def _differences(log: TrackedRun, online: OnlineRun) -> Iterator[str]:
    run = online.run
    if run.group != log.group:
        yield f"its group is {run.group!r} at W&B, {log.group!r} in the log"
    logged, found = _shown(log.config), _shown(run.config)
    for key in sorted(found):
        if found[key] != logged.get(key):
            yield f"config {key} is {found[key]!r} at W&B, {logged.get(key)!r} in the log"
    if online.repeated:
        yield f"step {online.repeated[0]} stands there more than once ({_steps(online.repeated)})"
    for step in sorted(run.history.keys() | run.not_finite.keys()):
        yield from _different_row(step, log, run)


def _shown(value: Any) -> Any:
    """Return a config as W&B's client sends it: without mappings that hold nothing."""
    if not isinstance(value, Mapping):
        return value
    parts = {key: _shown(part) for key, part in value.items()}
    return {key: part for key, part in parts.items() if part != {}}


def _different_row(step: int, log: TrackedRun, run: TrackedRun) -> Iterator[str]:
    if step not in log.history and step not in log.not_finite:
        yield f"step {step} was never logged"
        return
    logged, found = log.history.get(step, {}), run.history.get(step, {})
    for key in sorted(logged.keys() | found.keys()):
        if not _equal(logged.get(key), found.get(key)):
            yield f"step {step}: {key} is {_number(found.get(key))} at W&B, {_number(logged.get(key))} in the log"
    names = (set(log.not_finite.get(step, ())), set(run.not_finite.get(step, ())))
    if names[0] != names[1]:
        yield f"step {step}: {min(names[0] ^ names[1])} is a finite number in one of the two only"


def _equal(logged: float | None, found: float | None) -> bool:
    if logged is None or found is None:
        return logged is found
    return math.isclose(logged, found, rel_tol=_PRECISION, abs_tol=_PRECISION)


def _number(value: float | None) -> str:
    return "not there" if value is None else f"{value:.12g}"


def _steps(steps: Sequence[int]) -> str:
    return f"{len(steps)} step{'s' if len(steps) > 1 else ''}"
