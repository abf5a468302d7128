"""The plan of what is run before a design: A/A runs, and the run that must not learn."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from studies.records.base import EvolvingRecord, JsonValue
from studies.records.design import Metric


class NoisePlan(EvolvingRecord):
    """What is run before a design, locked before its runs: A/A runs, of one job with several seeds, to learn what seeds
    alone do; and one run with a learning rate of 0, to see that the machinery then does nothing."""

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
    """Seed of the run with a learning rate of 0; None where the machinery was seen before."""
    metric: Metric | None = None
    """What they are judged by; None in plans that knew success and its gain alone, which the key names."""

    @model_validator(mode="after")
    def _of_some_use(self) -> Self:
        if len(self.seeds) == 1 or (not self.seeds and self.plumbing is None):
            raise ValueError(f"expected two seeds of A/A runs at least; found {len(self.seeds)}")
        return self

    @property
    def judged(self) -> Metric:
        """What its A/A runs are judged by."""
        meaning = f"share of {self.episodes} hidden episodes solved after the last step"
        return self.metric or Metric(key=self.metric_key, meaning=meaning, episodes=self.episodes)
