"""A second attempt goes on from what the first one's server kept: real processes are killed, no step is lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from filelock import FileLock

from research.attempts.takeover import Beginning, beginning, take_over
from research.files import read_json, write_json
from research.results.attempt_files import AttemptFolder, AttemptOutcome, AttemptSpec
from research.results.collect import CollectError, collect
from research.results.wandb_reader import find_log, read_log
from sandboxes import Exit
from studies import AttemptState, RunState
from studies.records.design_parts import Watchdog
from swarm.job import Job, TinyModel
from swarm.server.service.backend_factory import make_backend
from swarm.server.service.core import default_store
from swarm.server.shared.directory import ServerDirectory
from swarm.server.training.metrics import make_batch
from swarm.store import open_store
from tests.research.attempts.test_attempt import DEADLINE_S, Trial, eventually, untracked

STEPS = 24
EVERY = 4
NO_METRICS = "nothing says that its server kept what it measured, as those of older versions did not"
TINY = TinyModel(hidden_size=16, layers=1, warm_start_steps=200)
KEEPS_ALL: dict[str, Any] = {"checkpoint_every": EVERY, "checkpoints_kept": 1000}


class Tries:
    """Attempts at one run, each in a folder of its own."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.trials: dict[int, Trial] = {}
        self._path = path
        first = self.trial(1).order(steps=STEPS)
        job = Job.recorded({**first.spec.job, **fields})
        spec = first.spec.model_copy(update={"job": job.model_dump(mode="json", exclude={"tracking"})})
        self.order = first.model_copy(
            update={"spec": spec, "run_id": spec.run_id, "models": str(path / "models"), "watchdog": Watchdog()}
        )
        self.run = RunState(spec.run_id, spec)

    def trial(self, number: int) -> Trial:
        return self.trials.setdefault(number, Trial(self._path / f"a{number}"))

    def folder(self, number: int) -> AttemptFolder:
        return self.trial(number).folder

    def log(self, number: int) -> str:
        path = self.folder(number).log("server")
        return path.read_text() if path.exists() else ""

    def ended(self, code: str, status: Any = "failed") -> None:
        """Say of the last attempt how it ended."""
        *before, last = self.run.attempts
        self.run = replace(self.run, attempts=(*before, replace(last, status=status, code=code, seconds=1.0)))

    def launch(self) -> AttemptSpec:
        """Begin the next attempt, as the launcher does."""
        number = len(self.run.attempts) + 1
        begins = beginning(self.run, self.folder)
        if begins.resumes is not None:
            take_over(self.folder(begins.resumes), self.folder(number))
        order = self._order(number, begins)
        attempt = AttemptState(number, f"a{number}", "2026-01-01T00:00:00+00:00", resumes=begins.resumes)
        self.run = replace(self.run, attempts=(*self.run.attempts, attempt))
        self.trial(number).launch_order(order)
        return order

    def copied(self, path: Path) -> tuple[Trial, AttemptSpec]:
        """Return a second attempt, under `path`, that goes on from a copy of what the first one left, and its order."""
        left, trial = AttemptFolder(path / "left"), Trial(path)
        shutil.copytree(self.folder(1).path, left.path)
        take_over(left, trial.folder)
        return trial, self._order(2, beginning(self.run, self.folder))

    def _order(self, number: int, begins: Beginning) -> AttemptSpec:
        return self.order.model_copy(
            update={
                "attempt": number, "resumes": begins.resumes, "initial_sha256": begins.initial_sha256,
                "during_sha256": begins.during_sha256,
            }
        )  # fmt: skip

    def kill(self, number: int, word: str) -> None:
        (pid,) = self.trial(number).pids(word)
        os.kill(pid, signal.SIGKILL)

    def over(self, number: int) -> None:
        """Wait for an attempt's end, and end what it left, as the launcher does."""
        handle = self.trial(number).sandbox.adopt("attempt")
        assert handle is not None
        assert handle.wait(DEADLINE_S) is not None
        handle.stop()

    def outcome(self, number: int) -> AttemptOutcome:
        """Wait for an attempt's end and return its outcome."""
        self.over(number)
        return self.trial(number).outcome()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Tries]]:
    made: list[Tries] = []
    yield made
    for tries in made:
        for trial in tries.trials.values():
            for handle in trial.sandbox.list():
                handle.stop(grace_s=1.0)


def tries_of(made: list[Tries], path: Path, **fields: Any) -> Tries:
    made.append(Tries(path, **fields))
    return made[-1]


def weights_after(server: Path, job: Job, models: Path, step: int) -> dict[str, str]:
    """Return the hashes of the checkpoint that the store's batches lead to when they are learned without a break."""

    async def learned() -> dict[str, str]:
        store, recovered = open_store(default_store(server), job, ServerDirectory(server).installation())
        backend = make_backend(job, models)
        await backend.start()
        try:
            for number in range(1, step + 1):
                backend.learner.update(make_batch(number, recovered.replay[number]))
            backend.learner.save(server / "uninterrupted")
        finally:
            await backend.stop()
            await store.close()
        return hashes_in(server / "uninterrupted")

    return asyncio.run(learned())


def hashes_in(checkpoint: Path) -> dict[str, str]:
    """Return the hashes of weights and optimiser; where sampling stands is no part of what was learned."""
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    return {name: files[name] for name in ("model.safetensors", "optimizer.safetensors")}


def settled_twice(server: Path) -> list[str]:
    """Return what of the store says that an episode is in two steps, or a step is not of one batch."""
    with sa.create_engine(default_store(server)).connect() as connection:
        rows = connection.execute(sa.text("select step, count(*) from episodes where step is not null group by step"))
        return [f"step {step}: {count} episodes" for step, count in rows if count != 8]


def test_a_killed_server_is_gone_on_from_and_the_weights_are_those_of_the_same_batches_without_a_break(
    tmp_path: Path, made: list[Tries]
) -> None:
    tries = tries_of(made, tmp_path, backend="local", model=TINY.model_dump(), epochs=2, **KEEPS_ALL)
    tries.launch()
    eventually(lambda: "event=step step=7/" in tries.log(1), "step 7 is learned")
    tries.kill(1, "swarm.server")
    died = tries.outcome(1)
    assert (died.status, died.code) == ("failed", "server_died")
    assert "killed by signal 9" in died.reason
    assert tries.trial(1).pids("-m") == [], "nothing is left running"
    tries.ended("server_died")
    before = read_log(find_log(tries.folder(1).path, tries.order.tracking_id))

    order = tries.launch()
    outcome = tries.outcome(2)
    assert (outcome.status, outcome.code, order.resumes) == ("finished", "ok", 1), outcome.reason
    assert not tries.folder(1).server.exists()

    found = re.search(r"event=recovered checkpoint=(\d+) step=(\d+)", tries.log(2))
    assert found is not None
    checkpoint, step = map(int, found.groups())
    assert checkpoint >= EVERY
    assert outcome.resumed_at == step >= 7
    learned = [int(number) for number in re.findall(r"event=step step=(\d+)/", tries.log(2))]
    assert learned == list(range(checkpoint + 1, STEPS + 1)), "what the checkpoint holds is not learned again"
    assert settled_twice(tries.folder(2).server) == []

    evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
    assert evidence.snapshot["steps"] == STEPS
    assert evidence.conditions.checkpoint == "last"
    history = json.loads((tmp_path / "study" / evidence.snapshot["path"]).read_text())["history"]
    rows = {row["step"]: row["metrics"] for row in history}
    for number, logged in before.history.items():
        if number <= checkpoint:
            assert rows[number] == logged, "every number as it was measured"
        else:
            assert rows[number]["actor/grad_norm"] == logged["actor/grad_norm"]
            assert rows[number]["timing_s/gen"] == logged["timing_s/gen"]
    job, models = order.job, Path(order.models)
    checkpoints = tries.folder(2).server / "checkpoints" / job.digest()[:12]
    reached = hashes_in(checkpoints / f"step-{STEPS:06d}")
    assert reached["model.safetensors"] != hashes_in(checkpoints / f"step-{EVERY:06d}")["model.safetensors"]
    assert reached == weights_after(tries.folder(2).server, job, models, STEPS)


def test_an_attempt_killed_in_its_last_evaluation_does_not_train_again(tmp_path: Path, made: list[Tries]) -> None:
    """Nor does one go on whose evaluation before training was changed."""
    tries = tries_of(made, tmp_path, steps=6)
    tries.launch()
    eventually(lambda: bool(tries.trial(1).at("final") and tries.trial(1).pids("evaluate")), "it is evaluated")
    tries.kill(1, "evaluate")
    assert tries.outcome(1).code == "evaluator_died"
    assert tries.trial(1).pids("-m") == [], "nothing is left running"
    tries.ended("evaluator_died")
    changed_and_gone_on_with(tries, tmp_path)
    order = tries.launch()
    outcome = tries.outcome(2)
    assert (outcome.status, outcome.resumed_at) == ("finished", 6), outcome.reason
    assert "event=step " not in tries.log(2)
    assert {"initial", "client_start"} & set(outcome.stages) == set()
    first, second = (tries.folder(number).evaluation("initial").read_bytes() for number in (1, 2))
    assert first == second
    evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
    assert evidence.snapshot["steps"] == 6


def changed_and_gone_on_with(tries: Tries, path: Path) -> None:
    """Assert that an attempt does not go on with a copy of what the first one left, in which an outcome differs."""
    trial, order = tries.copied(path / "changed")
    initial = trial.folder.evaluation("initial")
    initial.write_text(initial.read_text().replace("true", "false"))
    assert asyncio.run(untracked(trial, order).run()).code == "evaluation_unreadable"
    with pytest.raises(CollectError, match="was changed"):
        collect(trial.folder, order, path / "refused")


def test_an_attempt_without_a_checkpoint_is_gone_on_from_by_its_recorded_batches(
    tmp_path: Path, made: list[Tries]
) -> None:
    tries = tries_of(made, tmp_path, checkpoint_every=1000)
    tries.launch()
    eventually(lambda: "event=step step=3/" in tries.log(1), "step 3 is learned")
    first = tries.trial(1)
    tries.kill(1, "research.attempts.attempt")
    handle = first.sandbox.adopt("attempt")
    assert handle is not None
    assert handle.wait(DEADLINE_S) == Exit("error", -signal.SIGKILL)
    eventually(lambda: first.pids("-m") == [], "server and client are gone with it")
    assert not first.folder.outcome.exists()
    handle.stop()
    tries.ended("attempt_died")
    order = tries.launch()
    outcome = tries.outcome(2)
    assert outcome.status == "finished", outcome.reason
    assert "event=recovered checkpoint=0 step=" in tries.log(2)
    assert (outcome.resumed_at or 0) >= 3
    assert collect(tries.folder(2), order, tmp_path / "study", said=outcome).snapshot["steps"] == STEPS


def kept(tries: Tries, number: int, evaluation: str = "whole") -> None:
    """Leave in an attempt's folder what a server keeps; there it is only moved."""
    folder = tries.folder(number)
    folder.server.mkdir(parents=True)
    (folder.server / "store.sqlite3").write_text(f"of attempt {number}")
    write_json(folder.spec, tries.order.model_dump(mode="json"))
    whole = {"environment": "guess", "split": "hidden", "policy_version": 0, "episodes": []}
    folder.evaluation("initial").write_text(json.dumps(whole) if evaluation == "whole" else evaluation)


def began(tries: Tries, number: int, resumes: int | None = None) -> None:
    attempt = AttemptState(number, f"a{number}", "2026-01-01T00:00:00+00:00", resumes=resumes)
    tries.run = replace(tries.run, attempts=(*tries.run.attempts, attempt))


def test_a_first_attempt_begins_from_nothing(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    assert beginning(tries.run, tries.folder) == Beginning()


def test_taking_over_again_changes_nothing(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    began(tries, 1)
    kept(tries, 1)
    tries.ended("lost", "lost")
    assert beginning(tries.run, tries.folder).resumes == 1
    for _ in range(2):
        take_over(tries.folder(1), tries.folder(2))
        assert not tries.folder(1).server.exists()
        assert (tries.folder(2).server / "store.sqlite3").read_text() == "of attempt 1"
        assert read_json(tries.folder(2).evaluation("initial")) == read_json(tries.folder(1).evaluation("initial"))


@pytest.mark.parametrize("spec", ["older", "damaged", "gone"])
def test_a_server_that_may_have_kept_no_metrics_is_not_gone_on_from(tmp_path: Path, spec: str) -> None:
    """The next attempt's log would lack the steps that an earlier version's server had made."""
    tries = Tries(tmp_path)
    began(tries, 1)
    kept(tries, 1)
    tries.ended("lost", "lost")
    path = tries.folder(1).spec
    assert beginning(tries.run, tries.folder).resumes == 1
    if spec == "older":  # as it was written before attempts went on from others
        written = read_json(path)
        write_json(path, {name: value for name, value in written.items() if name not in ("resumes", "initial_sha256")})
    elif spec == "damaged":
        path.write_text("{")
    else:
        path.unlink()
    begins = beginning(tries.run, tries.folder)
    assert (begins.resumes, begins.why) == (None, NO_METRICS)


def test_what_an_attempt_that_never_began_was_to_go_on_from_is_not_lost(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    began(tries, 1)
    kept(tries, 1)
    tries.ended("stopped", "stopped")
    began(tries, 2, resumes=1)
    tries.ended("stopped", "stopped")
    assert beginning(tries.run, tries.folder).resumes == 1


def test_a_folder_that_a_server_holds_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.attempts.takeover.LETS_GO_S", 0.0)
    tries = Tries(tmp_path)
    began(tries, 1)
    kept(tries, 1)
    tries.ended("server_died")
    with FileLock(tries.folder(1).server / "server.lock"):
        begins = beginning(tries.run, tries.folder)
    assert (begins.resumes, begins.why) == (None, "a server still holds its folder")


@pytest.mark.parametrize("evaluation", ["", "{}", '{"environment": "guess"}'])
def test_an_attempt_that_did_not_finish_its_first_evaluation_left_nothing_to_go_on_from(
    tmp_path: Path, evaluation: str
) -> None:
    tries = Tries(tmp_path)
    began(tries, 1)
    kept(tries, 1, evaluation)
    tries.ended("lost", "lost")
    assert beginning(tries.run, tries.folder).resumes is None
