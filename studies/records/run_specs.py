"""Which runs a lock allows, and what each of them is exactly: pure functions from a lock to run specs.

The loop plans with them and the fold of a log checks with them, so that a run which its lock does not lead to is
found. A run of the confirmation is `phase="confirm"`; A/A runs and screening runs feed no claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from studies.records.base import JsonValue, digest
from studies.records.design import SUCCESS, Arm, Design, Metric, RunSpec
from studies.records.noise_plan import NoisePlan

NOISE_ARM: Final = "aa"
"""The one arm of A/A runs."""
PLUMBING_ARM: Final = "zero-lr"
"""The arm of the run that must not learn."""
PLUMBING_STEPS: Final = 3
"""Its training steps: what a first one may spare, such as an optimiser without moments, a second does not."""
PLUMBING_EPISODES: Final = 32
"""Most hidden episodes of its evaluations, which nothing is read off."""
EVALUATED: Final = ("evaluate_after", "evaluation_episodes")
"""Job fields that follow from a run's metric: what is evaluated during training, which changes no step of it."""
AREA: Final = "area"
"""The kind of metric that is read up to where a run's training ends, so that a short run has a shorter horizon."""
PLUMBING_JOB: Final = {"learning_rate": 0.0, "steps": PLUMBING_STEPS, "lr_warmup_steps": 0, "mismatch_limit": 1000.0}
"""Its job where it is not the A/A runs': the server's own guard is out of the way, so that the check tells."""


def noise_hash(plan: NoisePlan) -> str:
    """Return the sha256 of a noise plan's canonical JSON, which its runs carry."""
    return digest(plan.model_dump(mode="json"))


def noise_spec(study: str, plan: NoisePlan, lock: str, seed: int) -> RunSpec:
    """Return the A/A run of a noise plan with this seed; `lock` is the plan's hash."""
    return RunSpec(
        study=study, design_hash=lock, arm=NOISE_ARM, seed=seed, environment=plan.environment,
        job=evaluated({**plan.job, "seed": seed}, plan.judged), phase="noise", metric=plan.judged,
    )  # fmt: skip


def plumbing_spec(study: str, plan: NoisePlan, lock: str, seed: int) -> RunSpec:
    """Return the run with a learning rate of 0; `lock` is the plan's hash.

    Whatever a study is judged by, of this run success is measured: it is too short for anything else.
    """
    episodes = min(plan.episodes, PLUMBING_EPISODES)
    key = plan.metric_key if plan.metric is None else SUCCESS
    return RunSpec(
        study=study, design_hash=lock, arm=PLUMBING_ARM, seed=seed, environment=plan.environment,
        job=plumbing_job({**plan.job, "seed": seed}), phase="noise",
        metric=Metric(key=key, meaning=f"share of {episodes} hidden episodes solved", episodes=episodes),
    )  # fmt: skip


def plumbing_job(job: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a job with which nothing may be learned."""
    return {**job, **PLUMBING_JOB}


def screen_metric(metric: Metric) -> Metric:
    """Return what screening runs are scored by: the design's metric on the tasks of the search.

    A short run seldom gets to a threshold, so that where the metric is the time to one, the area below it is the score.
    """
    if metric.threshold is not None and metric.schedule is not None and metric.cut_at is not None:
        return Metric(
            key=f"search/area_below_{metric.threshold:g}", kind=AREA, split="search", episodes=metric.episodes,
            name=f"area under the search curve below {metric.threshold:g}",
            meaning=f"mean success on search tasks below {metric.threshold:g} over training",
            best=metric.threshold, threshold=metric.threshold, horizon=metric.horizon, schedule=metric.schedule,
        )  # fmt: skip
    key, meaning = (text.replace("hidden", "search") for text in (metric.key, metric.meaning))
    return metric.model_copy(update={"key": key, "meaning": meaning, "split": "search"})


def screen_spec(study: str, design: Design, lock: str, arm: Arm, steps: int) -> RunSpec:
    """Return the run of a candidate in the rung of `steps` steps."""
    assert design.screen is not None
    metric = screen_metric(design.metric)
    job = {**_job(design, arm), "steps": steps, "seed": design.screen.seed}
    if metric.kind == AREA:  # as far as all candidates of a rung train, whatever their batches
        metric = metric.model_copy(update={"horizon": float(steps * int(design.base_job["episodes_per_step"]))})
    return RunSpec(
        study=study, design_hash=lock, arm=arm.name, seed=design.screen.seed, environment=design.environment,
        job=evaluated(job, metric), metric=metric, code=design.code.get(arm.reward), phase="screen",
    )  # fmt: skip


def confirm_spec(study: str, design: Design, lock: str, arm: Arm, seed: int) -> RunSpec:
    """Return the run of an arm of the confirmation with one of its seeds."""
    return RunSpec(
        study=study, design_hash=lock, arm=arm.name, seed=seed, environment=design.environment,
        job=evaluated({**_job(design, arm), "seed": seed}, design.metric), metric=design.metric,
        code=design.code.get(arm.reward),
    )  # fmt: skip


def replicate_spec(study: str, design: Design, lock: str, arm: Arm, seed: int) -> RunSpec:
    """Return the run of an arm in the replication's setting with one of its seeds."""
    setting = design.replication
    assert setting is not None
    job = {**design.base_job, **setting.overrides, **arm.job_overrides, "environment": setting.environment}
    return RunSpec(
        study=study, design_hash=lock, arm=arm.name, seed=seed, environment=setting.environment,
        job=evaluated({**job, "seed": seed}, design.metric), metric=design.metric, code=design.code.get(arm.reward),
        phase="replicate",
    )  # fmt: skip


def evaluated(job: Mapping[str, JsonValue], metric: Metric) -> dict[str, JsonValue]:
    """Return a run's job with the steps after which the schedule of its metric has it evaluated; none adds nothing."""
    steps = metric.schedule.steps(job) if metric.schedule is not None else ()
    if metric.schedule is None or not steps:
        return dict(job)
    return {**job, **dict(zip(EVALUATED, (list(steps), metric.schedule.episodes), strict=True))}


def _job(design: Design, arm: Arm) -> dict[str, JsonValue]:
    return {**design.base_job, **arm.job_overrides}
