"""Simulated studies of metrics that are read off hidden curves: measured and judged by the shipped code.

A run is a hidden curve (`simlab.curves`) that is evaluated before, after, and by the metric's own
schedule during training, with as many tasks solved as chance has it. Its files go through the metric's `measure`, as
those of a real run do, its training curve through the shipped rule of collapse, and the values through the shipped
verdict, look by look. The same seed gives the same studies.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import stdev
from typing import TYPE_CHECKING, Any

from simlab.curves import (
    CUT,
    LINE,
    CurveArm,
    CurveWorld,
    HiddenCurves,
    Quantity,
    difference,
    drawn,
    paced,
    planted,
    truth,
)

from rig.simulated_verdicts import SD, Tally, arm_data, claim_of, design_of, judged, promised, rate_of
from studies.checks.conditions import detect_collapse, training_curve
from studies.metrics import Asked, Results, kind_named, kind_of
from studies.metrics.base import LOOKS
from studies.metrics.builtin import REACHED
from studies.records.design import Design, Metric, Schedule
from studies.records.procedure import CollapseRule, Prediction, StartRule
from studies.records.runs import Conditions
from studies.records.verdict import Verdict
from studies.statistics.power import plan_analyses
from studies.statistics.proportions import min_detectable_rate

if TYPE_CHECKING:
    import numpy as np
    from simlab.curves import Numbers

SEED = 20261123
EPISODES, STEPS, BATCH = 64, 40, 32
"""Episodes of each evaluation; training steps, and episodes of each. Real studies play eight times as many before and
after training, which takes most of the time here and says nothing of when a line was crossed."""
HORIZON = STEPS * BATCH
HORIZON_S = CUT * STEPS
"""Seconds at which times are cut; a step of the usual pace takes one."""
_MOST_LOOKS = 3
_NOISE_RUNS = 1000
_POOL = 2000
"""Measured runs of an arm that studies of rates are drawn from: all that counts of a run is its 1 or 0."""
_SURE_MARGIN = 0.9
"""Margin of a design of rates with too few seeds to promise anything."""


@cache
def metric_of(quantity: Quantity) -> Metric:
    """Return the metric, as a study that asks for it has it."""
    name, _, threshold = quantity.partition(":")
    needed = LINE if name in ("episodes", "seconds") else float(threshold) if threshold else None
    schedule = Schedule(every=HORIZON // LOOKS, episodes=EPISODES)
    asked = Asked(
        "a simulated play is solved", episodes=EPISODES, horizon=HORIZON, horizon_s=HORIZON_S, threshold=needed,
        schedule=schedule,
    )  # fmt: skip
    return kind_named(name).define(asked)


def unit(quantity: Quantity) -> float:
    """Return what one share of the horizon is in the metric's unit."""
    return {"episodes": float(HORIZON), "seconds": HORIZON_S}.get(quantity, 1.0)


def reads_collapses(quantity: Quantity) -> bool:
    """Return whether the metric counts trainings that collapsed with their value."""
    return kind_of(metric_of(quantity)).reads_collapses


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run as it was measured."""

    value: float
    reached: bool | None
    """Whether it was seen at the threshold; None where the metric has none to reach."""
    collapsed: str | None


@dataclass(frozen=True, slots=True)
class CurveTruth:
    """The planted difference, in the metric's unit."""

    of_all: float
    shift: float
    """Of the trainings that do not collapse."""
    missed: tuple[float, float] = (0.0, 0.0)
    """By how much the mean of all lies above that of the runs that get to the line: of the control, the treatment."""

    def spoken_of(self, verdict: Verdict) -> float:
        """Return the difference that a verdict speaks of: of an arm whose runs all got there, of those that do."""
        if verdict.scope != "reached":
            return self.shift if "not_collapsed" in verdict.scope else self.of_all  # each of them starts
        control, treatment = (
            more if rate.count == rate.of else 0.0 for rate, more in zip(verdict.reached, self.missed, strict=True)
        )
        return self.of_all - treatment + control


@dataclass(frozen=True, slots=True)
class CurveStudy:
    """Studies of one kind: what they ask for, of how many seeds, in which world; None draws a mixture for each.

    `alike` names another quantity in which the arms are equal: what is claimed counts as if it were read as one of it.
    """

    quantity: Quantity
    seeds: int
    world: CurveWorld | None
    effect: bool
    """Whether the promised effect is planted, or nothing."""
    alike: Quantity | None = None

    @property
    def paces(self) -> str:
        """What steps take in this world, in words that are a part of what is drawn; empty where that is usual."""
        arms = () if self.world is None else (self.world.control, self.world.treatment)
        unusual = any(arm.pace != 1.0 or arm.pace_sd for arm in arms)
        return f" {[(arm.pace, arm.pace_sd) for arm in arms]}" if unusual else ""


@dataclass
class CurveTally(Tally):
    """Counts, with those of what was not claimed for want of runs that reached the threshold."""

    unreached: int = 0
    """Studies without a number of time, as more than half of an arm did not get there."""
    runs_reached: int = 0
    runs: int = 0

    def figures(self) -> dict[str, Any]:
        """Return rates with their exact 95 % intervals, and means."""
        return {
            **super().figures(),
            "intervals": self.intervals,
            "unreached": rate_of(self.unreached, self.studies),
            "reached": self.runs_reached / self.runs if self.runs else None,
        }


@dataclass(frozen=True, slots=True)
class CurveCase:
    """One study before its runs: what is true, and what is locked."""

    world: CurveWorld
    design: Design
    truth: CurveTruth


def simulate(study: CurveStudy, studies: int) -> CurveTally | None:
    """Return what became of so many studies; None where no treatment has the effect that so many seeds promise."""
    import numpy as np

    tally = CurveTally()
    label = f"{SEED} {study}{study.paces}".encode()
    source = np.random.default_rng(int.from_bytes(hashlib.sha256(label).digest()[:8], "big"))
    for number in range(studies):
        world = study.world
        if world is None:
            world = paced(drawn(number), number) if study.quantity == "seconds" else drawn(number)
        case = _case(study, world)
        if case is None:
            continue
        runs = {name: _runs(study, case.world.arm(name != "control"), source) for name in ("control", "arm1")}
        if (
            case.design.test == "boschloo"
        ):  # of rates it is the verdict of all studies with the same counts at each look
            looks = [look.seeds for look in case.design.looks]
            counts = [tuple(sum(run.value > 0.5 for run in own[:seeds]) for seeds in looks) for own in runs.values()]
            verdicts = _judged_rates(study, world, *counts)
        else:
            arms = {name: ([run.value for run in own], [run.collapsed for run in own]) for name, own in runs.items()}
            verdicts = judged(case.design, {name: arm_data(name, *own) for name, own in arms.items()})
        first, truth = verdicts[0], case.truth
        tally.add(verdicts, truth.spoken_of(first), truth.shift, truth.of_all, case.design)
        tally.unreached += first.verdict == "inconclusive" and first.estimate is None
        reached = [run.reached for own in runs.values() for run in own if run.reached is not None]
        tally.runs_reached += sum(reached)
        tally.runs += len(reached)
    return tally if tally.studies else None


def _runs(study: CurveStudy, arm: CurveArm, source: np.random.Generator) -> list[MeasuredRun]:
    if study.quantity != "collapse":
        return list(measured(study.quantity, arm.drawn(source, study.seeds), source))
    return [_pool(arm)[at] for at in source.integers(_POOL, size=study.seeds).tolist()]


@cache
def _pool(arm: CurveArm) -> list[MeasuredRun]:
    import numpy as np

    source = np.random.default_rng(SEED)
    return list(measured("collapse", arm.drawn(source, _POOL), source))


@cache
def _judged_rates(
    study: CurveStudy, world: CurveWorld, control: tuple[int, ...], treatment: tuple[int, ...]
) -> Sequence[Verdict]:
    case = _case(study, world)
    assert case is not None
    looks = [0, *(look.seeds for look in case.design.looks)]
    data = {}
    for name, counts in (("control", control), ("arm1", treatment)):
        parts = zip(pairwise(looks), pairwise((0, *counts)), strict=True)
        values = [float(at < now - before) for (begin, end), (before, now) in parts for at in range(end - begin)]
        data[name] = arm_data(name, values)
    return judged(case.design, data)


@cache
def _case(study: CurveStudy, world: CurveWorld) -> CurveCase | None:
    """Return a study in a world with what is planted in it; the margin is the promised effect. None for none."""
    quantity = study.alike or study.quantity
    kept = not reads_collapses(quantity)
    equal = planted(world, quantity, 0.0, kept=kept)
    if equal is None:
        return None
    if study.quantity == "collapse":
        margin = min_detectable_rate(study.seeds) or _SURE_MARGIN
    else:
        margin = promised(study.seeds) / SD * noise(study.quantity, equal)
    effect = 0.0 if not study.effect else margin if metric_of(quantity).higher_is_better else -margin
    own: CurveWorld | None = equal
    if study.effect and quantity == "collapse":  # a rate that is to fall falls to that of the cell
        rate = equal.control.collapses - effect
        own = None if rate > 1 else replace(equal, control=replace(equal.control, collapses=rate))
    if study.effect and own is not None:
        own = planted(own, quantity, effect / unit(quantity), kept=kept)
    if own is None or (study.effect and margin == _SURE_MARGIN):
        return None
    rule = None if reads_collapses(study.quantity) else CollapseRule(drop=_drop(study.quantity, own))
    timed = rule is None and metric_of(study.quantity).cut_at is not None
    start = None if rule is None else StartRule()
    known = {"equivalence_margin": margin, "collapse": rule, "start": start, "scope_reached": timed}
    return CurveCase(own, _blank(study.quantity, study.seeds).model_copy(update=known), _truth(study, own, effect))


def _truth(study: CurveStudy, world: CurveWorld, effect: float) -> CurveTruth:
    """Return what is true: of the trainings that were planted it is the effect itself, not what a search came near."""
    whole, kept = (unit(study.quantity) * difference(world, study.quantity, kept=kept) for kept in (False, True))
    if study.alike is not None:  # what is false is the reading as the other quantity, of which nothing differs
        return CurveTruth(0.0, 0.0)
    alike = math.isclose(whole, kept, abs_tol=1e-12)
    if reads_collapses(study.quantity):
        known = (truth(world.arm(treated), study.quantity) for treated in (False, True))
        control, treatment = (unit(study.quantity) * (one.of_all - one.there) for one in known)
        return CurveTruth(effect, effect if alike else kept, (control, treatment))
    return CurveTruth(effect if alike else whole, effect)


def noise(quantity: Quantity, world: CurveWorld) -> float:
    """Return the noise of a run, over both arms: of the curves themselves, and of their evaluations."""
    own = [truth(world.arm(treated), quantity).sd * unit(quantity) for treated in (False, True)]
    return math.sqrt(sum(sd**2 for sd in own) / 2 + _evaluation_variance(quantity))


@cache
def _evaluation_variance(quantity: Quantity) -> float:
    """Return what measuring adds to the variance of runs with clean noise."""
    import numpy as np

    source = np.random.default_rng(SEED)
    values = [run.value for run in measured(quantity, CurveArm().drawn(source, _NOISE_RUNS), source)]
    return max(0.0, stdev(values) ** 2 - (truth(CurveArm(), quantity).sd * unit(quantity)) ** 2)


def measured(quantity: Quantity, curves: HiddenCurves, source: np.random.Generator) -> Iterator[MeasuredRun]:
    """Yield each run as the shipped code measures it from its files."""
    import numpy as np

    metric = metric_of(quantity)
    job = {"episodes_per_step": BATCH, "steps": STEPS}
    versions = (0, *(metric.schedule.steps(job) if metric.schedule is not None else ()), STEPS)
    solved = source.binomial([EPISODES] * len(versions), curves.heights(np.array(versions) / STEPS))
    rule = None if reads_collapses(quantity) else CollapseRule()
    plain = rule is None and quantity not in ("collapse", "seconds")
    trained = None if plain else source.binomial(BATCH, curves.heights(np.arange(STEPS) / STEPS)) / BATCH
    for number, counts in enumerate(solved.tolist()):
        pairs = zip(versions, counts, strict=True)
        parts = [{"policy_version": version, "episodes": _episodes(count)} for version, count in pairs]
        history = _history(None if trained is None else trained[number], float(curves.paces[number]))
        found = kind_of(metric).measure(metric, Results(parts[0], parts[-1], parts[1:-1], history))
        told = found.get(metric.key + REACHED)
        course = (history, counts[0] / EPISODES, counts[-1] / EPISODES, EPISODES)
        how = None if rule is None else detect_collapse(Conditions(course=training_curve(*course)), rule)
        yield MeasuredRun(found[metric.key].value, None if told is None else bool(told.value), how)


@cache
def _episodes(solved: int) -> list[Mapping[str, Any]]:
    """Return the episodes of an evaluation, the solved ones first: which they are means nothing."""
    return [{"success": number < solved, "reward": float(number < solved)} for number in range(EPISODES)]


def _history(successes: Numbers | None, pace: float) -> list[Mapping[str, Any]]:
    """Return the rows of a training; without its course where nobody looks at that."""
    if successes is None:
        return _plain_history()
    return [
        {"step": step, "metrics": {"batch/episodes": float(BATCH), "timing_s/step": pace, "critic/success/mean": share}}
        for step, share in enumerate(successes.tolist(), start=1)
    ]


@cache
def _plain_history() -> list[Mapping[str, Any]]:
    metrics = {"batch/episodes": float(BATCH), "timing_s/step": 1.0}
    return [{"step": step, "metrics": metrics} for step in range(1, STEPS + 1)]


def _drop(quantity: Quantity, world: CurveWorld) -> float | None:
    """Return what the bank says of a collapse: it saw the control's."""
    if quantity == "collapse":
        return None
    known = truth(world.control, quantity)
    return (known.kept - known.of_all) / world.control.collapses if world.control.collapses else None


@cache
def _blank(quantity: Quantity, seeds: int) -> Design:
    """Return a design without margin and rule of collapse, built once."""
    metric = metric_of(quantity)
    direction, prediction = (
        ("decrease", "increase")[metric.higher_is_better],
        Prediction(low=-1, high=1, probability=0.5),
    )
    return design_of(
        [claim_of(1, direction=direction, prediction=prediction)], seeds, metric=metric,
        test="boschloo" if kind_of(metric).rates else "welch", looks=plan_analyses(seeds, _MOST_LOOKS),
    )  # fmt: skip
