"""Which runs a lock allows, and what each of them is exactly: pure functions from a lock to run specs.

The loop plans with them and the fold of a log checks with them, so that a run which its lock does not lead to is
found. A run of the confirmation is `phase="confirm"`; A/A runs and screening runs feed no claim.
"""

from __future__ import annotations

from typing import Final

from studies.base import JsonValue, digest
from studies.procedure import NoisePlan
from studies.records import Arm, Design, Metric, RunSpec

NOISE_ARM: Final = "aa"
"""The one arm of A/A runs."""


def noise_hash(plan: NoisePlan) -> str:
    """Return the sha256 of a noise plan's canonical JSON, which its runs carry."""
    return digest(plan.model_dump(mode="json"))


def noise_spec(study: str, plan: NoisePlan, lock: str, seed: int) -> RunSpec:
    """Return the A/A run of a noise plan with this seed; `lock` is the plan's hash."""
    meaning = f"share of {plan.episodes} hidden episodes solved after the last step"
    return RunSpec(
        study=study, design_hash=lock, arm=NOISE_ARM, seed=seed, environment=plan.environment,
        job={**plan.job, "seed": seed}, phase="noise",
        metric=Metric(key=plan.metric_key, meaning=meaning, episodes=plan.episodes),
    )  # fmt: skip


def screen_metric(metric: Metric) -> Metric:
    """Return what screening runs are scored by: the design's metric on the tasks of the search."""
    key, meaning = (text.replace("hidden", "search") for text in (metric.key, metric.meaning))
    return metric.model_copy(update={"key": key, "meaning": meaning, "split": "search"})


def screen_spec(study: str, design: Design, lock: str, arm: Arm, steps: int) -> RunSpec:
    """Return the run of a candidate in the rung of `steps` steps."""
    assert design.screen is not None
    return RunSpec(
        study=study, design_hash=lock, arm=arm.name, seed=design.screen.seed, environment=design.environment,
        job={**_job(design, arm), "steps": steps, "seed": design.screen.seed}, metric=screen_metric(design.metric),
        code=design.code.get(arm.reward), phase="screen",
    )  # fmt: skip


def confirm_spec(study: str, design: Design, lock: str, arm: Arm, seed: int) -> RunSpec:
    """Return the run of an arm of the confirmation with one of its seeds."""
    return RunSpec(
        study=study, design_hash=lock, arm=arm.name, seed=seed, environment=design.environment,
        job={**_job(design, arm), "seed": seed}, metric=design.metric, code=design.code.get(arm.reward),
    )  # fmt: skip


def replicate_spec(study: str, design: Design, lock: str, arm: Arm, seed: int) -> RunSpec:
    """Return the run of an arm in the replication's setting with one of its seeds."""
    setting = design.replication
    assert setting is not None
    job = {**design.base_job, **setting.overrides, **arm.job_overrides, "environment": setting.environment}
    return RunSpec(
        study=study, design_hash=lock, arm=arm.name, seed=seed, environment=setting.environment,
        job={**job, "seed": seed}, metric=design.metric, code=design.code.get(arm.reward), phase="replicate",
    )  # fmt: skip


def _job(design: Design, arm: Arm) -> dict[str, JsonValue]:
    return {**design.base_job, **arm.job_overrides}
