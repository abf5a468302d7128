"""One attempt at a run, with a real server, client, evaluator and W&B log: it finishes, or says what failed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from research.attempts.attempt import Attempt, main
from research.attempts.monitor import TrainingMonitor
from research.attempts.processes import ManagedProcess, ProcessGroup
from research.attempts.workers import TRANSCRIPTS
from research.errors import NotIsolated
from research.files import read_json, write_json
from research.installation.model_folder import model_folder
from research.isolation.mode import ENGINE_VARIABLES
from research.results.attempt_files import AttemptFolder, AttemptOutcome, AttemptProgress, AttemptSpec, Role
from research.results.collect import breakdown, collect
from research.results.failure_codes import MODEL_CHANGED, TRAINING_NAN, AttemptFailed
from sandboxes import Exit, Handle, ProcessSandbox, SandboxSpec
from studies.records.design import Metric, RunSpec
from studies.records.run_data import Conditions
from swarm.job import Job
from swarm.wire import ServerState, Status
from tests.research.model_folders import model_at

DEADLINE_S = 300.0
ROOT = Path(__file__).parents[3]
EPISODES = 24


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to pass in time: {what}"
        time.sleep(0.02)


class Trial:
    """An attempt in a sandbox of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = AttemptFolder(path / "attempt")
        self.sandbox = ProcessSandbox(path / "sandboxes")

    def order(self, *, steps: int) -> AttemptSpec:
        job = Job(steps=steps, backend="fake", episodes_per_step=8, group_size=4, seed=3)
        spec = RunSpec(
            study="s1",
            design_hash="d" * 64,
            arm="group_size=4",
            seed=3,
            environment="guess",
            job=job.model_dump(mode="json", exclude={"tracking"}),
            metric=Metric(meaning="share of hidden tasks solved", episodes=EPISODES),
        )
        return AttemptSpec(study="s1", run_id=spec.run_id, attempt=1, spec=spec, models=str(self.path / "models"))

    def launch(self, *, steps: int) -> Handle:
        return self.launch_order(self.order(steps=steps))

    def launch_order(self, order: AttemptSpec) -> Handle:
        write_json(self.folder.spec, order.model_dump(mode="json"))
        command = (sys.executable, "-m", "research.attempts.attempt", str(self.folder.path))
        spec = SandboxSpec("attempt", command, self.folder.path, self.variables(), time_limit_s=None, trusted=True)
        return self.sandbox.run(dataclasses.replace(spec, after_kill=self.after_kill()))

    def variables(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ENGINE_VARIABLES if name in os.environ}

    def after_kill(self) -> tuple[str, ...]:
        return ()

    def progress(self) -> AttemptProgress | None:
        value = read_json(self.folder.progress)
        return None if value is None else AttemptProgress.model_validate(value)

    def outcome(self) -> AttemptOutcome:
        return AttemptOutcome.model_validate(read_json(self.folder.outcome))

    def at(self, stage: str, step: int = 0) -> bool:
        now = self.progress()
        return now is not None and now.stage == stage and now.step >= step

    def pids(self, word: str) -> list[int]:
        """Return the attempt's living processes whose command line holds `word` and the attempt's place."""
        started = read_json(self.path / "sandboxes" / "attempt" / "started.json")
        assert started is not None
        session = int(started["shim_pid"])
        return [p.pid for p in psutil.process_iter() if _of_session(p, session) and word in _command(p)]


def _of_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path)
    yield trial
    for handle in trial.sandbox.list():
        handle.stop(grace_s=1.0)


def test_an_attempt_finishes_and_is_collected_with_its_results_and_its_conditions(trial: Trial, tmp_path: Path) -> None:
    handle, order = trial.launch(steps=3), trial.order(steps=3)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs()
    outcome = trial.outcome()
    assert (outcome.status, outcome.code) == ("finished", "ok")
    assert set(outcome.stages) == {"boot", "initial", "train", "final", "stop"}
    assert len(outcome.files) == 3
    progress = trial.progress()
    assert progress is not None
    assert progress.hidden_success is not None
    assert trial.pids("-m") == []
    evidence = collect(trial.folder, order, tmp_path / "study", said=outcome, neighbours=1)
    assert evidence.snapshot["steps"] == 3
    assert {measurement.n for measurement in evidence.measurements} == {EPISODES}
    final = next(m for m in evidence.measurements if m.key == "hidden/success")
    assert final.value == progress.hidden_success
    collected = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    before, after = ([play["task_id"] for play in collected[part]["transcripts"]] for part in ("initial", "final"))
    assert before == after
    assert len(before) == TRANSCRIPTS
    assert evidence.alarms == ()
    assert "conditions" in evidence.payload()
    observed(evidence.conditions)
    unsaid = collect(trial.folder, order, tmp_path / "unsaid")
    assert unsaid.measurements == evidence.measurements, "whether or not the attempt's outcome is there"


def observed(conditions: Conditions) -> None:
    """Assert that the conditions are those of an attempt of three steps with the fake backend."""
    assert (conditions.steps, conditions.episodes, conditions.evaluation_episodes) == (3, 24, EPISODES)
    assert conditions.tokens is not None
    assert conditions.tokens > 0
    assert conditions.wall_s is not None
    assert 0 < conditions.wall_s < DEADLINE_S
    assert conditions.decoding == "temperature 1, at most 16 tokens a call and 256 in all"
    assert (conditions.checkpoint, conditions.overlap, conditions.judge_errors) == ("last", 0, 0)
    assert (conditions.image, conditions.neighbours, conditions.stopped_by) == ("process", 1, None)
    assert conditions.hardware is not None
    unknown = {name for name, value in conditions if value is None}
    fake = {"initial_policy", "template", "optimiser_steps", "probs_diff"}  # it loads and compares nothing
    assert unknown == {*fake, "stopped_by", "stillness"}


FOREVER = 100_000


def untracked(trial: Trial, order: AttemptSpec) -> Attempt:
    """Return an attempt for this process that has no tracker: where it is looked at how it ends, nobody reads a log."""
    attempt = Attempt(trial.folder, order)
    attempt._job = order.job
    return attempt


def workers_and_servers() -> list[psutil.Process]:
    """Return what attempts in this process have started and not ended."""
    return [process for process in psutil.Process().children(recursive=True) if "-m" in _command(process)]


async def test_a_client_killed_during_training_fails_the_attempt_by_its_name(trial: Trial) -> None:
    running = asyncio.create_task(untracked(trial, trial.order(steps=FOREVER)).run())
    await asyncio.to_thread(eventually, lambda: trial.at("train", step=1), "training has begun")
    (client,) = (process for process in workers_and_servers() if "play" in process.cmdline())
    client.kill()
    outcome = await running
    assert (outcome.status, outcome.code) == ("failed", "client_died")
    assert "killed by signal 9" in outcome.reason
    assert workers_and_servers() == [], "nothing is left running"


def test_a_server_that_cannot_start_is_a_failed_boot_with_its_last_words(trial: Trial) -> None:
    trial.folder.server.mkdir(parents=True)
    with FileLock(trial.folder.server / "server.lock"):
        outcome = asyncio.run(Attempt(trial.folder, trial.order(steps=3)).run())
    assert outcome.code == "boot_failed"
    assert "exit code 2" in outcome.reason
    assert "another server runs" in outcome.reason


def test_stopping_an_attempt_ends_all_its_processes_and_leaves_no_outcome(trial: Trial) -> None:
    handle = trial.launch(steps=FOREVER)
    eventually(lambda: trial.at("train", step=1), "training has begun")
    assert len(trial.pids("-m")) == 3, "attempt, server, client"
    assert handle.stop().reason == "stopped"
    assert trial.pids("-m") == []
    assert not trial.folder.outcome.exists()


def test_an_order_that_is_none_is_refused_in_one_line(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(trial.folder.spec, {"study": "s1"})
    monkeypatch.setattr(sys, "argv", ["attempt", str(trial.folder.path)])
    assert main() == 2
    assert "expected the spec of an attempt" in capsys.readouterr().err
    assert not trial.folder.outcome.exists()


def with_server(monkeypatch: pytest.MonkeyPatch, module_of_server: str) -> None:
    """Give attempts of this process a server of another module."""
    start = ProcessGroup.start

    async def started(
        processes: ProcessGroup, name: str, module: str, *arguments: str, log: Path, directory: Path | None = None,
        **environment: str,
    ) -> ManagedProcess:  # fmt: skip
        if module == "swarm.server":
            environment |= {"PYTHONPATH": str(ROOT)}
            module = module_of_server
        return await start(processes, name, module, *arguments, log=log, directory=directory, **environment)

    monkeypatch.setattr(ProcessGroup, "start", started)


def test_a_training_that_breaks_down_is_told_as_such_though_its_client_dies_of_it_unseen_by_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(self: Attempt, status: Status) -> None:
        """Read a log for longer than a client takes to die."""
        if status.step:
            await asyncio.Event().wait()

    with_server(monkeypatch, "tests.research.breaking_server")
    monkeypatch.setattr(Attempt, "_take", busy)
    trial = Trial(tmp_path)
    order = trial.order(steps=FOREVER)
    outcome = asyncio.run(Attempt(trial.folder, order).run())
    assert (outcome.status, outcome.code) == ("failed", TRAINING_NAN), outcome.reason
    alarm = breakdown(trial.folder, order)
    assert (alarm.code, alarm.step, alarm.effect) == (TRAINING_NAN, 2, "worst")


class Learning:
    """A server that is in an update until it was asked about it three times."""

    def __init__(self) -> None:
        self.asked = 0

    async def status(self) -> Status:
        self.asked += 1
        return Status(state=ServerState.ROLLING, steps=3, updating=self.asked < 3)

    async def ensure_training(self, job: Job, *, timeout_s: float) -> None:
        """Begin."""


class Untimely(Exception):
    """The last evaluation began; the text says whether the server was in an update."""


class Playing:
    """Workers of which the client never ends by itself."""

    failure = "died"

    def __init__(self, folder: AttemptFolder, server: Learning) -> None:
        self._folder = folder
        self._server = server
        self._stopped = asyncio.Event()
        self._role = ""

    async def start(self, role: Role) -> Playing:
        self._role = role
        if role == "evaluator-final":
            raise Untimely("in an update" if self._server.asked < 3 else "after it")
        if role == "evaluator-initial":
            write_json(self._folder.evaluation("initial"), {"episodes": [{"success": True}]})
        return self

    async def ended(self) -> int:
        if self._role == "client":
            await self._stopped.wait()
        return 0

    async def stop(self) -> None:
        self._stopped.set()

    def last_words(self) -> str:
        return ""


def test_a_training_that_a_rule_stops_in_an_update_is_evaluated_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(self: TrainingMonitor) -> None:
        """A rule holds."""

    monkeypatch.setattr("research.attempts.attempt.POLL_S", 0.0)
    monkeypatch.setattr(TrainingMonitor, "stops", at_once)
    trial, server = Trial(tmp_path), Learning()
    attempt = Attempt(trial.folder, trial.order(steps=3))
    with pytest.raises(Untimely, match="after it"):
        asyncio.run(attempt._work(Playing(trial.folder, server), server))  # type: ignore[arg-type]


class Leaving(Playing):
    """Workers of which the client ends well at once."""

    async def ended(self) -> int:
        return 0


def test_a_client_that_ends_well_before_the_job_is_done_fails_the_attempt(tmp_path: Path) -> None:
    trial, server = Trial(tmp_path), Learning()
    attempt = Attempt(trial.folder, trial.order(steps=3))
    with pytest.raises(AttemptFailed) as failed:
        asyncio.run(attempt._work(Leaving(trial.folder, server), server))  # type: ignore[arg-type]
    assert failed.value.code == "client_stopped"
    assert "ended at step 0 of 3" in failed.value.reason


def test_an_attempt_at_a_run_with_code_starts_nothing_without_containers(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    order = trial.order(steps=3)
    coded = order.model_copy(update={"spec": order.spec.model_copy(update={"code": "def reward(): ..."})})
    with pytest.raises(NotIsolated):
        asyncio.run(Attempt(trial.folder, coded).run())
    assert not trial.folder.log("server").exists()


def test_an_attempt_trains_no_model_that_changed_since_it_was_named(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    model = model_folder(str(model_at(tmp_path / "model")))
    order = trial.order(steps=1)
    job = {**order.spec.job, "model": model.model_dump(mode="json")}
    model_at(tmp_path / "model", b"others")
    changed = order.model_copy(update={"spec": order.spec.model_copy(update={"job": job})})
    outcome = asyncio.run(Attempt(trial.folder, changed).run())
    assert (outcome.status, outcome.code) == ("failed", MODEL_CHANGED)
    assert "found it changed" in outcome.reason
    assert not trial.folder.server.exists()
