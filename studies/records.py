"""The nouns of a study as frozen, validated values: what is asked, predicted, planned, measured and judged.

Records are what events carry and what verdicts are computed from. They know nothing of swarms: a job is
plain JSON here, and what a metric means is written in words beside its key. `canonical` and `digest` give
the one byte form whose sha256 locks a design and names a run. Code that a planner wrote is text here, never run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

JsonValue = Any
Source = Annotated[str, Field(min_length=1)]
VerdictName = Literal["supported", "refuted", "inconclusive", "invalid"]

REWARD: Final = "reward"
"""The one variable that is no job field: the function that gives each training episode its reward."""
BUILT_IN: Final = "built-in"
"""Value of `reward` that stands for the environment's own; any other is the name of code in the design."""


class Record(BaseModel):
    """Base of all records: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def canonical(value: JsonValue) -> str:
    """Return the canonical JSON of a JSON value: sorted keys, no spaces, finite numbers only, UTF-8 text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: JsonValue) -> str:
    """Return the sha256 of `canonical(value)`, in hex."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


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
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"a prediction's low must not exceed its high; found {self.low} and {self.high}")
        return self


class Hypothesis(Record):
    """One claim about one variable: the treatment arm differs from the control arm in a stated direction."""

    id: str
    statement: str = Field(min_length=1, max_length=500)
    mechanism: str = Field(default="", max_length=1000)
    """Why the planner expects it, in its own words."""
    variable: str
    """The one job field in which the two arms differ, or `reward`."""
    control: JsonValue
    """Value of the variable in the control arm."""
    treatment: JsonValue
    """Value of the variable in the treatment arm."""
    direction: Literal["increase", "decrease"]
    """Whether the treatment is expected to raise or to lower the metric."""
    prediction: Prediction


class Metric(Record):
    """The number every run is judged by, measured by the harness."""

    key: str = "hidden/success"
    meaning: str
    """One clause a reader understands: `share of 512 hidden tasks solved after the last step`."""
    split: Literal["hidden"] = "hidden"
    episodes: int = Field(ge=1)
    """Evaluation episodes per run."""
    higher_is_better: bool = True


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


class _WithCode(Record):
    """A record whose canonical form leaves out code where there is none, as it was before there could be any."""

    @model_serializer(mode="wrap")
    def _without_empty_code(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return fields if fields.get("code") else {name: value for name, value in fields.items() if name != "code"}


class Design(_WithCode):
    """A comparison fixed before data: arms x seeds, one metric, one test, one budget."""

    question: str
    environment: str
    base_job: Mapping[str, JsonValue]
    """The constants: every job field, seed excluded."""
    arms: tuple[Arm, ...] = Field(min_length=2)
    control_arm: str
    hypotheses: tuple[Hypothesis, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=2)
    """Drawn by the harness; every arm runs all of them."""
    metric: Metric
    test: Literal["welch"] = "welch"
    alpha: float = Field(default=0.05, gt=0, lt=1)
    max_attempts: int = Field(default=3, ge=1)
    """Tries at one run before it is INVALID; a retry starts the run from nothing."""
    exclusions: tuple[str, ...] = ()
    """INVALID codes that drop a run from the analysis, fixed before data."""
    budget: Budget
    price: Price
    code: Mapping[str, Source] = {}
    """Python source of each reward function that an arm names; written by the planner's model, run in containers."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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

    def arm_with(self, variable: str, value: JsonValue) -> Arm:
        """Return the arm whose override of `variable` is `value`; raise KeyError if there is none."""
        for arm in self.arms:
            if variable in arm.overrides and arm.overrides[variable] == value:
                return arm
        raise KeyError(f"no arm has {variable} = {value!r}")


class RunSpec(_WithCode):
    """Everything that defines one run: an arm with one seed under a locked design."""

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


class Verdict(Record):
    """What the data say about one hypothesis, computed by code under the locked design."""

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
