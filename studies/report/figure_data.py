"""Series of every figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from studies.checks.conditions import INITIAL
from studies.log.study import RunState, StudyState
from studies.records.alpha import AlphaLedger, AlphaLedgers
from studies.records.design import Arm, Design
from studies.records.runs import NOISE_ARM
from studies.records.statements import metric_name, value_of
from studies.report.claims import claims
from studies.report.elements import arm_interval, is_rate
from studies.report.evidence import REWARDS, SUCCESS, Evidence
from studies.report.wording import describe_comparison, label, metric_axis
from studies.statistics.comparison import Interval
from studies.verdicts.judge import find_collapsed_runs
from studies.verdicts.wording import DecidingInterval, deciding_interval


@dataclass(frozen=True, slots=True)
class ClaimEffect:
    """One claim of a round, and the difference that its runs showed."""

    name: str
    label: str
    estimate: float | None
    observed: DecidingInterval | None
    margin: float | None
    """Differences within it to both sides of zero do not matter; None where the lock names none."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The claims of all rounds that were judged by one metric, in the order of the rounds."""

    items: tuple[ClaimEffect, ...]
    measured: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class LevelBar:
    """The level of one round in one ledger, in parts."""

    round: int
    own: float
    received: float
    asked: bool
    """Whether the round was locked; the level of one that was not is what it would have had."""


@dataclass(frozen=True, slots=True)
class LevelBars:
    """The rounds of one ledger, up to the most that there could be."""

    kind: str
    bars: tuple[LevelBar, ...]


def claim_effects(rounds: Sequence[StudyState]) -> tuple[Effects, ...]:
    found: dict[str, list[ClaimEffect]] = {}
    units: dict[str, str] = {}
    for state in rounds:
        if state.design is not None:
            axis = metric_axis(state.design.metric)
            units[axis] = state.design.metric.unit
            found.setdefault(axis, []).extend(_claims(state, state.design))
    return tuple(Effects(tuple(items), axis, units[axis]) for axis, items in found.items() if items)


def _claims(state: StudyState, design: Design) -> Iterator[ClaimEffect]:
    for claim in design.hypotheses:
        if (verdict := state.verdict_on(claim.id)) is not None:
            name = f"Round {state.round}: {describe_comparison(claim)}, in {design.environment}"
            observed = deciding_interval(design, verdict)
            yield ClaimEffect(name, label(claim, verdict), verdict.estimate, observed, design.equivalence_margin)


def level_bars(ledgers: AlphaLedgers, locked: int) -> tuple[LevelBars, ...]:
    """Return the levels of both ledgers as they stood; `locked` is how many rounds came to a lock."""
    return (
        LevelBars("claims of a difference", tuple(_bars(ledgers.differences, locked))),
        LevelBars("claims of no difference", tuple(_bars(ledgers.equivalences, locked))),
    )


def _bars(ledger: AlphaLedger, locked: int) -> Iterator[LevelBar]:
    entries = ledger.entries()
    yield from (LevelBar(entry.round, entry.own, entry.received, entry.round <= locked) for entry in entries)
    for ahead, level in enumerate(ledger.future_levels()[1:], start=len(entries) + 1):
        yield LevelBar(ahead, level, 0.0, asked=False)


Points = tuple[tuple[float, float], ...]
TRAINING: Final = ("actor/entropy", "actor/ppo_kl", "actor/grad_norm", "response_length/mean")
"""Metrics that tell how a training went, which every report draws where they were logged."""


@dataclass(frozen=True, slots=True)
class PlottedArm:
    """Runs that are drawn together; `index` decides their colour."""

    name: str
    index: int
    runs: tuple[RunState, ...]


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
class Forecast:
    """One hypothesis' predicted interval and, once judged, the observed one."""

    hypothesis: str
    compared: str
    predicted: tuple[float, float]
    level: float
    observed: DecidingInterval | None
    estimate: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Predictions against observations, for all hypotheses."""

    items: tuple[Forecast, ...]
    measured: str
    margin: float | None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class ScreenedCandidate:
    """What a screen saw of one candidate: (steps, value) of each rung it reached, and whether it was confirmed."""

    name: str
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
    seen = [_plot_candidate(state, arm) for arm in state.candidates.values()]
    metric = state.locked_design.metric if state.locked_design is not None else None
    sign = 1 if metric is None or metric.higher_is_better else -1
    seen = sorted((c for c in seen if c.points), key=lambda c: (not c.kept, -c.points[-1][0], -sign * c.points[-1][1]))
    lengths = sorted({steps for candidate in seen for steps, _ in candidate.points})
    own = "success" if metric is None or not metric.kind else metric_name(metric).replace("hidden ", "")
    unit = metric.unit if metric is not None else ""
    return Screening(tuple(seen), tuple(lengths), f"{own} on the search tasks", unit) if seen else None


def _plot_candidate(state: StudyState, arm: Arm) -> ScreenedCandidate:
    points = sorted(
        (int(run.spec.job["steps"]), run.measurements[run.spec.metric.key].value)
        for run in state.runs_of(arm.name, "screen")
        if run.status == "collected" and run.spec.metric.key in run.measurements
    )
    sets = ", ".join(f"{name} {value_of(value)}" for name, value in arm.overrides.items())
    kept = state.selection is not None and arm.name in state.selection.kept
    return ScreenedCandidate(arm.name, sets, tuple(points), kept)


def list_plotted_arms(state: StudyState) -> tuple[PlottedArm, ...]:
    arms = state.design.arms if state.design is not None else ()
    found = [PlottedArm(arm.name, index, _collected_runs(state.runs_of(arm.name))) for index, arm in enumerate(arms)]
    found = [arm for arm in found if arm.runs]
    alike = _collected_runs(tuple(run for run in state.runs_in("noise") if run.spec.arm == NOISE_ARM))
    return tuple(found) or ((PlottedArm("A/A runs", 0, alike),) if alike else ())


def _collected_runs(runs: tuple[RunState, ...]) -> tuple[RunState, ...]:
    return tuple(run for run in runs if run.status == "collected")


def curves(state: StudyState, evidence: Evidence) -> Curves | None:
    """Return the learning curves of all valid collected runs; None for none, or rewards of different functions."""
    key = evidence.curve_key
    if key is None or (key == REWARDS and state.design is not None and state.design.code):
        return None
    measured = "share of training episodes solved" if key == SUCCESS else "mean reward of training episodes"
    return _curves(state, evidence, list_plotted_arms(state), key, measured)


def hidden_curves(state: StudyState, evidence: Evidence) -> Curves | None:
    """Return hidden success during training, with the threshold and the horizon; None where nobody looked."""
    if state.design is None:
        return None
    metric = state.design.metric
    looked = ((arm, _hidden_seeds(evidence, arm)) for arm in list_plotted_arms(state))
    drawn = tuple(ArmCurves(arm.name, arm.index, seeds, mean_of(seeds)) for arm, seeds in looked if seeds)
    horizon = metric.horizon if metric.schedule is not None and metric.unit in ("", "episodes") else None
    return Curves(drawn, "hidden success", "training episodes", metric.threshold, horizon) if drawn else None


def _hidden_seeds(evidence: Evidence, arm: PlottedArm) -> tuple[SeedCurve, ...]:
    found = ((run, evidence.runs[run.run_id].hidden) for run in arm.runs)
    return tuple(SeedCurve(run.run_id, run.spec.seed, points) for run, points in found if points)


def metric_curves(state: StudyState, evidence: Evidence, key: str) -> Curves | None:
    """Return the curves of any logged metric, under its own name; None when no run that is drawn logged it."""
    return _curves(state, evidence, list_plotted_arms(state), key, key)


def training_curves(state: StudyState, evidence: Evidence) -> tuple[Curves, ...]:
    """Return the curves of what tells how a training went, as far as all runs logged it."""
    found = (metric_curves(state, evidence, key) for key in TRAINING if evidence.has_metric(key))
    return tuple(data for data in found if data is not None)


def reward_curves(state: StudyState, evidence: Evidence) -> tuple[Curves, ...]:
    """Return the training reward by each reward function, apart; empty where there is but the environment's own."""
    if state.design is None or not state.design.code or not evidence.has_metric(REWARDS):
        return ()
    arms: dict[str, set[str]] = {}
    for arm in state.design.arms:
        arms.setdefault(arm.reward, set()).add(arm.name)
    plotted = list_plotted_arms(state)
    together = ((tuple(arm for arm in plotted if arm.name in names), reward) for reward, names in arms.items())
    drawn = (_curves(state, evidence, arms, REWARDS, f"mean training reward by {name}") for arms, name in together)
    return tuple(found for found in drawn if found is not None)


def _curves(
    state: StudyState, evidence: Evidence, arms: tuple[PlottedArm, ...], key: str, measured: str
) -> Curves | None:
    sizes = {run_id: state.runs[run_id].spec.job.get("episodes_per_step") for run_id in evidence.runs}
    known = {run_id: size for run_id, size in sizes.items() if isinstance(size, int)}
    per_step = known if len(known) == len(sizes) else {}
    drawn = tuple(found for arm in arms if (found := _arm_curves(evidence, arm, key, per_step)).seeds)
    return Curves(drawn, measured, "training episodes" if per_step else "training steps") if drawn else None


def shifts(state: StudyState) -> Shifts | None:
    collapsed = find_collapsed_runs(state)
    drawn = tuple(shift for arm in list_plotted_arms(state) if (shift := _arm_shift(arm, collapsed)).pairs)
    metric = state.design.metric if state.design is not None else None
    metric = metric or next((arm.runs[0].spec.metric for arm in list_plotted_arms(state)), None)
    if not drawn or metric is None:
        return None
    both = any(before is not None for arm in drawn for _, before, _ in arm.pairs)
    return Shifts(drawn, metric_axis(metric), both or not metric.kind, is_rate(metric), metric.unit)


def forecasts(state: StudyState) -> Forecasts | None:
    design = state.design
    items: list[Forecast] = []
    for claim in claims(state):
        verdict = state.verdict_on(claim.id)
        items.append(
            Forecast(
                hypothesis=claim.id,
                compared=describe_comparison(claim),
                predicted=(claim.prediction.low, claim.prediction.high),
                level=claim.prediction.level,
                observed=deciding_interval(design, verdict) if design is not None and verdict is not None else None,
                estimate=verdict.estimate if verdict else None,
                verdict=verdict.verdict if verdict else "none",
            )
        )
    if not items:
        return None
    if design is None:
        return Forecasts(tuple(items), "the metric", None)
    return Forecasts(tuple(items), metric_axis(design.metric), design.equivalence_margin, design.metric.unit)


def _arm_curves(evidence: Evidence, arm: PlottedArm, key: str, per_step: dict[str, int]) -> ArmCurves:
    seeds = tuple(
        SeedCurve(
            run.run_id, run.spec.seed, tuple((step * per_step.get(run.run_id, 1), y) for step, y in points)
        )
        for run in arm.runs
        if (points := evidence.runs[run.run_id].curves.get(key))
    )  # fmt: skip
    return ArmCurves(arm.name, arm.index, seeds, mean_of(seeds))


def mean_of(seeds: Sequence[SeedCurve]) -> Points:
    """Return the mean of curves at every x that all of them have."""
    at: dict[float, list[float]] = defaultdict(list)
    for seed in seeds:
        for x, y in seed.points:
            at[x].append(y)
    return tuple((x, fmean(ys)) for x, ys in sorted(at.items()) if len(ys) == len(seeds))


def _arm_shift(arm: PlottedArm, collapsed_runs: Collection[str]) -> ArmShift:
    pairs, collapsed, missed = [], set[str](), set[str]()
    for run in arm.runs:
        key, cut = run.spec.metric.key, run.spec.metric.cut_at
        after, before = run.measurements.get(key), run.measurements.get(key + INITIAL)
        if after is not None:
            known = before.value if before is not None else None
            label = f"run {run.run_id}, seed {run.spec.seed}{', collapsed' if run.run_id in collapsed_runs else ''}"
            pairs.append((label, known, after.value))
            if run.run_id in collapsed_runs:
                collapsed.add(label)
            if cut is not None and after.value >= cut:
                missed.add(label)
    kept = [after for label, _, after in pairs if label not in collapsed]
    interval = arm_interval(arm.runs[0].spec.metric, kept)
    return ArmShift(arm.name, arm.index, tuple(pairs), interval, frozenset(collapsed), frozenset(missed))
