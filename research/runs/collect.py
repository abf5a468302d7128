"""Turns the files of a finished attempt into hashed evidence.

Nothing here trusts a number that somebody computed: metrics are history rows read back from W&B, a measurement is
counted again from the outcome of each hidden task, alarms are raised again over the whole history, whatever the attempt
said. Results that do not carry the run's own names (study, design hash, run, attempt) are foreign and are refused; so
are files that are not what they were when the attempt ended. Collecting twice writes the same bytes. Not known here:
whether somebody rewrote files and the attempt's word of them together.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from research.files import read_json, write_json
from research.runs import files
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptSpec, Evaluation, RunEvaluation
from research.runs.provenance import build_conditions
from research.runs.wandb_log import ReadTracking, TrackedRun, history_of, read_tracking
from research.text import describe
from studies.checks.alarms import Alarm, find_abort_alarm, find_alarms
from studies.checks.conditions import CollectError, Row, mean_facts, play_variance, read_collected, read_unchanged
from studies.metrics import Refused, Results, Value
from studies.metrics.registry import values_of
from studies.records.design import Metric, RunSpec
from studies.records.procedure import Watchdog
from studies.records.runs import EVIDENCE_CHANGED, NOT_MEASURABLE, TRAINING_NAN, Measurement, is_untrained_run
from swarm.environments.play import rounds
from swarm.environments.registry import get_environment
from swarm.job import knobs_of

NOTHING_SAID = AttemptOutcome(status="finished", code="ok", seconds=0.0, stages={})
"""Stands for the outcome of an attempt that wrote none."""


class CollectedEvidence(NamedTuple):
    """What `run.collected` says about the files, and what they amount to."""

    payload: Mapping[str, Any]
    """`snapshot`, `evaluation`, `conditions`, `alarms`; `play_variance` of success between plays of one task; `kinds`:
    evaluation episodes [solved, played] after training by kind of task, where there are several; `facts`: means of what
    the environment said of them, where it says any."""
    measurements: tuple[Measurement, ...]


def collect(
    folder: AttemptFolder, spec: AttemptSpec, study_folder: Path, read: ReadTracking | None = None, *,
    said: AttemptOutcome = NOTHING_SAID, neighbours: int | None = None,
) -> CollectedEvidence:  # fmt: skip
    """Check and store the results of a finished attempt under `study_folder`; raises CollectError or OSError. `said` is
    the outcome that the attempt wrote, `neighbours` how many others ran beside it (`Conditions`)."""
    expected_hashes = dict(said.files)
    if spec.initial_sha256:  # what it took over
        expected_hashes[folder.evaluation("initial").name] = spec.initial_sha256
        expected_hashes |= {folder.kept.name: spec.during_sha256} if spec.during_sha256 else {}
    for name, expected in expected_hashes.items():
        read_unchanged(folder.path / name, name, expected)
    tracked = _read_run(folder, spec, read or read_tracking)
    history, run = history_of(tracked), spec.run
    stopped, steps, once = _find_stop_rule(spec, history, whole=tracked.ended), len(history), is_untrained_run(run)
    usual = run.metric.model_copy(update={"knobs": None if run.metric.also_own else {}})  # a job names none of others
    there = run.model_copy(update={"environment": spec.other_environment, "metric": usual})
    evaluation = RunEvaluation(
        study=run.study,
        run_id=spec.run_id,
        attempt=spec.attempt,
        initial=(initial := _read_initial(folder, spec)),
        during=_during_evaluations(folder, spec, steps=steps, resumed_at=said.resumed_at),
        # A run that only evaluates the untrained policy does so once, before its steps.
        final=(final := initial if once else _read_evaluation(folder.evaluation("final"), run, steps)),
        other=_read_evaluation(folder.evaluation("other"), there, steps, run.task_seed)
        if spec.other_environment
        else None,
    )
    dumped = evaluation.model_dump(mode="json")
    values = _compute_metrics(dumped, history, run.metric, stopped)  # before anything is written: it may be refused
    where = Path("runs") / spec.run_id
    snapshot: dict[str, Any] = {
        "study": run.study, "run_id": spec.run_id, "attempt": spec.attempt, "design_hash": run.design_hash,
        "wandb": {"project": tracked.project, "group": tracked.group, "id": tracked.id, "config": tracked.config},
        "history": history,
    }  # fmt: skip
    snapshot_sha = write_json(study_folder / where / "snapshot.json", snapshot)
    stored = evaluation.model_dump(mode="json", exclude_defaults=True)
    evaluation_sha = write_json(study_folder / where / "evaluation.json", stored)
    alarms = list(find_alarms(history, spec.watchdog, initial.success, final.success)) if spec.watchdog else []
    if errors := Counter(episode.error for episode in final.episodes if episode.failed):
        of = f"{errors.total()} of {len(final.episodes)} plays after training"
        sentence = f"{of} were failed by the agent, most by {errors.most_common(1)[0][0]}: they are not solved"
        alarms.append(Alarm("failed_plays", final.policy_version, sentence, "note"))
    kinds = {task.id: task.kind for task in get_environment(run.environment).tasks(run.metric.split)}
    played = Counter(kinds[episode.task_id] for episode in final.episodes)
    solved = Counter(kinds[episode.task_id] for episode in final.episodes if episode.success)
    own = [final] if once or spec.initial_of else [initial, final]
    episodes, facts = sum(len(part.episodes) for part in own), mean_facts(dumped["final"])
    conditions = build_conditions(spec, history, dumped, said.seen, neighbours, stopped)
    payload = {
        "snapshot": {"path": str(where / "snapshot.json"), "sha256": snapshot_sha, "steps": steps},
        "evaluation": {"path": str(where / "evaluation.json"), "sha256": evaluation_sha, "episodes": episodes},
        "conditions": conditions.model_dump(mode="json"),
        "alarms": [asdict(alarm) for alarm in alarms],
        "play_variance": play_variance(dumped["final"]),
        "kinds": {kind: [solved[kind], played[kind]] for kind in sorted(played)} if len(played) > 1 else {},
        **({"facts": dict(facts)} if facts else {}),
    }
    return CollectedEvidence(payload, _build_measurements(values, spec.run_id, evaluation_sha))


def find_breakdown(folder: AttemptFolder, spec: AttemptSpec, read: ReadTracking | None = None) -> Alarm:
    """Return the alarm of a training that broke down, from its log alone; CollectError if that shows none."""
    tracked = _read_run(folder, spec, read or read_tracking)
    found = find_alarms(history_of(tracked, whole=False), spec.watchdog or Watchdog())
    broken = next((alarm for alarm in found if alarm.code == TRAINING_NAN), None)
    if broken is None:
        said = "the attempt says that its training broke down; its log shows nothing of it"
        raise CollectError("foreign_results", said, late=not tracked.ended)
    return broken


def measure(study_folder: Path, collected: Mapping[str, Any], metric: Metric) -> tuple[Measurement, ...]:
    """Return the measurements of a collected run, from its stored files; CollectError if one was changed."""
    stored = collected["evaluation"]
    data = read_collected(study_folder, stored)
    history = json.loads(read_collected(study_folder, collected["snapshot"]))["history"]
    try:
        evaluation = RunEvaluation.model_validate_json(data)
    except ValidationError as error:
        raise CollectError("evaluation_unreadable", f"cannot read the collected {stored['path']}: {error}") from error
    stopped = (collected.get("conditions") or {}).get("stopped_by")
    found = _compute_metrics(evaluation.model_dump(mode="json"), history, metric, stopped)
    return _build_measurements(found, evaluation.run_id, stored["sha256"])


def _find_stop_rule(spec: AttemptSpec, history: Sequence[Row], *, whole: bool) -> str | None:
    steps = spec.run.job["steps"]
    numbers = [row["step"] for row in history]
    if numbers == list(range(1, steps + 1)):
        return None
    rule = None if spec.watchdog is None else find_abort_alarm(find_alarms(history, spec.watchdog))
    if rule is None or not whole or numbers != list(range(1, len(numbers) + 1)) or len(numbers) > steps:
        said = f"expected training steps 1 to {steps} in W&B; found {len(numbers)} rows"
        raise CollectError("steps_missing", said, late=not whole)
    return rule.code


def _compute_metrics(
    stored: Mapping[str, Any], history: Sequence[Row], metric: Metric, stopped_by: str | None
) -> Mapping[str, Value]:
    run = Results(
        stored["initial"], stored["final"], stored["during"], history, other=stored["other"], stopped_by=stopped_by
    )
    try:
        return values_of(metric, run)
    except Refused as error:
        raise CollectError(NOT_MEASURABLE, str(error)) from error


def _build_measurements(found: Mapping[str, Value], run_id: str, sha256: str) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(run_id=run_id, key=key, value=each.value, n=each.n, sha256=sha256) for key, each in found.items()
    )


def _read_run(folder: AttemptFolder, spec: AttemptSpec, read: ReadTracking) -> TrackedRun:
    run, names = read(folder.path, spec.tracking_id), spec.names()
    foreign = [f"{name} {run.config.get(name)!r}" for name in names if run.config.get(name) != names[name]]
    if foreign or run.id != spec.tracking_id:
        reason = f"the W&B log is not of attempt {spec.attempt} at run {spec.run_id}: it says {', '.join(foreign)}"
        raise CollectError("foreign_results", reason)
    return run


def _read_initial(folder: AttemptFolder, spec: AttemptSpec) -> Evaluation:
    path, run = folder.evaluation("initial"), spec.run
    shared = spec.initial_episodes if spec.initial_of else None
    return _read_evaluation(path, run, 0, None if shared is None else run.task_seed, episodes=shared)


def _read_evaluation(
    path: Path, run: RunSpec, version: int, seed: int | None = None, episodes: int | None = None
) -> Evaluation:
    try:
        evaluation = Evaluation.model_validate(read_json(path))
    except ValueError as error:
        raise _unreadable(path, error) from error
    _check_evaluation(path.name, evaluation, run, version, episodes or run.metric.episodes, seed)
    return evaluation


def _check_evaluation(
    name: str, evaluation: Evaluation, run: RunSpec, version: int, episodes: int, seed: int | None
) -> None:
    found = (evaluation.environment, evaluation.split, evaluation.policy_version, evaluation.knobs)
    expected = (run.environment, run.metric.split, version, knobs_of(run.metric.evaluated(run.job)))
    if found != expected:
        raise CollectError("foreign_results", f"{name}: expected an evaluation of {expected}; found {found}")
    tasks = get_environment(run.environment).tasks(run.metric.split)
    plays = {(episode.task_id, episode.sample) for episode in evaluation.episodes}
    if foreign := {task for task, _ in plays} - {task.id for task in tasks}:
        raise CollectError("foreign_results", f"{name}: {min(foreign)!r} is no hidden task of {run.environment}")
    if (count := len(evaluation.episodes)) != episodes or len(plays) != count:
        reason = f"{name}: expected {episodes} different plays; found {len(plays)} in {count}"
        raise CollectError("evaluation_incomplete", reason)
    if seed is not None:
        chosen = rounds(tasks, episodes, seed)
        if plays != {(task.id, sample) for sample, part in enumerate(chosen) for task in part}:
            reason = f"{name}: version {version} was played on other tasks than its seed draws"
            raise CollectError("foreign_results", reason)


def _during_evaluations(
    folder: AttemptFolder, spec: AttemptSpec, *, steps: int, resumed_at: int | None
) -> list[Evaluation]:
    """Return the evaluations during a training of so many steps, after checking them as the others are checked. Of
    those before the step at which it was gone on with, each is the one that was kept; what was evaluated of the last
    policy, where a rule ended training there, is not among them: that is measured after training."""
    if not spec.evaluate_after:
        return []
    path, run, schedule = folder.evaluation("during"), spec.run, spec.run.metric.schedule
    assert schedule is not None
    evaluations = {}
    for file in (path, folder.kept):
        try:
            evaluations[file] = files.read_evaluations(file)
        except ValueError as error:
            raise _unreadable(file, error) from error
    due = files.due_versions(spec, steps)
    if missing := files.missing_versions(spec, evaluations[path], steps):
        reason = f"{path.name}: expected an evaluation of version {missing[0]}, and {len(due)} in all"
        raise CollectError("evaluation_incomplete", f"{reason}; found {len(evaluations[path])} without it")
    made = {evaluation.policy_version: evaluation for evaluation in evaluations[path]}
    kept = files.evaluations_before(evaluations[folder.kept], min(resumed_at or 0, steps))
    if any(made.get(earlier.policy_version) != earlier for earlier in kept):
        raise CollectError(EVIDENCE_CHANGED, f"{path.name} holds another evaluation than the one that was kept")
    for version in due:
        _check_evaluation(path.name, made[version], run, version, schedule.episodes, run.task_seed + version)
    return [made[version] for version in due]


def _unreadable(path: Path, error: ValueError) -> CollectError:
    reason = describe(error) if isinstance(error, ValidationError) else str(error)
    return CollectError("evaluation_unreadable", f"{path.name}: {reason}")
