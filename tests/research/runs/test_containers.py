"""An attempt whose client and evaluators are containers finishes as one of processes does, and leaves none behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from research.isolation.mode import EngineThread, Sandboxing
from research.runs.attempt import Attempt
from research.runs.files import AttemptFolder, AttemptSpec, Role
from research.runs.workers import container_spec, engine_failures, store_evaluation, tasks_of
from sandboxes import DockerSandbox, Exit, SandboxError, SandboxSpec
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image
from studies.records.runs import ENGINE_GONE, AttemptFailed
from tests.research.factories import with_run
from tests.research.runs.trials import DEADLINE_S, FOREVER, Trial, eventually

pytestmark = pytest.mark.slow

CODE = "def reward(task, messages, outcome):\n    return 1.0\n"
ROLES: tuple[Role, ...] = ("client", "evaluator-initial", "evaluator-final")


class ContainedTrial(Trial):
    def __init__(self, path: Path, found: ContainerEngine, made: Image) -> None:
        super().__init__(path)
        self.engine = found
        self.containers = DockerSandbox(path / "containers", found)
        self._image = made

    def order(self, *, steps: int, **fields: Any) -> AttemptSpec:
        sandbox = Sandboxing(kind="docker", image=self._image.id, base=self._image.base, engine=self.engine.version)
        containers = str(self.path / "containers")
        more = {"sandbox": sandbox, "containers": containers, "time_limit_s": 120.0}
        return super().order(steps=steps, **fields).model_copy(update=more)

    def end(self) -> None:
        super().end()
        self.containers.reap({})

    def running(self) -> dict[str, str]:
        wanted = {"label": f"ajet.installation={self.containers.installation}"}
        found = self.engine.client.api.containers(filters=wanted)
        return {item["Labels"]["ajet.label.role"]: item["Id"] for item in found}


@pytest.fixture
def trial(tmp_path: Path, engine: ContainerEngine, image: Image) -> Iterator[ContainedTrial]:
    trial = ContainedTrial(tmp_path, engine, image)
    yield trial
    trial.end()


def test_a_client_killed_from_outside_fails_the_attempt_and_leaves_nothing(trial: ContainedTrial) -> None:
    handle = trial.launch(trial.order(steps=FOREVER))
    eventually(lambda: trial.at("train", step=1), "training has begun")
    trial.engine.client.api.kill(trial.running()["client"], "SIGKILL")
    assert handle.wait(DEADLINE_S) == Exit("error", 1)
    outcome = trial.outcome()
    assert (outcome.code, "killed" in outcome.reason, trial.running()) == ("client_killed", True, {})


def test_a_killed_attempt_takes_its_containers_along_though_no_controller_looks(trial: ContainedTrial) -> None:
    handle = trial.launch(trial.order(steps=FOREVER))
    eventually(lambda: trial.at("train", step=1), "training has begun")
    command, image = ("python3", "-c", "import time; time.sleep(600)"), trial.order(steps=3).sandbox.image
    sleeper = SandboxSpec("other", command, trial.path, labels={"study": "s2", "role": "x"}, image=image)
    other = trial.containers.run(sleeper)
    (pid,) = trial.pids("research.runs.attempt")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: set(trial.running()) == {"x"}, "its containers end, and nothing of any other attempt")
    assert other.poll() is None
    assert handle.poll() == Exit("error", -signal.SIGKILL)
    assert trial.pids("-m") == []


async def test_an_attempt_without_its_engine_says_so(
    order: AttemptSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    outcome = await Attempt(AttemptFolder(tmp_path), order).run()
    assert (outcome.code, "install Docker" in outcome.reason) == (ENGINE_GONE, True)
    assert not (tmp_path / "server").exists()


@pytest.fixture
def order(tmp_path: Path) -> AttemptSpec:
    sandbox = Sandboxing(kind="docker", image="sha256:" + "0" * 64)
    return Trial(tmp_path).order(steps=3).model_copy(update={"sandbox": sandbox})


def files(spec: SandboxSpec) -> dict[str, str]:
    return {name: content.decode() for name, content in spec.files.items()}


def spec_of(order: AttemptSpec, role: Role) -> SandboxSpec:
    return container_spec(order, role, tasks_of(order, role), AttemptFolder(Path("/attempt")))


def test_hidden_tasks_are_in_the_evaluators_containers_alone(order: AttemptSpec) -> None:
    given = {role: {task["id"] for task in json.loads(files(spec_of(order, role))["tasks.json"])} for role in ROLES}
    assert given["evaluator-initial"] == given["evaluator-final"]
    assert given["client"]
    assert not given["client"] & given["evaluator-initial"]


@pytest.mark.parametrize("role", ROLES)
def test_a_container_gets_no_token_and_no_folder_of_the_attempt_but_its_exchange(
    order: AttemptSpec, role: Role
) -> None:
    spec = spec_of(order, role)
    assert (spec.environment, spec.ports) == ({"AJET_TOKEN": "sandbox"}, {8000: "server.sock"})
    assert spec.exchange == Path("/attempt/exchange") / role
    assert "/attempt" not in " ".join(spec.command)
    assert spec.labels == {"study": "s1", "run_id": order.run_id, "attempt": "1", "role": role}
    assert set(spec.results) == (set() if role == "client" else {"evaluation.json"})


def test_a_generated_reward_is_given_to_the_client_alone_and_trusted_by_nobody(order: AttemptSpec) -> None:
    coded = with_run(order, code=CODE)
    client, evaluator = spec_of(coded, "client"), spec_of(coded, "evaluator-final")
    assert (files(client)["reward.py"], client.command[-2:]) == (CODE, ("--reward", "/input/reward.py"))
    assert (set(files(evaluator)), "--reward" in evaluator.command) == ({"tasks.json"}, False)
    assert (client.trusted, spec_of(order, "client").trusted) == (False, True)
    assert spec_of(with_run(order, slots={"prompt": "x"}), "client").command[-2:] == (
        "--slot",
        "prompt=/input/prompt.py",
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"episodes": []}', '{"environment": 1}', "NaN", "[" * 100_000])
def test_an_evaluation_that_is_none_is_refused_and_not_put_into_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "left").write_text(text)
    with pytest.raises(AttemptFailed) as failed:
        store_evaluation(tmp_path / "left", tmp_path / "evaluation.json", during=False)
    assert (failed.value.code, len(failed.value.reason) < 1000) == ("evaluator_failed", True)
    assert not (tmp_path / "evaluation.json").exists()


def _silent() -> bool:
    raise docker.errors.DockerException("nobody")


@pytest.mark.parametrize(("answer", "code"), [(lambda: True, "container_refused"), (_silent, ENGINE_GONE)])
def test_a_refusal_is_told_from_an_engine_that_went_away(answer: Callable[[], bool], code: str) -> None:
    def refuse() -> None:
        raise SandboxError("expected an image;\nfound none")

    engine = ContainerEngine(SimpleNamespace(ping=answer), "unix://fake", version="28")  # type: ignore[arg-type]
    thread = EngineThread(partial(engine_failures, engine))
    with closing(thread), pytest.raises(AttemptFailed) as failed:
        asyncio.run(thread.do(refuse))
    assert (failed.value.code, "\n" in failed.value.reason) == (code, False)
