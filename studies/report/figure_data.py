"""Series of every figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from studies.checks.conditions import INITIAL
from studies.log.study import RunState, StudyState
from studies.records.alpha import AlphaLedgers, LedgerEntry
from studies.records.design import Hypothesis
from studies.records.runs import NOISE_ARM
from studies.records.statements import metric_name
from studies.report.claims import claims
from studies.report.elements import arm_interval, is_rate
from studies.report.evidence import REWARDS, SUCCESS, Evidence
from studies.report.wording import describe_comparison, describe_fields, label, metric_axis
from studies.statistics.comparison import Interval
from studies.verdicts.judge import find_collapsed_runs
from studies.verdicts.wording import DecidingInterval, deciding_interval


@dataclass(frozen=True, slots=True)
class ClaimEffect:
    """One claim, and the difference that its runs showed."""

    name: str
    label: str
    """The verdict's word; empty before there is one."""
    estimate: float | None
    observed: DecidingInterval | None
    margin: float | None
    """Differences within it to both sides of zero do not matter; None where the lock names none."""
    predicted: tuple[float, float, float] | None = None
    """The interval that was predicted, and its level."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Claims that are judged by one metric, in the order of their rounds."""

    items: tuple[ClaimEffect, ...]
    measured: str
    unit: str = ""


Levels = tuple[tuple[str, tuple[LedgerEntry, ...], int], ...]
"""By kind of claim the rounds of its ledger up to the most that there could be, and how many came to a lock: the level
of a round that did not is what it would have had."""


def claim_effects(rounds: Sequence[StudyState]) -> tuple[Effects, ...]:
    """Return the judged claims of all rounds, apart by what they are measured in."""
    found: dict[tuple[str, str], list[ClaimEffect]] = {}
    for state in rounds:
        for claim in state.design.hypotheses if state.design is not None else ():
            if state.design is not None and state.verdict_on(claim.id) is not None:
                metric = state.design.metric
                name = f"Round {state.round}: {describe_comparison(claim)}, in {state.design.environment}"
                found.setdefault((metric_axis(metric), metric.unit), []).append(_effect(state, claim, name))
    return tuple(Effects(tuple(items), axis, unit) for (axis, unit), items in found.items())


def forecasts(state: StudyState) -> Effects | None:
    """Return what was predicted of each claim and what was observed; None before anything is claimed."""
    items = []
    for claim in claims(state):
        predicted = (claim.prediction.low, claim.prediction.high, claim.prediction.level)
        name = f"{claim.id}: {describe_comparison(claim)}"
        items.append(replace(_effect(state, claim, name), predicted=predicted))
    metric = state.design.metric if state.design is not None else None
    measured, unit = ("the metric", "") if metric is None else (metric_axis(metric), metric.unit)
    return Effects(tuple(items), measured, unit) if items else None


def _effect(state: StudyState, claim: Hypothesis, name: str) -> ClaimEffect:
    design, verdict = state.design, state.verdict_on(claim.id)
    margin = design.equivalence_margin if design is not None else None
    if design is None or verdict is None:
        return ClaimEffect(name, "", None, None, margin)
    return ClaimEffect(name, label(claim, verdict), verdict.estimate, deciding_interval(design, verdict), margin)


def level_bars(ledgers: AlphaLedgers, locked: int) -> Levels:
    """Return the levels of both ledgers as they stood; `locked` is how many rounds came to a lock."""
    found = []
    for kind, ledger in (("a difference", ledgers.differences), ("no difference", ledgers.equivalences)):
        entries = ledger.entries()
        ahead = enumerate(ledger.future_levels()[1:], start=len(entries) + 1)
        later = (LedgerEntry(number, level, 0.0, None) for number, level in ahead)
        found.append((f"claims of {kind}", (*entries, *later), locked))
    return tuple(found)


Points = tuple[tuple[float, float], ...]
TRAINING: Final = ("actor/entropy", "actor/ppo_kl", "actor/grad_norm", "response_length/mean")
"""Metrics that tell how a training went, which every report draws where they were logged."""


PlottedArm = tuple[str, int, tuple[RunState, ...]]
"""The name of runs that are drawn together, the place that decides their colour, and the runs."""


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


@dataclass(frozen=True, slots=True)
class ScreenedCandidate:
    """What a screen saw of one candidate: (steps, value) of each rung it reached, and whether it was confirmed."""

    sets: str
    points: tuple[tuple[int, float], ...]
    kept: bool


@dataclass(frozen=True, slots=True)
class Screening:
    """All candidates of a screen, the best first; `lengths` are the numbers of steps of its rungs."""

    candidates: tuple[ScreenedCandidate, ...]
    lengths: tuple[int, ...]
    measured: str
    unit: str = ""


def screening(state: StudyState) -> Screening | None:
    """Return what the screen saw, the farthest and then the best candidate first; None before it saw anything."""
    metric = state.locked_design.metric if state.locked_design is not None else None
    sign = 1 if metric is None or metric.higher_is_better else -1
    seen = []
    for arm in state.candidates.values():
        points = sorted(
            (int(run.spec.job["steps"]), run.measurements[run.spec.metric.key].value)
            for run in state.runs_of(arm.name, "screen")
            if run.status == "collected" and run.spec.metric.key in run.measurements
        )
        kept = state.selection is not None and arm.name in state.selection.kept
        if points:
            sets = describe_fields(arm.overrides, " ", none="")
            seen.append(ScreenedCandidate(sets, tuple(points), kept))
    seen.sort(key=lambda c: (not c.kept, -c.points[-1][0], -sign * c.points[-1][1]))
    lengths = sorted({steps for candidate in seen for steps, _ in candidate.points})
    own = "success" if metric is None or not metric.kind else metric_name(metric).replace("hidden ", "")
    unit = metric.unit if metric is not None else ""
    return Screening(tuple(seen), tuple(lengths), f"{own} on the search tasks", unit) if seen else None


def list_plotted_arms(state: StudyState) -> list[PlottedArm]:
    """Return the arms of the design that have collected runs; the A/A runs while no arm has."""
    arms = state.design.arms if state.design is not None else ()
    alike = [run for run in state.runs_in("noise") if run.spec.arm == NOISE_ARM]
    groups = [*((arm.name, index, state.runs_of(arm.name)) for index, arm in enumerate(arms)), ("A/A runs", 0, alike)]
    found = [(name, at, tuple(run for run in runs if run.status == "collected")) for name, at, runs in groups]
    return [arm for arm in found[:-1] if arm[2]] or [arm for arm in found[-1:] if arm[2]]


def curves(state: StudyState, evidence: Evidence) -> Curves | None:
    """Return the learning curves of all valid collected runs; None for none, or rewards of different functions."""
    key = evidence.curve_key
    if key is None or (key == REWARDS and state.design is not None and state.design.code):
        return None
    measured = "share of training episodes solved" if key == SUCCESS else "mean reward of training episodes"
    return metric_curves(state, evidence, key, measured)


def hidden_curves(state: StudyState, evidence: Evidence) -> Curves | None:
    """Return hidden success during training, with the threshold and the horizon; None where nobody looked."""
    if state.design is None:
        return None
    metric = state.design.metric
    drawn = _arm_curves(state, lambda run: evidence.runs[run.run_id].hidden)
    horizon = metric.horizon if metric.schedule is not None and metric.unit in ("", "episodes") else None
    return Curves(drawn, "hidden success", "training episodes", metric.threshold, horizon) if drawn else None


def _arm_curves(
    state: StudyState, curve: Callable[[RunState], Points], only: Collection[str] | None = None
) -> tuple[ArmCurves, ...]:
    """Return the arms that are drawn, or `only` some, with the curve of each run that has one."""
    drawn = []
    for name, index, runs in list_plotted_arms(state):
        found = ((run, curve(run)) for run in runs if only is None or name in only)
        if seeds := tuple(SeedCurve(run.run_id, run.spec.seed, points) for run, points in found if points):
            drawn.append(ArmCurves(name, index, seeds, mean_of(seeds)))
    return tuple(drawn)


def training_curves(state: StudyState, evidence: Evidence) -> tuple[Curves, ...]:
    """Return the curves of what tells how a training went, as far as all runs logged it."""
    found = (metric_curves(state, evidence, key) for key in TRAINING if evidence.has_metric(key))
    return tuple(data for data in found if data is not None)


def reward_curves(state: StudyState, evidence: Evidence) -> tuple[Curves, ...]:
    """Return the training reward by each reward function, apart; empty where there is but the environment's own."""
    if state.design is None or not state.design.code or not evidence.has_metric(REWARDS):
        return ()
    found = []
    for reward in dict.fromkeys(arm.reward for arm in state.design.arms):
        names = {arm.name for arm in state.design.arms if arm.reward == reward}
        found.append(metric_curves(state, evidence, REWARDS, f"mean training reward by {reward}", names))
    return tuple(data for data in found if data is not None)


def metric_curves(
    state: StudyState, evidence: Evidence, key: str, measured: str = "", only: Collection[str] | None = None
) -> Curves | None:
    """Return the curves of any logged metric, under its own name; None when no run that is drawn logged it."""
    sizes = {run_id: state.runs[run_id].spec.job.get("episodes_per_step") for run_id in evidence.runs}
    known = {run_id: size for run_id, size in sizes.items() if isinstance(size, int)}
    per_step = known if len(known) == len(sizes) else {}

    def curve(run: RunState) -> Points:
        scale, points = per_step.get(run.run_id, 1), evidence.runs[run.run_id].curves.get(key, ())
        return tuple((step * scale, y) for step, y in points)

    drawn = _arm_curves(state, curve, only)
    return Curves(drawn, measured or key, "training episodes" if per_step else "training steps") if drawn else None


def mean_of(seeds: Sequence[SeedCurve]) -> Points:
    """Return the mean of curves at every x that all of them have."""
    at: dict[float, list[float]] = defaultdict(list)
    for seed in seeds:
        for x, y in seed.points:
            at[x].append(y)
    return tuple((x, fmean(ys)) for x, ys in sorted(at.items()) if len(ys) == len(seeds))


def shifts(state: StudyState) -> Shifts | None:
    """Return the judged metric of each run before and after training; None before any run was measured."""
    arms, broken = list_plotted_arms(state), find_collapsed_runs(state)
    drawn = tuple(shift for arm in arms if (shift := _arm_shift(arm, broken)).pairs)
    if not drawn:
        return None
    metric = state.design.metric if state.design is not None else arms[0][2][0].spec.metric
    both = any(before is not None for arm in drawn for _, before, _ in arm.pairs)
    return Shifts(drawn, metric_axis(metric), both or not metric.kind, is_rate(metric), metric.unit)


def _arm_shift(arm: PlottedArm, broken: Collection[str]) -> ArmShift:
    pairs, collapsed, missed = [], set[str](), set[str]()
    arm_name, index, runs = arm
    for run in runs:
        key, cut = run.spec.metric.key, run.spec.metric.cut_at
        after, before = run.measurements.get(key), run.measurements.get(key + INITIAL)
        if after is None:
            continue
        name = f"run {run.run_id}, seed {run.spec.seed}{', collapsed' if run.run_id in broken else ''}"
        pairs.append((name, before.value if before is not None else None, after.value))
        if run.run_id in broken:
            collapsed.add(name)
        if cut is not None and after.value >= cut:
            missed.add(name)
    interval = arm_interval(runs[0].spec.metric, [after for name, _, after in pairs if name not in collapsed])
    return ArmShift(arm_name, index, tuple(pairs), interval, frozenset(collapsed), frozenset(missed))
