"""What was lost of each arm: runs left out of the analysis, and training episodes given up without a reward.

What is lost because of its arm makes the rest of the arm look better, or worse, than it is, and nobody can tell from
the rest. So a difference is told whenever there is one: of runs any at all, as of five runs each one is a fifth; of
episodes one of `EPISODES_TOLD`, as below it no success rate moves by more than that. What the study itself cut short,
with its budget or by a veto, was not lost because of its arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from studies.checks.plumbing import conditions
from studies.log.study_state import RunState, StudyState
from studies.records.design import Design, Hypothesis

EPISODES_TOLD: Final = 0.005
"""Difference between the arms' shares of episodes without a reward that is worth a word: one in two hundred."""


def unequal_drops(state: StudyState, claim: Hypothesis) -> tuple[str, ...]:
    """Return in what the arms of a hypothesis and its control lost different shares, with the counts: each a clause."""
    design = state.design
    if design is None:
        return ()
    control, *others = design.contrast_of(claim)
    return tuple(clause for other in others for clause in _between(state, design, (control, other)))


def _between(state: StudyState, design: Design, names: tuple[str, str]) -> Iterator[str]:
    arms = [[run for run in state.runs_of(name) if run.attempts and not run.cut] for name in names]
    yield from _runs(design, names, arms)
    yield from _episodes(names, arms)


def _runs(design: Design, names: Sequence[str], arms: Sequence[Sequence[RunState]]) -> Iterator[str]:
    lost = [sum(_left_out(design, run) for run in runs) for runs in arms]
    if not all(arms) or lost[0] * len(arms[1]) == lost[1] * len(arms[0]):
        return
    told = (f"{n} of {len(runs)} with {name}" for name, n, runs in zip(names, lost, arms, strict=True))
    yield f"runs left out: {', '.join(told)}"


def _left_out(design: Design, run: RunState) -> bool:
    """Whether a run counts for nothing; one of a code that counts with the worst value does count."""
    return run.invalid is not None and run.invalid[0] not in design.counted_as_worst


def _episodes(names: Sequence[str], arms: Sequence[Sequence[RunState]]) -> Iterator[str]:
    shares = [_given_up(runs) for runs in arms]
    left, right = shares
    if left is None or right is None or abs(left - right) < EPISODES_TOLD:
        return
    yield f"training episodes given up without a reward: {left:.1%} with {names[0]}, {right:.1%} with {names[1]}"


def _given_up(runs: Sequence[RunState]) -> float | None:
    """Return the share of an arm's begun episodes that were given up; None where no run says."""
    known = [conditions(run) for run in runs if run.status == "collected"]
    pairs = [(seen.judge_errors, seen.episodes) for seen in known]
    counts = [(lost, trained) for lost, trained in pairs if lost is not None and trained is not None]
    begun = sum(lost + trained for lost, trained in counts)
    return sum(lost for lost, _ in counts) / begun if begun else None
