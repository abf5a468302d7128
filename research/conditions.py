"""Under which conditions a run went: put together from what the harness itself saw, never from a client's word.

What was trained comes from the history that was read back from the tracker, what was evaluated from the evaluator's
outcomes, what the server loaded and who trained on what from the attempt (`Seen`), neighbours from the study's log and,
those of other studies, from the installation's sandboxes. A number that one of them does not give is None. Not known to
anybody here: programs of other users on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from research.attempt_folder import Order, Seen
from research.cotenants import Span
from research.evaluations import RunEvaluation
from studies.records import Conditions, digest
from studies.standing import AttemptState

Row = Mapping[str, Any]


def conditions_of(
    order: Order,
    history: Sequence[Row],
    evaluations: RunEvaluation,
    seen: Seen,
    neighbours: int | None,
    stopped_by: str | None,
) -> Conditions:
    """Return a collected run's conditions."""
    initial, final = evaluations.initial, evaluations.final
    return Conditions(
        steps=len(history),
        episodes=_whole(_sum(history, "batch/episodes")),
        tokens=_whole(_sum(history, "tokens/trained")),
        optimiser_steps=_updates(order, history),
        wall_s=_sum(history, "timing_s/step"),
        initial_policy=seen.initial_policy,
        initial_success=initial.success,
        evaluation_tasks=digest(sorted([episode.task_id, episode.sample] for episode in final.episodes)),
        evaluation_episodes=len(final.episodes),
        decoding=seen.decoding,
        template=seen.template,
        checkpoint="last" if final.policy_version == len(history) else f"after step {final.policy_version}",
        overlap=seen.overlap,
        image=order.sandbox.image or order.sandbox.kind,
        hardware=seen.hardware,
        neighbours=neighbours,
        judge_errors=_whole(_given_up(history)),
        stopped_by=stopped_by,
    )


def neighbours_of(
    attempts: Iterable[AttemptState], attempt: AttemptState, ended: datetime, others: Iterable[Span] = ()
) -> int:
    """Return the most attempts that ran beside one of a study's at one moment: the study's, and `others`."""
    began = datetime.fromisoformat(attempt.launched)
    ours = (span for other in attempts if other.name != attempt.name and (span := _span(other, ended)))
    beside = [(max(begin, began), min(end, ended)) for begin, end in (*ours, *others) if begin < ended and end > began]
    return max((sum(begin <= moment < end for begin, end in beside) for moment, _ in beside), default=0)


def _span(attempt: AttemptState, now: datetime) -> Span | None:
    """Return from when to when an attempt ran; one that runs has run until now."""
    began = datetime.fromisoformat(attempt.launched)
    if attempt.status is None:
        return began, now
    return (began, began + timedelta(seconds=attempt.seconds)) if attempt.seconds else None


def _sum(history: Sequence[Row], name: str) -> float | None:
    """Return the sum of a metric that every step has; None if one lacks it."""
    values = [row["metrics"].get(name) for row in history]
    return None if not values or None in values else float(sum(values))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _updates(order: Order, history: Sequence[Row]) -> int | None:
    """Return the optimiser steps: a learner makes all of a step's, `epochs` times `minibatches`, or none."""
    if order.job.backend == "fake":
        return None
    return len(history) * order.job.epochs * order.job.minibatches


def _given_up(history: Sequence[Row]) -> float | None:
    """Return the episodes that were given up without a reward, which the server counts from its start."""
    last = history[-1]["metrics"] if history else {}
    return last.get("lease/aborted", 0.0) if "lease/begun" in last else None
