"""`ajet client run` as real processes and in containers: killed, started again, reloaded at a save, interrupted."""

from __future__ import annotations

import http.server
import json
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.launch import INSTALLATION
from swarm.client import SwarmClient
from swarm.client.async_client import NamedTask
from tests.research.cli.clients.conftest import Client, Load, make_agent, running
from tests.research.cli.conftest import Ajet

pytestmark = pytest.mark.slow

SLOW = """
import asyncio
async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    await asyncio.sleep(SECONDS)
    return WORTH
"""
OVER = {"consumed", "in_step", "ended", "aborted", "fenced", "dropped"}
PLAYED = ("consumed", "in_step", "ended")


@pytest.fixture(params=["process", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        request.getfixturevalue("contained")
    return str(request.param)


def slow_agent(folder: Path, worth: str = "0.5", seconds: float = 0.2) -> str:
    return make_agent(folder, SLOW.replace("SECONDS", str(seconds)).replace("WORTH", worth))


def player(client: Client) -> psutil.Process:
    children = psutil.Process(client.process.pid).children()
    return next(child for child in children if "swarm.environments" in child.cmdline())


def played(control: SwarmClient) -> int:
    return sum(one.state in PLAYED for one in control.episodes(1000).episodes)


def codes(control: SwarmClient, *states: str) -> set[str | None]:
    return {one.code for one in control.episodes(2000).episodes if not states or one.state in states}


def containers_of(engine: ContainerEngine, home: Path) -> list[Any]:
    own = home / "containers" / ".installation"
    if not own.exists():
        return []
    ours = {"label": f"{INSTALLATION}={json.loads(own.read_text())['id']}"}
    return list(engine.client.containers.list(all=True, filters=ours, ignore_removed=True))


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [("process", ["it was killed by signal 9"] * 2), ("docker", ["it was killed", "its container is gone"])],
)
def test_a_client_that_is_killed_is_started_again_and_goes_on_at_once(
    home: Path, load: Load, control: SwarmClient, tmp_path: Path, request: pytest.FixtureRequest, kind: str,
    reasons: list[str],
) -> None:  # fmt: skip
    engine = request.getfixturevalue("engine") if kind == "docker" else None
    if engine is not None:
        request.getfixturevalue("contained")
    load(steps=10, lease_ttl_s=3600.0, drain_timeout_s=3600.0)
    options = ("run", slow_agent(tmp_path), "--restart", "--sandbox", kind, "--concurrency", "4", "--json")
    with running(home, *options) as client:
        for number in (1, 2):
            enough = played(control) + 4  # what ended before it was started again is nothing of its own
            client.until(lambda enough=enough: played(control) >= enough)
            if engine is None:
                player(client).kill()
            else:
                (victim,) = containers_of(engine, home)
                victim.kill() if number == 1 else victim.remove(force=True)
            client.until_told("ajet: restart ", number)
        found = json.loads(client.ended(0))
    assert found["sandbox"] == kind
    assert [restart["reason"] for restart in found["restarts"]] == reasons
    assert all(restart["finished"] >= 1 for restart in found["restarts"])
    assert found["job"] == {"step": 10, "steps": 10}
    episodes = control.episodes(1000).episodes
    assert {one.state for one in episodes} <= OVER
    assert {one.reason for one in episodes if one.state == "fenced"} <= {"owner_died"}
    assert sum(one.state in ("consumed", "in_step") for one in episodes) == 40  # each is accounted for once
    assert list((home / "clients").glob("*")) == []
    assert engine is None or containers_of(engine, home) == []


DYING = """
import os, pathlib, signal
plays = 0
async def agent(episode):
    global plays
    plays += 1
    died = pathlib.Path(__file__).parent.joinpath("died")
    if plays == 3 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    await episode.chat([{"role": "user", "content": "hi"}])
    return 0.5, True
"""


def test_episodes_of_an_evaluator_that_died_count(home: Path, load: Load, control: SwarmClient, tmp_path: Path) -> None:
    load(steps=1, eval_every=1, evaluation_episodes=4)
    played = ("run", make_agent(tmp_path, DYING), "--evaluations", "--restart", "--concurrency", "1")
    with running(home, *played, "--sandbox", "process", "--json") as client:
        for task in ("a", "a", "b", "b"):
            episode = control.begin(NamedTask(task), wait_s=10)
            episode.chat([{"role": "user", "content": "hi"}])
            episode.end(0.5)
        found = json.loads(client.ended(0))
    assert [restart["finished"] for restart in found["restarts"]] == [2]
    assert control.status().finished


def test_saved_code_plays_in_place_of_the_last(home: Path, load: Load, control: SwarmClient, tmp_path: Path) -> None:
    load(steps=10_000)
    agent = slow_agent(tmp_path, worth="0.25")
    with running(home, "run", agent, "--reload", "--sandbox", "process", "--concurrency", "4") as client:
        client.until(lambda: played(control) >= 4)
        (old,) = codes(control)
        slow_agent(tmp_path, worth="0.75")
        client.until(lambda: codes(control, *PLAYED) - {old})
        episodes = control.episodes(2000).episodes  # the newest first
        switched = 1 + max(place for place, one in enumerate(episodes) if one.code != old)
        assert all(one.code != old for one in episodes[:switched])
        assert {one.reason for one in episodes[switched:] if one.state == "fenced"} == {"code_changed"}
        assert not [one for one in episodes[switched:] if one.state == "open"]
        assert {one.reward for one in episodes if one.code != old and one.reward is not None} == {0.75}
        assert control.status().step >= 1
    assert client.process.returncode == 130


HANGING = """
import asyncio
import os

async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    print("hanging in", os.getpid(), flush=True)
    await asyncio.sleep(600)
"""


def test_an_interrupt_ends_the_agent_and_leaves_nothing(
    tmp_path: Path, home: Path, load: Load, control: SwarmClient, kind: str, request: pytest.FixtureRequest
) -> None:
    load(steps=1_000_000, lease_ttl_s=2.0)
    options = ("run", make_agent(tmp_path, HANGING), "--sandbox", kind, "--concurrency", "2")
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a shell's background job would ignore
    with running(home, *options, preexec_fn=heed) as client:
        client.until_told("hanging in")
        client.process.send_signal(signal.SIGINT if kind == "docker" else signal.SIGTERM)
        client.ended(130)
    assert "given up" in client.err
    client.until(lambda: not control.status().open_episodes, ended=True)
    if kind == "docker":
        assert containers_of(request.getfixturevalue("engine"), home) == []


def test_a_killed_run_takes_what_it_started_with_it_and_the_next_one_gets_its_places(
    tmp_path: Path, home: Path, load: Load, control: SwarmClient, kind: str, request: pytest.FixtureRequest
) -> None:
    load(steps=1_000_000, lease_ttl_s=2.0, drain_timeout_s=2.0)
    options = ("run", make_agent(tmp_path, HANGING), "--sandbox", kind, "--concurrency", "4")
    with running(home, *options) as doomed:
        doomed.until_told("hanging in", 4)
        agent = None if kind == "docker" else player(doomed)
        doomed.process.kill()
        doomed.process.wait()
    left = {episode.id for episode in control.episodes().episodes}
    with running(home, *options) as client:
        client.until_told("hanging in")
        client.until(lambda: not any(one.state == "open" for one in control.episodes().episodes if one.id in left))
        if agent is not None:
            psutil.wait_procs([agent], 60)
            assert not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE
        else:
            engine = request.getfixturevalue("engine")
            client.until(lambda: [one.status for one in containers_of(engine, home)].count("running") == 1)


@pytest.fixture
def host() -> Iterator[int]:
    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


REACHING = """
import socket
import urllib.error
import urllib.request

import iniconfig


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code


def refused(host, port):
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return True
    return False


async def agent(episode):
    assert get("http://127.0.0.2:ALLOWED/") == "hello"
    assert get("http://127.0.0.2:OTHER/") == 403
    assert get("http://169.254.169.254/latest/meta-data/") == 403
    assert refused("127.0.0.2", ALLOWED) and refused("192.0.2.1", 443) and refused("example.com", 443)
    await episode.chat([{"role": "user", "content": iniconfig.__name__}])
    return 1.0
"""


@pytest.mark.usefixtures("contained")
def test_a_container_has_what_was_allowed_and_required(ajet: Ajet, tmp_path: Path, load: Load, host: int) -> None:
    load(episodes_per_step=2, steps=1)
    other = host + 1 if host < 65_535 else host - 1
    folder = make_agent(tmp_path, REACHING.replace("ALLOWED", str(host)).replace("OTHER", str(other)))
    (tmp_path / "requirements.txt").write_text("iniconfig>=2\n")
    asked = ["client", "run", folder, "--sandbox", "docker", "--requirements", str(tmp_path / "requirements.txt")]
    found = ajet(*asked, "--allow", f"127.0.0.2:{host}", "--concurrency", "2", "--json").data
    assert found["result"]["dropped"] == {}
    assert "169.254.169.254" in Path(found["egress_log"]).read_text()


@pytest.mark.usefixtures("contained")
def test_what_no_container_can_be_leaves_no_record(ajet: Ajet, home: Path, tmp_path: Path, load: Load) -> None:
    load()

    def left() -> list[Path]:
        return sorted([*(home / "clients").glob("*"), *(home / "containers").glob("[!.]*")])

    def refused(*options: str) -> str:
        ended = ajet("client", "run", *options, "--sandbox", "docker")
        assert (ended.code, ended.out) == (2, ""), ended.err
        return ended.err.strip().splitlines()[-1]

    before = left()
    assert "creating sandbox" in refused("--cpus", "4000")
    assert left() == before
    assert "--requirements" in refused(make_agent(tmp_path, "import no_such_package_here\n"))
    assert "--sandbox process" in refused(slow_agent(tmp_path), "--reload")
