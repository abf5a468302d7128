"""Whether another attempt at a run goes on from what the last one's server kept, or begins anew: a function of its log.

Going on is what recovery promises: the training is the one that would have been, with each sample learned once. It is
no choice between results, because what ended the attempt does not enter the training that goes on. So it is done
wherever the cause lay beside the server's record; it is done once where the record may itself be the cause; and it is
not done where the record is what is in doubt. Whether there is a record to go on from, and nobody uses it, is seen to
where it is taken over (`research.attempts.takeover`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from studies.log.study_state import RunState

Way = Literal["on", "once", "anew"]
"""What follows an end: it is gone on from; unless that attempt had itself gone on from another; never."""

_CLIENT = "a client keeps nothing: the next one is handed the places that are open"
_EVALUATOR = "an evaluation changes no weights, and is made again"
WAYS: Mapping[str, tuple[Way, str]] = MappingProxyType({
    # from outside
    "lost": ("on", "it was killed from outside, or with its machine"),
    "stopped": ("on", "somebody stopped it; nothing was wrong with it"),
    "budget_exhausted": ("on", "the budget stopped it; nothing was wrong with it"),
    "vetoed": ("on", "a veto stopped it; nothing was wrong with it"),
    "disk_full": ("on", "the server writes nothing by halves, and there is room again"),
    "engine_gone": ("on", "the container engine holds none of the training"),
    "container_refused": ("on", "the container engine holds none of the training"),
    "launch_failed": ("on", "it never began"),
    # beside the server
    "client_died": ("on", _CLIENT), "client_killed": ("on", _CLIENT), "client_timeout": ("on", _CLIENT),
    "client_out_of_memory": ("on", _CLIENT),
    "evaluator_died": ("on", _EVALUATOR), "evaluator_failed": ("on", _EVALUATOR),
    "evaluator_killed": ("on", _EVALUATOR), "evaluator_timeout": ("on", _EVALUATOR),
    "evaluator_out_of_memory": ("on", _EVALUATOR),
    # perhaps by what it had before it
    "server_died": ("once", "what is recorded is whole whenever a server dies; but it may be what it died of"),
    "server_silent": ("once", "what is recorded is whole; but it may be what the server hung at"),
    "client_stopped": ("once", "what is recorded is whole; but it may be why nothing was left to play"),
    "attempt_died": ("once", "what is recorded is whole; but it may be what the attempt died of"),
    "timeout": ("once", "what was trained in time is kept; but it may be what the attempt hung at"),
    "tracking_unreadable": ("once", "the next server logs every step again, from its own record"),
    "steps_missing": ("once", "the next server logs every step again, from its own record"),
    # the record is in doubt
    "server_failed": ("anew", "the server ended the training itself: its store, its checkpoints or its learner"),
    "server_refused": ("anew", "the server refused what every attempt asks of it"),
    "boot_failed": ("anew", "the server did not start, perhaps for what lay in its folder"),
    "foreign_training": ("anew", "what was trained are no plays of the run's tasks"),
    "foreign_results": ("anew", "what it left is not known to be this run's"),
    "outcome_unreadable": ("anew", "its files were damaged"),
    "evaluation_unreadable": ("anew", "its evaluations were damaged, perhaps the one that would be kept"),
    "evaluation_incomplete": ("anew", "its evaluations are not whole, perhaps the one that would be kept"),
    "model_changed": ("anew", "the model's folder does not hold what the study began with"),
    # not tried again at all
    "training_nan": ("anew", "the training itself broke down"),
    "generated_code_failed": ("anew", "generated code may have ended it"),
    "evidence_missing": ("anew", "its evidence was spoilt"),
    "not_measurable": ("anew", "its files do not hold what it is judged by"),
    "evidence_changed": ("anew", "its evidence was spoilt"),
})  # fmt: skip
"""By the code of an attempt's end: what follows, and why."""


class WayOn(NamedTuple):
    """Whether to go on from the last attempt, and why or why not, in a sentence without its full stop."""

    goes_on: bool
    why: str


def way_on(run: RunState) -> WayOn:
    """Return how the next attempt at a run begins, by how its last one ended; a run has one that is over."""
    last = run.attempts[-1]
    way, why = WAYS.get(last.code, ("anew", "nothing is known of such an end"))
    if run.spec.job.get("learning_rate") == 0:
        return WayOn(False, "it is to show that nothing moves from its first step to its last")
    if way == "once" and last.resumes is not None:
        return WayOn(False, f"{why}, and attempt {last.number} had gone on from another")
    return WayOn(way != "anew", why)
