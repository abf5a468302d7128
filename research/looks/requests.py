"""The looks that there are, each with the arguments it takes: a planner is shown the docstrings."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from research.proposals.actions import Constant, Number, Scalar

MOST_POINTS: Final = 24
MOST_PLAYS: Final = 4
MOST_WORDS: Final = 100
"""Characters of what is looked for."""
Words = Annotated[str, StringConstraints(strict=True, max_length=MOST_WORDS)]
Named = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MOST_WORDS)]


class _LookRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class LookAtRuns(_LookRequest):
    """A table of the study's runs: round, phase, arm, seed, status, and what was measured before and after training."""

    round: StrictInt | None = None
    """Of one round alone; null for all."""
    arm: Words = ""
    """Of one arm alone, by its name; empty for all."""


class LookAtCurve(_LookRequest):
    """A logged metric of one run over its training steps."""

    run: Named
    """The run, as the table of runs names it."""
    metric: Named
    """The metric's name in the log, such as critic/success/mean; hidden/success for the hidden tasks."""
    at: tuple[StrictInt, ...] = Field(default=(), max_length=MOST_POINTS)
    """The steps to show; empty for some that are spread evenly."""


class LookAtEpisodes(_LookRequest):
    """A few plays of one run on hidden tasks, before or after training, with what was said in them."""

    run: Named
    """The run, as the table of runs names it."""
    when: Literal["before", "after"] = "after"
    """Before the first training step, or after the last."""
    which: Literal["best", "worst", "random"] = "worst"
    """By their reward, or any."""
    count: StrictInt = Field(default=2, ge=1, le=MOST_PLAYS)
    """How many."""


class LookAtLog(_LookRequest):
    """Lines about one run that hold a text: its attempts, alarms, and each metric logged at each step."""

    run: Named
    """The run, as the table of runs names it."""
    contains: Named
    """The text, as it stands there; capital letters do not matter, and nothing in it is a pattern."""


class LookAtPrice(_LookRequest):
    """What a comparison would cost in this round, how many seeds it takes, and what it could see; nothing is drawn."""

    variable: Named
    """The one job field that is compared."""
    control: Scalar
    """Its value in the control arm."""
    treatments: tuple[Scalar, ...] = Field(min_length=1, max_length=3)
    """Its values in the other arms."""
    environment: Named
    """Where it is trained and evaluated."""
    direction: Literal["increase", "decrease"] = "increase"
    """Whether the treatments are expected to raise or to lower the metric."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """Training steps of every run; null for the default."""
    constants: tuple[Constant, ...] = Field(default=(), max_length=8)
    """Other job fields to hold at a value in all arms."""
    smallest_effect: Number | None = Field(default=None, gt=0)
    """The smallest difference that would matter; null for the study's."""


class LookAtFindings(_LookRequest):
    """What earlier studies here found, by words."""

    words: Named
    """What it is about, such as a field or an environment."""


AnyLook = LookAtRuns | LookAtCurve | LookAtEpisodes | LookAtLog | LookAtPrice | LookAtFindings
