"""Curves of one run: what its training logged, and how it stood on the hidden tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from research.looks.evidence import collected_file, history
from research.looks.requests import LookAtCurve
from research.planner.looks import LookRefused
from research.planner.quoted import plain
from research.spelling import did_you_mean
from studies import RunState
from studies.records.design import SUCCESS

POINTS: Final = 12
"""How many are shown where nobody says which."""
_MOST_NAMES: Final = 40

Point = tuple[int, float]


def curve(run: RunState, folder: Path, request: LookAtCurve) -> dict[str, Any]:
    """Return a metric's (step, value) pairs at the steps that are asked for; raise LookRefused for one not logged."""
    points = _hidden(run, folder) if request.metric == SUCCESS else _logged(run, folder, request.metric)
    shown = _at(points, request.at) if request.at else _spread(points)
    return {
        "metric": request.metric,
        "steps": points[-1][0],
        "points": [[step, _short(value)] for step, value in shown],
    }


def _logged(run: RunState, folder: Path, metric: str) -> Sequence[Point]:
    rows = history(run, folder)
    points = [(int(row["step"]), float(row["metrics"][metric])) for row in rows if _is_number(row["metrics"], metric)]
    if points:
        return points
    known = sorted({plain(name) for row in rows for name in row["metrics"]})
    near = did_you_mean(metric, known) or ""
    raise LookRefused(
        f"expected a metric that the run logged: {', '.join(known[:_MOST_NAMES])}, or {SUCCESS}; found {metric!r}{near}"
    )


def _is_number(metrics: Mapping[str, Any], name: str) -> bool:
    value = metrics.get(name)
    return isinstance(value, int | float) and math.isfinite(value)


def _hidden(run: RunState, folder: Path) -> Sequence[Point]:
    """Return the shares of hidden tasks that were solved, before, during and after training, by training steps."""
    found = collected_file(run, folder, "evaluation")
    parts = [found["initial"], *found.get("during", ()), found["final"]]
    return [(int(part["policy_version"]), _share(part["episodes"])) for part in parts]


def _share(episodes: Sequence[Mapping[str, Any]]) -> float:
    return sum(bool(episode["success"]) for episode in episodes) / len(episodes)


def _at(points: Sequence[Point], steps: Sequence[int]) -> Sequence[Point]:
    """Return, for each step, the point that comes nearest."""
    nearest = (min(points, key=lambda point: abs(point[0] - step)) for step in steps)
    return list(dict.fromkeys(nearest))


def _spread(points: Sequence[Point]) -> Sequence[Point]:
    """Return some points that are spread evenly, the first and the last among them."""
    if len(points) <= POINTS:
        return points
    return [points[round(index * (len(points) - 1) / (POINTS - 1))] for index in range(POINTS)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
