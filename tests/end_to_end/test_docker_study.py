"""A whole study whose clients and evaluators are containers, its attempt and its controller killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from research.files import read_json
from research.installation.home import Home
from research.isolation.client_image import ensure_client_image
from research.results.attempt_files import AttemptFolder, AttemptOutcome
from sandboxes import DockerSandbox, ProcessSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from tests.end_to_end.test_study import (
    DEADLINE_S,
    LARGE,
    TOPIC,
    ajet,
    check_whole,
    environment,  # noqa: F401
    start,
    state_of,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Containers:
    """What the engine holds of one installation."""

    def __init__(self, found: ContainerEngine, home: Home) -> None:
        self._engine = found
        self._installation = DockerSandbox(home.containers, found).installation

    def names(self, *labels: str) -> set[str]:
        """Return the containers with these labels, running or not."""
        wanted = {"label": [f"ajet.installation={self._installation}", *(f"ajet.label.{label}" for label in labels)]}
        return {item["Names"][0] for item in self._engine.client.api.containers(all=True, filters=wanted)}


def eventually(controller: subprocess.Popen[str] | None, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert controller is None or controller.poll() is None, controller.communicate()
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def attempt_process(folder: AttemptFolder) -> psutil.Process:
    words = ["research.attempts.attempt", str(folder.path)]
    (found,) = (
        process for process in psutil.process_iter(["cmdline"]) if (process.info["cmdline"] or [])[-2:] == words
    )
    return found


@pytest.fixture
def home(environment: dict[str, str], engine: ContainerEngine, image: Image) -> Iterator[Home]:  # noqa: F811
    """The home of the study, whose last image is the tests'; whatever a failed test left running is ended."""
    home = Home.locate(environment).prepare()
    ensure_client_image(engine, home, lambda line: None, base=image.base)
    yield home
    for handle in ProcessSandbox(home.sandboxes).list():
        handle.stop(grace_s=1.0)
    DockerSandbox(home.containers, engine).reap({})


def test_a_study_in_containers_survives_its_attempt_and_its_controller_and_leaves_no_container(
    environment: dict[str, str],  # noqa: F811
    home: Home,
    engine: ContainerEngine,
    image: Image,
) -> None:
    held = Containers(engine, home)
    controller = start(environment, "research", TOPIC, "--max-runs", "6", *LARGE, "--sandbox", "docker", "--no-prefect")
    eventually(controller, lambda: bool(held.names("attempt=1")), "an attempt has a container")
    state = state_of(environment)
    assert state is not None
    assert state.settings["sandbox"]["image"] == image.id
    run = next(run for run in state.runs.values() if held.names(f"run_id={run.run_id}"))

    folder = AttemptFolder(home.attempt(state.id, run.run_id, 1))
    attempt_process(folder).send_signal(signal.SIGKILL)
    wait_until(controller, environment, lambda state: state.runs[run.run_id].attempts[0].status == "failed")
    assert held.names(f"run_id={run.run_id}", "attempt=1") == set(), "the event came after the containers' end"

    eventually(controller, lambda: bool(held.names(f"run_id={run.run_id}", "attempt=2")), "it is tried again")
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()

    gone = {**environment, "DOCKER_HOST": "unix:///nobody/listens/here.sock"}
    refused = ajet(gone, "study", "resume", "--no-prefect")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "install Docker" in refused.stderr

    resumed = ajet(environment, "study", "resume", "--no-prefect", "--json")
    assert resumed.returncode == 0, resumed.stderr
    final = check_whole(state_of(environment))
    assert held.names() == set()
    assert all(attempt.sandbox["image"] == image.id for run in final.runs.values() for attempt in run.attempts)
    finished = [AttemptFolder(home.attempt(final.id, r.run_id, r.attempts[-1].number)) for r in final.runs.values()]
    outcomes = [AttemptOutcome.model_validate(read_json(folder.outcome)) for folder in finished]
    assert all(outcome.refused == {} and set(outcome.evaluations) == {"initial", "final"} for outcome in outcomes)
    report = Path(json.loads(resumed.stdout)["report"]["markdown"]).read_text()
    assert f"in containers of image {image.id}" in report
