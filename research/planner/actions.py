"""What a planner may do: propose hypotheses, design their comparison, or conclude. Nothing else exists for it.

The source of a reward function that a proposal carries is text, here and wherever else it is handled outside a
container.

Actions are wishes. Code turns them into records (`research.arms`, `research.design`) or refuses them with a reason; a
planner sets no seed, no test and no threshold, and sees none of the hidden tasks.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StringConstraints, model_validator

from research.reward_code import MOST_BYTES

MOST_HYPOTHESES = 3
MOST_SEEDS = 5
LEAST_SEEDS = 2

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Word = Annotated[str, StringConstraints(strict=True, max_length=64)]
Scalar = StrictBool | StrictInt | Number | Word
"""A value of a job field that can be varied; a text is one of a choice of words."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ProposedHypothesis(_Wire):
    """One claim: the treatment value of one job field moves the hidden-task success away from the control value's."""

    statement: str = Field(min_length=1, max_length=500)
    """The claim in one sentence."""
    mechanism: str = Field(max_length=1000)
    """Why you expect it, in one or two sentences."""
    variable: str
    """The one job field in which control and treatment differ; `reward` where that is offered."""
    control: Scalar
    """Value of the field in the control arm; the same in every hypothesis about this field."""
    treatment: Scalar
    """Value of the field in the treatment arm."""
    code: str | None = Field(default=None, max_length=MOST_BYTES)
    """Python source of the treatment's reward function if `variable` is `reward`; otherwise null."""
    direction: Literal["increase", "decrease"]
    """Whether the treatment raises or lowers the success rate."""
    predicted_low: Number = Field(ge=-1, le=1)
    """Lower end of your 80 % interval for success(treatment) - success(control), between -1 and 1."""
    predicted_high: Number = Field(ge=-1, le=1)
    """Upper end of that interval."""
    probability: Number = Field(ge=0, le=1)
    """Probability you give to the data supporting the stated direction at the 5 % level."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.predicted_low > self.predicted_high:
            raise ValueError(
                f"predicted_low must not exceed predicted_high; found {self.predicted_low} and {self.predicted_high}"
            )
        return self


class Propose(_Wire):
    """Put hypotheses on the board."""

    action: Literal["propose"] = "propose"
    hypotheses: tuple[ProposedHypothesis, ...] = Field(min_length=1, max_length=MOST_HYPOTHESES)
    """One to three hypotheses."""


class Constant(_Wire):
    """A job field that all arms share at a value other than its default."""

    field: str
    """Name of the job field; not one that a hypothesis varies, and not `steps`."""
    value: Scalar
    """Its value in every arm."""


class ProposeDesign(_Wire):
    """Ask for a comparison of all proposed hypotheses in one environment."""

    action: Literal["design"] = "design"
    environment: str
    """Name of the environment that is trained and evaluated on."""
    seeds_per_arm: StrictInt = Field(ge=LEAST_SEEDS, le=MOST_SEEDS)
    """Wanted runs per arm; the harness draws the seeds, and lowers the number to what the budget affords."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """Training steps of every run; null for the default."""
    constants: tuple[Constant, ...] = Field(default=(), max_length=8)
    """Other job fields to hold at a value of your choice in all arms; usually empty."""


class Conclude(_Wire):
    """End the study: the verdicts stand as code computed them."""

    action: Literal["conclude"] = "conclude"
    reason: str = Field(min_length=1, max_length=1000)
    """Why nothing more needs to be done, in a sentence or two; no verdict is changed by it."""


Action = Annotated[Propose | ProposeDesign | Conclude, Field(discriminator="action")]
