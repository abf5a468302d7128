"""The data of a report's figures, taken from state and evidence: what is drawn, not how."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from studies.records import Arm, Design
from studies.report.claims import claims
from studies.report.evidence import AFTER, BEFORE, REWARDS, SUCCESS, Evidence
from studies.report.wording import compared, metric_name, value_of
from studies.standing import StudyState
from studies.statistics import Interval, mean_interval

Points = tuple[tuple[float, float], ...]


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
    """The learning curves of some arms. `measured` names the y axis, `unit` the x axis."""

    arms: tuple[ArmCurves, ...]
    measured: str
    unit: str


@dataclass(frozen=True, slots=True)
class ArmShift:
    """The hidden metric of an arm's runs before and after training."""

    arm: str
    index: int
    pairs: tuple[tuple[str, float | None, float], ...]
    """(label of the run, before or None, after)."""
    interval: Interval | None
    """Of the mean after training."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """Before and after, for all arms."""

    arms: tuple[ArmShift, ...]
    measured: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """One hypothesis' predicted interval and, once judged, the observed one."""

    hypothesis: str
    compared: str
    predicted: tuple[float, float]
    level: float
    observed: tuple[float, float] | None
    estimate: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Predictions against observations, for all hypotheses."""

    items: tuple[Forecast, ...]
    measured: str


@dataclass(frozen=True, slots=True)
class Screened:
    """What a screen saw of one candidate: (steps, value) of each rung it reached, and whether it was confirmed."""

    name: str
    sets: str
    points: tuple[tuple[int, float], ...]
    kept: bool


@dataclass(frozen=True, slots=True)
class Screening:
    """All candidates of a screen, the best first; `lengths` are the numbers of steps of its rungs."""

    candidates: tuple[Screened, ...]
    lengths: tuple[int, ...]
    measured: str


def screening(state: StudyState) -> Screening | None:
    """Return what the screen saw, the farthest and then the best candidate first; None before it saw anything."""
    seen = [_screened(state, arm) for arm in state.candidates.values()]
    seen = sorted((c for c in seen if c.points), key=lambda c: (not c.kept, -c.points[-1][0], -c.points[-1][1]))
    lengths = sorted({steps for candidate in seen for steps, _ in candidate.points})
    return Screening(tuple(seen), tuple(lengths), "success on the search tasks") if seen else None


def _screened(state: StudyState, arm: Arm) -> Screened:
    points = sorted(
        (int(run.spec.job["steps"]), run.measurements[run.spec.metric.key].value)
        for run in state.runs_of(arm.name, "screen")
        if run.status == "collected" and run.spec.metric.key in run.measurements
    )
    sets = ", ".join(f"{name} {value_of(value)}" for name, value in arm.overrides.items())
    return Screened(arm.name, sets, tuple(points), state.selection is not None and arm.name in state.selection.kept)


def curves(state: StudyState, evidence: Evidence) -> Curves | None:
    """Return the learning curves of all valid collected runs; None when there are none to draw.

    Rewards of different functions are not drawn on one axis: see `reward_curves`.
    """
    key = evidence.curve_key
    if state.design is None or key is None or (key == REWARDS and state.design.code):
        return None
    measured = "share of training episodes solved" if key == SUCCESS else "mean reward of training episodes"
    return _curves(state, evidence, {arm.name for arm in state.design.arms}, key, measured)


def reward_curves(state: StudyState, evidence: Evidence) -> tuple[Curves, ...]:
    """Return the training reward by each reward function, apart; empty where there is but the environment's own."""
    if state.design is None or not state.design.code:
        return ()
    if not all(run.curves.get(REWARDS) for run in evidence.runs.values()):
        return ()
    arms: dict[str, set[str]] = {}
    for arm in state.design.arms:
        arms.setdefault(arm.reward, set()).add(arm.name)
    drawn = (
        _curves(state, evidence, names, REWARDS, f"mean training reward by {reward}") for reward, names in arms.items()
    )
    return tuple(found for found in drawn if found is not None)


def _curves(state: StudyState, evidence: Evidence, arms: set[str], key: str, measured: str) -> Curves | None:
    assert state.design is not None
    per_step = _episodes_per_step(state, evidence)
    drawn = tuple(
        found
        for index, arm in enumerate(state.design.arms)
        if arm.name in arms and (found := _arm_curves(state, evidence, arm.name, index, key, per_step)).seeds
    )
    return Curves(drawn, measured, "training episodes" if per_step else "training steps") if drawn else None


def shifts(state: StudyState) -> Shifts | None:
    """Return the hidden metric before and after training of all valid collected runs; None without any."""
    if state.design is None:
        return None
    arms = tuple(_arm_shift(state, state.design, arm.name, index) for index, arm in enumerate(state.design.arms))
    drawn = tuple(arm for arm in arms if arm.pairs)
    return Shifts(drawn, metric_name(state.design.metric)) if drawn else None


def forecasts(state: StudyState) -> Forecasts | None:
    """Return predicted and observed intervals; None before anything was predicted."""
    verdicts = {verdict.hypothesis: verdict for verdict in state.verdicts}
    items: list[Forecast] = []
    for claim in claims(state):
        verdict = verdicts.get(claim.id)
        has_interval = verdict is not None and verdict.low is not None and verdict.high is not None
        items.append(
            Forecast(
                hypothesis=claim.id,
                compared=compared(claim),
                predicted=(claim.prediction.low, claim.prediction.high),
                level=claim.prediction.level,
                observed=(verdict.low, verdict.high) if has_interval else None,  # type: ignore[union-attr,arg-type]
                estimate=verdict.estimate if verdict else None,
                verdict=verdict.verdict if verdict else "none",
            )
        )
    measured = metric_name(state.design.metric) if state.design else "the metric"
    return Forecasts(tuple(items), measured) if items else None


def _arm_curves(
    state: StudyState, evidence: Evidence, arm: str, index: int, key: str, per_step: dict[str, int]
) -> ArmCurves:
    seeds = tuple(
        SeedCurve(
            run.run_id,
            run.spec.seed,
            tuple((step * per_step.get(run.run_id, 1), y) for step, y in evidence.runs[run.run_id].curves[key]),
        )
        for run in state.runs_of(arm)
        if run.status == "collected"
    )
    return ArmCurves(arm, index, seeds, _mean(seeds))


def _mean(seeds: tuple[SeedCurve, ...]) -> Points:
    at: dict[float, list[float]] = defaultdict(list)
    for seed in seeds:
        for x, y in seed.points:
            at[x].append(y)
    return tuple((x, fmean(ys)) for x, ys in sorted(at.items()) if len(ys) == len(seeds))


def _episodes_per_step(state: StudyState, evidence: Evidence) -> dict[str, int]:
    """Return each run's batch size, or nothing when a run's job does not say it."""
    sizes = {run_id: state.runs[run_id].spec.job.get("episodes_per_step") for run_id in evidence.runs}
    known = {run_id: size for run_id, size in sizes.items() if isinstance(size, int)}
    return known if len(known) == len(sizes) else {}


def _arm_shift(state: StudyState, design: Design, arm: str, index: int) -> ArmShift:
    after = state.values(arm)
    before = state.values(arm, BEFORE) if design.metric.key == AFTER else {}
    pairs = tuple(
        (f"run {run_id}, seed {state.runs[run_id].spec.seed}", before.get(run_id), value)
        for run_id, value in after.items()
    )
    return ArmShift(arm, index, pairs, mean_interval(list(after.values())))
