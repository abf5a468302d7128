"""What a planner may do: propose hypotheses, design their comparison, conclude, decline. Nothing else exists for it.

The source of a reward function that a proposal carries is text, here and wherever else it is handled outside a
container.

Actions are proposals. Code turns them into records (`research.proposals.arms`, `research.design.compiler`) or refuses
them with a reason; a planner may name one of the harness's metrics where the user did not, sets no seed, no test and no
level, and sees none of the hidden tasks.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StringConstraints, model_validator

from research.decisions import RuleError, parse
from research.proposals.reward_code import MOST_BYTES

MOST_HYPOTHESES = 3
MOST_CONFIRMED = 3
"""Most candidates of a screen that are confirmed."""
MOST_KNOBS = 4
MOST_RULES = 8
MOST_SEEDS = 5
LEAST_SEEDS = 3
MOST_LEFT_OUT = 500
"""Characters in which a planner says what it leaves out."""
DEFAULT_EFFECT = 0.10
"""Smallest effect of interest where nobody names one: ten points of the hidden success."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Word = Annotated[str, StringConstraints(strict=True, max_length=64)]
Phrase = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200)]
Scalar = StrictBool | StrictInt | Number | Word
"""A value of a job field that can be varied; a text is one of a choice of words."""


class _ActionModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ProposedHypothesis(_ActionModel):
    """One claim: the treatment value of one job field moves the metric away from the control value's."""

    statement: str = Field(default="", max_length=500)
    """The claim in your words, kept as a quotation. What is tested is written by code from the fields below."""
    mechanism: str = Field(max_length=1000)
    """Why you expect it, in one or two sentences."""
    variable: str
    """The one job field in which control and treatment differ; `reward` or `model` where that is offered."""
    control: Scalar
    """Value of the field in the control arm; the same in every hypothesis about this field."""
    treatment: Scalar
    """Value of the field in the treatment arm."""
    code: str | None = Field(default=None, max_length=MOST_BYTES)
    """Python source of the treatment's reward function if `variable` is `reward`; otherwise null."""
    direction: Literal["increase", "decrease"]
    """Whether the treatment raises or lowers the metric: the success rate, or the `metric` among the facts."""
    predicted_low: Number
    """Lower end of your 80 % interval for metric(treatment) - metric(control): of success rates between -1 and 1."""
    predicted_high: Number
    """Upper end of that interval."""
    probability: Number = Field(ge=0, le=1)
    """Probability you give to the data supporting the stated direction at the 5 % level."""
    smallest_effect: Number | None = Field(default=None, gt=0)
    """The smallest difference of the metric that would matter; at most the study's `smallest_effect`."""
    falsifier: str = Field(default="", max_length=500)
    """The cheapest observation that would show the claim to be false."""
    kill_if: str = Field(default="", max_length=300)
    """When to give the hypothesis up early, as a predicate over its verdict at a look; empty for never."""
    confounds: tuple[Phrase, ...] = Field(default=(), max_length=8)
    """What else could bring the effect about, each in a clause."""
    matched: Literal["steps", "episodes"] = "steps"
    """What of training both arms have equal. `episodes` is for `episodes_per_step` alone: the arm of the larger batch
    takes fewer steps."""
    sought: Literal["difference", "equivalence"] = "difference"
    """`equivalence` if the topic asks to see shown that there is no difference that matters."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_interval(self.predicted_low, self.predicted_high)
        return self

    @model_validator(mode="after")
    def _can_be_given_up(self) -> Self:
        try:
            if self.kill_if:
                parse(self.kill_if)
        except RuleError as error:
            raise ValueError(f"kill_if: {error}") from error
        return self


class Propose(_ActionModel):
    """Put hypotheses on the board, or say that a search for the best values comes first."""

    action: Literal["propose"] = "propose"
    hypotheses: tuple[ProposedHypothesis, ...] = Field(default=(), max_length=MOST_HYPOTHESES)
    """One to three hypotheses; none if `search` is true."""
    metric: str = Field(default="", max_length=64)
    """What runs are judged by, as `metrics` among the facts names it, such as 'episodes:0.7', where the topic asks for
    another one than `metric`; empty for that one."""
    search: StrictBool = False
    """Whether the topic asks which values are best, so that a screen must find the arms that are then confirmed."""
    not_tested: str = Field(default="", max_length=MOST_LEFT_OUT)
    """What of the topic your hypotheses leave out and why, in a sentence for its author; empty for nothing."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.search == bool(self.hypotheses):
            found = "both" if self.search else "neither"
            raise ValueError(f"expected one to three hypotheses, or `search` true and none; found {found}")
        return self


class Constant(_ActionModel):
    """A job field that all arms share at a value other than its default."""

    field: str
    """Name of any job field; not one that a hypothesis varies, and not `steps`."""
    value: Scalar
    """Its value in every arm."""


class ProposedKnob(_ActionModel):
    """A job field that a screen varies."""

    field: str
    """Name of the job field."""
    values: tuple[Scalar, ...] = Field(min_length=2, max_length=12)
    """The values it may take, from low to high where they have an order; the default among them is not needed."""


class ProposedScreen(_ActionModel):
    """A search: candidates are trained shortly with one seed, and the best of them are then confirmed on fresh seeds.

    The control is the job's default values of the knobs; the claim on each confirmed candidate is written by code.
    """

    knobs: tuple[ProposedKnob, ...] = Field(min_length=1, max_length=MOST_KNOBS)
    """The fields that are searched, each once."""
    confirm: StrictInt = Field(default=1, ge=1, le=MOST_CONFIRMED)
    """How many of the best candidates are compared with the control afterwards."""
    predicted_low: Number
    """Lower end of your 80 % interval for metric(best) - metric(control): of success rates between -1 and 1."""
    predicted_high: Number
    """Upper end of that interval."""
    probability: Number = Field(ge=0, le=1)
    """Probability you give to the best candidate being shown to be better than the control at the 5 % level."""
    smallest_effect: Number | None = Field(default=None, gt=0)
    """The smallest difference of the metric that would matter; at most the study's `smallest_effect`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_interval(self.predicted_low, self.predicted_high)
        names = [knob.field for knob in self.knobs]
        if len(set(names)) < len(names):
            raise ValueError(f"expected each knob once; found {', '.join(names)}")
        return self


class ProposedRule(_ActionModel):
    """One line of the decision table, which works at every look and while you are away."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    """A short name of lower-case words with hyphens."""
    when: str = Field(min_length=1, max_length=300)
    """A predicate over the verdict at a look."""
    then: Literal["continue", "settle", "replicate"]
    """More seeds, no more runs, or the same comparison in the replication's environment."""

    @model_validator(mode="after")
    def _is_a_predicate(self) -> Self:
        try:
            parse(self.when)
        except RuleError as error:
            raise ValueError(f"the rule {self.name}: {error}") from error
        return self


class ProposedReplication(_ActionModel):
    """The same comparison once more in another environment, on fresh seeds."""

    environment: str
    """Name of the other environment."""


class ProposeDesign(_ActionModel):
    """Ask for a comparison of all proposed hypotheses in one environment, or for the screen that finds the arms."""

    action: Literal["design"] = "design"
    environment: str
    """Name of the environment that is trained and evaluated on."""
    seeds_per_arm: StrictInt = Field(default=MOST_SEEDS, ge=LEAST_SEEDS, le=MOST_SEEDS)
    """Of older turns: a proposal. How many seeds there are follows from the promised power and the budget, by code."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """Training steps of every run; null for the default."""
    constants: tuple[Constant, ...] = Field(default=(), max_length=8)
    """Other job fields to hold at a value of your choice in all arms; usually empty."""
    screen: ProposedScreen | None = None
    """The screen, if you proposed a search; null otherwise."""
    decision_table: tuple[ProposedRule, ...] = Field(default=(), max_length=MOST_RULES)
    """Your own rules, the first that holds decides; where none holds, no more seeds. Empty for the default table."""
    replication: ProposedReplication | None = None
    """Where a supported claim is tried once more; null for nowhere."""
    not_tested: str = Field(default="", max_length=MOST_LEFT_OUT)
    """What of the topic the design leaves out besides, and why, in a sentence for its author; empty for nothing."""


class Conclude(_ActionModel):
    """End the study: the verdicts stand as code computed them."""

    action: Literal["conclude"] = "conclude"
    reason: str = Field(min_length=1, max_length=1000)
    """Why nothing more needs to be done, in a sentence or two; no verdict is changed by it."""


class Decline(_ActionModel):
    """Answer no hypothesis to the topic: the study ends, with your reason quoted in its report."""

    action: Literal["decline"] = "decline"
    reason: str = Field(min_length=1, max_length=1000)
    """Why the topic cannot, or should not, be tested here, in a sentence or two."""


Action = Annotated[Propose | ProposeDesign | Conclude | Decline, Field(discriminator="action")]


def _check_interval(low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"predicted_low must not exceed predicted_high; found {low} and {high}")
