"""Topics that the rule planner reads: one field, its control value and what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from research.proposals.arms import value_text
from simlab.worlds.world import Scalar
from swarm.job import tunables

ENVIRONMENT = "the guessing game"


@dataclass(frozen=True, slots=True)
class ComparisonTopic:
    """A comparison somebody asks about."""

    field: str
    values: tuple[Scalar, ...]
    """The control first."""

    @property
    def topic(self) -> str:
        """The question, in words."""
        name = tunables()[self.field].synonyms[0]
        return f"{name} {' vs '.join(value_text(value) for value in self.values)} on {ENVIRONMENT}"

    @property
    def knobs(self) -> dict[str, tuple[Scalar, ...]]:
        """The field with its values."""
        return {self.field: self.values}

    @property
    def base(self) -> dict[str, Scalar]:
        """The control value."""
        return {self.field: self.values[0]}


ASKS: Sequence[ComparisonTopic] = (
    ComparisonTopic("group_size", (8, 16)),
    ComparisonTopic("group_size", (4, 8, 16)),
    ComparisonTopic("learning_rate", (1e-3, 3e-3)),
    ComparisonTopic("learning_rate", (3e-4, 1e-3, 3e-3)),
    ComparisonTopic("temperature", (1.0, 0.7)),
    ComparisonTopic("temperature", (1.0, 0.7, 1.3)),
    ComparisonTopic("epochs", (1, 2)),
    ComparisonTopic("epochs", (1, 2, 4)),
    ComparisonTopic("kl_coef", (0.0, 0.1)),
    ComparisonTopic("entropy_coef", (0.0, 0.01)),
    ComparisonTopic("minibatches", (1, 4)),
    ComparisonTopic("clip_ratio", (0.1, 0.2, 0.4)),
)
"""What suites ask about, in turn."""
