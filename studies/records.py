"""The nouns of a study as frozen, validated values: what is asked, predicted, planned, measured and judged.

Records are what events carry and what verdicts are computed from. They know nothing of swarms: a job is
plain JSON here, and what a metric means is written in words beside its key. `canonical` and `digest` give
the one byte form whose sha256 locks a design and names a run. Code that a planner wrote is text here, never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from studies.base import Grown, JsonValue, Record, canonical, digest
from studies.procedure import (
    CollapseRule,
    Look,
    Noise,
    Phase,
    Prediction,
    Promise,
    Replication,
    Rule,
    Screen,
    Watchdog,
)

__all__ = [
    "BUILT_IN", "CONFIGURATION", "REWARD", "Arm", "Budget", "CollapseRate", "Conditions", "Course", "Design",
    "Direction", "Equivalence", "Hypothesis", "JsonValue", "Measurement", "Metric", "Prediction", "Price", "Record",
    "RunSpec", "Scope", "Stillness", "Verdict", "VerdictName", "canonical", "digest",
]  # fmt: skip

Source = Annotated[str, Field(min_length=1)]
Direction = Literal["increase", "decrease"]
VerdictName = Literal["supported", "refuted", "equivalent", "inconclusive", "invalid"]
Scope = Literal["all", "not_collapsed"]
"""What a verdict speaks of: all trainings, or those that do not collapse."""

REWARD: Final = "reward"
"""The one variable that is no job field: the function that gives each training episode its reward."""
BUILT_IN: Final = "built-in"
"""Value of `reward` that stands for the environment's own; any other is the name of code in the design."""
CONFIGURATION: Final = "configuration"
"""The variable of a hypothesis about several job fields at once; its values map each of them to its value."""


class Hypothesis(Grown):
    """One claim about one variable: the treatment arm differs from the control arm in a stated direction."""

    later: ClassVar = frozenset({
        "said", "smallest_effect", "falsifier", "kill_if", "confounds", "matched", "sought",
    })  # fmt: skip

    id: str
    statement: str = Field(min_length=1, max_length=500)
    """The claim in a sentence that code wrote from the fields below; in studies of before `said`, the planner's."""
    said: str = Field(default="", max_length=500)
    """The claim in the planner's own wording, to be quoted: it decides nothing."""
    mechanism: str = Field(default="", max_length=1000)
    """Why the planner expects it, in its own words."""
    variable: str
    """The one job field in which the two arms differ, `reward`, or `configuration` for several fields."""
    control: JsonValue
    """Value of the variable in the control arm."""
    treatment: JsonValue
    """Value of the variable in the treatment arm."""
    direction: Direction
    """Whether the treatment is expected to raise or to lower the metric."""
    prediction: Prediction
    smallest_effect: float | None = Field(default=None, gt=0)
    """The smallest difference that would matter to anybody, in the metric's own unit; None where nobody said."""
    falsifier: str = Field(default="", max_length=500)
    """The cheapest observation that would show the claim to be false, in words."""
    kill_if: str = Field(default="", max_length=300)
    """When to give the hypothesis up early, in the decision table's language; empty for never."""
    confounds: tuple[str, ...] = Field(default=(), max_length=8)
    """What else could bring the effect about, as the planner fears."""
    matched: Literal["steps", "episodes"] = "steps"
    """What of training both arms have equal; with `episodes`, the number of steps follows the size of the batch."""
    sought: Literal["difference", "equivalence"] = "difference"
    """Whether a difference or the lack of one is what somebody asks to see shown."""

    @property
    def declared(self) -> frozenset[str]:
        """The job fields (or `reward`) in which its two arms may differ."""
        if self.variable == CONFIGURATION:
            return frozenset(self.treatment)
        return frozenset({self.variable, "steps"} if self.matched == "episodes" else {self.variable})


class Metric(Grown):
    """The number every run is judged by, measured by the harness."""

    later: ClassVar = frozenset({"reducer", "checkpoint", "worst"})

    key: str = "hidden/success"
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
    """The value of a run whose training broke down so far that nothing can be measured."""


class Arm(Record):
    """One configuration: the base job with these fields replaced, and a reward by name where it is varied."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.=+-]{0,63}$")
    overrides: Mapping[str, JsonValue]

    @property
    def job_overrides(self) -> dict[str, JsonValue]:
        """The overrides that are job fields."""
        return {name: value for name, value in self.overrides.items() if name != REWARD}

    @property
    def reward(self) -> str:
        """The name of the reward its runs train on."""
        return str(self.overrides.get(REWARD, BUILT_IN))


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


class Design(Grown):
    """A comparison fixed before data: arms x seeds, one metric, one test, one budget, and what follows from what.

    With a `screen`, `arms` holds the control alone and `hypotheses` is empty: the locked rule of the screen finds the
    arms, and code writes the claim that each of them beats the control.
    """

    later: ClassVar = frozenset({
        "code", "promise", "noise", "looks", "equivalence_margin", "multiplicity", "screen", "replication", "watchdog",
        "decision_table", "counted_as_worst", "most_excluded", "collapse", "shared_seeds",
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
    test: Literal["welch", "common", "paired", "pooled"] = "welch"
    """`common` shares one variance between all arms; `paired` compares runs with the same seed; `pooled`, of designs
    that were locked before `common`, shares it with the noise bank too."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    max_attempts: int = Field(default=3, ge=1)
    """Tries at one run before it is INVALID; a retry starts the run from nothing."""
    exclusions: tuple[str, ...] = ()
    """INVALID codes that drop a run from the analysis, fixed before data."""
    budget: Budget
    price: Price
    code: Mapping[str, Source] = {}
    """Python source of each reward function that an arm names; written by the planner's model, run in containers."""
    promise: Promise | None = None
    """What it can see; None for a design that promised nothing."""
    noise: Noise | None = None
    """The bank's word on the spread between seeds; None where there was no bank."""
    looks: tuple[Look, ...] = ()
    """When the data are analysed and at which level; empty for once, at the end, at `alpha`."""
    equivalence_margin: float | None = Field(default=None, gt=0)
    """Differences inside it count as none; None for a design that cannot find equivalence."""
    multiplicity: Literal["none", "dunnett_bh"] = "none"
    """`dunnett_bh`: Dunnett among the arms of one variable, Benjamini-Hochberg across the study's claims."""
    screen: Screen | None = None
    replication: Replication | None = None
    watchdog: Watchdog | None = None
    decision_table: tuple[Rule, ...] = ()
    counted_as_worst: tuple[str, ...] = ()
    """Codes of runs that broke down by their own training: they count, with the metric's worst value."""
    most_excluded: float = Field(default=1.0, ge=0, le=1)
    """Largest share of an arm's runs that may be excluded before its comparison is invalid."""
    collapse: CollapseRule | None = None
    """When a training counts as collapsed: claims then speak of the mean of those that do not, and the rate of collapse
    stands beside them. None for a design that averages over all."""
    shared_seeds: bool = True
    """Whether the runs of all arms have the seeds as they stand; if not, each arm derives its own from them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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
        if (named := {arm.reward for arm in self.arms} - {BUILT_IN}) != self.code.keys():
            raise ValueError(f"code must hold the rewards that arms name, {sorted(named)}; found {sorted(self.code)}")
        return self

    def hash(self) -> str:
        """Return the lock: sha256 of the design's canonical JSON."""
        return digest(self.model_dump(mode="json"))

    def seeds_of(self, arm: str, drawn: Sequence[int]) -> tuple[int, ...]:
        """Return the training seeds that an arm's runs have for seeds that were drawn, in their order.

        Without shared seeds no two runs of a study have the same one, but for a collision of 31 bits of sha256.
        """
        if self.shared_seeds:
            return tuple(drawn)
        return tuple(int(digest([seed, arm])[:8], 16) >> 1 for seed in drawn)

    def arm(self, name: str) -> Arm:
        """Return the arm of a name; raise KeyError if there is none."""
        return {arm.name: arm for arm in self.arms}[name]

    def hypothesis(self, name: str) -> Hypothesis:
        """Return the hypothesis of an id; raise KeyError if there is none."""
        return {claim.id: claim for claim in self.hypotheses}[name]

    def arm_with(self, variable: str, value: JsonValue) -> Arm:
        """Return the arm whose override of `variable` is `value`; raise KeyError if there is none."""
        for arm in self.arms:
            found = arm.overrides if variable == CONFIGURATION else arm.overrides.get(variable)
            if found == value:
                return arm
        raise KeyError(f"no arm has {variable} = {value!r}")


class RunSpec(Grown):
    """Everything that defines one run: an arm with one seed under a locked design."""

    later: ClassVar = frozenset({"code", "phase"})

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
    phase: Phase = "confirm"
    """What it is for."""

    @property
    def run_id(self) -> str:
        """Name of the run: the first 16 hex digits of the sha256 of spec and seed."""
        return digest(self.model_dump(mode="json"))[:16]


class Measurement(Record):
    """One number about one run, collected and hashed by the harness."""

    run_id: str
    key: str
    value: float = Field(allow_inf_nan=False)
    n: int = Field(ge=1)
    """Episodes (or steps) behind the value."""
    sha256: str
    """Hash of the file it was computed from."""


class Course(Record):
    """How one training rose and fell, by its own curves alone: shares of episodes solved."""

    start: float
    """Of the evaluation before training."""
    end: float
    """Of the evaluation after training."""
    plays: int = Field(ge=1)
    """Episodes of each of the two."""
    first: float | None = None
    """Of the training episodes of the first steps; None, like the next three, for a training too short to say."""
    peak: float | None = None
    """Highest of the means over as many steps in a row."""
    last: float | None = None
    """Of the last steps."""
    error: float | None = None
    """Standard error of each of the three."""


class Stillness(Record):
    """What a training with a learning rate of 0 did to the weights, which must be nothing."""

    before: str | None = None
    """sha256 of all weights before the first step; None where the backend could not say."""
    after: str | None = None
    """The same after the last step."""
    probs_tolerance: float | None = None
    """Most by which the backend's engine and learner may differ on a sampled token's probability; None where it does
    not compare them."""


class Conditions(Record):
    """Under which conditions a run was trained and measured, as the harness saw them; None where it could not see.

    Two arms may be compared only when these are alike, or differ by what the design declares.
    """

    steps: int | None = None
    """Training steps done."""
    episodes: int | None = None
    """Training episodes."""
    tokens: int | None = None
    """Tokens trained on."""
    optimiser_steps: int | None = None
    wall_s: float | None = None
    """Seconds of training."""
    initial_policy: str | None = None
    """Hash of the weights that training began with."""
    initial_success: float | None = None
    """What the evaluation before training came to."""
    evaluation_tasks: str | None = None
    """Hash of the evaluated tasks' ids."""
    drawn_tasks: str | None = None
    """The same hash of the tasks that the run's seed draws; None in logs of before it was recorded."""
    evaluation_episodes: int | None = None
    decoding: str | None = None
    """Sampling of the evaluation: temperature, top_p, token limit."""
    template: str | None = None
    """Hash of the chat template."""
    checkpoint: str | None = None
    """Which policy was measured: `last`, or another rule."""
    overlap: int | None = None
    """Tasks that were both trained on and evaluated."""
    image: str | None = None
    hardware: str | None = None
    neighbours: int | None = None
    """Most runs that shared the machine with this one."""
    judge_errors: int | None = None
    """Episodes whose reward could not be had."""
    stopped_by: str | None = None
    """Code of the watchdog's rule that ended training before its last step; None for a run that ran its course."""
    course: Course | None = None
    """How training rose and fell; None in logs of before it was recorded."""
    signal_steps: int | None = None
    """Training steps in which rewards differed within a group, or advantages between episodes: the others taught
    nothing."""
    probs_diff: float | None = None
    """Most by which engine and learner differed on a trained token's probability."""
    stillness: Stillness | None = None
    """What a training with a learning rate of 0 did to the weights; None for any other."""


class Equivalence(Record):
    """Two one-sided tests: whether the difference is surely inside the margin."""

    margin: float
    low: float
    high: float
    """Ends of the interval of level 1 - 2 alpha."""
    p: float
    """The larger of the two one-sided p-values."""


class CollapseRate(Record):
    """How many of an arm's trainings collapsed, with exact limits (Clopper & Pearson 1934, Biometrika 26)."""

    arm: str
    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float
    high: float
    """Ends of the 95 % interval of the rate."""
    upper: float
    """One-sided upper 95 % limit: a higher rate is ruled out."""


class Verdict(Grown):
    """What the data say about one hypothesis, computed by code under the locked design."""

    later: ClassVar = frozenset({"scope", "collapses"})

    hypothesis: str
    verdict: VerdictName
    reason: str
    """One sentence that states the rule that decided."""
    estimate: float | None
    """Mean of treatment runs minus mean of control runs; None when it cannot be computed."""
    low: float | None
    high: float | None
    level: float
    p: float | None
    n_control: int
    n_treatment: int
    mean_control: float | None
    mean_treatment: float | None
    sd_control: float | None
    sd_treatment: float | None
    test: str
    inputs_sha256: str
    """Hash of the exact inputs (run ids and values per arm, alpha, hypothesis)."""
    within_prediction: bool | None
    """Whether the estimate fell into the predicted interval."""
    brier: float | None
    """(probability - outcome)^2 with outcome 1 for supported, 0 for refuted; None otherwise."""
    phase: Phase = "confirm"
    look: int = Field(default=1, ge=1)
    """Which look it was computed at, 1 for the first or only one."""
    final: bool = True
    """Whether no later look will replace it."""
    p_adjusted: float | None = None
    """p corrected for the other arms of its variable; None where there is nothing to correct."""
    df: float | None = None
    """Degrees of freedom of the test."""
    sd_pooled: float | None = None
    """The common standard deviation that the test used; None for Welch's and the paired test."""
    equivalence: Equivalence | None = None
    excluded: Mapping[str, int] = {}
    """Runs left out, by `ARM: CODE`."""
    counted_as_worst: Mapping[str, int] = {}
    """Runs that count with the worst value, by `ARM: CODE`."""
    violations: tuple[str, ...] = ()
    """What the confound linter found in the runs, one line each."""
    exploratory: bool = False
    """Whether an amendment after the first result touched it: it is no test of the locked claim any more."""
    scope: Scope = "all"
    """What it speaks of; in designs without a rule of collapse always all trainings."""
    collapses: tuple[CollapseRate, ...] = ()
    """Of the control and of the treatment; empty for a design without a rule of collapse."""

    @property
    def nonzero(self) -> bool:
        """Whether its interval leaves zero out: an equivalent difference may be small and yet not none."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high
