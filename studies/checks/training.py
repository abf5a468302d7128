"""Checks of trainings: collapse, learning signal, zero learning rate, losses of an arm.

Collapse compares a run with itself by the locked rule, blind to its arm and all other runs. Either is enough: it ended
below its beginning by more than so many standard errors of the two evaluations; or its training success ended more than
`lost` of its own gain, and as many errors, below its peak. A training that stays where it began never started and is
not collapsed. The error of an evaluation is sqrt(1/4 / n); that of a mean over steps is the larger of this and von
Neumann's successive differences (1941, Ann. Math. Stat. 12), which no trend disturbs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from studies.log.entries import RunState
from studies.log.study import StudyState
from studies.records.design import Hypothesis, RunSpec
from studies.records.procedure import CollapseRule, StartRule
from studies.records.runs import PLUMBING_ARM, Conditions, TrainingCurve, is_untrained_run, shares_untrained
from studies.records.verdict import CollapseRate
from studies.statistics.proportions import one_sided_limits

WINDOW_EPISODES: Final = 256
"""Training episodes behind each mean of a training curve, at the least."""
_LEAST_WINDOWS: Final = 3
"""A curve of fewer windows has no peak that is neither its beginning nor its end."""
LEAST_EPISODES: Final = _LEAST_WINDOWS * WINDOW_EPISODES
"""Training episodes from which on a curve can show a collapse."""
_LEVEL: Final = 0.95
_BREAKDOWNS: Final = frozenset({"kl_blow_up", "gradient_blow_up"})
"""Rules of the watchdog that end a training because it breaks down."""
PLUMBING: Final = "plumbing"


def min_steps_to_detect(episodes: float) -> int:
    """Return the training steps from which on a curve of so many episodes a step can show a collapse."""
    return _LEAST_WINDOWS * math.ceil(WINDOW_EPISODES / episodes)


def training_curve(history: Sequence[Mapping[str, Any]], start: float, end: float, plays: int) -> TrainingCurve:
    rows = [(row["metrics"].get("critic/success/mean"), row["metrics"].get("batch/episodes")) for row in history]
    plain = TrainingCurve(start=start, end=end, plays=plays)
    if not rows or any(share is None or not count for share, count in rows):
        return plain
    shares = [float(share) for share, _ in rows]
    episodes = fmean(float(count) for _, count in rows)
    steps = math.ceil(WINDOW_EPISODES / episodes)
    if len(shares) < min_steps_to_detect(episodes):
        return plain
    means = [fmean(shares[at : at + steps]) for at in range(len(shares) - steps + 1)]
    error = math.sqrt(max(0.25 / episodes, fmean((b - a) ** 2 for a, b in pairwise(shares)) / 2) / steps)
    return plain.model_copy(update={"first": means[0], "peak": max(means), "last": means[-1], "error": error})


def detect_collapse(conditions: Conditions, rule: CollapseRule) -> str | None:
    """Return how a run that was measured collapsed, in a clause; None for one that did not, or that nobody can say."""
    if conditions.stopped_by in _BREAKDOWNS:
        return f"it was stopped as it broke down ({conditions.stopped_by})"
    found = conditions.course
    if found is None:
        return None
    if found.start - found.end > rule.errors * math.sqrt(0.5 / found.plays):
        return f"it ended at {found.end:.3f}, below its beginning of {found.start:.3f}"
    if found.first is None or found.peak is None or found.last is None or found.error is None:
        return None
    lost, gained = found.peak - found.last, found.peak - found.first
    if lost > rule.lost * gained and lost > rule.errors * math.sqrt(2) * found.error:
        begun = "where it began" if gained == 0 else f"having begun at {found.first:.3f}"
        return f"its training success fell from {found.peak:.3f} to {found.last:.3f}, {begun}"
    return None


def has_started(conditions: Conditions, rule: StartRule) -> bool:
    """Return whether a training ended above where it began; of one of which nobody can say, that it did."""
    if (found := conditions.course) is None:
        return True
    if found.end - found.start > rule.errors * math.sqrt(0.5 / found.plays):
        return True
    if found.first is None or found.last is None or found.error is None:
        return False
    return found.last - found.first > rule.errors * math.sqrt(2) * found.error


def collapse_rate(arm: str, count: int, of: int) -> CollapseRate:
    low, high = one_sided_limits(count, of, (1 + _LEVEL) / 2)
    return CollapseRate(arm=arm, count=count, of=of, low=low, high=high, upper=one_sided_limits(count, of, _LEVEL)[1])


def find_zero_lr_run(state: StudyState) -> RunState | None:
    return next((run for run in state.runs_in("noise") if run.spec.arm == PLUMBING_ARM), None)


def list_untrained_runs(state: StudyState) -> list[RunState]:
    return [run for run in state.every_run.values() if is_untrained_run(run.spec) and run.status == "collected"]


def find_untrained_run(state: StudyState, spec: RunSpec) -> RunState | None:
    return next((run for run in list_untrained_runs(state) if shares_untrained(spec, run.spec)), None)


def find_fault(seen: Conditions | None) -> str | None:
    if seen is None or (still := seen.stillness) is None:
        return None
    if still.before is not None and still.after is not None and still.before != still.after:
        return (
            f"{seen.steps} training steps with a learning rate of 0 changed the weights: expected them bit-equal "
            f"({still.before[:12]}), found {still.after[:12]}"
        )
    if still.probs_tolerance is not None and seen.probs_diff is not None and seen.probs_diff > still.probs_tolerance:
        return (
            f"engine and learner differ by {seen.probs_diff:.3g} on the probability of a sampled token under the same "
            f"weights, where their backend states at most {still.probs_tolerance:g}"
        )
    return None


def list_unreported(seen: Conditions | None) -> tuple[str, ...]:
    still, missing = None if seen is None else seen.stillness, []
    if still is None or None in (still.before, still.after):
        missing.append("whether the weights stayed as they were")
    if seen is None or still is None or None in (still.probs_tolerance, seen.probs_diff):
        missing.append("whether engine and learner agree on probabilities")
    return tuple(missing)


def describe_zero_lr_run(run: RunState) -> str:
    seen = run.conditions or Conditions()
    if (fault := find_fault(seen)) is not None:
        return fault
    unsaid = list_unreported(seen)
    if not unsaid and seen.stillness is not None:
        return (
            f"{seen.steps} steps with a learning rate of 0 left the weights bit-equal, and engine and learner differed "
            f"by at most {seen.probs_diff:.2g} on a probability ({seen.stillness.probs_tolerance:g} is allowed)"
        )
    return f"{seen.steps} steps with a learning rate of 0 ran; the backend cannot say {' nor '.join(unsaid)}"


def unequal_drops(state: StudyState, claim: Hypothesis) -> tuple[str, ...]:
    """Return in what the arms of a hypothesis and its control lost different shares, with the counts: each a clause."""
    if (design := state.design) is None:
        return ()
    control, *others = design.contrast_of(claim)
    clauses = []
    for names in ((control, other) for other in others):
        arms = [[run for run in state.runs_of(name) if run.attempts and not run.cut] for name in names]
        ends = ([run.invalid[0] for run in runs if run.invalid is not None] for runs in arms)
        lost = [sum(code not in design.counted_as_worst for code in codes) for codes in ends]
        if all(arms) and lost[0] * len(arms[1]) != lost[1] * len(arms[0]):
            shares = (f"{n} of {len(runs)} with {name}" for name, n, runs in zip(names, lost, arms, strict=True))
            clauses.append(f"runs left out: {', '.join(shares)}")
    return tuple(clauses)


def had_no_signal(run: RunState) -> bool:
    """Return whether a collected run learned nothing from rewards in any step; not, where its files do not say."""
    if run.status != "collected" or run.spec.arm == PLUMBING_ARM or (seen := run.conditions) is None:
        return False
    return seen.signal_steps == 0 and bool(seen.steps)


def count_without_signal(state: StudyState) -> dict[str, tuple[int, int]]:
    """Return how many collected runs of each arm learned nothing from rewards, of how many; of arms that have some."""
    runs = [run for run in state.runs.values() if run.status == "collected" and run.spec.arm != PLUMBING_ARM]
    whole, none = Counter(run.spec.arm for run in runs), Counter(run.spec.arm for run in runs if had_no_signal(run))
    return {arm: (none[arm], count) for arm, count in whole.items() if none[arm]}
