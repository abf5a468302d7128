"""The conditions of a collected run, from what the harness itself observed, never from what a client reported.

What was trained comes from the history that was read back from the tracker, what was evaluated from the evaluator's
outcomes, what the server loaded and who trained on what from the attempt (`ObservedConditions`), neighbours from the
study's log and, those of other studies, from the installation's sandboxes. A number that is
not available is None. Not observed: programs of other users on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from research.installation.slots import Span
from research.results.attempt_files import AttemptSpec, ObservedConditions
from studies.checks.run_facts import Row, conditions_in, tasks_hash
from studies.log.study_state import AttemptState
from studies.records.run_data import Conditions
from swarm.environments.playing.evaluate import rounds
from swarm.environments.registry import get_environment


def conditions_of(
    spec: AttemptSpec,
    history: Sequence[Row],
    evaluations: Mapping[str, Any],
    seen: ObservedConditions,
    neighbours: int | None,
    stopped_by: str | None,
) -> Conditions:
    """Return a collected run's conditions; `evaluations` is a RunEvaluation as JSON."""
    return Conditions(
        **conditions_in(history, evaluations["initial"], evaluations["final"]),
        drawn_tasks=_drawn(spec),
        optimiser_steps=_updates(spec, history),
        initial_policy=seen.initial_policy,
        decoding=seen.decoding,
        template=seen.template,
        overlap=seen.overlap,
        image=spec.sandbox.image or spec.sandbox.kind,
        hardware=seen.hardware,
        neighbours=neighbours,
        stopped_by=stopped_by,
        stillness=seen.stillness,
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


def _drawn(spec: AttemptSpec) -> str:
    """Return the hash of the tasks that the run's seed draws for its evaluation."""
    run = spec.run
    tasks = get_environment(run.environment).tasks("search" if run.metric.split == "search" else "hidden")
    chosen = rounds(tasks, run.metric.episodes, run.seed)
    return tasks_hash((task.id, sample) for sample, part in enumerate(chosen) for task in part)


def _updates(spec: AttemptSpec, history: Sequence[Row]) -> int | None:
    """Return the optimiser steps: a learner makes all of a step's, `epochs` times `minibatches`, or none.

    None for a backend that an installed package brings, of which nobody knows.
    """
    if spec.job.backend not in ("local", "verl"):
        return None
    return len(history) * spec.job.epochs * spec.job.minibatches
