"""What an evaluation that training waits for comes to, as a metric of its step and read back from there.

eval/episodes, eval/reward/mean         the episodes that were waited for, and their mean reward
eval/success/mean                       the share that succeeded, where all of them said whether they did
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from swarm.wire import EvaluationSummary

_EPISODES, _REWARD, _SUCCESS = "eval/episodes", "eval/reward/mean", "eval/success/mean"


def summed_up(step: int, outcomes: Sequence[tuple[float, bool | None]]) -> EvaluationSummary:
    """Return what the episodes' rewards and successes, of which there is one at least, say of a step's weights."""
    successes = [success for _, success in outcomes if success is not None]
    return EvaluationSummary(
        step=step,
        episodes=len(outcomes),
        reward=fmean(reward for reward, _ in outcomes),
        success=fmean(successes) if len(successes) == len(outcomes) else None,
    )


def as_metrics(evaluation: EvaluationSummary) -> dict[str, float]:
    """Return an evaluation as metrics of its step (module docstring)."""
    found = {_EPISODES: float(evaluation.episodes), _REWARD: evaluation.reward}
    return found if evaluation.success is None else {**found, _SUCCESS: evaluation.success}


def in_metrics(step: int, metrics: Mapping[str, float]) -> EvaluationSummary | None:
    """Return the evaluation that the metrics of a step tell of, or None."""
    if _EPISODES not in metrics:
        return None
    episodes, reward, success = int(metrics[_EPISODES]), metrics[_REWARD], metrics.get(_SUCCESS)
    return EvaluationSummary(step=step, episodes=episodes, reward=reward, success=success)
