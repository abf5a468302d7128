"""Whether the machinery of training does what it must: nothing at all, where the learning rate is 0.

A run of `PLUMBING_ARM` trains a few steps with a learning rate of 0. Its weights must be bit-equal afterwards, and the
engine's probabilities of what it sampled must agree with the learner's within what the backend states. A backend that
cannot say one of the two is not held to it, and that is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from studies.log.study_state import RunState, StudyState
from studies.records.run_data import Conditions
from studies.records.run_specs import PLUMBING_ARM

PLUMBING: Final = "plumbing"
"""Code of the end of a study whose machinery does not do what it must."""


def plumbing_run(state: StudyState) -> RunState | None:
    """Return the study's run with a learning rate of 0; None where it has none (yet)."""
    return next((run for run in state.runs_in("noise") if run.spec.arm == PLUMBING_ARM), None)


def plumbing_fault(run: RunState) -> str | None:
    """Return what a collected run with a learning rate of 0 shows to be broken, in a clause; None for nothing."""
    return fault_in(conditions(run))


def plumbing_unchecked(run: RunState) -> tuple[str, ...]:
    """Return what its backend could not say, each a clause."""
    return unsaid_in(conditions(run))


def fault_in(seen: Conditions) -> str | None:
    """Return what the conditions of such a run show to be broken, in a clause; None for nothing."""
    return next(_faults(seen), None)


def unsaid_in(seen: Conditions) -> tuple[str, ...]:
    """Return what they do not say, each a clause."""
    still = seen.stillness
    found = []
    if still is None or still.before is None or still.after is None:
        found.append("whether the weights stayed as they were")
    if still is None or still.probs_tolerance is None or seen.probs_diff is None:
        found.append("whether engine and learner agree on probabilities")
    return tuple(found)


def plumbing_said(run: RunState) -> str:
    """Return what a collected run with a learning rate of 0 came to, in a sentence without its full stop."""
    if (fault := plumbing_fault(run)) is not None:
        return fault
    unsaid = plumbing_unchecked(run)
    seen = conditions(run)
    if not unsaid and seen.stillness is not None:
        return (
            f"{seen.steps} steps with a learning rate of 0 left the weights bit-equal, and engine and learner differed "
            f"by at most {seen.probs_diff:.2g} on a probability ({seen.stillness.probs_tolerance:g} is allowed)"
        )
    return f"{seen.steps} steps with a learning rate of 0 ran; the backend cannot say {' nor '.join(unsaid)}"


def conditions(run: RunState) -> Conditions:
    """Return the conditions that a run was collected with; empty ones where none are recorded."""
    collected: Any = run.collected or {}
    return Conditions.model_validate(collected.get("conditions") or {})


def _faults(seen: Conditions) -> Iterator[str]:
    still = seen.stillness
    if still is None:
        return
    if still.before is not None and still.after is not None and still.before != still.after:
        yield (
            f"{seen.steps} training steps with a learning rate of 0 changed the weights: expected them bit-equal "
            f"({still.before[:12]}), found {still.after[:12]}"
        )
    if still.probs_tolerance is not None and seen.probs_diff is not None and seen.probs_diff > still.probs_tolerance:
        yield (
            f"engine and learner differ by {seen.probs_diff:.3g} on the probability of a sampled token under the same "
            f"weights, where their backend states at most {still.probs_tolerance:g}"
        )
