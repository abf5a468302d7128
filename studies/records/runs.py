"""Which run specs a lock allows, and every code by which a run can end INVALID.

Codes are fixed before data. A run with an excluded code, which the lock names, is left out and counted; one with a
worst code counts with the metric's worst value. A code in neither class makes a verdict invalid, as there is no honest
value for the run. Specs are pure functions of a lock: the loop plans with them and the fold checks with them.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import Field

from studies.records.base import JsonValue, Record, canonical
from studies.records.design import MATCHED, REWARD, SUCCESS, Arm, Design, Metric, NoisePlan, RunSpec
from studies.records.procedure import Phase

_NAMES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
VETOED: Final = "vetoed"
"""A run that nothing needs any more, as a person gave up its hypothesis."""
EXCLUDED_CODES: Final[tuple[str, ...]] = tuple(_NAMES["excluded"])
"""Ends that say nothing about what was trained."""

TRAINING_NAN = "training_nan"
"""Loss or gradient was no finite number: the training broke down, and there is no policy to measure."""
WORST_CODES: tuple[str, ...] = (TRAINING_NAN,)
"""Trainings that broke down by themselves, and were not stopped by the watchdog."""

GENERATED_CODE_FAILED = "generated_code_failed"
"""A run with generated code that came to an end which such code can bring about (`WITHIN_REACH_OF_CODE`). In no class:
left out, code could give up the runs that go badly; counted as worst, a server that died would refute it."""

EVIDENCE_MISSING = "evidence_missing"
EVIDENCE_CHANGED = "evidence_changed"
EVIDENCE_CODES: tuple[str, ...] = (EVIDENCE_MISSING, EVIDENCE_CHANGED)
"""What became of evidence after it was collected; in no class, for who spoils evidence must not choose the runs."""

MODEL_CHANGED = "model_changed"
"""The folder of the run's model held something else than when the study named it; in no class, as for evidence."""

CODE_REPAIRED = "code_repaired"
"""A run that was given up because code of its question was repaired and all arms began anew."""

NOT_MEASURABLE = "not_measurable"
"""The files of a whole run do not hold what its metric is read off; in no class: the arm may have done it."""

INVALID_CODES: tuple[str, ...] = (
    *EXCLUDED_CODES, *WORST_CODES, GENERATED_CODE_FAILED, *EVIDENCE_CODES, MODEL_CHANGED, NOT_MEASURABLE,
)  # fmt: skip
"""Every code of an INVALID run of a verdict."""

ENGINE_GONE = "engine_gone"
DISK_FULL = "disk_full"
SERVER_AWAY = "server_away"
"""A swarm server elsewhere does not answer, or not so that a training can begin there."""
SERVER_TAKEN = "server_taken"
"""A swarm server elsewhere trains for somebody else, or somebody stopped what it trained."""
BLAMELESS_CODES: tuple[str, ...] = (ENGINE_GONE, DISK_FULL, SERVER_AWAY, SERVER_TAKEN)
"""Ends of attempts that are no fault of the run: they cost it no try, and the next launch waits."""

WITHIN_REACH_OF_CODE: Final[frozenset[str]] = frozenset(_NAMES["within_reach_of_code"])
"""Ends that code in a client may bring about: after one a run with generated code gets no other try to choose from."""
CRASHES = frozenset({"client_died", "client_stopped", "client_out_of_memory", "client_timeout"})
"""Ends by which code in a client shows that it does not work: it raised, hung, or gave what is no finite number."""
EARLY: Final = 0.5
"""Up to which share of a run's steps its crash may be repaired. Code that ended its run once that goes badly would
choose among issues of a question: before half of the training it gains nothing by it (docs/slots.md)."""
NOISE_ARM: Final = "aa"
"""The one arm of A/A runs."""
PLUMBING_ARM: Final = "zero-lr"
"""The arm of the run that must not learn."""
UNTRAINED_RUN: Final = (
    "a training with a learning rate of 0, to see that it changes nothing and to evaluate the untrained model"
)
PLUMBING_STEPS: Final = 3
"""Its training steps: what a first one may spare, such as an optimiser without moments, a second does not."""
PLUMBING_EPISODES: Final = 32
"""Most hidden episodes of its evaluations under a plan without a task seed, of which nothing is read off."""
EVALUATED: Final = ("evaluate_after", "evaluation_episodes")
"""Job fields that follow from a run's metric: what is evaluated during training, which changes no step of it."""
AREA: Final = "area"
"""The kind of metric that is read up to where a run's training ends, so that a short run has a shorter horizon."""
TRAINING_AREA: Final = "training-area"
"""The same of training success."""
PLUMBING_JOB: Final = {"learning_rate": 0.0, "steps": PLUMBING_STEPS, "lr_warmup_steps": 0, "mismatch_limit": 1000.0}
"""Its job where it is not the A/A runs': the server's own guard is out of the way, so that the check tells."""
TRAINING_FIELDS: Final[frozenset[str]] = frozenset(_NAMES["training_fields"])
"""Job fields that concern training alone: jobs which differ in nothing else begin with one policy, evaluated alike."""


class AttemptFailed(Exception):
    """An attempt cannot go on; `code` says what failed, in one word of the protocol."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Measurement(Record):
    """One number about one run, collected and hashed by the harness."""

    run_id: str
    key: str
    value: float = Field(allow_inf_nan=False)
    n: int = Field(ge=1)
    sha256: str


class TrainingCurve(Record):
    """How one training rose and fell, by its own curves alone: shares of episodes solved."""

    start: float
    """Of the evaluation before training."""
    end: float
    """Of the evaluation after training."""
    plays: int = Field(ge=1)
    """Episodes of each of the two: their harmonic mean, where they have different numbers."""
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
    """Most by which engine and learner may differ on a sampled token's probability; None where nobody compares."""


class Conditions(Record):
    """Under which conditions a run was trained and measured, as the harness saw them; None where it could not see."""

    steps: int | None = None
    episodes: int | None = None
    tokens: int | None = None
    optimiser_steps: int | None = None
    wall_s: float | None = None
    initial_policy: str | None = None
    """Hash of the weights that training began with."""
    initial_success: float | None = None
    untrained: str | None = None
    """The run whose evaluation before training it has; None where it was evaluated itself."""
    evaluation_tasks: str | None = None
    """Hash of the evaluated tasks' ids."""
    drawn_tasks: str | None = None
    """The same hash of the tasks that its task seed draws; None where it was not recorded."""
    evaluation_episodes: int | None = None
    decoding: str | None = None
    """Sampling of the evaluation: temperature, top_p, token limit."""
    template: str | None = None
    checkpoint: str | None = None
    """Which policy was measured: `last`, or another rule."""
    overlap: int | None = None
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
    """Training steps in which rewards differed within a group, or advantages between episodes."""
    probs_diff: float | None = None
    """Most by which engine and learner differed on a trained token's probability."""
    stillness: WeightChange | None = None
    """What a training with a learning rate of 0 did to the weights; None for any other."""


def noise_spec(study: str, plan: NoisePlan, lock: str, seed: int) -> RunSpec:
    """Return the A/A run of a noise plan with this seed; `lock` is the plan's hash."""
    return run_spec(study, lock, "noise", NOISE_ARM, seed, plan.environment, plan.job, plan.judged)


def begins_alike(job: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> bool:
    """Return whether two jobs provably begin with the same policy, sampled in the same way."""
    names = (job.keys() | other.keys()) - TRAINING_FIELDS
    return all(canonical(job.get(name)) == canonical(other.get(name)) for name in names)


def is_untrained_run(spec: RunSpec) -> bool:
    """Return whether it is the run that evaluates the untrained policy for others: once, before its steps."""
    return spec.arm == PLUMBING_ARM and spec.metric.task_seed is not None


def shares_untrained(spec: RunSpec, untrained: RunSpec) -> bool:
    """Return whether a run provably begins with the policy that another evaluated untrained, on the same tasks."""
    one, other = spec.metric, untrained.metric
    alike = (spec.environment, one.split, one.task_seed) == (untrained.environment, other.split, other.task_seed)
    jobs = one.evaluated(spec.job), other.evaluated(untrained.job)  # no policy begins with knobs: they are of plays
    alike = alike and not spec.player and begins_alike(*jobs)
    return is_untrained_run(untrained) and spec.arm != PLUMBING_ARM and alike


def zero_lr_spec(study: str, plan: NoisePlan, lock: str, seed: int) -> RunSpec:
    """Return the run with a learning rate of 0, of which success is measured: it is too short for anything else."""
    task_seed = plan.judged.task_seed
    episodes = min(plan.episodes, PLUMBING_EPISODES) if task_seed is None else plan.episodes
    metric = Metric(
        key=plan.metric_key if plan.metric is None else SUCCESS, meaning=f"share of {episodes} hidden episodes solved",
        episodes=episodes, task_seed=task_seed, knobs=plan.judged.knobs,
    )  # fmt: skip
    return run_spec(study, lock, "noise", PLUMBING_ARM, seed, plan.environment, plan.job | PLUMBING_JOB, metric)


def screen_metric(metric: Metric) -> Metric:
    """Return what screens score by: the metric on search tasks; for a time, which short runs cut, the area below; for
    success at an amount success after the last step."""
    if metric.threshold is not None and metric.schedule is not None and metric.cut_at is not None:
        return Metric(
            key=f"search/area_below_{metric.threshold:g}", kind=AREA, split="search", episodes=metric.episodes,
            name=f"area under the search curve below {metric.threshold:g}",
            meaning=f"mean success on search tasks below {metric.threshold:g} over training",
            best=metric.threshold, threshold=metric.threshold, horizon=metric.horizon, schedule=metric.schedule,
            knobs=metric.knobs,
        )  # fmt: skip
    if metric.kind in MATCHED:  # which short runs may never come to
        meaning = f"share of {metric.episodes} hidden episodes that are solved after the last step"
        metric = Metric(meaning=meaning, episodes=metric.episodes, knobs=metric.knobs)
    key, meaning = (text.replace("hidden", "search") for text in (metric.key, metric.meaning))
    return metric.model_copy(update={"key": key, "meaning": meaning, "split": "search", "also_own": False})


def screen_spec(study: str, design: Design, lock: str, arm: Arm, steps: int) -> RunSpec:
    assert design.screen is not None
    metric = screen_metric(design.metric)
    if metric.kind in (AREA, TRAINING_AREA):  # as far as all candidates of a rung train, whatever their batches
        metric = metric.model_copy(update={"horizon": float(steps * int(design.base_job["episodes_per_step"]))})
    job = {**design.base_job, **arm.job_overrides, "steps": steps}
    code, seed = _code(design, arm), design.screen.seed
    return run_spec(study, lock, "screen", arm.name, seed, design.environment, job, metric, code)


def confirm_spec(study: str, design: Design, lock: str, arm: Arm, seed: int) -> RunSpec:
    job, code = {**design.base_job, **arm.job_overrides}, _code(design, arm)
    return run_spec(study, lock, "confirm", arm.name, seed, design.environment, job, design.metric, code)


def replicate_spec(study: str, design: Design, lock: str, arm: Arm, seed: int) -> RunSpec:
    setting, code = design.replication, _code(design, arm)
    assert setting is not None
    job = {**design.base_job, **setting.overrides, **arm.job_overrides, "environment": setting.environment}
    return run_spec(study, lock, "replicate", arm.name, seed, setting.environment, job, design.metric, code)


def _code(design: Design, arm: Arm) -> dict[str, str]:
    return {slot: design.code[name] for slot, name in arm.slots.items()}


def run_spec(
    study: str, lock: str, phase: Phase, arm: str, seed: int, environment: str, job: Mapping[str, JsonValue],
    metric: Metric, code: Mapping[str, str] = {},
) -> RunSpec:  # fmt: skip
    """Return a run; its job gets the seed and the steps after which the schedule of its metric has it evaluated."""
    return RunSpec(
        study=study, design_hash=lock, arm=arm, seed=seed, environment=environment, phase=phase, metric=metric,
        job=add_evaluation_steps({**job, "seed": seed}, metric), code=code.get(REWARD),
        slots={slot: source for slot, source in code.items() if slot != REWARD},
    )  # fmt: skip


def add_evaluation_steps(job: Mapping[str, JsonValue], metric: Metric) -> dict[str, JsonValue]:
    """Return a run's job with the steps after which the schedule of its metric has it evaluated; none adds nothing."""
    steps = metric.schedule.steps(job) if metric.schedule is not None else ()
    if metric.schedule is None or not steps:
        return dict(job)
    return {**job, **dict(zip(EVALUATED, (list(steps), metric.schedule.episodes), strict=True))}
