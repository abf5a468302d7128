"""Simulated studies with a planted truth, judged by the shipped verdict look by look, as the study loop does.

Values are shares of success. A training that does not collapse ends at its arm's mean with the noise of its seed and of
its evaluation; one that collapses loses a part of its gain, and one that is stuck stays where it began. Whether that is
told is for the shipped rules to say, from the simulated course of the run. All runs of a study have one evaluation
before training. The same seed gives the same studies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from simlab.scores import Bar, clopper_pearson

from research.design.power import PowerAnalysis
from studies.checks.conditions import detect_collapse, has_started
from studies.records.alpha import AlphaAllocation, AlphaLedgers, equivalence_level
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import (
    CollapseRule,
    InterimAnalysis,
    Noise,
    Pilot,
    PowerTarget,
    Prediction,
    StartRule,
)
from studies.records.runs import Conditions, TrainingCurve
from studies.records.statements import apply_pilot, apply_sizing
from studies.records.verdict import Equivalence, Scope, Verdict
from studies.statistics.comparison import Test, compare
from studies.statistics.power import plan_analyses, size_design
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import LEAST_KEPT, judge

SEED = 20261120
ALPHA = 0.05
_KNOWN_DF = 10_000
"""Of a bank that knows the noise."""
GOALS = {
    "false": Bar("at most", ALPHA),
    "wrong_sign": Bar("at most", 0.01, likely=0.005),
    "falsely_equivalent": Bar("at most", ALPHA),
    "found": Bar("at least", 0.75, likely=0.80),
}
"""Bars of the rates that a tally has."""
START, END, SD, EPISODES = 0.2, 0.6, 0.05, 512
"""Success before training and after it, its standard deviation over trainings, and the episodes of an evaluation."""
CEILING, CEILING_SD = 0.93, 0.014
LOST = (0.6, 1.3)
"""Shares of its gain that a collapsed training loses: from 1 on it ends below its beginning."""
DROP = 0.4 * sum(LOST) / 2
"""What a collapsed training lacks, on average: the bank's word where it saw one."""
INTERACTION = 0.25
"""Standard deviation over tasks of what arm 1 does beyond its mean, as it was met in the study of the real model."""
_CURVE_ERROR = 0.03
"""Standard error of a mean on a training curve, of some 256 episodes."""
PROMISED = 0.8
PILOT_SEEDS = 4
_FEWEST = 3
"""Runs of each arm before which no study ends."""
_MOST_LOOKS = 3
_EXACT = 1e-9
_ONE_IN = 50
_SPOTS = random.Random(SEED)

Rules = Literal["after", "paired", "pilot", "trend", "budget", "peeker"]
"""What a design locks. `after` (the rules of today, named so since they changed): arms share seeds, Welch's test (of
more arms than two: one variance of all), looks from 3, a rule of collapse and one of start. `paired`: the same with the
paired test, as where runs of one seed surely go together. `pilot`: nothing is known of the noise, and the first runs
size the design, up to its seeds. `trend`: the same of one claim, that it rises from the control to the last arm.
`budget`: it ends at a run that chance picks. `peeker`: somebody ends it at the first run after which that leads to a
claim."""
SIZED: tuple[Rules, ...] = ("pilot", "trend")
"""By their first runs."""


@dataclass(frozen=True)
class World:
    """What is true of all arms, and of arm 1; the other treatments are like the control."""

    effect: float = 0.0
    """Difference that arm 1 makes."""
    falls: bool = False
    """Whether a loss is planted: where few runs of arm 1 are bad, most samples of it look better than it is."""
    over_all: bool = False
    """Whether it makes it to the mean of all trainings, and not to that of those that do not collapse."""
    collapses: tuple[float, float] = (0.0, 0.0)
    """Rates of collapse, that of arm 1 last."""
    ratio: float = 1.0
    """Noise of arm 1 over that of the others."""
    tails: Literal["normal", "t3", "skewed"] = "normal"
    """Skewed: that of arm 1 alone, a lognormal with its tail downwards."""
    correlation: float = 0.0
    """Of runs of arm 1 with those of another arm that have their seed."""
    ceiling: bool = False
    bank_sees: bool = True
    """Whether the bank's runs collapse as the control's do."""
    stuck: tuple[float, float] = (0.0, 0.0)
    """Rates of trainings that stay where they began, that of arm 1 last."""
    tasks: int | None = None
    """Hidden tasks of a study, where arm 1 does more for some tasks than for others; None where it does not."""
    chance: float = 0.0
    """What the tasks that were drawn add to the difference that arm 1 makes."""

    @property
    def end(self) -> float:
        """Mean of a control that does not collapse."""
        return CEILING - max(0.0, self.effect) if self.ceiling else END

    @property
    def sd(self) -> float:
        """Noise of a control that does not collapse, evaluation included."""
        return CEILING_SD if self.ceiling else SD

    @property
    def louder(self) -> float:
        """The noise of a difference, over that of two arms with clean noise."""
        return self.sd / SD * math.sqrt((1 + self.ratio**2) / 2)

    @property
    def shift(self) -> float:
        """Difference that arm 1 makes to trainings that start and do not collapse, over all tasks."""
        if not self.over_all:
            return self.effect
        control, treatment = (_kept(*rates, "all") for rates in zip(self.stuck, self.collapses, strict=True))
        return (self.effect + (self.end - START) * (control - treatment)) / treatment

    def difference(self, scope: Scope, seen: tuple[bool, bool] = (False, False)) -> float:
        """Return the difference that it makes to the mean of the trainings that a scope names, over all tasks.

        `seen`: of the arms that had one that did not start, a scope of those that start speaks as they are.
        """
        control, treatment = (
            _kept(stuck * (missed or "started" not in scope), collapsing, scope)
            for stuck, collapsing, missed in zip(self.stuck, self.collapses, seen, strict=True)
        )
        return treatment * (self.end + self.shift - START) - control * (self.end - START)

    def spoken_of(self, verdict: Verdict) -> float:
        """Return the difference that a verdict speaks of: on the tasks that were drawn."""
        seen = [rate.count > 0 for rate in verdict.starts] or [False]
        return self.difference(verdict.scope, (seen[0], seen[-1])) + self.chance


def _kept(stuck: float, collapsing: float, scope: Scope) -> float:
    """Return the share of a gain that an arm's trainings have on average, of which so many are stuck, and of the others
    so many collapse.
    """
    if "not_collapsed" in scope:
        return (1 - stuck) * (1 - collapsing) / (1 - (1 - stuck) * collapsing)
    return (1 - stuck) * (1 - collapsing * sum(LOST) / 2)


def drawn(number: int) -> World:
    """Return the mixture of one study: every kind of ugliness in scope, more or less of it."""
    source = random.Random(f"{SEED} mixture {number}")
    rates = [source.uniform(0.0, 0.3) if source.random() < 0.5 else 0.0 for _ in range(2)]
    ceiling = source.random() < 0.2
    return World(
        collapses=(rates[0], rates[1]),
        ratio=source.uniform(1.0, 5.0) if source.random() < 0.5 else 1.0,
        tails="t3" if source.random() < 0.3 else "normal",
        correlation=source.uniform(0.0, 0.6),
        ceiling=ceiling,
        bank_sees=source.random() < 0.5,
    )


@dataclass(frozen=True)
class Procedure:
    """A design whose error rates are measured: one claim on each treatment arm."""

    rules: Rules
    seeds: int
    treatments: int = 1
    margin: float = 0.1
    """Of equivalence; also the effect that is promised to be seen."""

    @property
    def test(self) -> Test:
        """The test that it locks."""
        own: dict[Rules, Test] = {"paired": "paired", "trend": "contrast"}
        return own.get(self.rules, "welch" if self.treatments == 1 else "common")

    @property
    def looks(self) -> tuple[InterimAnalysis, ...]:
        """When it is looked at."""
        return plan_analyses(self.seeds, _MOST_LOOKS)

    def design(self, collapse: CollapseRule | None) -> Design:
        """Return the design that is judged by."""
        known: dict[str, Any] = {"equivalence_margin": self.margin, "collapse": collapse}
        if self.rules in SIZED:
            pilot = Pilot(seeds=PILOT_SEEDS, most=self.seeds, analyses=_MOST_LOOKS)
            known |= {"pilot": pilot, "looks": (), "promise": PowerTarget(power=PROMISED, effect=self.margin)}
        return _blank(replace(self, margin=0.1)).model_copy(update=known)


@cache
def _blank(procedure: Procedure) -> Design:
    """Return a design without its margin and rule, built once: thousands of studies differ in nothing else."""
    last = procedure.treatments
    claims = [claim_of(number) for number in range(1, last + 1)]
    if procedure.rules == "trend":
        claims = [claim_of(1, treatment=last, ladder=tuple(range(last + 1)))]
    return design_of(
        claims, procedure.seeds, test=procedure.test, looks=procedure.looks, spending="reached", start=StartRule(),
        multiplicity="dunnett_bh" if len(claims) > 1 else "none",
    )  # fmt: skip


def claim_of(number: int, **others: Any) -> Hypothesis:
    """Return the claim that an arm is better, but for what `others` say."""
    prediction = Prediction(low=0, high=1, probability=0.5)
    plain = {"variable": "knob", "treatment": number, "direction": "increase", "prediction": prediction}
    return Hypothesis(id=f"h{number}", statement="It is better.", control=0, **{**plain, **others})


def design_of(claims: Sequence[Hypothesis], seeds: int, **others: Any) -> Design:
    """Return a design with these claims, each on arms of its own, but for what `others` say."""
    settings = [(claim.variable, value) for claim in claims for value in claim.settings[1:]]
    arms = [Arm(name=f"arm{number}", overrides=dict([own])) for number, own in enumerate(settings, start=1)]
    plain = {"metric": Metric(meaning="a simulated success", episodes=EPISODES), "alpha": ALPHA}
    return Design(
        question="Is any arm better?", environment="simulated", base_job={}, control_arm="control",
        arms=(Arm(name="control", overrides={claims[0].variable: claims[0].control}), *arms), hypotheses=tuple(claims),
        seeds=tuple(range(1, seeds + 1)), budget=Budget(wall_clock_s=1),
        price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"), **{**plain, **others},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One simulated run."""

    value: float
    course: TrainingCurve


@dataclass
class Tally:
    """Counts over the simulated studies of one procedure in one world."""

    studies: int = 0
    false: int = 0
    """Studies in which a difference is said to be there that is not, or has the other sign, of what its verdict speaks
    of: by a claim, or by an equivalence that is said not to be zero."""
    false_of_all: int = 0
    """The same, if every verdict were read as one about all trainings, on whatever tasks."""
    found: int = 0
    """Studies in which the difference of arm 1 was claimed with its sign."""
    wrong_sign: int = 0
    equivalent: int = 0
    falsely_equivalent: int = 0
    """Studies in which arm 1 is called equivalent and the difference its verdict speaks of is the margin or more."""
    falsely_equivalent_of_all: int = 0
    covered: int = 0
    """Final intervals of arm 1 that hold its difference."""
    intervals: int = 0
    levels: float = 0.0
    """Sum of the levels those intervals state."""
    seeds: int = 0
    said_of_all: int = 0
    """Decided verdicts on arm 1 that speak of all trainings."""

    def add(self, verdicts: Sequence[Verdict], truth: float, kept: float, of_all: float, design: Design) -> None:
        """Count one study by its final verdicts, that on arm 1 first, and by the difference that it makes.

        `truth` is to the mean of those that its verdict speaks of, `kept` to trainings that do not collapse, `of_all`
        to all, whatever the tasks.
        """
        first = verdicts[0]
        own, others = sign_said(first), any(sign_said(verdict) for verdict in verdicts[1:])
        claimed = own if first.verdict in ("supported", "refuted") else 0
        self.studies += 1
        self.false += others or (own != 0 and (own * truth <= _EXACT or _left_out(first, first, truth)))
        self.false_of_all += others or (own != 0 and own * of_all <= _EXACT)
        self.found += claimed * truth > _EXACT
        self.wrong_sign += own * truth < -_EXACT
        self.equivalent += first.verdict == "equivalent"
        self.said_of_all += first.verdict in ("supported", "refuted", "equivalent") and first.scope == "all"
        if first.verdict == "equivalent" and design.equivalence_margin is not None:
            least = design.equivalence_margin - _EXACT
            self.falsely_equivalent += abs(truth) >= least or _left_out(first, first.equivalence, truth)
            self.falsely_equivalent_of_all += abs(of_all) >= least
        if first.low is not None and first.high is not None:
            held = kept if design.collapse is not None else truth
            self.intervals += 1
            self.covered += first.low <= held <= first.high
            self.levels += first.level
        self.seeds += first.n_treatment

    def figures(self) -> dict[str, Any]:
        """Return rates with their exact 95 % intervals, and means."""
        counted = ("false", "false_of_all", "found", "wrong_sign", "equivalent", "falsely_equivalent",
                   "falsely_equivalent_of_all", "said_of_all")  # fmt: skip
        return {
            "studies": self.studies,
            **{name: rate_of(getattr(self, name), self.studies) for name in counted},
            "coverage": rate_of(self.covered, self.intervals),
            "level": self.levels / self.intervals if self.intervals else None,
            "seeds": self.seeds / self.studies,
        }


def _left_out(verdict: Verdict, ends: Verdict | Equivalence | None, truth: float) -> bool:
    """Return whether the interval of a claim leaves out what is true of the trainings that start, or get there.

    Where nearly all do, that is hardly anything else than what is planted, 0 or the margin: a claim is not true because
    it has the sign of that little.
    """
    if verdict.scope in ("all", "not_collapsed") or ends is None or ends.low is None or ends.high is None:
        return False
    return not ends.low <= truth <= ends.high


def sign_said(verdict: Verdict) -> int:
    """Return the sign of the difference that a verdict says is there, also of one too small to matter; 0 for none.

    A claim says so by its test: the interval of two rates may hold 0 beside it.
    """
    if verdict.verdict not in ("supported", "refuted") and not (verdict.verdict == "equivalent" and verdict.nonzero):
        return 0
    return 1 if verdict.estimate is not None and verdict.estimate > 0 else -1


def simulate(procedure: Procedure, world: World | None, studies: int, *, planted: bool) -> Tally:
    """Return what became of so many studies: nulls, or with the effect that they promise to see, which is the margin.

    Without a world each study draws a mixture. Where a difference is noisier than under clean noise, effect and margin
    are as much larger: nobody sees with few seeds what takes many.
    """
    tally = Tally()
    for number in range(studies):
        base = world or drawn(number)
        margin = procedure.margin * base.louder
        rng = random.Random(f"{SEED} {procedure} {world} {planted} {number}")
        chance = rng.gauss(0, INTERACTION / math.sqrt(base.tasks)) if base.tasks else 0.0
        own = replace(base, effect=planted * (-margin if base.falls else margin), chance=chance)
        start = START + rng.gauss(0, math.sqrt(START * (1 - START) / EPISODES))
        seen = own.bank_sees and own.collapses[0] > 0 and procedure.rules not in SIZED
        design = replace(procedure, margin=margin).design(CollapseRule(drop=DROP if seen else None))
        runs: dict[str, list[SimulatedRun]] = {arm.name: [] for arm in design.arms}
        worlds = [own] * len(runs)
        if procedure.rules == "trend":  # it rises from arm to arm, and the last one has its noise
            worlds = [replace(own, effect=own.effect * rung / procedure.treatments, ratio=1.0)
                      for rung in range(procedure.treatments)] + [own]  # fmt: skip
        treated = {*runs} - {"control"} if procedure.rules == "trend" else {"arm1"}
        for _ in design.seeds:
            shared = rng.gauss(0, 1)
            for arm, its in zip(runs, worlds, strict=True):
                runs[arm].append(training(its, arm in treated, shared, rng, start))
        data = {name: data_of(design, name, found) for name, found in runs.items()}
        if procedure.rules in ("budget", "peeker"):
            verdicts = [judged_short(design, data, rng if procedure.rules == "budget" else None)]
        else:
            verdicts = judged(sized(design, data), data)
        kept, of_all = own.difference("not_collapsed") + chance, own.difference("all")
        tally.add(verdicts, own.spoken_of(verdicts[0]), kept, of_all, design)
    return tally


@cache
def promised(seeds: int) -> float:
    """Return the effect that so many seeds of two arms see with power 0.8 under clean noise: also the margin."""
    noise = Noise(sd=SD, df=_KNOWN_DF, episodes=EPISODES, basis="simulated")
    found = PowerAnalysis(
        noise, arms=2, families=1, compared=1, promised=0.8, most_analyses=_MOST_LOOKS
    ).min_detectable_effect(seeds)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of one claim; without a verdict it is inconclusive."""

    verdict: Verdict | None
    estimate: float | None

    @property
    def name(self) -> str:
        """The verdict in a word."""
        return "inconclusive" if self.verdict is None else self.verdict.verdict


def judged(design: Design, runs: Mapping[str, ArmData], ledgers: AlphaLedgers | None = None) -> list[Verdict]:
    """Return the final verdict on each hypothesis, judged look by look; one that is decided gets no more runs."""
    stake = (ledgers or AlphaLedgers.begin(1, design.alpha)).allocate(design)
    return [one.verdict for one in judged_round(stake, runs, _SPOTS, whole=True) if one.verdict is not None]


def judged_round(
    stake: AlphaAllocation, runs: Mapping[str, ArmData], spots: random.Random, *, whole: bool = False
) -> list[Judged]:
    """Return what came of each claim, judged look by look; one that is decided gets no more runs.

    The judge is called for every claim at every look, but where its own comparison says at the whole level of the look,
    which no correction for other claims raises, that nothing can be claimed yet: it takes most of the time, and would
    say `inconclusive`. One in fifty of those, which `spots` picks, is handed to it all the same; anything else that it
    says ends the simulation. `whole`: it is called at the last look, whatever it says.
    """
    design, settled = stake.design, dict[str, Judged]()
    arms = {claim.id: [*design.contrast_of(claim)] for claim in design.hypotheses}
    ran = dict.fromkeys(runs, len(design.seeds))
    for number, look in enumerate(design.looks, start=1):
        data = {name: first_runs(arm, min(ran[name], look.seeds)) for name, arm in runs.items()}
        known = {name: one.verdict for name, one in settled.items() if one.verdict is not None}
        last = number == len(design.looks)
        for claim, own in arms.items():
            if claim in settled:
                continue
            estimate = None if last and whole else _surely_open(stake, own, number, data)
            if estimate is not None and spots.randrange(_ONE_IN):
                one = Judged(None, estimate)
            else:
                verdict = judge(JudgeInput(stake, claim, data, look=number, earlier=known))
                if estimate is not None and verdict.verdict != "inconclusive":
                    raise AssertionError(f"expected a judge that finds nothing in {claim}; found {verdict.reason}")
                one = Judged(verdict, verdict.estimate)
            if last or (one.verdict is not None and one.verdict.final):
                settled[claim] = one
        ran |= {arms[name][-1]: min(ran[arms[name][-1]], look.seeds) for name in settled}
    return [settled[claim] for claim in arms]


def _surely_open(stake: AlphaAllocation, own: Sequence[str], look: int, data: Mapping[str, ArmData]) -> float | None:
    """Return the estimate where the judge can claim nothing at this look; None where it has to say."""
    design = stake.design
    if design.test not in ("welch", "common"):
        return None
    kept = {name: arm.runs(0.0) if design.collapse is None else arm.drop_collapsed() for name, arm in data.items()}
    control, treatment = (kept[name] for name in own)
    if min(len(control.numbers), len(treatment.numbers)) < LEAST_KEPT:
        return None
    others = [arm.numbers for name, arm in kept.items() if name not in own]
    found, margin = compare(design.test, control, treatment, others=others), design.equivalence_margin
    if found is None or margin is None or found.p < stake.difference(look, "confirm"):
        return None
    outside = max(found.tail((margin + shift) / found.error) for shift in (found.estimate, -found.estimate))
    return None if outside < equivalence_level(design, look, "confirm") else found.estimate


def sized(design: Design, runs: Mapping[str, ArmData]) -> Design:
    """Return a design as its first runs size it, where it has a pilot."""
    if design.pilot is None:
        return design
    first, blank = [first_runs(arm, design.pilot.seeds) for arm in runs.values()], apply_pilot(design)
    kept = [arm.runs(0.0).numbers if design.collapse is None else arm.drop_collapsed().numbers for arm in first]
    sizing = size_design(blank, kept, design.pilot.most, sum(arm.broken for arm in first))
    return apply_sizing(design, blank, sizing)


def judged_short(design: Design, runs: Mapping[str, ArmData], rng: random.Random | None) -> Verdict:
    """Return the verdict on two arms whose study ends between looks, if it is not decided before.

    The budget ends it at a run that `rng` picks; without that somebody does who sees all of it, as soon as a last look
    would then claim a difference. Runs are made in turn, the control's first.
    """
    whole, claim = len(runs) * len(design.seeds), design.hypotheses[0].id
    stake = AlphaLedgers.begin(1, design.alpha).allocate(design)
    drawn = {name: design.seeds_of(name, design.seeds) for name in runs}
    end = whole if rng is None else rng.randint(_FEWEST * len(runs), whole)
    for count in range(_FEWEST * len(runs), end + 1):
        made = [(count + len(runs) - 1 - place) // len(runs) for place in range(len(runs))]
        data = {name: first_runs(arm, of) for (name, arm), of in zip(runs.items(), made, strict=True)}
        for name, arm in data.items():
            data[name] = replace(arm, seeds={run: drawn[name][at] for run, at in arm.seeds.items()})
        due = next(number for number, look in enumerate(design.looks, start=1) if look.seeds >= max(made))
        if min(made) == max(made) == design.looks[due - 1].seeds:
            verdict = judge(JudgeInput(stake, claim, data, look=due))
            if verdict.final:
                return verdict
        elif rng is None or count == end:
            verdict = judge(JudgeInput(stake, claim, data, look=due, ended="hand" if rng is None else "budget"))
            if rng is not None or verdict.verdict in ("supported", "refuted"):
                return verdict
    if min(made) == max(made):  # the budget ends just after a look, which takes all that is left
        return judge(JudgeInput(stake, claim, data, look=due, ended="budget"))
    raise AssertionError(f"expected a study that ends by its last run; found one of {end}")


def training(world: World, treated: bool, shared: float, rng: random.Random, start: float = START) -> SimulatedRun:
    """Return a run, of which runs with its seed share a part of their noise, `shared`.

    `start` is what the study's evaluation before training found.
    """
    r = world.correlation
    noise = math.sqrt(abs(r)) * shared * (-1 if r < 0 and treated else 1) + math.sqrt(1 - abs(r)) * rng.gauss(0, 1)
    if world.tails == "t3":
        noise /= math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)))
    if world.tails == "skewed" and treated:
        noise = (math.exp(0.5) - math.exp(noise)) / math.sqrt(math.exp(2) - math.exp(1))
    reached = world.end + (world.shift + world.chance if treated else 0.0)
    reached += noise * world.sd * (world.ratio if treated else 1.0)
    if world.stuck[treated] and rng.random() < world.stuck[treated]:
        reached = START + rng.gauss(0, math.sqrt(START * (1 - START) / EPISODES))
        first, end = START + rng.gauss(0, _CURVE_ERROR), reached
    else:
        first, end = START + 0.3 * (reached - START) + rng.gauss(0, _CURVE_ERROR), reached
        if rng.random() < world.collapses[treated]:
            end -= rng.uniform(*LOST) * (reached - START)
    last = end + rng.gauss(0, _CURVE_ERROR)
    peak = max(reached + abs(rng.gauss(0, _CURVE_ERROR)), first, last)
    return SimulatedRun(end, TrainingCurve(start=start, end=end, plays=EPISODES, first=first, peak=peak, last=last,
                                error=_CURVE_ERROR))  # fmt: skip


def data_of(design: Design, name: str, runs: Sequence[SimulatedRun]) -> ArmData:
    """Return an arm's runs with those that collapsed, or never started, by the design's rules."""
    rule, seen = design.collapse, [Conditions(course=run.course) for run in runs]
    collapsed = [] if rule is None else [detect_collapse(each, rule) for each in seen]
    arm = arm_data(name, [run.value for run in runs], collapsed)
    if design.start is None:
        return arm
    still = (run for run, each in zip(arm.values, seen, strict=True) if not has_started(each, design.start))
    begins = {run: each.course.start for run, each in zip(arm.values, runs, strict=True)}
    return replace(arm, begins=begins, unstarted=frozenset(still) - arm.collapsed.keys())


def arm_data(name: str, values: Sequence[float], collapsed: Sequence[str | None] = ()) -> ArmData:
    """Return an arm's runs as they are judged; `collapsed` says how each did that did."""
    names = [f"{name}-{number}" for number in range(len(values))]
    fallen = {run: how for run, how in zip(names, collapsed, strict=False) if how is not None}
    return ArmData(
        dict(zip(names, values, strict=True)), {run: seed for seed, run in enumerate(names)}, collapsed=fallen
    )


def first_runs(arm: ArmData, count: int) -> ArmData:
    """Return the first runs of an arm."""
    kept = [run for run in arm.values if arm.seeds[run] < count]

    def own(field: Mapping[str, Any]) -> dict[str, Any]:
        return {run: field[run] for run in kept if run in field}

    return ArmData(
        own(arm.values), own(arm.seeds), collapsed=own(arm.collapsed), begins=own(arm.begins),
        unstarted=arm.unstarted.intersection(kept),
    )  # fmt: skip


def rate_of(count: int, n: int) -> list[float] | None:
    """Return a rate with its exact interval; None of nothing."""
    return [count / n, *clopper_pearson(count, n)] if n else None
