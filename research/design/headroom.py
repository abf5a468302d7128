"""Whether a baseline leaves room for the effect, up or down to its metric's bounds.

A share of solved tasks ends at 0 and at 1, a time to a threshold at none and at its horizon, a gain at what the
untrained model leaves unsolved. Runs that are all at one end do not vary, so that no noise is known either: they are
refused in any direction. What would help is offered in the order in which it is likely to.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Final

from research.design.comparison import DesignDraft
from research.design.noise_bank import NoiseBank
from research.design.pricing import Estimates
from research.environments.catalog import MeasuredEnvironment
from research.errors import DesignRefused, Unmeasurable
from research.proposals.metric_choice import add_evaluations, format_amount, format_difference, metric_range
from studies.checks.conditions import min_steps_to_detect
from studies.metrics import kind_of
from studies.metrics.base import FORMS, LEAST_POINTS, Reduction
from studies.metrics.builtin import Collapse, MeanFact, Success
from studies.records.design import Hypothesis, Metric
from studies.records.statements import metric_name
from studies.statistics.comparison import Interval
from studies.statistics.proportions import rate_interval
from swarm.environments.registry import environments

LEAST_GROUPS: Final = 8
"""Groups of an untrained model's episodes that say whether any rewards differ."""
LEAST_RUNS: Final = 2
"""Runs of the control's job that say where it stands."""
_LONGER: Final = 1.05
"""How much longer an arm may train that is as long as the others: arms matched by episodes differ by part of a step."""
_FINEST: Final = 100
"""Effects are offered that are one part in so many of the metric's range, or larger."""


def require_headroom(draft: DesignDraft, bank: NoiseBank, metric: Metric, directions: Sequence[str]) -> None:
    """Raise DesignRefused where the control's level is known and an effect in one of `directions` does not fit."""
    job = draft.job
    levels = bank.levels(job, metric)
    if len(levels) < LEAST_RUNS:
        return
    level, floor, ceiling = fmean(levels), min(metric.worst, metric.best), max(metric.worst, metric.best)
    cut_at = None if metric.threshold is None else metric.cut_at
    late = 0 if cut_at is None else sum(value >= cut_at for value in levels)
    if 2 * late > len(levels):
        steps = _suggest_steps(draft, fewer=False)
        longer = [] if steps is None else [f"train more steps, --set steps={steps}"]
        threshold = max(0.05, round(metric.threshold or 0.0, 2) / 2)
        lower = f"ask for a lower threshold, --metric {metric.kind}:{threshold:g}"
        who, whose = ("any run", f"all {late}") if late == len(levels) else ("most runs", f"{late} of {len(levels)}")
        why = (
            f"{metric.threshold:g} hidden success is not reached by {who} within "
            f"{format_difference(metric, metric.worst)}: {whose} runs of the control's job end below, so that nothing "
            "can be seen of what another setting changes"
        )
        ways = [lower, *longer, "or ask for the success at the end, --metric success"]
        suggestions = [*([f"design {steps} steps"] if steps is not None else []), "decline, and say why"]
        raise DesignRefused(f"{why}: {'; '.join(ways)}", model_feedback=f"{why}: {'; or '.join(suggestions)}")
    at_bound = min(levels) == max(levels) and level in (floor, ceiling)
    room = {"increase": ceiling - level, "decrease": level - floor}
    cramped = [way for way in directions if room[way] < draft.effect - 1e-9 * metric_range(metric)]
    if at_bound or cramped:
        up = level >= ceiling if at_bound else cramped[0] == "increase"
        bound = ceiling if up else floor
        raise _refuse_no_headroom(draft, metric, level, len(levels), bound, up=up, at_bound=at_bound)


def require_schedule(draft: DesignDraft, metric: Metric, estimates: Estimates) -> None:
    """Raise Unmeasurable where trainings cannot be evaluated as a metric asks for: too short, unequal, or for less."""
    if metric.horizon is None and (metric.kind != MeanFact.name or metric.schedule is None):
        return
    knobs = draft.screen.knobs if draft.screen is not None else ()
    batches = (int(value) for knob in knobs if knob.field == "episodes_per_step" for value in knob.values)
    searched = (draft.job.steps * batch for batch in batches)
    lengths = sorted({*searched, *(job.steps * job.episodes_per_step for job in draft.comparison.jobs)})
    if lengths[-1] > _LONGER * lengths[0]:
        raise Unmeasurable(
            f"expected arms of as many training episodes each, as {metric_name(metric)} is read to one horizon; found "
            f"{lengths[0]:,} to {lengths[-1]:,}; vary another field, or ask for another metric, --metric success"
        )
    for job in map(partial(add_evaluations, metric=metric), draft.comparison.jobs if metric.schedule else ()):
        if (points := len(job.evaluate_after) + 2) < LEAST_POINTS:
            raise Unmeasurable(
                f"expected trainings of {LEAST_POINTS - 1} steps or more, to tell {metric_name(metric)}; found "
                f"{job.steps} steps, which are evaluated {points} times; train more steps, --set steps=40, or "
                "ask for another metric, --metric success"
            )
        during, training = estimates.during(job), estimates.training(job)
        if during > training:
            raise Unmeasurable(
                "expected evaluations during training that take less than the training; found "
                f"{len(job.evaluate_after)} of {job.evaluation_episodes} episodes, about {during:.1f} s, in a training "
                f"of {training:.1f} s; train more steps, evaluate on fewer episodes (--episodes), "
                "or ask for another metric, --metric success"
            )


def require_steps(draft: DesignDraft, metric: Metric) -> None:
    """Raise DesignRefused for a number of some steps of which a training tells none."""
    if metric.kind not in FORMS or (metric.kind == MeanFact.name and metric.schedule is None):
        return
    first, last = Reduction.parse(metric.of, metric.kind).steps
    for job in map(partial(add_evaluations, metric=metric), draft.comparison.jobs):
        steps = range(1, job.steps + 1) if metric.schedule is None else (*job.evaluate_after, job.steps)
        if not any(first <= step <= last for step in steps) or steps[-1] < last < 10**6:  # as named
            found = f"found {len(steps)} steps that do, {steps[0]} to {steps[-1]}; name some of these"
            raise DesignRefused(f"expected a reduction of steps that tell {metric.unit or metric.name}; {found}")


def require_observable_collapse(draft: DesignDraft, metric: Metric) -> None:
    """Raise DesignRefused where it cannot be told of each run whether it collapsed, or a search is led by 1s and 0s."""
    if draft.screen is not None and kind_of(metric).rates:
        raise DesignRefused(
            f"expected a metric that one short run of a candidate tells, to search by; found {metric_name(metric)}; "
            "ask for another metric, --metric success, or compare values that you name, --vary"
        )
    if kind_of(metric).name != Collapse.name:
        return
    for job in draft.comparison.jobs:
        if job.steps < (least := min_steps_to_detect(job.episodes_per_step)):
            raise DesignRefused(
                f"expected trainings of {least} steps or more, in which a collapse can be seen with "
                f"{job.episodes_per_step} episodes a step; found {job.steps}; train more steps, --set steps={least}"
            )


def require_replicable(metric: Metric, there: Metric) -> None:
    if metric.unit != "seconds" and (metric.worst, metric.best) != (there.worst, there.best):
        raise DesignRefused(
            f"expected a replication where {metric_name(metric)} is {metric.worst:g} to {metric.best:g} too; found "
            f"{there.worst:g} to {there.best:g}; replicate in another environment, or not at all"
        )


def require_room_to_gain(
    draft: DesignDraft, levels: Sequence[float], known: Sequence[MeasuredEnvironment | None],
    claims: Sequence[Hypothesis],
) -> None:  # fmt: skip
    """Raise DesignRefused where a claim on what models gain does not fit between their beginnings and the bounds.
    `levels` are gains of runs of the control's job (without any it is taken to gain nothing), `known` a check of each
    arm, the control's first, `claims` those on the others in order."""
    if len(levels) >= LEAST_RUNS and min(levels) == max(levels):
        raise DesignRefused(
            f"expected a control whose gains vary; all {len(levels)} runs of its job gained {levels[0]:g}, so that "
            "nothing is known of the noise: train more steps, or choose another environment, --env"
        )
    if all(faults := [_find_no_signal(entry) for entry in known]) and faults[0] is not None:
        raise faults[0]
    level = fmean(levels) if len(levels) >= LEAST_RUNS else None
    control, *treatments = map(_initial_success, known)
    for claim, begins in zip(claims, treatments, strict=True):
        if claim.direction == "increase":
            side, who = begins, "the model that is to gain more"
            room = 0.0 if begins is None else 1 - begins.low - (level or 0.0)
        elif level is None:
            side, who = control, "the control's model, which is to gain more,"
            room = 0.0 if control is None else 1 - control.low
        else:
            side, who = begins, "the model that is to gain less"
            room = 0.0 if begins is None else level + begins.high
        if claim.sought != "equivalence" and side is not None and room < draft.effect - 1e-9:
            raise DesignRefused(
                f"expected room for an effect of {draft.effect:g} on what is gained in "
                f"{draft.job.environment}; {who} solved {side.mean:.3f} of search episodes untrained, "
                f"which leaves {max(0.0, room):.3f}: pose other tasks, or look for a smaller effect (--effect)"
            )


def require_signal(
    draft: DesignDraft, metric: Metric, known: MeasuredEnvironment | None, directions: Sequence[str]
) -> None:
    """Raise DesignRefused where a check of the untrained model showed that nothing can be seen here."""
    if (fault := _find_no_signal(known)) is not None:
        raise fault
    if known is None or (found := _initial_success(known)) is None:
        return
    solved = f"the untrained model solved {known.base_success:.3f} of {known.base_success_n} search episodes"
    if metric.threshold is not None and found.low >= metric.threshold:
        raise DesignRefused(
            f"expected a threshold that training has to reach in {known.environment}; found {metric.threshold:g}, and "
            f"when it was checked, {solved}: ask for a higher threshold, or pose harder tasks"
        )
    if kind_of(metric).name == Success.name and "increase" in directions and metric.best - found.low < draft.effect:
        raise DesignRefused(
            f"expected room for an effect of {draft.effect:g} in {known.environment}; when it was checked, {solved}: "
            "pose harder tasks, or look for a smaller effect (--effect)"
        )


def _initial_success(known: MeasuredEnvironment | None) -> Interval | None:
    if known is None:
        return None
    solved = round((known.base_success or 0.0) * known.base_success_n)
    return rate_interval(solved, known.base_success_n)


def _find_no_signal(known: MeasuredEnvironment | None) -> DesignRefused | None:
    if known is None or known.equal_groups != 1.0 or known.equal_groups_n < LEAST_GROUPS:
        return None
    return DesignRefused(
        f"expected something to learn in {known.environment}; when it was checked with this model, all "
        f"{known.equal_groups_n} groups of {known.group_size} episodes had equal rewards, and such a group teaches "
        "nothing: pose easier or harder tasks, show examples in the prompt, or reward a part of the way, and check "
        "again (ajet env check)"
    )


def _refuse_no_headroom(
    draft: DesignDraft, metric: Metric, level: float, runs: int, bound: float, *, up: bool, at_bound: bool
) -> DesignRefused:
    where, room = "ceiling" if up else "floor", abs(bound - level)
    why = (
        f"the control itself stands at the {where}: all {runs} runs of its job come "
        f"to {format_difference(metric, level)}, so that nothing can be seen of what another setting changes"
        if at_bound
        else f"the control itself comes to {format_amount(metric, level)} in {runs} runs of its job, "
        f"{format_amount(metric, room)} from the {where} of {bound:g}: "
        f"an effect of {format_difference(metric, draft.effect)} does not fit between"
    )
    steps, flags, designs = _suggest_steps(draft, fewer=up == metric.higher_is_better), [], []
    if steps is not None:
        flags.append(f"train {'fewer' if steps < draft.job.steps else 'more'} steps, --set steps={steps}")
        designs.append(f"design {steps} steps")
    if others := [name for name in environments() if name != draft.job.environment]:
        flags.append(f"choose another environment, --env {others[0]}")
    designs.append("choose another environment, unless one is named")
    least = metric_range(metric) / _FINEST
    if not at_bound and room >= least:
        finer = int(room / least) * least
        flags.append(f"look for a smaller effect, --effect {finer:g}, which needs more seeds")
        designs.append(f"name a smaller smallest_effect, {finer:g} at most")
    suggestions = "; or ".join([*designs, "decline, and say why"])
    return DesignRefused(f"{why}: {'; or '.join(flags)}", model_feedback=f"{why}: {suggestions}")


def _suggest_steps(draft: DesignDraft, *, fewer: bool) -> int | None:
    if draft.varies_steps or (fewer and draft.job.steps == 1):
        return None
    return draft.job.steps // 2 if fewer else 2 * draft.job.steps
