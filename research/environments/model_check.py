"""Lets a server play an environment with a model and learn two steps: what that costs.

Search tasks are played, never hidden ones: what a user sees here, and changes the environment after, must not be what
studies are measured on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from research.environments.catalog import MeasuredEnvironment, conditions_of, model_key
from research.environments.install import python_path_variables
from research.errors import NotReady
from research.files import read_json, write_bytes
from research.installation.home import Home
from research.installation.servers import Binding, start_swarm, stop_swarm
from research.installation.tiny_model import Note, prepare_model
from research.own_process import thread_variables
from sandboxes.spec import last_lines
from swarm.client import SwarmClient
from swarm.environments.base import Task
from swarm.environments.custom import to_json
from swarm.job import Job
from swarm.wire import EpisodeRecord, Status

GROUP: Final = 8
STEPS: Final = 2
"""Of training; the second one is not waited for by a process that starts."""
TRAINED: Final = 32
"""Episodes of a training step."""
RECORDS: Final = 32
"""Episodes whose tokens are looked at."""
BOOT_S: Final = 600.0
FAKE: Final = "fake"
"""The backend that has no model, and the key of what was measured with it."""
_MODULE: Final = "swarm.environments"
_LOOK_S: Final = 0.05
_STATUS_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """What is tried: how much of which environment, with which job."""

    job: Job
    groups: int
    """Search tasks that are played `GROUP` times each."""
    seconds: float
    """For the evaluation, and again for the training."""
    runs_at_once: int = 1
    """Runs among which the machine's cores are shared, as those of a study would be."""


def job_of(base: Job, fields: Mapping[str, Any]) -> Job:
    """Return `base` with few and small steps, unless fields say otherwise; raises ValidationError."""
    small = {"steps": STEPS, "episodes_per_step": TRAINED, "group_size": GROUP, "lr_warmup_steps": 0}
    small["minibatches"] = min(base.minibatches, TRAINED)
    return Job.model_validate({**base.model_dump(mode="json"), **small, **fields})


def try_model(
    trial: ModelTrial, tasks: Sequence[Task], home: Home, packages: Sequence[Path], note: Note
) -> MeasuredEnvironment:
    """Play `tasks` and learn with the trial's model; return what was measured. Raises NotReady, or ModelFailed."""
    job = trial.job
    prepare_model(job, home.models, note)
    with tempfile.TemporaryDirectory(prefix="check-", dir=home.path, ignore_cleanup_errors=True) as scratch:
        note("starting a swarm server with the model")
        folder, began, variables = Path(scratch), time.monotonic(), thread_variables(trial.runs_at_once)
        place, binding = folder / "server", Binding(backend=job.backend)
        server = start_swarm(place, models=home.models, port=0, idle=True, variables=variables, binding=binding)
        try:
            with SwarmClient(server.url, server.admin_token) as client:
                client.ensure_training(job, timeout_s=BOOT_S)
                startup_s = time.monotonic() - began
                common = (
                    "--server", server.url, "--environment", job.environment, "--environments",
                    str(home.environments), "--concurrency", str(job.max_concurrency),
                )  # fmt: skip
                variables = {**os.environ, **python_path_variables(packages), "AJET_TOKEN": server.client_token}
                chosen, out, plays = folder / "tasks.json", folder / "evaluation.json", len(tasks) * GROUP
                write_bytes(chosen, to_json(tasks).encode(), durable=False)
                note(f"playing {plays} episodes of search tasks")
                wanted = ("--tasks", str(chosen), "--episodes", str(plays), "--split", "search", "--out", str(out))
                seconds = _play(("evaluate", *common, *wanted), variables, trial, client, folder)
                episodes = (read_json(out) or {})["episodes"]
                ended = [summary for summary in client.episodes(RECORDS).episodes if summary.reward is not None]
                records = [client.episode(summary.id) for summary in ended]
                note(f"training {job.steps} steps")
                _play(("play", *common), variables, trial, client, folder)
                status = client.status(within_s=_STATUS_S)
        finally:
            stop_swarm(server)
    return _build_measurement(trial, startup_s, seconds, episodes, records, status)


def _play(
    arguments: Sequence[str], variables: Mapping[str, str], trial: ModelTrial, client: SwarmClient, folder: Path
) -> float:
    """Run a process of the environment; return the seconds from its first episode on. Raises NotReady."""
    name = trial.job.environment
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *arguments], cwd=folder, env=variables, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        started, first = time.monotonic(), None
        try:
            while process.poll() is None:
                if first is None and client.status(within_s=_STATUS_S).open_episodes > 0:
                    first = time.monotonic()
                if time.monotonic() - started > trial.seconds:
                    raise NotReady(
                        f"expected the plays of {name} with the model to end within {trial.seconds:g} s; they did not; "
                        "ask for fewer: --groups"
                    )
                time.sleep(_LOOK_S)
            seconds = time.monotonic() - (started if first is None else first)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        if process.returncode:
            raise NotReady(
                f"expected {name} to be played with the model; the process that plays ended with {process.returncode}: "
                f"{last_lines(log.read(), 2, 600) or 'it said nothing'}"
            )
    return seconds


def _build_measurement(
    trial: ModelTrial,
    startup_s: float,
    seconds: float,
    episodes: Sequence[Mapping[str, Any]],
    records: Sequence[EpisodeRecord],
    status: Status,
) -> MeasuredEnvironment:
    """Return what was measured by `episodes`, as the evaluator's file has them, their `seconds` and some `records`."""
    job = trial.job
    groups: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        groups[episode["task_id"]].append(episode["reward"])
    spans = [call for record in records for call in record.record]
    cut = [call.truncated for call in spans if call.truncated is not None]
    plain = Job(environment=job.environment, model=job.model).model_dump(mode="json")
    held = {name: value for name, value in job.model_dump(mode="json").items() if value != plain[name]}
    return MeasuredEnvironment(
        environment=job.environment, model=FAKE if job.backend == FAKE else model_key(job.model),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"), job={**held, **conditions_of(job)},
        calls_per_episode=fmean(record.calls for record in records) if records else None,
        prompt_tokens=sum(len(call.context.ids) for call in spans) / len(records) if records else None,
        sampled_tokens=fmean(record.tokens for record in records) if records else None,
        cut_short=fmean(cut) if cut else None, seconds_per_episode=seconds / len(episodes),
        concurrency=job.max_concurrency, runs_at_once=trial.runs_at_once,
        seconds_per_trained_episode=status.metrics["timing_s/step"] / job.episodes_per_step, startup_s=startup_s,
        base_success=fmean(bool(episode["success"]) for episode in episodes), base_success_n=len(episodes),
        equal_groups=fmean(max(rewards) == min(rewards) for rewards in groups.values()), equal_groups_n=len(groups),
        group_size=GROUP,
    )  # fmt: skip
