"""An exploration: short runs on one seed that draw on no ledger and feed no claim.

It is planned between rounds, or before the first, and locked as all runs are: its plan's hash stands in each of them.
What comes out is shown as what it is, single runs on search tasks; the question that follows from it is asked on fresh
seeds and hidden tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from studies.records.base import JsonValue, Record, digest
from studies.records.design import Arm, Metric, RunSpec
from studies.records.run_specs import evaluated

MOST_ARMS: Final = 6


class Exploration(Record):
    """What is tried, once each."""

    why: str = Field(min_length=1, max_length=500)
    """What its planner wants to see, quoted."""
    environment: str
    base_job: Mapping[str, JsonValue]
    """The job of all of its runs, seed excluded."""
    arms: tuple[Arm, ...] = Field(min_length=1, max_length=MOST_ARMS)
    seed: int
    """The one training seed, of which no claim may be made."""
    metric: Metric
    """What runs are scored by: always on search tasks."""

    def hash(self) -> str:
        """Return the sha256 of its canonical JSON, which its runs carry in the lock's place."""
        return digest(self.model_dump(mode="json"))


def exploration_spec(study: str, plan: Exploration, arm: Arm) -> RunSpec:
    """Return the run of an arm of an exploration."""
    job = {**plan.base_job, **arm.job_overrides, "seed": plan.seed}
    return RunSpec(
        study=study, design_hash=plan.hash(), arm=arm.name, seed=plan.seed, environment=plan.environment,
        job=evaluated(job, plan.metric), metric=plan.metric, phase="explore",
    )  # fmt: skip
