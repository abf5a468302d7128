"""What a run left, as the harness saw it: measured numbers, and the conditions of training and evaluation."""

from __future__ import annotations

from pydantic import Field

from studies.records.base import Record


class Measurement(Record):
    """One number about one run, collected and hashed by the harness."""

    run_id: str
    key: str
    value: float = Field(allow_inf_nan=False)
    n: int = Field(ge=1)
    """Episodes (or steps) behind the value."""
    sha256: str
    """Hash of the file it was computed from."""


class TrainingCurve(Record):
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


class WeightChange(Record):
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
    """The same hash of the tasks that the run's seed draws; None where it was not recorded."""
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
    course: TrainingCurve | None = None
    """How training rose and fell; None where it was not recorded."""
    signal_steps: int | None = None
    """Training steps in which rewards differed within a group, or advantages between episodes: the others taught
    nothing."""
    probs_diff: float | None = None
    """Most by which engine and learner differed on a trained token's probability."""
    stillness: WeightChange | None = None
    """What a training with a learning rate of 0 did to the weights; None for any other."""
