"""The parts of a design on how data are gathered, looked at and acted on.

They are records: values in a lock. What they do is done elsewhere: looks and noise by `studies.statistics`, the screen
and the decision table by `research`, the watchdog's limits by `studies.checks.alarms`.
"""

from itertools import pairwise
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from studies.records.base import EvolvingRecord, JsonValue, Record

Phase = Literal["noise", "explore", "screen", "confirm", "replicate"]
"""What a run is for. Only runs of `confirm` and `replicate` feed a claim."""
Act = Literal["continue", "settle", "replicate"]
"""What a decision does with a hypothesis: more seeds, no more runs, or the same comparison in another setting."""


class Prediction(Record):
    """What the planner expects of treatment minus control, written before any run that counts."""

    low: float
    """Lower end of the predicted interval, in the metric's own unit."""
    high: float
    """Upper end of the predicted interval."""
    level: float = Field(default=0.8, gt=0, lt=1)
    """Probability the planner gives the interval. Default 0.8."""
    probability: float = Field(ge=0, le=1)
    """Probability the planner gives to the hypothesis being supported."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"a prediction's low must not exceed its high; found {self.low} and {self.high}")
        return self


class PlanNode(Record):
    """One question of a planner's plan, and by the verdict on it the question that is to follow."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")
    """A short name of lower-case letters, digits and hyphens, such as n1."""
    question: str = Field(min_length=1, max_length=200)
    """What is asked, in a sentence."""
    if_supported: str = ""
    """Id of the node that is asked next where the claim is supported; empty for an end."""
    if_refuted: str = ""
    """The same where the opposite is shown."""
    if_equivalent: str = ""
    """The same where it is shown that no difference matters."""
    if_unknown: str = ""
    """The same where nothing is shown."""


class Noise(EvolvingRecord):
    """What earlier runs say about the spread of a metric between seeds: the bank's word at the time of the lock."""

    added_fields: ClassVar = frozenset({"collapsed", "runs", "drop", "measured_sd", "measured_episodes"})

    sd: float = Field(gt=0)
    """Standard deviation between runs of one arm that differ in their seed, evaluation noise included."""
    df: int = Field(ge=1)
    evaluation_sd: float | None = Field(default=None, ge=0)
    """The part of it that evaluating one policy again gives, at `episodes` episodes; None when it was not measured."""
    episodes: int = Field(ge=1)
    correlation: float | None = Field(default=None, ge=-1, le=1)
    """Correlation of two arms' runs that share a seed; None when it was not measured."""
    pairs: int = Field(default=0, ge=0)
    basis: str
    """Where it comes from, in words: which studies, which runs, which version."""
    collapsed: int = Field(default=0, ge=0)
    """Runs that collapsed, of those the bank knows; they are no part of `sd`."""
    runs: int = Field(default=0, ge=0)
    """Runs that the bank knows, those included; 0 where they were not counted."""
    drop: float | None = Field(default=None, gt=0)
    """What they lacked, on average, of the mean of their groups' other runs; None where none collapsed."""
    measured_sd: float | None = Field(default=None, gt=0)
    """The standard deviation as the bank's runs were evaluated; None where nobody knows what of it is evaluation."""
    measured_episodes: int | None = Field(default=None, ge=1)

    @property
    def collapse_rate(self) -> float:
        return self.collapsed / self.runs if self.runs else 0.0


class CollapseRule(Record):
    """When a training counts as collapsed: by its own curve (`studies.checks.conditions`), blind to its arm."""

    lost: float = Field(default=0.5, gt=0, lt=1)
    """Share of its own gain that a collapsed training lost again."""
    errors: float = Field(default=3.0, gt=0)
    """Standard errors that the loss has to exceed."""
    drop: float | None = Field(default=None, gt=0)
    """What a collapsed run lacks in the metric, as the bank knows it; None for down to the worst value."""


class StartRule(Record):
    """When a training counts as never started: by its own curve (`studies.checks.conditions`), blind to its arm."""

    errors: float = Field(default=2.0, gt=0)
    """Standard errors by which a start exceeds its beginning, in its evaluation or in its training success."""


class PowerTarget(Record):
    """What the design can see: it was refused unless it could."""

    power: float = Field(gt=0, lt=1)
    """Probability of a claim in the right direction, if the true difference is `effect`."""
    effect: float = Field(gt=0)


class InterimAnalysis(EvolvingRecord):
    """One analysis of the data: after `seeds` seeds of every arm, at the two-sided level `alpha`."""

    added_fields: ClassVar = frozenset({"equivalence"})

    seeds: int = Field(ge=2)
    """Of designs of today from 3 on."""
    alpha: float = Field(gt=0, lt=1)
    equivalence: float | None = Field(default=None, gt=0, lt=1)
    """The level of each of the two one-sided tests; None for `alpha`, as in a study of one round."""

    @property
    def alike(self) -> float:
        """The level of each of the two one-sided tests."""
        return self.alpha if self.equivalence is None else self.equivalence


class Pilot(Record):
    """How a design whose noise nobody knew is sized: by its own first runs, blind to which arm is which."""

    seeds: int = Field(ge=3)
    """Of each arm: the runs that are made first."""
    most: int = Field(ge=3)
    analyses: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.seeds > self.most:
            raise ValueError(f"expected a pilot of at most {self.most} seeds; found {self.seeds}")
        return self


class Sizing(Record):
    """What a pilot led to, by `studies.statistics.power`: how many seeds, and when they are looked at."""

    seeds: int = Field(ge=3)
    """Of each arm, the pilot's included: what is needed, or as many as the budget carried."""
    looks: tuple[InterimAnalysis, ...] = Field(min_length=1)
    sd: float | None = Field(gt=0)
    """Standard deviation between runs of one arm, blind to the arms' means; None where it is not known."""
    df: int = Field(ge=0)
    runs: int = Field(ge=0)
    """Runs of the pilot with a value, or that broke down."""
    collapsed: int = Field(default=0, ge=0)
    """Those of them that collapsed, which are no part of `sd`."""
    needed: int | None = Field(ge=3)
    """Seeds of each arm that keep the promise; None where the most do not, or `sd` is not known."""
    affordable: int = Field(ge=3)
    """Most seeds of each arm that the budget carried at that moment."""
    power: float | None = Field(ge=0, le=1)
    """With which the promised effect is seen on `seeds`; None where `sd` is not known."""


class Extension(Record):
    """That all runs of a confirmation are longer where those of its pilot, arms not told apart, still rise together."""

    steps: int = Field(ge=2)
    """Training steps of each run then, the most there may be."""
    before: str
    """What is measured beside of the steps before the last ones, as `Metric.beside` names it: a share."""
    last: str
    """The same of the last steps."""
    rise: float = Field(gt=0, lt=1)
    """Least mean rise from the one to the other with which runs are longer."""


class RunLength(Record):
    """How long the runs of a confirmation are, as its pilot decided for all arms alike."""

    steps: int = Field(ge=1)
    """Training steps of each run whose value counts."""
    rise: float | None
    """Mean rise of the pilot's runs, arms not told apart; None where more than half of them do not tell theirs."""
    runs: int = Field(ge=0)
    """Runs that tell theirs."""
    of: int = Field(ge=0)
    """Runs of the pilot."""
    carried: bool
    """Whether time and runs carried the pilot once more at the longer length, and its own code ended no run, which
    would be forgotten; time counts for nothing where the budget was amended since the round's first run."""


class RoundPlace(Record):
    """Which round of an inquiry a design is, and what its tests may spend, as the ledgers stood when it was locked."""

    number: int = Field(ge=1)
    of: int = Field(ge=2)
    previous: str
    """Hash of the lock of the round before; empty in the first."""
    difference: float = Field(gt=0, lt=1)
    """The whole level of its claims of a difference, looks and arms included."""
    equivalence: float = Field(gt=0, lt=1)
    """The whole level of its claims of no difference."""

    @model_validator(mode="after")
    def _check_chain(self) -> Self:
        if self.number > self.of:
            raise ValueError(f"expected at most round {self.of}; found {self.number}")
        if (self.number == 1) != (not self.previous):
            raise ValueError("a first round follows no lock, and every other one follows one")
        return self


class ScreenField(Record):
    """A job field that a screen varies, with the values it may take, in the order of its ladder."""

    field: str
    values: tuple[JsonValue, ...] = Field(min_length=2)


class Rung(Record):
    """One round of a screen: every candidate still in it trains `steps` steps; the best `keep` go on."""

    steps: int = Field(ge=1)
    keep: int = Field(ge=1)


class Screen(EvolvingRecord):
    """Which arms are confirmed is found by a screen: one seed, short runs, no claims. `initial` candidates are spread
    over the knobs by the seed, the rest are asked of the `sampler`; the last rung's `keep` become arms."""

    added_fields: ClassVar = frozenset({"bound"})

    knobs: tuple[ScreenField, ...] = Field(min_length=1)
    sampler: Literal["grid", "random", "tpe", "surface"]
    """How candidates are chosen: all, at random, by Optuna's TPE, or by a response surface over all results."""
    bound: float | None = Field(default=None, gt=0)
    """Under `surface`, the standard deviations above its mean by which candidates are chosen."""
    candidates: int = Field(ge=1)
    initial: int = Field(ge=1)
    rungs: tuple[Rung, ...] = Field(min_length=1)
    seed: int
    """The one training seed of all screening runs."""
    split: Literal["search"] = "search"
    """Tasks a screen is scored on: never the hidden ones, which are for claims."""
    prediction: Prediction | None = None
    """What the planner expects of the best candidate minus the control, on hidden tasks; None where nobody said."""

    @model_validator(mode="after")
    def _check_rungs(self) -> Self:
        keeps = [self.candidates, *(rung.keep for rung in self.rungs)]
        if any(later > earlier for earlier, later in pairwise(keeps)):
            raise ValueError(f"a screen's rungs must keep ever fewer candidates; found {keeps}")
        return self

    @property
    def confirmed(self) -> int:
        return self.rungs[-1].keep


class Replication(Record):
    """The same comparison once more in another setting, on fresh seeds."""

    environment: str
    overrides: dict[str, JsonValue] = Field(default_factory=dict)
    """Job fields that differ from the base job in every arm, such as another model."""
    seeds: tuple[int, ...] = Field(min_length=2)


class Watchdog(Record):
    """Limits of the training metrics (`studies.checks.alarms`); None switches a rule off."""

    kl: float | None = Field(default=None, gt=0)
    """Most `actor/ppo_kl` of a step: beyond it the policy has jumped."""
    grad_norm: float | None = Field(default=None, gt=0)
    """Most gradient norm, in multiples of the run's median so far."""
    entropy_share: float | None = Field(default=None, gt=0, lt=1)
    """Least entropy, as a share of the first steps' mean."""
    length_factor: float | None = Field(default=None, gt=1)
    """Most mean response length, in multiples of the first steps' mean."""
    constant_groups: float | None = Field(default=None, gt=0, le=1)
    """Most share of groups with equal rewards, over `patience` steps."""
    reward_gap: float | None = Field(default=None, gt=0)
    """Least rise of the training reward beside a fall of the hidden success that is told apart from noise."""
    throughput_share: float | None = Field(default=None, gt=0, lt=1)
    """Least tokens a second, as a share of the run's median: below it something else used the machine."""
    judge_errors: float | None = Field(default=None, gt=0, le=1)
    """Most share of episodes in a step whose reward could not be had."""
    heartbeat_s: float | None = Field(default=None, gt=0)
    """Longest silence of the swarm server."""
    patience: int = Field(default=3, ge=1)
    """Steps in a row that a limit must be broken."""


class Rule(Record):
    """One line of the decision table: the first one whose `when` holds decides."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    when: str = Field(min_length=1, max_length=300)
    """A condition on the verdict at a look, one of those in `research.proposals.actions`."""
    then: Act


class EnvironmentRecord(Record):
    """What an environment that was brought consists of, as it stood when a design was locked."""

    name: str
    """Its name with the hash of all below, as runs have it."""
    title: str
    reference: str
    """What it was brought from, as it was typed."""
    code: str
    """sha256 over the files of its code; empty for an adapter, whose code is ours."""
    data: str
    """sha256 over its tasks and demonstrations."""
    requirements: str
    """sha256 of the packages it names; empty where it names none."""
    drawn_by: str
    """How its tasks were given: by `splits`, as one list of `records`, or by `seeds`."""
    tasks: dict[str, int]
    hidden_apart: bool
    """Whether its code neither makes the hidden tasks by itself nor holds them: clients hold that code."""


class Selection(Record):
    """What a screen led to, by its locked rule: the arms that are confirmed, and the claim on each."""

    kept: tuple[str, ...] = Field(min_length=1)
    scores: dict[str, float]
    """Score of each candidate of the last rung, as the rule ranked them."""
    reason: str


class Amendment(EvolvingRecord):
    """A change after the lock, in the open: `accept` lets a named violation or exclusion pass; `budget` replaces the
    wall-clock seconds, before the lock too; `note` changes nothing. What one after the first result touches is
    exploratory."""

    added_fields: ClassVar = frozenset({"lowers", "claim", "evidence"})

    kind: Literal["accept", "budget", "note"]
    target: str = ""
    """The violation accepted: its code. Empty for the other kinds."""
    value: float | None = None
    """The new budget in seconds; None for the other kinds."""
    reason: str = Field(min_length=1, max_length=1000)
    lowers: bool = False
    """Whether it takes from the budget as it was, as logs say since the first that refuses less than is used."""
    claim: str = ""
    """The claim that a note challenges; empty for any other."""
    evidence: str = ""
    """What speaks against it: a study, or a claim of one as STUDY/ROUND/CLAIM."""

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if (self.kind == "accept") != bool(self.target) or (self.kind == "budget") != (self.value is not None):
            raise ValueError("an amendment that accepts names its target, one of the budget has a value; no other does")
        return self
