"""Hypothesis, Arm, Metric, Design, RunSpec.

Records are what events carry and what verdicts are computed from. They know nothing of swarms: a job is plain JSON
here, and what a metric means is written in words beside its key. Code that a planner wrote is text here, never run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from studies.records import procedure
from studies.records.base import EvolvingRecord, JsonValue, Record, canonical, digest

Source = Annotated[str, Field(min_length=1)]
Direction = Literal["increase", "decrease"]

REWARD: Final = "reward"
"""The slot of the function that gives each training episode its reward."""
SLOTS: Final = (REWARD, "advantage", "task_weights", "prompt", "agent")
"""The variables that are no job fields: each is a place for code (`research.proposals.slots` says what it is)."""
PLAYING: Final = ("prompt", "agent")
"""Those whose code plays, and evaluates where the lock says so."""
BUILT_IN: Final = "built-in"
"""Value of a slot that stands for what is there anyway; any other is the name of code in the design."""
NO_CODE: Final = dict.fromkeys(SLOTS, BUILT_IN)
MODEL: Final = "model"
"""The job field that holds the model which is trained. As a variable its value is an object, and gains are compared."""
SUCCESS: Final = "hidden/success"
"""Key of the metric by which runs are judged unless the model is varied."""
GAIN: Final = "hidden/success_gain"
"""Key of what a training added: the success after it less that before it, both of the run itself."""
MATCHED: Final = {"success-at-tokens": "trained tokens", "success-at-seconds": "seconds"}
"""Kinds of metrics that compare arms at equal amounts of something, not at equal steps, and of what."""
KNOB: Final = "environment."
"""Before the name of each knob of the environment among a job's fields: `environment.max_turns`."""
CONFIGURATION: Final = "configuration"
"""The variable of a hypothesis about several job fields at once; its values map each of them to its value."""

_ROUNDING: Final = 1e-12
"""Of a level that claims share: its parts may come to so much more."""
Kind = Literal["difference", "interaction", "trend"]
"""What a claim is about: two arms, whether the difference of two depends on another field, a rise over a ladder."""
LEAST_RUNGS: Final = 3
"""Fewest values of a trend: of two it is their difference."""


def trend_weights(values: Sequence[JsonValue]) -> tuple[float, ...]:
    """Return the weights of the rise of a straight line over values from the lowest to the highest, by least squares
    over their logarithms (over ranks, where one is not above zero): linear coefficients of orthogonal polynomials
    (Fisher & Yates 1938) times its length."""
    numbers = [float(value) for value in values]
    places = [math.log(value) for value in numbers] if min(numbers) > 0 else [float(at) for at in range(len(numbers))]
    mean = math.fsum(places) / len(places)
    squares = math.fsum((place - mean) ** 2 for place in places)
    return tuple((place - mean) * (places[-1] - places[0]) / squares for place in places)


MOST_MEDIATORS: Final = 3


def is_expression(source: str) -> bool:
    """Return whether the code of a slot is a numeric expression (`swarm.environments.user_code`), and no Python."""
    return source.startswith("=")


class Mediator(Record):
    """What the treatment is said to act by, tested once its claim is decided (`studies.verdicts.rules`)."""

    metric: str = Field(min_length=1, max_length=200)
    """What is measured, as `Metric.beside` names it: `logged:actor/entropy:first10:0..3`."""
    direction: Direction
    smallest_effect: float | None = Field(default=None, gt=0)
    """The smallest move that would matter, in its unit; None for a share of its range."""


class Hypothesis(EvolvingRecord):
    """One claim about one variable: the treatment arm differs from the control arm in a stated direction."""

    added_fields: ClassVar = frozenset({
        "said", "smallest_effect", "falsifier", "kill_if", "confounds", "matched", "sought", "moderator", "ladder",
        "mediators", "unused_control", "contrast",
    })  # fmt: skip

    id: str
    statement: str = Field(min_length=1, max_length=4000)
    """The claim in a sentence that code wrote from the fields below, of a contrast with all its settings; in older
    logs, without `said`, the planner's."""
    said: str = Field(default="", max_length=500)
    """The claim in the planner's own wording, to be quoted: it decides nothing."""
    mechanism: str = Field(default="", max_length=1000)
    """Why the planner expects it, in its own words."""
    variable: str
    """The one job field or slot in which the two arms differ, or `configuration` for several fields."""
    control: JsonValue
    """Value of the variable in the control arm."""
    treatment: JsonValue
    """Value of the variable in the treatment arm."""
    direction: Direction
    """Whether the treatment is expected to raise or to lower the metric."""
    prediction: procedure.Prediction
    smallest_effect: float | None = Field(default=None, gt=0)
    """The smallest difference that would matter to anybody, in the metric's own unit; None where nobody said."""
    falsifier: str = Field(default="", max_length=500)
    """The cheapest observation that would show the claim to be false, in words."""
    kill_if: str = Field(default="", max_length=300)
    """When to give the hypothesis up early: a condition of the decision table; empty for never."""
    confounds: tuple[str, ...] = Field(default=(), max_length=8)
    """What else could bring the effect about, as the planner fears."""
    matched: Literal["steps", "episodes"] = "steps"
    """What of training both arms have equal; with `episodes`, the number of steps follows the size of the batch."""
    sought: Literal["difference", "equivalence", "either"] = "difference"
    """Whether a difference or the lack of one is what somebody asks to see shown; `either` side of it where none is
    named, so that `direction` is the planner's alone."""
    moderator: str = ""
    """Of an interaction, the one of its two fields on which the effect of the other is said to depend: the claim is on
    the difference of two differences, over four arms. Empty for any other claim."""
    ladder: tuple[JsonValue, ...] = ()
    """Of a trend, all values of the variable from the lowest to the highest, an arm each; empty for any other claim."""
    contrast: tuple[float, ...] = ()
    """What the mean of each setting of `ladder` counts in the effect, in sum 0; empty for a straight line over them."""
    mediators: tuple[Mediator, ...] = Field(default=(), max_length=MOST_MEDIATORS)
    """By what the treatment is said to act, in the order in which it is tested."""
    unused_control: bool = False
    """Whether its control is neither a default, nor a value that an earlier round confirmed, nor named by who asked."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.moderator and (self.variable != CONFIGURATION or set(self.varied) - {self.moderator} == set()
                               or len(self.varied) != 2 or self.moderator not in self.varied):  # fmt: skip
            raise ValueError(f"an interaction is of two fields, of which {self.moderator!r} is one")
        if self.contrast and (len(self.contrast) != len(self.ladder) or abs(math.fsum(self.contrast)) > 1e-9):
            raise ValueError(f"a contrast has a weight for each setting, in sum 0; found {list(self.contrast)}")
        if self.ladder and (len(self.ladder) < LEAST_RUNGS or self.moderator
                            or (self.variable == CONFIGURATION and not self.contrast)
                            or (self.ladder[0], self.ladder[-1]) != (self.control, self.treatment)):  # fmt: skip
            raise ValueError(f"a trend is of one field over {LEAST_RUNGS} values or more, from control to treatment")
        return self

    @property
    def kind(self) -> Kind:
        return "interaction" if self.moderator else "trend" if self.ladder else "difference"

    @property
    def open(self) -> bool:
        """Whether nobody named a side of its difference: what it finds is an answer, whichever it is."""
        return self.sought == "either" and self.kind == "difference"

    @property
    def moderated(self) -> str:
        """Of an interaction, the field whose effect is said to depend on the other."""
        return next((name for name in self.varied if name != self.moderator), "")

    @property
    def settings(self) -> tuple[JsonValue, ...]:
        """The values of the variable that its arms have, the control's first and the treatment's last."""
        if not self.moderator:
            return self.ladder or (self.control, self.treatment)
        other = self.moderated
        crossed = {**self.control, other: self.treatment[other]}, {**self.treatment, other: self.control[other]}
        return (self.control, *crossed, self.treatment)

    @property
    def weights(self) -> tuple[float, ...]:
        """What the mean of each of `settings` counts in the effect; of a trend see `trend_weights`."""
        if self.moderator:
            return (1.0, -1.0, -1.0, 1.0)
        return self.contrast or (trend_weights(self.ladder) if self.ladder else (-1.0, 1.0))

    @property
    def family(self) -> str:
        """The claims that it shares a level with: those on its variable; a contrast has a part of its own."""
        return self.variable if self.kind == "difference" else self.id

    @property
    def varied(self) -> dict[str, tuple[JsonValue, ...]]:
        """The values that are compared of each field or slot it is about, the control's first."""
        if self.variable == CONFIGURATION:
            settings = self.ladder or (self.control, self.treatment)
            values = {name: [one[name] for one in settings] for name in sorted(self.treatment)}
            return {name: tuple(dict.fromkeys(own) if self.ladder else own) for name, own in values.items()}
        return {self.variable: self.ladder or (self.control, self.treatment)}

    @property
    def declared(self) -> frozenset[str]:
        """The job fields and slots in which its two arms may differ."""
        if self.variable == CONFIGURATION:
            return frozenset(self.treatment)
        return frozenset({self.variable, "steps"} if self.matched == "episodes" else {self.variable})


class Schedule(Record):
    """When runs are evaluated between their first and last step: by training episodes, the same in all arms."""

    every: int = Field(ge=1)
    """Training episodes between two evaluations."""
    episodes: int = Field(ge=1)
    """Evaluation episodes of each."""

    def steps(self, job: Mapping[str, JsonValue]) -> tuple[int, ...]:
        """Return the steps of a job after which it is evaluated: those that come nearest, before its last."""
        per_step, last = int(job["episodes_per_step"]), int(job["steps"])
        marks = range(self.every, per_step * last, self.every)
        near = (max(1, round(mark / per_step)) for mark in marks)
        return tuple(dict.fromkeys(step for step in near if step < last))


class Metric(EvolvingRecord):
    """The number every run is judged by, measured by the harness."""

    added_fields: ClassVar = frozenset({
        "reducer", "checkpoint", "worst", "kind", "name", "unit", "best", "threshold", "horizon", "schedule", "of",
        "task_seed", "beside", "knobs", "also_own", "evaluate_by",
    })  # fmt: skip

    key: str = SUCCESS
    meaning: str
    """One clause a reader understands: `share of 512 hidden tasks solved after the last step`."""
    split: Literal["hidden", "search"] = "hidden"
    episodes: int = Field(ge=1)
    """Evaluation episodes per run."""
    higher_is_better: bool = True
    reducer: Literal["mean"] = "mean"
    """How the episodes become one number."""
    checkpoint: Literal["last"] = "last"
    """Which policy of a run is measured: never the best of several, which would be luck."""
    worst: float = 0.0
    """The value of a run whose training broke down so far that nothing can be measured: the worse end of its range."""
    kind: str = ""
    """What kind of metric it is (`studies.metrics`); empty in designs that knew success and its gain alone."""
    name: str = ""
    """What sentences call it: `episodes to 70 % hidden success`; empty for what is read off the key."""
    unit: str = ""
    """What its values and differences are counted in: `episodes`; empty for a share."""
    best: float = 1.0
    """The better end of its range."""
    threshold: float | None = None
    """The hidden success that is to be reached, or up to which the area counts."""
    horizon: float | None = Field(default=None, gt=0)
    """Where a time is cut, in its unit: runs that never reach the threshold have this value."""
    schedule: Schedule | None = None
    """When it looks during training; None for what is read off the evaluations before and after."""
    of: str = ""
    """What else it is of: the name of a fact, or of another environment."""
    task_seed: int | None = None
    """Seed that draws the evaluated tasks, the same for all runs of a study; None where runs draw their own."""
    beside: Mapping[str, Metric] = {}
    """What else is measured of the same runs, for mediators of claims, by the name that they give it."""
    knobs: Mapping[str, JsonValue] | None = None
    """The environment's knobs at which all arms are evaluated, as in a job; None for what each run's own job has."""
    also_own: bool = False
    """Whether last policies are evaluated at their own knobs besides, which is reported and claims nothing."""
    evaluate_by: Literal["", "the arm's agent"] = ""
    """Who plays in evaluations; empty for the built-in agent, whatever code an arm has."""

    def evaluated(self, job: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return a job with the environment's knobs as they are in evaluations."""
        own = {name: value for name, value in job.items() if self.knobs is None or not name.startswith(KNOB)}
        return own | dict(self.knobs or {})

    def evaluates_apart(self, fields: Collection[str]) -> list[str]:
        """Return the knobs among fields that arms differ in which differ in their evaluations, too."""
        return sorted(name for name in fields if name.startswith(KNOB)) if self.knobs is None else []

    @property
    def cut_at(self) -> float | None:
        """Where a time is cut: a run with this value, or one that broke down, never got there. None for no time."""
        timed = not self.higher_is_better and self.horizon is not None and self.worst == self.horizon
        return self.horizon if timed else None


class Arm(Record):
    """One configuration: the base job with these fields replaced, and code by name where a slot is varied."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.=+-]{0,63}$")
    overrides: Mapping[str, JsonValue]

    @property
    def job_overrides(self) -> dict[str, JsonValue]:
        return {name: value for name, value in self.overrides.items() if name not in SLOTS}

    @property
    def code(self) -> str:
        """The name of its code; no arm has two."""
        return next(iter(self.slots.values()), "")

    @property
    def slots(self) -> dict[str, str]:
        """The name of what is in each slot that does not hold what is built in."""
        named = {name: str(self.overrides.get(name, BUILT_IN)) for name in SLOTS}
        return {name: value for name, value in named.items() if value != BUILT_IN}


class Budget(Record):
    """What a study may spend."""

    wall_clock_s: float = Field(gt=0)
    max_runs: int | None = Field(default=None, ge=1)


class Price(Record):
    """What the design was expected to cost when it was locked."""

    runs: int
    parallel: int
    seconds_per_run: float
    total_s: float
    basis: str
    """Where the estimate comes from, in words."""


MOST_REPAIRS: Final = 3


class Design(EvolvingRecord):
    """A comparison fixed before data: arms x seeds, one metric, one test, one budget, and what follows from what. With
    a `screen` its locked rule finds the arms, and code writes the claim that each of them beats the control."""

    added_fields: ClassVar = frozenset({
        "code", "promise", "noise", "looks", "equivalence_margin", "multiplicity", "screen", "replication", "watchdog",
        "decision_table", "counted_as_worst", "most_excluded", "collapse", "scope_reached", "shared_seeds",
        "environments", "inquiry", "pilot", "spending", "start", "built_in", "repairs", "repaired", "extension",
    })  # fmt: skip

    question: str
    environment: str
    base_job: Mapping[str, JsonValue]
    """The constants: every job field, seed excluded."""
    arms: tuple[Arm, ...] = Field(min_length=1)
    control_arm: str
    hypotheses: tuple[Hypothesis, ...]
    seeds: tuple[int, ...] = Field(min_length=2)
    """Drawn by the harness for the confirmation; every arm runs them in this order, as far as the looks go."""
    metric: Metric
    test: Literal["welch", "common", "paired", "pooled", "boschloo", "contrast"] = "welch"
    """`common` shares one variance between all arms; `paired` compares runs with the same seed; `pooled`, of designs
    that were locked before `common`, shares it with the noise bank too; `boschloo` compares rates of runs exactly;
    `contrast` is Welch's test of a weighted sum of the means of three arms or more, for an interaction or a trend."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    max_attempts: int = Field(default=3, ge=1)
    """Tries at one run before it is INVALID; a retry starts the run from nothing."""
    exclusions: tuple[str, ...] = ()
    """INVALID codes that drop a run from the analysis, fixed before data."""
    budget: Budget
    price: Price
    code: Mapping[str, Source] = {}
    """Source of all code that arms name: Python, run in containers, or an expression behind `=`."""
    built_in: Mapping[str, Source] = {}
    """What is in these slots of the other arms, as Python; for people, and run nowhere."""
    repairs: int = Field(default=0, ge=0, le=MOST_REPAIRS)
    """How often code that crashes early in training may be repaired, with all arms begun anew."""
    repaired: str = ""
    """Hash of the lock whose code it repairs, to which it is equal but for that source and the seeds."""
    promise: procedure.PowerTarget | None = None
    """What it can see; None for a design that promised nothing."""
    noise: procedure.Noise | None = None
    """The bank's word on the spread between seeds; None where there was no bank."""
    looks: tuple[procedure.InterimAnalysis, ...] = ()
    """When the data are analysed and at which level; empty for once, at the end, at `alpha`."""
    equivalence_margin: float | None = Field(default=None, gt=0)
    """Differences inside it count as none; None for a design that cannot find equivalence."""
    multiplicity: Literal["none", "dunnett_bh", "dunnett_bonferroni"] = "none"
    """`dunnett_bh`: Dunnett among the arms of one variable, Benjamini-Hochberg across the study's claims;
    `dunnett_bonferroni`, of a round of several: the variables share its level, so that any false claim is bounded."""
    screen: procedure.Screen | None = None
    replication: procedure.Replication | None = None
    watchdog: procedure.Watchdog | None = None
    decision_table: tuple[procedure.Rule, ...] = ()
    counted_as_worst: tuple[str, ...] = ()
    """Codes of runs that broke down by their own training: they count, with the metric's worst value."""
    most_excluded: float = Field(default=1.0, ge=0, le=1)
    """Largest share of an arm's runs that may be excluded before its comparison is invalid."""
    collapse: procedure.CollapseRule | None = None
    """When a training counts as collapsed: claims then speak of the mean of those that do not."""
    scope_reached: bool = False
    """Whether a verdict on a time says that it speaks of trainings that get there, where others, as many as so few runs
    leave open, would undo it. Not in designs from before there was it: their verdicts speak of all."""
    start: procedure.StartRule | None = None
    """When a training counts as never started: it counts with its value, and verdicts say what others would undo. None,
    as in older designs, for verdicts that do not look."""
    environments: tuple[procedure.EnvironmentRecord, ...] = ()
    """What the environments consist of that are not built in."""
    shared_seeds: bool = True
    """Whether the runs of all arms have the seeds as they stand; if not, each arm derives its own from them."""
    inquiry: procedure.RoundPlace | None = None
    """Which round of an inquiry it is; None for a study of one round."""
    pilot: procedure.Pilot | None = None
    """How its first runs size it, where the bank did not know the noise; None for a design of a locked size."""
    extension: procedure.Extension | None = None
    """When runs are longer than the base job has them; None for a design whose runs are as long as that."""
    spending: Literal["planned", "reached"] = "planned"
    """The level of a look that the budget or a hand cuts short: as planned for its seeds, as in designs from before
    there was a choice, or by what was `reached` (`studies.statistics.power.last_level`)."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.screen is None and (len(self.arms) < 2 or not self.hypotheses):
            raise ValueError("a design without a screen needs two arms and a hypothesis")
        if self.screen is not None and (len(self.arms) > 1 or self.hypotheses):
            raise ValueError("a design with a screen has the control arm alone, and no hypothesis yet")
        stops = [look.seeds for look in self.looks]
        if stops != sorted(set(stops)) or (stops and stops[-1] != len(self.seeds)):
            raise ValueError(f"looks must grow up to all {len(self.seeds)} seeds; found {stops}")
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"arm names must differ; found {names}")
        if self.control_arm not in names:
            raise ValueError(f"control_arm must be one of {names}; found {self.control_arm!r}")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds must differ")
        if self.inquiry is not None:
            if self.replication is not None:
                raise ValueError("a round of an inquiry replicates nothing: a replication is a round of its own")
            claims = max(len(self.hypotheses), self.screen.confirmed if self.screen else 1)
            if self.multiplicity == "dunnett_bh":
                raise ValueError("a round of an inquiry bounds any false claim; found a rule that bounds their share")
            if claims > 1 and self.multiplicity == "none":
                raise ValueError(f"the claims of a round share its level; found {claims} of which each has all of it")
            over = [look for look in self.looks if look.alpha > self.inquiry.difference or look.equivalence is None]
            spent = [look.equivalence for look in self.looks if look.equivalence is not None]
            alike = self.likenesses * max(spent, default=0.0 if self.pilot else 1.0)
            if self.alpha != self.inquiry.difference or over or alike > self.inquiry.equivalence * (1 + _ROUNDING):
                raise ValueError("a round's tests have its level, and no more; found others")
        if any(claim.kind != "difference" for claim in self.hypotheses) != (self.test == "contrast"):
            raise ValueError("an interaction or a trend is tested as a contrast, and nothing else is")
        arms = {canonical([claim.variable, claim.settings]) for claim in self.hypotheses}
        if self.test == "contrast" and len(arms) > 1:
            raise ValueError("the contrasts of a design are of the same arms")
        if (named := {name for arm in self.arms for name in arm.slots.values()}) != self.code.keys():
            raise ValueError(f"code must hold what slots of arms name, {sorted(named)}; found {sorted(self.code)}")
        return self

    @property
    def likenesses(self) -> int:
        """How many of its claims and mediators may be found alike: they share the level of equivalences."""
        claims = self.screen.confirmed if self.screen else len(self.hypotheses)
        return claims + sum(len(claim.mediators) for claim in self.hypotheses)

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if lacking := {m.metric for claim in self.hypotheses for m in claim.mediators} - self.metric.beside.keys():
            raise ValueError(f"expected each mediator to be measured; found no {', '.join(sorted(lacking))}")
        if self.pilot is not None and not self.looks and (len(self.seeds) != self.pilot.most or self.promise is None):
            raise ValueError(f"a pilot sizes for a promise, on {self.pilot.most} seeds; found {len(self.seeds)}")
        if (longer := self.extension) is not None:
            plain = self.pilot is not None and self.screen is None and self.metric.horizon is None
            plain = plain and not any("steps" in arm.overrides for arm in self.arms)
            unmeasured = {longer.before, longer.last} - self.metric.beside.keys()
            if not plain or unmeasured or longer.steps <= int(self.base_job["steps"]):
                raise ValueError("a pilot without a screen says how long runs are, alike in all arms, by what it logs")
        return self

    def seeds_of(self, arm: str, drawn: Sequence[int]) -> tuple[int, ...]:
        """Return the training seeds that an arm's runs have for seeds that were drawn, in their order."""
        return tuple(drawn) if self.shared_seeds else tuple(_seed_of(arm, seed) for seed in drawn)

    def arm(self, name: str) -> Arm:
        return {arm.name: arm for arm in self.arms}[name]

    def hypothesis(self, name: str) -> Hypothesis:
        return {claim.id: claim for claim in self.hypotheses}[name]

    def contrast_of(self, claim: Hypothesis) -> dict[str, float]:
        """Return what the mean of each of a claim's arms counts in its effect, control first; KeyError for no arm."""
        if claim.kind == "difference":
            return {self.control_arm: -1.0, self.arm_with(claim.variable, claim.treatment).name: 1.0}
        names = (self.arm_with(claim.variable, value).name for value in claim.settings)
        return dict(zip(names, claim.weights, strict=True))

    def arm_with(self, variable: str, value: JsonValue) -> Arm:
        """Return the arm whose override of `variable` is `value`; raise KeyError if there is none."""
        for arm in self.arms:
            found = arm.overrides if variable == CONFIGURATION else arm.overrides.get(variable)
            if found == value:
                return arm
        raise KeyError(f"no arm has {variable} = {value!r}")


class RunSpec(EvolvingRecord):
    """Everything that defines one run: an arm with one seed under a locked design."""

    added_fields: ClassVar = frozenset({"code", "phase", "slots"})

    study: str
    design_hash: str
    arm: str
    seed: int
    environment: str
    job: Mapping[str, JsonValue]
    """The resolved job, seed included, tracking excluded."""
    metric: Metric
    code: Source | None = None
    """Source of the reward function that is trained on; None for the environment's own."""
    slots: Mapping[str, Source] = {}
    """Source of what is in every other slot that does not hold what is built in."""
    phase: procedure.Phase = "confirm"
    """What it is for."""

    @property
    def sources(self) -> dict[str, str]:
        """The source of what is in each slot that does not hold what is built in."""
        return {**({} if self.code is None else {REWARD: self.code}), **self.slots}

    @property
    def player(self) -> dict[str, str]:
        """The code, by slot, that plays in its evaluations; empty where the built-in agent does."""
        own = self.slots if self.metric.evaluate_by else {}
        return {slot: source for slot, source in own.items() if slot in PLAYING}

    @property
    def runs_python(self) -> bool:
        """Whether it runs code that somebody wrote for it, other than expressions."""
        return any(not is_expression(source) for source in self.sources.values())

    @property
    def run_id(self) -> str:
        """Name of the run: the first 16 hex digits of the sha256 of spec and seed."""
        return self.hash()[:16]

    @property
    def task_seed(self) -> int:
        """Seed that draws its evaluated tasks."""
        return self.seed if self.metric.task_seed is None else self.metric.task_seed


@lru_cache(maxsize=1 << 16)
def _seed_of(arm: str, seed: int) -> int:
    """Return an arm's own seed for a drawn one: none is twice in a study, but for a collision of 31 bits of sha256."""
    return int(digest([seed, arm])[:8], 16) >> 1


def task_seed_of(study: str, environment: str) -> int:
    """Return the seed of the tasks on which all runs of a study in an environment are evaluated."""
    return int(digest(["tasks", study, environment])[:8], 16) >> 1


class NoisePlan(EvolvingRecord):
    """What is run before a design, locked before its runs: A/A runs, of one job with several seeds, to learn what seeds
    alone do; and one run with a learning rate of 0, which checks the machinery and evaluates the untrained policy."""

    added_fields: ClassVar = frozenset({"plumbing", "metric"})

    environment: str
    job: dict[str, JsonValue]
    """The job of all of them, seed excluded."""
    seeds: tuple[int, ...]
    """Of the A/A runs: two or more, or none where the noise is known and only the machinery is to be seen."""
    metric_key: str
    """Of what they are judged by."""
    episodes: int = Field(ge=1)
    """Evaluation episodes of each, before training and after it."""
    plumbing: int | None = None
    """Seed of the run with a learning rate of 0; None where there is none."""
    metric: Metric | None = None
    """What they are judged by; None in plans that knew success and its gain alone, which the key names."""

    @model_validator(mode="after")
    def _check_seeds(self) -> Self:
        if len(self.seeds) == 1 or (not self.seeds and self.plumbing is None):
            raise ValueError(f"expected two seeds of A/A runs at least; found {len(self.seeds)}")
        return self

    @property
    def judged(self) -> Metric:
        meaning = f"share of {self.episodes} hidden episodes solved after the last step"
        return self.metric or Metric(key=self.metric_key, meaning=meaning, episodes=self.episodes)
