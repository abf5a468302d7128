"""Whether a training had anything to learn from: a run may end well, and every group of every step had equal rewards.

Then no gradient came from a reward, and "trained" is a word for steps alone.
"""

from __future__ import annotations

from studies.checks.plumbing import conditions
from studies.log.study_state import RunState, StudyState
from studies.records.run_specs import PLUMBING_ARM


def untaught(run: RunState) -> bool:
    """Return whether a collected run learned nothing from rewards in any step; not, where its files do not say."""
    seen = conditions(run)
    return run.status == "collected" and run.spec.arm != PLUMBING_ARM and seen.signal_steps == 0 and bool(seen.steps)


def untaught_by_arm(state: StudyState) -> dict[str, tuple[int, int]]:
    """Return how many collected runs of each arm learned nothing from rewards, of how many; of arms that have some."""
    counts: dict[str, tuple[int, int]] = {}
    for run in state.runs.values():
        if run.status == "collected" and run.spec.arm != PLUMBING_ARM:
            none, all_runs = counts.get(run.spec.arm, (0, 0))
            counts[run.spec.arm] = (none + untaught(run), all_runs + 1)
    return {arm: (none, all_runs) for arm, (none, all_runs) in counts.items() if none}
