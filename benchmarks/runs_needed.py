"""How many runs does a verdict need, at equal error and power, beside the rules before?

    python benchmarks/runs_needed.py [--quick] [--json] [--check] [--workers N]

Two arms of the default job of `guess` and of `arith`, asked for an effect of .03, .05 or .1 of hidden success with a
power of .8: in a study of its own where nothing is known of the noise, where the noise is known, and in round 2 of 4,
where it is known too. *Before* is a frozen copy of the rules of 0.1.0: each run plays 512 hidden episodes before it is
trained and 512 after, has a seed of its own, an arm five seeds at the least, and where the noise is unknown six A/A
runs and one at a learning rate of 0 come first. *Now* is what the shipped compiler locks: a run at a learning rate of 0
first, and episodes, seeds and test as it finds them; or its pilot.

Both are then simulated on recorded trainings (`simlab/landscape_data`: settings of each environment with six seeds
each, but for those with a training that collapsed, which no mean speaks of). A study draws two settings that differ in
one knob; their residuals are drawn again around equal means, or means that differ by the effect, and judged by the
shipped verdict look by look. Where arms share seeds, both draw the residual of one recorded seed. Recorded are totals
alone: so residuals are shrunk by what playing each task once adds to their variance, and evaluations are drawn
binomially per task, whose difficulties are taken to spread as in the plays of real studies (two fifths of the variance
of a play). Nothing is known of how a setting shifts single tasks.

Runs are all that a study makes until it is decided, A/A runs and that at a learning rate of 0 among them; `most` is
what it would make without a decision. What no 20 seeds see is planned with 20 before, and now for less power, as a
later round is. Seconds are those of the price list, one run after the other.

Goals: in sum over all that is asked of an effect at most .55 of the runs before in `guess`, .65 in `arith`, where rules
that fall short of a power of .8 are charged the runs that a normal test needs to make it up; claims in at most 5 % of
the studies of nothing, and a power of .75 of .05 and .1, as far as it can be told: .03 is often more than 20 seeds see.
What misses one is published as it is. Full size: some 2 minutes of two cores.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import sys
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from statistics import fmean, variance
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from rig.campaign_verdicts import LOCK_BEFORE
from rig.frame import circumstances, concluded, parser, show_table, tell
from rig.simulated_verdicts import (
    ALPHA,
    PROMISED,
    arm_data,
    claim_of,
    design_of,
    judged,
    rate_of,
    sign_said,
    sized,
)
from scipy import special
from simlab.landscapes import NAMES, Recorded, RecordedRun
from simlab.scores import Bar, counted, work

from research.design.comparison import StatisticalRequirements
from research.design.compiler import LESS_POWER, DesignCompiler
from research.design.noise_bank import NoiseBank, Observation, metric_key, model_key
from research.design.pricing import CALLS_PER_EPISODE, SECONDS_PER_CALL, STARTUP_S, Estimates, make_pricing
from research.design.sample_size import Unaffordable
from research.proposals.actions import ProposeDesign
from studies.checks.conditions import detect_collapse
from studies.records.alpha import AlphaLedgers, RoundOutcome
from studies.records.design import Budget, Design, Metric
from studies.records.procedure import CollapseRule, InterimAnalysis, Noise, PowerTarget, Prediction
from studies.records.runs import Conditions, TrainingCurve
from studies.statistics.power import PowerDesign, assured_power, spend_alpha
from studies.verdicts.inputs import ArmData
from swarm.job import Job

Numbers = Any
"""An array."""
STUDIES, QUICK = 1000, 40
"""Studies of a row, with the effect and without it."""
EFFECTS = (0.03, 0.05, 0.1)
GOALS = {"guess": 0.55, "arith": 0.65}
BARS = {False: ("claims", Bar("at most", ALPHA)), True: ("right", Bar("at least", 0.75, likely=0.80))}
SEED = 20261129
TASKS = 0.4
"""Share of a play's variance that is between tasks: .35 to .46 in the plays of real studies."""
_CURVE_ERROR = 0.03
_MOST = 20
_NOISE_RUNS = 6
_FINE = 500
_FINELY = 0.002
"""How finely a bank's noise of A/A runs is told: each is planned on once."""
_EXPECTED = Prediction(low=0, high=0.2, probability=0.5)

MEASURES = ("runs", "most", "seconds")
Rules = Literal["before", "now"]
STATES = {"noise unknown": (False, False), "noise known": (True, False), "round 2 of 4": (True, True)}
"""Whether the noise is known, and whether it is a later round."""


@dataclass(frozen=True)
class Ground:
    """A recorded landscape as noise: its settings none of whose trainings collapsed by the rule that designs lock."""

    recorded: Recorded

    @cached_property
    def settings(self) -> Mapping[Any, list[float]]:
        """Success of each setting's trainings."""
        every = self.recorded.runs.items()
        return {place: [run.after for run in runs] for place, runs in every if not any(map(self._collapsed, runs))}

    def _collapsed(self, run: RecordedRun) -> bool:
        first, *_, last = run.search
        curve = TrainingCurve(start=run.before, end=run.after, plays=self.recorded.hidden, first=first,
                              peak=max(run.search), last=last, error=_CURVE_ERROR)  # fmt: skip
        return detect_collapse(Conditions(course=curve), CollapseRule()) is not None

    @cached_property
    def between_plays(self) -> float:
        """Mean variance of one play within its task."""
        return (1 - TASKS) * fmean(value * (1 - value) for values in self.settings.values() for value in values)

    @cached_property
    def total(self) -> float:
        """Variance of recorded runs of one setting."""
        return fmean(map(variance, self.settings.values()))

    @property
    def between_seeds(self) -> float:
        """The part of it that evaluating is not."""
        return max(self.total - self.between_plays / self.recorded.hidden, 0.0)

    def sd(self, episodes: int) -> float:
        """Return the noise of runs that are evaluated on so many episodes."""
        return math.sqrt(self.between_seeds + self.between_plays / episodes)

    @property
    def df(self) -> int:
        """Degrees of freedom of a bank that holds the recording."""
        return sum(len(values) - 1 for values in self.settings.values())

    @cached_property
    def pairs(self) -> list[tuple[float, list[float], list[float]]]:
        """The mean of the first and the residuals of both of each two settings that differ in one knob."""
        near = [pair for pair in itertools.combinations(self.settings, 2) if sum(map(operator.ne, *pair)) == 1]
        return [(fmean(self.settings[a]), self._residuals(a), self._residuals(b)) for a, b in near]

    def _residuals(self, place: Any) -> list[float]:
        values = self.settings[place]
        count, mean = len(values), fmean(values)
        shrunk = math.sqrt(self.between_seeds / self.total * count / (count - 1))
        return [shrunk * (value - mean) for value in values]


@dataclass(frozen=True)
class Question:
    """What is asked where."""

    environment: str
    effect: float
    known: bool
    """Whether the noise is."""
    later: bool
    """Whether it is round 2 of 4, where the first claimed nothing; else a study of one round."""

    @property
    def ledgers(self) -> AlphaLedgers:
        """What its tests draw on."""
        return AlphaLedgers.begin(4).after(RoundOutcome.of(["inconclusive"])) if self.later else AlphaLedgers.begin(1)


@dataclass(frozen=True)
class Plan:
    """A study of two arms that can be locked."""

    design: Design
    run_s: float
    """Seconds of a run."""
    first: int
    """Runs before those of the design."""
    first_s: float
    """Seconds of those."""
    one_set: bool
    """Whether all runs are evaluated on the same tasks."""

    @property
    def episodes(self) -> int:
        """Of an evaluation."""
        return self.design.metric.episodes


@dataclass(frozen=True)
class Row:
    """Studies that are simulated."""

    question: Question
    rules: Rules
    planted: bool
    studies: int


@cache
def ground(name: str) -> Ground:
    """Return a landscape of `simlab.landscapes.NAMES`."""
    return Ground(Recorded.load(name))


def main() -> int:
    """Plan, simulate, print, and write what the options ask."""
    options = parser(__doc__, quick=f"{QUICK} studies a row instead of {STUDIES}", parallel=True).parse_args()
    started, studies = time.monotonic(), QUICK if options.quick else STUDIES
    questions = [Question(name, effect, *state) for name in NAMES for effect in EFFECTS for state in STATES.values()]
    every = itertools.product(questions, ("before", "now"), (False, True))
    rows = work("runs_needed", simulate, [Row(*row, studies) for row in every], workers=options.workers, tell=tell)
    ratios = {name: ratio([row for row in rows if row["environment"] == name]) for name in NAMES}
    show(rows, ratios)
    seconds = round(time.monotonic() - started, 1)
    figures = {"circumstances": circumstances(options), "seconds": seconds, "ratios": ratios, "rows": rows}
    return concluded("runs_needed", figures, missed(rows, ratios), options)


def ratio(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what an effect needs now over what it needed before, in sum over all that is asked of one."""
    now, before = ([row for row in rows if row["rules"] == rules and row["planted"]] for rules in ("now", "before"))
    sums = {name: [sum(_charged(row, name) for row in side) for side in (now, before)] for name in MEASURES}
    return {name: ours / theirs for name, (ours, theirs) in sums.items()}


def _charged(row: Mapping[str, Any], name: str) -> float:
    """Return what a row took, and what it would take more to have the power that was promised."""
    level = Question(row["environment"], row["effect"], row["known"], row["later"]).ledgers.differences.level
    needed, had = (special.ndtri(power) - special.ndtri(level / 2) for power in (PROMISED, row["right"][0]))
    return float(row[name] * max(1.0, needed / had) ** 2)


def show(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, Mapping[str, float]]) -> None:
    """Print what was found."""
    lines = []
    for null, planted in zip(rows[::2], rows[1::2], strict=True):
        state = next(name for name, state in STATES.items() if state == (null["known"], null["later"]))
        power = f"{planted['right'][0]:.1%}" + f" of {planted['promised']}" * (planted["promised"] != PROMISED)
        lines.append((
            null["environment"], f"{null['effect']:g}", state, null["rules"], f"{null['episodes']}", null["test"],
            f"{planted['most']:.1f}", f"{planted['runs']:.1f}", f"{planted['seconds']:.0f}", f"{null['runs']:.1f}",
            f"{null['claims'][0]:.1%}", power,
        ))  # fmt: skip
    heads = ("", "effect", "", "rules", "episodes", "test", "most", "runs", "seconds", "of nothing", "false", "power")
    show_table("runs to a verdict on an effect", heads, lines, left=4)
    for name, own in ratios.items():
        print(f"{name}: {own['runs']:.2f} of the runs before (goal {GOALS[name]}), {own['most']:.2f} of what they were "
              f"planned with, {own['seconds']:.2f} of the seconds")  # fmt: skip


def missed(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return which goals are missed, in words."""
    words = [f"{name}: {own['runs']:.2f} of the runs" for name, own in ratios.items() if own["runs"] > GOALS[name]]
    for row in rows:
        name, bar = BARS[row["planted"]]
        if row["rules"] == "now" and (not row["planted"] or row["effect"] > EFFECTS[0]):
            what = f"{row['environment']}, {row['effect']}, known {row['known']}, later {row['later']}: {name}"
            figure = counted(what, round(row[name][0] * row["studies"]), row["studies"], bar)
            words += [figure.words()] if figure.kept is False else []
    return words


def looks_before(seeds: int, level: float, alike: float | None) -> tuple[InterimAnalysis, ...]:
    """Return the looks of a design before: from half of its seeds on, two up to 5 seeds and three beyond."""
    first, count = max(3, math.ceil(seeds / 2)), 2 if seeds <= 5 else 3
    stops = sorted({first + round((seeds - first) * look / (count - 1)) for look in range(count)})
    return tuple(
        look.model_copy(update={"equivalence": None if alike is None else own.alpha})
        for look, own in zip(spend_alpha(stops, level), spend_alpha(stops, alike or level), strict=True)
    )


@cache
def plan_before(question: Question, sd: float, df: int) -> Plan:
    """Return what was locked before where the bank held this noise of 512 episodes."""
    job, place = Job(environment=question.environment), question.ledgers.next_place(LOCK_BEFORE)
    level, alike = (ALPHA, None) if place is None else (place.difference, place.equivalence)
    noise = Noise(sd=sd, df=df, episodes=512, basis="a bank")

    def is_seen(seeds: int) -> bool:
        last = looks_before(seeds, level, alike)[-1:]
        return assured_power(PowerDesign("welch", last), question.effect, noise) >= PROMISED

    seeds = 5 + bisect_left(range(5, _MOST), True, key=is_seen)
    plays_s = CALLS_PER_EPISODE[job.environment] * SECONDS_PER_CALL
    run_s, first = STARTUP_S + Estimates().training(job) + 2 * 512 * plays_s, 0 if question.known else _NOISE_RUNS + 1
    design = design_of(
        [claim_of(1)], seeds, test="welch", looks=looks_before(seeds, level, alike), multiplicity="none", inquiry=place,
        equivalence_margin=question.effect, alpha=level, metric=Metric(meaning="hidden success", episodes=512),
        promise=PowerTarget(power=PROMISED, effect=question.effect),
    )  # fmt: skip
    still_s = STARTUP_S + 3 / job.steps * Estimates().training(job) + 2 * 256 * plays_s
    return Plan(design, run_s, first, bool(first) * (_NOISE_RUNS * run_s + still_s), one_set=False)


@cache
def plan_now(question: Question) -> Plan:
    """Return what the shipped compiler locks."""
    varied = {"variable": "group_size", "control": 4, "treatment": 16, "prediction": _EXPECTED}
    claims, draw = [claim_of(1).model_copy(update=varied)], itertools.count().__next__
    for promised in (PROMISED, *LESS_POWER):
        compiler = DesignCompiler(
            price=make_pricing(2), budget=Budget(wall_clock_s=1e7), ledgers=question.ledgers,
            requirements=StatisticalRequirements(question.effect, promised, rounds=question.ledgers.left),
            bank=bank(question.environment) if question.known else NoiseBank(), previous=LOCK_BEFORE * question.later,
        )  # fmt: skip
        with contextlib.suppress(Unaffordable):
            compiled = compiler.compile(claims, ProposeDesign(environment=question.environment))
            design = compiled.build_lock("Is any arm better?", draw, {})
            still = 0.0 if question.later else compiler.price.plumbing(compiled.job, design.metric.episodes)
            return Plan(design, design.price.seconds_per_run, int(still > 0), still, one_set=True)
    raise Unaffordable(f"expected a design for {question}", need_s=0.0, shorter=False)


@cache
def bank(environment: str) -> NoiseBank:
    """Return a bank that holds the recording, as the default job's."""
    own, job = ground(environment), Job(environment=environment)
    shared = {
        "study": "landscape", "environment": environment, "model": model_key(job), "algorithm": job.algorithm,
        "pairing": "landscape", "decoding": "", "steps": job.steps, "episodes": own.recorded.hidden,
        "metric": metric_key(Metric(meaning="hidden success", episodes=1)), "play_variance": own.between_plays,
    }  # fmt: skip
    return NoiseBank(frozenset(
        Observation(run=f"{place} {seed}", group=str(place), seed=seed, value=value, **shared)
        for place, values in own.settings.items() for seed, value in enumerate(values)
    ))  # fmt: skip


def simulate(row: Row) -> dict[str, Any]:
    """Return what became of the studies of a row: rates with their intervals, and means."""
    question, own, sums = row.question, ground(row.question.environment), np.zeros(5)
    source = np.random.default_rng([SEED, *f"{question} {row.rules} {row.planted}".encode()])
    for _ in range(row.studies):
        plan = plan_now(question) if row.rules == "now" else plan_before(question, *noise_before(question, source))
        data = drawn(own, plan, question.effect if row.planted else 0.0, source)
        design = sized(plan.design, data)
        verdict = judged(design, data, question.ledgers)[0]
        runs = plan.first + verdict.n_control + verdict.n_treatment
        seconds, most = plan.first_s + (runs - plan.first) * plan.run_s, plan.first + 2 * len(design.seeds)
        sums += (sign_said(verdict) != 0, verdict.verdict == "supported", runs, most, seconds)
    claims, right, *means = sums.tolist()
    return {
        **asdict(question), "rules": row.rules, "planted": row.planted, "episodes": plan.episodes,
        "test": plan.design.test, "promised": None if plan.design.promise is None else plan.design.promise.power,
        "studies": row.studies, "claims": rate_of(round(claims), row.studies),
        "right": rate_of(round(right), row.studies),
        **{name: total / row.studies for name, total in zip(MEASURES, means, strict=True)},
    }  # fmt: skip


def noise_before(question: Question, source: Generator) -> tuple[float, int]:
    """Return what the bank held of runs of 512 episodes: the recording, or six A/A runs of one setting."""
    own = ground(question.environment)
    if question.known:
        return own.sd(512), own.df
    mean, residuals, _ = own.pairs[source.integers(len(own.pairs))]
    values = play(own, mean + source.choice(residuals, _NOISE_RUNS), 512, source)
    return max(_FINELY, _FINELY * round(float(values.std(ddof=1)) / _FINELY)), _NOISE_RUNS - 1


def drawn(own: Ground, plan: Plan, effect: float, source: Generator) -> dict[str, ArmData]:
    """Return the runs of a study, as many as it may make."""
    most, (mean, control, treatment) = len(plan.design.seeds), own.pairs[source.integers(len(own.pairs))]
    seeds = source.integers(len(control), size=most)
    others = seeds if plan.design.shared_seeds else source.integers(len(treatment), size=most)
    tasks = source.permutation(own.recorded.hidden) if plan.one_set else None
    successes = (np.array(control)[seeds] + mean, np.array(treatment)[others] + min(mean, 0.95 - effect) + effect)
    values = [play(own, success, plan.episodes, source, tasks).tolist() for success in successes]
    return {arm.name: arm_data(arm.name, found) for arm, found in zip(plan.design.arms, values, strict=True)}


def play(own: Ground, successes: Numbers, episodes: int, source: Generator, tasks: Numbers | None = None) -> Numbers:
    """Return what evaluations of policies with these successes find; the tasks played once more are drawn by run, but
    where `tasks` names their order.
    """
    count = own.recorded.hidden
    plays = np.full((len(successes), count), episodes // count)
    for row in plays:
        row[(source.permutation(count) if tasks is None else tasks)[: episodes % count]] += 1
    places = np.clip(np.rint(successes * _FINE), 0, _FINE).astype(int)
    return source.binomial(plays, _difficulties(count)[places]).sum(axis=1) / episodes


@cache
def _difficulties(count: int) -> Numbers:
    """Return how often each of so many tasks is solved, by the success over all of them in parts of `_FINE`."""
    means, size = np.arange(1, _FINE)[:, None] / _FINE, (1 - TASKS) / TASKS
    inner = special.betaincinv(size * means, size * (1 - means), (np.arange(count) + 0.5) / count)
    return np.vstack([np.zeros(count), inner, np.ones(count)])


if __name__ == "__main__":
    sys.exit(main())
