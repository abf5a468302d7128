"""What the two stored files of a run say about the conditions it went under, computed from them alone.

Whoever collects a run records it with these functions, and whoever verifies a study computes it again. What only the
harness saw while the run went (hardware, neighbours, the weights it began with) is not in the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from studies.checks.collapse import training_curve
from studies.records.base import digest

Row = Mapping[str, Any]
"""A training step of a snapshot: its number and its metrics."""
Part = Mapping[str, Any]
"""One of the two evaluations of a run: the version of its policy, and its episodes."""


INITIAL: Final = "/initial"
"""What the key of a measurement before training ends with."""
_NONE = 1e-6
"""A difference of advantages that is none but for rounding."""


def conditions_in(history: Sequence[Row], initial: Part, final: Part) -> dict[str, Any]:
    """Return the conditions that the files hold, by their names in `Conditions`; None where a metric is missing."""
    return {
        "steps": len(history),
        "episodes": _whole(_sum(history, "batch/episodes")),
        "tokens": _whole(_sum(history, "tokens/trained")),
        "wall_s": _sum(history, "timing_s/step"),
        "initial_success": success(initial),
        "evaluation_tasks": tasks_hash((episode["task_id"], episode["sample"]) for episode in final["episodes"]),
        "evaluation_episodes": len(final["episodes"]),
        "checkpoint": _checkpoint(final["policy_version"], len(history)),
        "judge_errors": _whole(_given_up(history)),
        "signal_steps": _signal_steps(history),
        "probs_diff": _largest(history, "training/rollout_probs_diff_max"),
        "course": training_curve(history, success(initial), success(final), len(final["episodes"])).model_dump(
            mode="json"
        ),
    }


def tasks_hash(plays: Iterable[tuple[str, int]]) -> str:
    """Return the hash of the plays of an evaluation, each a task's id and how often it was played before."""
    return digest(sorted([task, sample] for task, sample in plays))


def success(part: Part) -> float:
    """Return the share of an evaluation's episodes that were solved; ValueError where it has none."""
    episodes = part["episodes"]
    if not episodes:
        raise ValueError("an evaluation without episodes has no share of solved ones")
    return sum(bool(episode["success"]) for episode in episodes) / len(episodes)


def facts(part: Part) -> dict[str, float]:
    """Return the mean of each named number that the environment said of an evaluation's plays; none where it said none.

    A play that lacks one is left out of its mean.
    """
    said: dict[str, list[float]] = {}
    for episode in part["episodes"]:
        for name, value in (episode.get("facts") or {}).items():
            said.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in sorted(said.items())}


def _checkpoint(version: int, steps: int) -> str:
    return "last" if version == steps else f"after step {version}"


def _sum(history: Sequence[Row], name: str) -> float | None:
    """Return the sum of a metric that every step has; None if one lacks it."""
    values = [row["metrics"].get(name) for row in history]
    return None if not values or None in values else float(sum(values))


def _largest(history: Sequence[Row], name: str) -> float | None:
    """Return the largest value of a metric that every step has; None if one lacks it."""
    values = [row["metrics"].get(name) for row in history]
    return None if not values or None in values else float(max(values))


def _signal_steps(history: Sequence[Row]) -> int | None:
    """Return in how many steps something could be learned from rewards; None where a step does not say.

    Groups of equal rewards teach nothing, unless an algorithm compares episodes across groups.
    """
    counts = [[row["metrics"].get(f"batch/{name}") for name in ("groups", "constant_groups")] for row in history]
    if not counts or any(None in pair for pair in counts):
        return None
    return sum(
        bool(constant < groups) or _advantages_differ(row["metrics"])
        for row, (groups, constant) in zip(history, counts, strict=True)
    )


def _advantages_differ(metrics: Mapping[str, Any]) -> bool:
    return float(metrics.get("critic/advantages/max", 0.0)) - float(metrics.get("critic/advantages/min", 0.0)) > _NONE


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _given_up(history: Sequence[Row]) -> float | None:
    """Return the episodes that were given up without a reward, which the server counts from its start."""
    last = history[-1]["metrics"] if history else {}
    return last.get("lease/aborted", 0.0) if "lease/begun" in last else None
