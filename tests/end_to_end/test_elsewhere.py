"""A study over swarm servers that run elsewhere, with homes of their own: all real, and killed in turn."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from research.installation.servers import KEYS, SwarmProcess, find_swarm
from swarm.client import SwarmClient
from swarm.client.transport import server_folder
from swarm.job import Job
from tests.end_to_end.factories import LARGE, TOPIC, ajet, check_whole, inherited, start, state_of, wait_until
from tests.furnished import furnish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Trainer:
    """Somebody's server: its home, its admin's key, and its port once it had one."""

    home: Path
    token: Path
    port: int = 0

    def start(self) -> SwarmProcess:
        given = ("swarm", "start", "--port", str(self.port), "--token-file", str(self.token))
        started = ajet(inherited(AJET_HOME=str(self.home)), *given)
        assert started.returncode == 0, started.stderr
        found = find_swarm(server_folder(self.home))
        assert found is not None
        self.port = int(found.url.rpartition(":")[2])
        return found


@pytest.fixture
def trainers(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Trainer]]:
    (token := tmp_path / "token").write_text(secrets.token_hex(32))
    token.chmod(0o600)
    made = [Trainer(tmp_path / name, token) for name in ("one", "two")]
    for trainer in made:
        furnish(trainer.home, tmp_path_factory)
    yield made
    for trainer in made:
        if (process := find_swarm(server_folder(trainer.home))) is not None:
            os.kill(process.pid, signal.SIGKILL)


def test_a_study_over_two_servers_survives_each_and_its_controller_and_verifies_from_its_export(
    environment: dict[str, str], trainers: list[Trainer], tmp_path: Path
) -> None:
    one, two = (trainer.start() for trainer in trainers)
    admin = trainers[0].token.read_text()
    with SwarmClient(two.url, admin) as theirs:
        theirs.ensure_training(Job(backend="fake", environment="arith", steps=1000))
        environment |= {"AJET_TOKEN": admin}
        on = ("--server", f"{one.url},{two.url}", "--no-prefect")
        controller = start(environment, "research", TOPIC, "--max-runs", "7", *LARGE, *on)

        wait_until(controller, environment, lambda state: any(run.active for run in state.every_run.values()))
        os.kill(one.pid, signal.SIGKILL)
        one = trainers[0].start()
        theirs.stop()
        wait_until(
            controller,
            environment,
            lambda state: any(run.active and run.active.server == two.url for run in state.runs.values()),
        )
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    del environment["AJET_TOKEN"]  # which was kept
    resumed = ajet(environment, "study", "resume", "--no-prefect", "--json")
    assert resumed.returncode == 0, resumed.stderr
    state = state_of(environment)
    assert state is not None
    tried = {attempt.code for run in state.runs.values() for attempt in run.attempts}
    assert tried <= {"ok", "server_restarted", "server_away", "server_taken"}
    check_whole(state)
    assert {attempt.server for run in state.runs.values() for attempt in run.attempts} == {one.url, two.url}
    home = Path(environment["AJET_HOME"])
    written = [path for path in home.rglob("*") if path.is_file() and admin.encode() in path.read_bytes()]
    assert written == [home / KEYS]
    for server in (one, two):
        with SwarmClient(server.url, admin) as client:
            kept = [PurePosixPath(file.path) for file in client.files("checkpoints").files]
        assert len({path.parts[1] for path in kept}) == len({path.parts[:3] for path in kept}) > 0
        assert "optimizer.safetensors" not in {path.name for path in kept}
    exported = tmp_path / "exported"
    assert ajet(environment, "study", "export", state.id, str(exported)).returncode == 0
    verified = ajet(inherited(AJET_HOME=str(tmp_path / "stranger")), "study", "verify", str(exported))
    assert verified.returncode == 0, verified.stderr
