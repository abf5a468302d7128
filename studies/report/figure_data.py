"""Series of every figure."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from studies.checks.conditions import INITIAL
from studies.log.entries import RunState
from studies.log.study import StudyState
from studies.records.design import REWARD
from studies.records.procedure import Phase
from studies.records.runs import NOISE_ARM, TRAINING_AREA
from studies.report.claims import claims
from studies.report.elements import arm_interval, is_rate
from studies.report.evidence import REWARDS, SUCCESS, Evidence
from studies.report.wording import describe_comparison, metric_axis
from studies.statistics.comparison import Interval
from studies.verdicts.judge import find_collapsed_runs
from studies.verdicts.wording import DecidingInterval, deciding_interval

Points = tuple[tuple[float, float], ...]
TRAINING: Final = ("actor/entropy", "actor/ppo_kl", "actor/grad_norm", "response_length/mean")
"""Metrics that tell how a training went, which every report draws where they were logged."""


@dataclass(frozen=True, slots=True)
class ClaimEffect:
    """One claim, the difference that was predicted, and the one that its runs showed."""

    name: str
    predicted: tuple[float, float, float]
    judged: bool = False
    estimate: float | None = None
    observed: DecidingInterval | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """The claims of a round."""

    items: tuple[ClaimEffect, ...]
    measured: str
    unit: str = ""
    margin: float | None = None
    """Differences within it to both sides of zero do not matter; None where the lock names none."""


def forecasts(state: StudyState) -> Effects | None:
    """Return what was predicted of each claim and what was observed; None before anything is claimed."""
    design, items = state.design, []
    for claim in claims(state):
        predicted = (claim.prediction.low, claim.prediction.high, claim.prediction.level)
        item = ClaimEffect(f"{claim.id}: {describe_comparison(claim)}", predicted)
        if design is not None and (verdict := state.verdict_on(claim.id)) is not None:
            item = replace(item, judged=True, estimate=verdict.estimate, observed=deciding_interval(design, verdict))
        items.append(item)
    if design is None:
        return Effects(tuple(items), "the metric") if items else None
    return Effects(tuple(items), metric_axis(design.metric), design.metric.unit, design.equivalence_margin)


@dataclass(frozen=True, slots=True)
class SeedCurve:
    """One run's learning curve."""

    run_id: str
    seed: int
    points: Points


@dataclass(frozen=True, slots=True)
class ArmCurves:
    """All learning curves of an arm; `index` is the arm's place in the design and decides its colour."""

    arm: str
    index: int
    seeds: tuple[SeedCurve, ...]
    mean: Points
    """Mean over the runs, at every x that all of them logged."""


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one metric, by arm. `measured` names the y axis, `unit` the x axis."""

    arms: tuple[ArmCurves, ...]
    measured: str
    unit: str
    threshold: float | None = None
    """The height that is to be reached; None where none is."""
    horizon: float | None = None
    """Where a time is cut, or an area ends, on the x axis."""


@dataclass(frozen=True, slots=True)
class ArmShift:
    """The hidden metric of an arm's runs before and after training."""

    arm: str
    index: int
    pairs: tuple[tuple[str, float | None, float], ...]
    """(label of the run, before or None, after)."""
    interval: Interval | None
    """Of the mean after training, of the runs that did not collapse."""
    collapsed: frozenset[str] = frozenset()
    """Labels of runs that collapsed by the locked rule: no part of a mean."""
    missed: frozenset[str] = frozenset()
    """Labels of runs that never reached the threshold: they have the horizon."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """Before and after, for all arms."""

    arms: tuple[ArmShift, ...]
    measured: str
    both: bool = True
    rates: bool = False
    """Whether runs have 1 or 0, so that intervals are exact limits of a rate."""
    unit: str = ""
    each: str = "run"
    """What a mark is: a run, or of an audit a group, whose intervals are those that decide."""


def list_plotted_arms(state: StudyState) -> list[tuple[str, int, tuple[RunState, ...]]]:
    """Return the arms of the design, or of a study that explores, that have collected runs; else the A/A runs."""
    explored = state.explored
    arms = state.design.arms if state.design is not None else explored.arms if explored is not None else ()
    phase: Phase = "confirm" if explored is None else "explore"
    groups = [(arm.name, at, state.runs_of(arm.name, phase)) for at, arm in enumerate(arms)]
    groups.append(("A/A runs", 0, state.runs_of(NOISE_ARM, "noise")))
    found = [(name, at, tuple(run for run in runs if run.status == "collected")) for name, at, runs in groups]
    return [arm for arm in found[:-1] if arm[2]] or [arm for arm in found[-1:] if arm[2]]


def curves(state: StudyState, evidence: Evidence) -> Curves | None:
    key = evidence.curve_key
    if key is None or (
        key == REWARDS and state.design is not None and any(REWARD in arm.slots for arm in state.design.arms)
    ):
        return None
    measured = "share of training episodes solved" if key == SUCCESS else "mean reward of training episodes"
    found, metric = metric_curves(state, evidence, key, measured), state.design.metric if state.design else None
    if found is None or metric is None or metric.kind != TRAINING_AREA:
        return found
    return replace(found, horizon=metric.horizon)


def hidden_curves(state: StudyState, evidence: Evidence) -> Curves | None:
    """Return hidden success during training, with the threshold and the horizon; None where nobody looked."""
    if state.design is None:
        return None
    metric = state.design.metric
    drawn = arm_curves(state, lambda run: evidence.runs[run.run_id].hidden)
    horizon = metric.horizon if metric.schedule is not None and metric.unit in ("", "episodes") else None
    return Curves(drawn, "hidden success", "training episodes", metric.threshold, horizon) if drawn else None


def arm_curves(state: StudyState, curve: Callable[[RunState], Points]) -> tuple[ArmCurves, ...]:
    drawn = []
    for name, index, runs in list_plotted_arms(state):
        if seeds := tuple(SeedCurve(run.run_id, run.spec.seed, at) for run in runs if (at := curve(run))):
            drawn.append(ArmCurves(name, index, seeds, mean_of(seeds)))
    return tuple(drawn)


def training_curves(state: StudyState, evidence: Evidence) -> tuple[Curves, ...]:
    found = (metric_curves(state, evidence, key) for key in TRAINING if evidence.has_metric(key))
    return tuple(data for data in found if data is not None)


def metric_curves(state: StudyState, evidence: Evidence, key: str, measured: str = "") -> Curves | None:
    """Return the curves of any logged metric, under its own name; None when no run that is drawn logged it."""
    sizes = {run_id: state.runs[run_id].spec.job.get("episodes_per_step") for run_id in evidence.runs}
    known = {run_id: size for run_id, size in sizes.items() if isinstance(size, int)}
    per_step = known if len(known) == len(sizes) else {}

    def curve(run: RunState) -> Points:
        scale, points = per_step.get(run.run_id, 1), evidence.runs[run.run_id].curves.get(key, ())
        return tuple((step * scale, y) for step, y in points)

    drawn = arm_curves(state, curve)
    return Curves(drawn, measured or key, "training episodes" if per_step else "training steps") if drawn else None


def mean_of(seeds: Sequence[SeedCurve]) -> Points:
    at: dict[float, list[float]] = defaultdict(list)
    for seed in seeds:
        for x, y in seed.points:
            at[x].append(y)
    return tuple((x, fmean(ys)) for x, ys in sorted(at.items()) if len(ys) == len(seeds))


def shifts(state: StudyState) -> Shifts | None:
    arms, broken, drawn = list_plotted_arms(state), find_collapsed_runs(state), []
    for arm_name, index, runs in arms:
        pairs, collapsed, missed = [], set[str](), set[str]()
        for run in runs:
            key, cut = run.spec.metric.key, run.spec.metric.cut_at
            after, before = run.measurements.get(key), run.measurements.get(key + INITIAL)
            if after is None:
                continue
            name = f"run {run.run_id}, seed {run.spec.seed}{', collapsed' if run.run_id in broken else ''}"
            pairs.append((name, before.value if before is not None else None, after.value))
            collapsed |= {name} if run.run_id in broken else set()
            missed |= {name} if cut is not None and after.value >= cut else set()
        if pairs:
            interval = arm_interval(runs[0].spec.metric, [after for name, _, after in pairs if name not in collapsed])
            drawn.append(ArmShift(arm_name, index, tuple(pairs), interval, frozenset(collapsed), frozenset(missed)))
    if not drawn:
        return None
    metric = state.design.metric if state.design is not None else arms[0][2][0].spec.metric
    both = any(before is not None for arm in drawn for _, before, _ in arm.pairs)
    return Shifts(tuple(drawn), metric_axis(metric), both or not metric.kind, is_rate(metric), metric.unit)
