"""`ajet client run --restart`, `--reload` and `ajet client debug` with real processes on a real server."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from research.installation.server_process import SwarmProcess, find_swarm, start_swarm, stop_swarm
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.options import INSTALLATION
from swarm.client import SwarmClient
from swarm.client.asynchronous import NamedTask
from swarm.job import Job
from swarm.wire import EpisodeSummary
from tests.research.environments.written import sums, wheel_in

DEADLINE_S = 180.0
seeds = itertools.count(1)
SLOW = """
import asyncio
async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    await asyncio.sleep(SECONDS)
    return WORTH
"""
OVER = ("consumed", "in_step", "ended", "aborted", "fenced", "dropped")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("installation")
    server = start_swarm(folder / "swarm", models=folder / "models", port=0)
    yield folder
    stop_swarm(server)


@pytest.fixture
def server(installation: Path) -> SwarmProcess:
    found = find_swarm(installation / "swarm")
    assert found is not None
    return found


@pytest.fixture
def control(server: SwarmProcess) -> Iterator[SwarmClient]:
    with SwarmClient(server.url, server.admin_token) as client:
        yield client


def trains(control: SwarmClient, steps: int, **fields: Any) -> None:
    job = {"backend": "fake", "steps": steps, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}
    control.stop()
    control.ensure_training(Job.model_validate({**job, "seed": next(seeds), **fields}))


@contextlib.contextmanager
def running(installation: Path, *options: str, **given: Any) -> Iterator[subprocess.Popen[str]]:
    """Run `ajet client` as a process, with what it says in a file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "research", "client", *options],
        env={**environment, "AJET_HOME": str(installation)}, text=True,
        stdout=subprocess.PIPE, stderr=(installation / "said").open("w"), **given,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()


def said(installation: Path) -> str:
    return (installation / "said").read_text()


def until(true: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() < deadline, "it did not come to it"
        time.sleep(0.05)
    return found


def written(folder: Path, worth: str = "0.5", seconds: float = 0.2) -> str:
    place = folder / "mine"
    place.mkdir(exist_ok=True)
    (place / "agent.py").write_text(SLOW.replace("SECONDS", str(seconds)).replace("WORTH", worth))
    return str(place)


def player(process: subprocess.Popen[str]) -> psutil.Process | None:
    """Return the child that plays; not one that stands by."""
    found = [child for child in psutil.Process(process.pid).children() if "swarm.environments" in child.cmdline()]
    return found[0] if found else None


def finished(control: SwarmClient) -> int:
    return sum(one.state in ("consumed", "in_step", "ended") for one in control.episodes(1000).episodes)


def plays_on(control: SwarmClient, process: subprocess.Popen[str]) -> None:
    """Wait for plays that end from now on: what ended before a client was started again is nothing of its own."""
    enough = finished(control) + 4
    until(lambda: finished(control) >= enough, process)


def test_a_client_that_is_killed_is_started_again_and_goes_on_at_once(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    """What it had open is given up without waiting for its lease, and every episode is accounted for once."""
    trains(control, steps=10)
    options = ("run", written(tmp_path), "--restart", "--sandbox", "process", "--concurrency", "4", "--json")
    with running(installation, *options) as process:
        for kill in range(2):
            plays_on(control, process)
            victim = player(process)
            assert victim is not None
            victim.kill()
            until(lambda times=kill + 1: said(installation).count("ajet: restart ") == times, process)  # type: ignore[misc]
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said(installation)
    found = json.loads(out)
    assert [restart["reason"] for restart in found["restarts"]] == ["it was killed by signal 9"] * 2
    assert found["job"] == {"step": 10, "steps": 10}
    episodes = control.episodes(1000).episodes
    assert {one.state for one in episodes} <= set(OVER)
    assert all(one.reason == "owner_died" for one in episodes if one.state == "fenced")
    assert sum(one.state in ("consumed", "in_step") for one in episodes) == 40
    assert list((installation / "clients").glob("*")) == []


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


def test_what_an_evaluator_that_died_had_finished_is_counted(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    """Or eight deaths of one that gets on would end it, as if all had been in vain."""
    trains(control, steps=1, eval_every=1, evaluation_episodes=4)
    (tmp_path / "agent.py").write_text(DYING)
    options = ("run", str(tmp_path), "--evaluations", "--restart", "--sandbox", "process", "--concurrency", "1")
    with running(installation, *options, "--json") as process:
        for task in ("a", "a", "b", "b"):
            episode = control.begin(NamedTask(task), wait_s=10)
            episode.chat([{"role": "user", "content": "hi"}])
            episode.end(0.5)
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said(installation)
    assert [restart["finished"] for restart in json.loads(out)["restarts"]] == [2]
    assert control.status().finished


def test_bad_input_is_not_tried_again(installation: Path, control: SwarmClient, tmp_path: Path) -> None:
    trains(control, steps=2)
    (tmp_path / "agent.py").write_text("def agent(): pass\n")
    with running(installation, "run", str(tmp_path), "--restart", "--sandbox", "process") as process:
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "restart" not in said(installation)


def test_an_agent_of_the_wrong_type_ends_it_after_its_first_play(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=2)
    options = ("run", written(tmp_path, worth="None"), "--restart", "--sandbox", "process", "--concurrency", "1")
    with running(installation, *options) as process:
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "expected an agent to return a reward, (reward, solved) or an Outcome; found nothing (None)" in said(
        installation
    )
    assert [one.state for one in control.episodes().episodes] == ["aborted"]
    assert control.status().collected_episodes == 0


def test_a_full_disk_ends_a_client_in_a_line_and_one_that_plays_goes_on(
    installation: Path, server: SwarmProcess, control: SwarmClient, tmp_path: Path
) -> None:
    """No byte can be written to a file: none is begun, and one that got that far plays the job to its end."""
    trains(control, steps=2)
    agent = written(tmp_path, seconds=0.0)
    environment = {**os.environ, "AJET_HOME": str(installation), "AJET_TOKEN": server.client_token}
    given: dict[str, Any] = {
        "env": environment, "capture_output": True, "text": True, "timeout": DEADLINE_S, "check": False,
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    }  # fmt: skip
    asked = [sys.executable, "-m", "research", "client", "run", agent, "--sandbox", "process"]
    refused = subprocess.run(asked, **given)
    assert refused.returncode in (1, 2, 3)
    assert refused.stderr.count("\n") == 1
    assert "expected a folder that can be written" in refused.stderr
    playing = [sys.executable, "-m", "swarm.environments", "play", "--server", server.url, "--environment", "arith"]
    played = subprocess.run([*playing, "--agent", f"{agent}/agent.py"], **given)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["episodes"] == 8
    assert control.status().finished


def codes(control: SwarmClient, *states: str) -> set[str | None]:
    return {one.code for one in listed(control) if not states or one.state in states}


def listed(control: SwarmClient) -> tuple[EpisodeSummary, ...]:
    return control.episodes(2000).episodes


def test_saved_code_plays_at_once_and_nothing_of_the_last_is_trained_after(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=10_000)
    agent = written(tmp_path, worth="0.25")
    with running(installation, "run", agent, "--reload", "--sandbox", "process", "--concurrency", "4") as process:
        until(lambda: finished(control) >= 4, process)
        (old,) = codes(control)
        written(tmp_path, worth="0.75")
        until(lambda: codes(control, "consumed", "in_step", "ended") - {old}, process)
        episodes = listed(control)  # the newest first
        switched = max(place for place, one in enumerate(episodes) if one.code != old)
        assert all(one.code != old for one in episodes[:switched])
        left = [one for one in episodes[switched:] if one.state == "fenced"]
        assert {one.reason for one in left} == {"code_changed"}
        assert not [one for one in episodes[switched:] if one.state == "open"]
        assert {one.reward for one in episodes if one.code != old and one.reward is not None} == {0.75}
        assert control.status().step >= 1
    assert process.returncode == 130


def test_a_broken_edit_shows_its_traceback_and_training_waits_for_the_next_save(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=10_000)
    agent = Path(written(tmp_path))
    with running(installation, "run", str(agent), "--reload", "--sandbox", "process") as process:
        until(lambda: finished(control) >= 4, process)
        (agent / "agent.py").write_text("def helper():\n    raise ValueError('not yet')\n\n\nhelper()\n")
        until(lambda: "until the next save" in said(installation), process)
        shown = said(installation)
        assert 'agent.py", line 2, in helper' in shown
        assert "ValueError: not yet" in shown
        assert "code.py" not in shown, "frames of the user's files alone"
        assert control.status().open_episodes == 0
        before = codes(control)
        written(tmp_path, worth="0.75")
        until(lambda: codes(control, "consumed", "in_step", "ended") - before, process)
    assert process.returncode == 130


def test_reloading_is_refused_where_it_means_nothing(installation: Path, control: SwarmClient, tmp_path: Path) -> None:
    trains(control, steps=2)
    for options in (["--environment", "arith"], [written(tmp_path), "--eval"]):
        with running(installation, "run", *options, "--reload") as process:
            process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2
        assert said(installation).count("\n") == 1


STOPPING = """
async def agent(episode):
    reply = await episode.chat([{"role": "user", "content": "hi"}])
    breakpoint()
    await episode.chat([{"role": "user", "content": "again"}])
    return 0.5, True
"""


def test_a_breakpoint_stops_in_the_terminal_while_the_lease_lives_and_no_batch_is_touched(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=2, lease_ttl_s=0.5)
    (tmp_path / "agent.py").write_text(STOPPING)
    options = ("debug", str(tmp_path), "--task", "arith-1-3")
    with running(installation, *options, stdin=subprocess.PIPE) as process:
        until(lambda: [one for one in listed(control) if one.calls == 1], process)
        assert process.stdin is not None
        out, _ = process.communicate("import time\ntime.sleep(1.5)\np reply.content\nc\n", timeout=DEADLINE_S)
    assert process.returncode == 0, said(installation)
    for shown in (
        "task arith-1-3",
        "call 1",
        "user: hi",
        "  -> ",
        "(Pdb)",
        "call 2",
        "reward         0.5, solved",
        "time  ",
    ):
        assert shown in out
    (episode,) = listed(control)
    assert (episode.kind, episode.state, episode.reason, episode.calls) == ("eval", "aborted", "debugged", 2)
    assert control.status().collected_episodes == 0


def test_what_a_debugged_agent_raises_is_shown_with_its_own_lines(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=2)
    (tmp_path / "agent.py").write_text(
        "def agent(episode):\n    episode.chat([{'role': 'user', 'content': 'x'}])\n    1 / 0\n"
    )
    with running(installation, "debug", str(tmp_path)) as process:
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert 'agent.py", line 3, in agent' in said(installation)
    assert said(installation).strip().endswith("division by zero")


def containers_of(engine: ContainerEngine, installation: Path) -> list[Any]:
    """Return what containers the engine has of an installation, running or not."""
    own = installation / "containers" / ".installation"
    if not own.exists():
        return []
    ours = {"label": f"{INSTALLATION}={json.loads(own.read_text())['id']}"}
    return list(engine.client.containers.list(all=True, filters=ours, ignore_removed=True))


def test_a_client_in_a_container_that_is_killed_or_removed_is_started_again_and_goes_on_at_once(
    engine: ContainerEngine, installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    """The lease alone would hold its places for an hour; every episode is accounted for once, and nothing is left."""
    trains(control, steps=10, lease_ttl_s=3600.0, drain_timeout_s=3600.0)
    options = ("run", written(tmp_path), "--restart", "--sandbox", "docker", "--concurrency", "4", "--json")
    with running(installation, *options) as process:
        for number, end in enumerate(("kill", "remove"), start=1):
            plays_on(control, process)
            (victim,) = containers_of(engine, installation)
            victim.kill() if end == "kill" else victim.remove(force=True)
            until(lambda times=number: said(installation).count("ajet: restart ") == times, process)  # type: ignore[misc]
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said(installation)
    found = json.loads(out)
    assert found["sandbox"] == "docker"
    assert [restart["reason"] for restart in found["restarts"]] == ["it was killed", "its container is gone"]
    assert all(restart["finished"] >= 1 for restart in found["restarts"])
    assert found["job"] == {"step": 10, "steps": 10}
    episodes = control.episodes(1000).episodes
    assert {one.state for one in episodes} <= set(OVER)
    assert all(one.reason == "owner_died" for one in episodes if one.state == "fenced")
    assert sum(one.state in ("consumed", "in_step") for one in episodes) == 40
    assert list((installation / "clients").glob("*")) == []
    assert containers_of(engine, installation) == []


def test_reloading_in_a_container_is_refused_in_a_line_and_leaves_nothing(
    engine: ContainerEngine, installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=2)
    with running(installation, "run", written(tmp_path), "--reload", "--sandbox", "docker") as process:
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert said(installation).count("\n") == 1
    assert "Add --sandbox process" in said(installation)
    assert list((installation / "clients").glob("*")) == []


def test_shares_are_exact_in_every_batch_of_a_container_and_a_process(
    engine: ContainerEngine, installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=4, episodes_per_step=20, streams={"math": 7, "web": 3}, drain_timeout_s=600.0)
    agent = written(tmp_path, seconds=0.05)
    inside = ("run", agent, "--stream", "web", "--sandbox", "docker", "--concurrency", "2")
    beside = ("run", agent, "--stream", "math", "--sandbox", "process", "--concurrency", "16")
    with running(installation, *inside) as contained, running(installation, *beside) as process:
        until(lambda: control.status().finished)
        assert [each.wait(DEADLINE_S) for each in (contained, process)] == [0, 0], said(installation)
    groups = {(one.step, one.group, one.stream) for one in listed(control) if one.state in ("in_step", "consumed")}
    batches = [Counter(stream for of, _, stream in groups if of == step) for step in range(1, 5)]
    assert batches == [{"math": 7, "web": 3}] * 4
    assert control.status().metrics["throttle/lent"] == 0


IMPATIENT = "from swarm.client import rollout\nrollout.ENGINE_OFF_S = 1.0\n"
"""A client waits two minutes for its server otherwise."""


def test_reloading_ends_where_its_server_is_lost_and_does_not_wait_for_a_save(tmp_path: Path) -> None:
    home = tmp_path / "home"
    server = start_swarm(home / "swarm", models=home / "models", port=0)
    with SwarmClient(server.url, server.admin_token) as own:
        trains(own, steps=10_000)
        agent = Path(written(tmp_path))
        (agent / "agent.py").write_text(IMPATIENT + (agent / "agent.py").read_text())
        with running(home, "run", str(agent), "--reload", "--sandbox", "process", "--concurrency", "2") as process:
            until(lambda: finished(own) >= 4, process)
            os.kill(server.pid, signal.SIGKILL)
            process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3, said(home)
    assert "no swarm server answers" in said(home)
    assert "until the next save" not in said(home)
    assert list((home / "clients").glob("*")) == []


def test_a_time_limit_holds_while_code_that_cannot_be_loaded_waits_for_a_save(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=10_000)
    (tmp_path / "agent.py").write_text("async def agent(episode):\n    return 0.5\n\n\nraise ValueError('not yet')\n")
    options = ("run", str(tmp_path), "--reload", "--sandbox", "process", "--time-limit", "4s")
    with running(installation, *options) as process:
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, said(installation)
    assert "until the next save" in said(installation)


def test_a_brought_environment_is_debugged_by_its_folder_and_then_by_its_name(
    installation: Path, control: SwarmClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the package that it needs, which this Python does not have."""
    wheels = wheel_in(tmp_path / "wheels", "need_of_a_debugged_environment")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    trains(control, steps=2)
    folder = sums(tmp_path / "mine", answer="import need_of_a_debugged_environment as need; return [need.VALUE][1:]")
    (folder / "requirements.txt").write_text("need_of_a_debugged_environment\n")
    for environment in (str(folder), None):
        named = environment or next(path.name for path in (installation / "environments").glob("sums@*"))
        with running(installation, "debug", "--environment", named, "--json") as process:
            out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, said(installation)
        found = json.loads(out)
        assert (found["task"].startswith("sum"), found["calls"]) == (True, 1)
        assert " plus " in said(installation)
    assert [(one.state, one.reason) for one in listed(control)] == [("aborted", "debugged")] * 2


PRINTING = """
import subprocess, sys
print("imported")
def agent(episode):
    episode.chat([{"role": "user", "content": "x"}])
    print("played")
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    return 0.5
"""


def test_what_a_debugged_agent_prints_leaves_the_json_whole(
    installation: Path, control: SwarmClient, tmp_path: Path
) -> None:
    trains(control, steps=2)
    (tmp_path / "agent.py").write_text(PRINTING)
    with running(installation, "debug", str(tmp_path), "--json") as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said(installation)
    assert json.loads(out)["reward"] == 0.5
    assert {"imported", "played", "of a child"} <= set(said(installation).splitlines())
