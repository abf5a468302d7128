"""`ajet client run`: an agent of one's own trains a real server's model, as a process and in a real container."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from research.installation.server_process import SwarmProcess, find_swarm, start_swarm, stop_swarm
from sandboxes.docker.engine import NoEngine, connect
from swarm.client import SwarmClient
from swarm.job import Job
from tests.research.cli.conftest import Ajet, Ended

ROOT = Path(__file__).parents[4]
seeds = itertools.count(1)
Trains = Callable[..., SwarmProcess]

OPENAI_AGENT = """
import os
from openai import OpenAI

def agent(episode):
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        question = [{"role": "user", "content": episode.task.data["question"]}]
        answer = client.chat.completions.create(model=episode.model, messages=question)
    return float(os.environ["WORTH"]), bool(answer.choices[0].message.content)
"""
ENDLESS_AGENT = """
async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    return 0.5
"""


def docker_answers() -> bool:
    try:
        connect(os.environ).client.close()
    except NoEngine:
        return False
    return True


@pytest.fixture(scope="module", params=["process", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of sandbox; containers where an engine answers."""
    if request.param == "docker":
        require_docker()
    return str(request.param)


@pytest.fixture
def docker() -> None:
    require_docker()


def require_docker() -> None:
    if not docker_answers():
        if os.environ.get("AJET_TEST_DOCKER") == "required":
            pytest.fail("AJET_TEST_DOCKER=required, and no Docker Engine answers")
        pytest.skip("no Docker Engine answers")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a swarm server that runs, as `ajet swarm start` leaves it."""
    folder = tmp_path_factory.mktemp("installation")
    server = start_swarm(folder / "swarm", models=folder / "models", port=0)
    yield folder
    stop_swarm(server)


@pytest.fixture
def home(installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("AJET_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AJET_HOME", str(installation))
    return installation


@pytest.fixture
def trains(installation: Path) -> Trains:
    """Give the server a job of a fake backend, in place of the one it has."""

    def load(**fields: Any) -> SwarmProcess:
        server = of(installation)
        small = {"backend": "fake", "steps": 2, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}
        with SwarmClient(server.url, server.admin_token) as client:
            client.stop()
            client.ensure_training(Job.model_validate({**small, "seed": next(seeds), **fields}))
        return server

    return load


@pytest.fixture
def unfinished(installation: Path, trains: Trains) -> None:
    """A job that has steps left: whichever the server has, if it has one."""
    status = status_of(of(installation))
    if status.group_size is None or status.finished:
        trains()


def of(installation: Path) -> SwarmProcess:

    found = find_swarm(installation / "swarm")
    assert found is not None
    return found


def agent_folder(folder: Path, text: str, name: str = "agent.py") -> str:
    place = folder / "mine"
    place.mkdir(exist_ok=True)
    (place / name).write_text(text)
    return str(place)


def questions(folder: Path) -> str:
    path = folder / "questions.json"
    path.write_text(json.dumps([{"id": f"q{n}", "data": {"question": f"{n}?"}} for n in range(3)]))
    return str(path)


def left_behind(home: Path) -> list[Path]:
    return sorted([*(home / "clients").glob("*"), *(home / "containers").glob("[!.]*")])


def status_of(server: SwarmProcess) -> Any:
    with SwarmClient(server.url, server.admin_token) as client:
        return client.status()


def last_line(ended: Ended) -> str:
    assert "Traceback" not in ended.err
    return ended.err.strip().splitlines()[-1]


def test_an_agent_with_openais_sdk_trains_to_the_last_step(
    ajet: Ajet, home: Path, tmp_path: Path, trains: Trains, kind: str
) -> None:
    """And it sees nothing of the server's token in a container, and no address but its own loopback."""
    inside = "assert os.environ['AJET_TOKEN'] == 'sandbox' and episode.base_url == 'http://127.0.0.1:8000/v1'"
    text = OPENAI_AGENT if kind == "process" else OPENAI_AGENT.replace("    with", f"    {inside}\n    with")
    server, before = trains(), list((home / "clients").glob("*"))
    asked = ["client", "run", agent_folder(tmp_path, text), "--tasks", questions(tmp_path), "--concurrency", "2"]
    ended = ajet(*asked, "--sandbox", kind, "--env", "WORTH=0.25", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["result"]["reward_mean"] == 0.25
    assert list((home / "clients").glob("*")) == before, "nothing is left of it"
    assert (found["sandbox"], found["exit"]) == (kind, {"reason": "finished", "code": 0})
    assert (found["result"]["episodes"], found["result"]["success_mean"], found["result"]["dropped"]) == (8, 1.0, {})
    assert found["refused"] == {}
    assert status_of(server).finished


def documented() -> list[str]:
    """Return the agents of docs/agents.md."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "agents.md").read_text(), re.DOTALL)
    return [block for block in blocks if "def agent(episode)" in block]


@pytest.mark.parametrize("text", documented(), ids=["with an SDK", "without"])
def test_the_agents_of_the_documentation_play(ajet: Ajet, tmp_path: Path, trains: Trains, text: str) -> None:
    trains()
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"id": "q", "data": {"question": "1+1", "answer": "2"}}]))
    ended = ajet("client", "run", agent_folder(tmp_path, text), "--tasks", str(tasks), "--sandbox", "process", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["result"]["dropped"] == {}


def test_a_reward_of_ones_own_is_trained_on(ajet: Ajet, tmp_path: Path, trains: Trains, kind: str) -> None:
    trains()
    folder = agent_folder(tmp_path, "def reward(task, messages, outcome):\n    return 3.0\n", "reward.py")
    asked = ["client", "run", "--environment", "arith", "--reward", folder, "--concurrency", "2", "--json"]
    ended = ajet(*asked, "--sandbox", kind)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["result"]["reward_mean"], found["job"]) == (3.0, {"step": 2, "steps": 2})


def test_an_agent_that_leaves_before_the_job_is_finished_is_not_believed(
    ajet: Ajet, tmp_path: Path, trains: Trains, kind: str
) -> None:
    """Whatever its process says: the server has steps left."""
    trains()
    text = "import os\n\ndef agent(episode):\n    os._exit(0)\n"
    ended = ajet("client", "run", agent_folder(tmp_path, text), "--sandbox", kind)
    assert ended.code == 1, ended.err
    assert "before the job was finished" in last_line(ended)


def test_a_server_named_in_the_environment_comes_before_ones_own(
    ajet: Ajet, trains: Trains, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = trains()
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("AJET_SERVER", server.url)
    monkeypatch.setenv("AJET_TOKEN", json.loads((server.folder / "tokens.json").read_text())["client"])
    ended = ajet("client", "run", "--sandbox", "process", "--eval", "--episodes", "2", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["server"] == server.url


def test_the_environments_own_agent_plays_where_none_is_named(ajet: Ajet, trains: Trains) -> None:
    trains()
    ended = ajet("client", "run", "--sandbox", "process", "--concurrency", "4")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("trained        8 episodes, mean reward")
    assert "nothing is isolated" in ended.err


def test_an_agent_that_returns_a_reward_alone_has_solved_nothing_and_failed_at_nothing(
    ajet: Ajet, tmp_path: Path, trains: Trains
) -> None:
    trains()
    agent = agent_folder(tmp_path, "async def agent(episode):\n    return 0.5\n")
    asked = [
        "client",
        "run",
        agent,
        "--tasks",
        questions(tmp_path),
        "--eval",
        "--episodes",
        "3",
        "--sandbox",
        "process",
    ]
    ended = ajet(*asked)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("evaluated      3 episodes, mean reward 0.500; policy version 0")
    played = json.loads(ajet(*asked, "--json").out)["result"]["episodes"]
    assert [episode["success"] for episode in played] == [None, None, None]


def test_an_evaluation_trains_nothing(ajet: Ajet, tmp_path: Path, trains: Trains, kind: str) -> None:
    server = trains()
    asked = ["client", "run", agent_folder(tmp_path, OPENAI_AGENT), "--tasks", questions(tmp_path), "--eval"]
    ended = ajet(*asked, "--episodes", "5", "--sandbox", kind, "--env", "WORTH=0.25")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("evaluated      5 episodes, mean reward 0.250, solved 1.000; policy version 0")
    assert status_of(server).collected_episodes == 0


UNPLAYABLE = {
    "a missing package": ("import no_such_package_here\n", ("'no_such_package_here'", "--requirements")),
    "a missing function": ("def play(episode):\n    return 1\n", ("`agent`", "found play")),
    "a wrong signature": (
        "def agent(episode, tools):\n    return 1\n",
        ("expected agent(episode)", "found agent(episode, tools)"),
    ),
}


@pytest.mark.parametrize("what", UNPLAYABLE)
def test_an_agent_that_cannot_be_played_is_told_in_one_line(
    ajet: Ajet, tmp_path: Path, unfinished: None, what: str
) -> None:
    text, expected = UNPLAYABLE[what]
    ended = ajet("client", "run", agent_folder(tmp_path, text), "--sandbox", "process")
    assert ended.code == 2, ended.err
    assert ended.out == ""
    for words in expected:
        assert words in last_line(ended)


@pytest.mark.usefixtures("docker")
def test_an_agent_that_cannot_be_played_in_a_container_is_told_in_one_line_too(
    ajet: Ajet, tmp_path: Path, unfinished: None
) -> None:
    folder = agent_folder(tmp_path, UNPLAYABLE["a missing package"][0])
    ended = ajet("client", "run", folder, "--sandbox", "docker")
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert "--requirements" in last_line(ended)


def test_an_agent_with_a_syntax_error_is_told_before_anything_starts(ajet: Ajet, tmp_path: Path) -> None:
    ended = ajet("client", "run", agent_folder(tmp_path, "x = 1\ndef agent(episode:\n"))
    assert ended.code == 2
    assert "agent.py, line 2" in ended.line


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["missing.py"], "no such file of Python"),
        (["."], "a folder without agent.py"),
        (["--allow", "example.com"], "host:port"),
        (["--memory", "1"], "--memory as 512m"),
        (["--stream", ""], "--stream as a name"),
        (["--time-limit", "soon"], "'soon'"),
        (["--reward", "missing.py"], "the reward as FILE.py"),
        (["--server", "127.0.0.1:80"], "an address like"),
        (["--server", "http://127.0.0.1:9"], "AJET_TOKEN"),
        (["--environment", "chess"], "'chess'"),
        (["--tasks", "missing.json"], "missing.json"),
        (["--sandbox", "jail"], "'jail'"),
        (["--sandbox", "process", "--allow", "example.com:443"], "a container for --allow"),
        (["--sandbox", "process", "--requirements", "r.txt"], "pip install -r r.txt"),
        (["--sandbox", "process", "--memory", "2g"], "a container for --memory"),
        (["--sandbox", "process", "--env", "NAME"], "NAME=VALUE"),
        (["--sandbox", "process", "--env", "PYTHONPATH=x"], "leave PYTHONPATH alone"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    ajet: Ajet, tmp_path: Path, unfinished: None, monkeypatch: pytest.MonkeyPatch, asked: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = ajet("client", "run", *asked)
    assert ended.code == 2
    assert expected in ended.line


@pytest.mark.parametrize("options", [["--cpus", "inf"], ["--timeout", "inf"], ["--cpus", "nan"]])
def test_numbers_without_end_are_refused_as_options(ajet: Ajet, options: list[str]) -> None:
    ended = ajet("client", "run", *options)
    assert ended.code == 2
    assert options[0] in ended.err
    assert "Traceback" not in ended.err


def test_a_token_that_is_none_is_refused_and_not_shown(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "ab\ncd")
    ended = ajet("client", "run", "--server", "http://127.0.0.1:9")
    assert ended.code == 2
    assert "AJET_TOKEN" in ended.line
    assert "cd" not in ended.line


def test_a_job_that_is_done_is_not_played_but_may_be_evaluated(ajet: Ajet, trains: Trains) -> None:
    trains()
    asked = ["client", "run", "--sandbox", "process", "--concurrency", "2"]
    assert ajet(*asked).code == 0
    ended = ajet(*asked)
    assert ended.code == 2
    assert "2 steps are done" in ended.line
    assert ajet(*asked, "--eval", "--episodes", "3").code == 0


def test_no_server_says_how_to_start_one(ajet: Ajet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "empty"))
    ended = ajet("client", "run")
    assert ended.code == 2
    assert "ajet swarm start" in ended.line


def test_an_agent_that_always_fails_ends_with_code_3_and_its_own_words(
    ajet: Ajet, tmp_path: Path, trains: Trains
) -> None:
    trains()
    folder = agent_folder(tmp_path, "def agent(episode):\n    raise ValueError('no idea')\n")
    ended = ajet("client", "run", folder, "--sandbox", "process", "--concurrency", "4")
    assert ended.code == 3
    assert "a play of arith" in ended.err
    assert "ValueError: no idea (agent.py, line 2)" in ended.err


def test_a_process_that_takes_too_long_is_ended(ajet: Ajet, tmp_path: Path, trains: Trains) -> None:
    trains(steps=1_000_000)
    asked = ["client", "run", agent_folder(tmp_path, ENDLESS_AGENT), "--sandbox", "process", "--time-limit", "1s"]
    ended = ajet(*asked)
    assert ended.code == 1
    assert "time limit of 1 s" in last_line(ended)


# -------------------------------------------------------------------------------------------------- in containers


@pytest.fixture
def host() -> Iterator[int]:
    """A web server of this machine alone, at 127.0.0.2; its port."""

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


@pytest.mark.usefixtures("docker")
def test_a_container_reaches_what_was_allowed_and_has_what_was_required(
    ajet: Ajet, tmp_path: Path, trains: Trains, host: int
) -> None:
    """A derived image brings the package; all other destinations are refused, and listed."""
    trains(episodes_per_step=2, steps=1)
    other = host + 1 if host < 65_535 else host - 1
    folder = agent_folder(tmp_path, REACHING.replace("ALLOWED", str(host)).replace("OTHER", str(other)))
    (tmp_path / "requirements.txt").write_text("iniconfig>=2\n")
    asked = ["client", "run", folder, "--sandbox", "docker", "--requirements", str(tmp_path / "requirements.txt")]
    ended = ajet(*asked, "--allow", f"127.0.0.2:{host}", "--concurrency", "2", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["result"]["dropped"] == {}
    asked_for = Path(found["egress_log"]).read_text()
    assert "169.254.169.254" in asked_for


@pytest.mark.usefixtures("docker")
def test_a_container_has_no_way_out_unless_one_was_asked_for(ajet: Ajet, tmp_path: Path, trains: Trains) -> None:
    text = """
        import os, socket
        async def agent(episode):
            assert not [name for name in os.environ if 'proxy' in name.lower()]
            for port in (3128, 80):
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=5)
                except OSError:
                    continue
                raise AssertionError(port)
            await episode.chat([{"role": "user", "content": "hi"}])
            return 1.0
    """
    trains(episodes_per_step=2, steps=1)
    folder = agent_folder(tmp_path, "\n".join(line[8:] for line in text.splitlines()))
    ended = ajet("client", "run", folder, "--sandbox", "docker", "--concurrency", "2", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["result"]["dropped"] == {}


@pytest.mark.usefixtures("docker")
def test_an_agent_that_takes_too_much_memory_is_told_so(ajet: Ajet, tmp_path: Path, unfinished: None) -> None:
    folder = agent_folder(tmp_path, "hoard = bytearray(300 << 20)\ndef agent(episode):\n    return 1.0\n")
    ended = ajet("client", "run", folder, "--sandbox", "docker", "--memory", "128m")
    assert ended.code == 1, ended.err
    assert "memory of 128 MiB" in last_line(ended)


@pytest.mark.usefixtures("docker")
def test_a_container_that_the_engine_refuses_is_one_line_and_leaves_no_record(
    ajet: Ajet, home: Path, unfinished: None
) -> None:
    before = left_behind(home)
    ended = ajet("client", "run", "--sandbox", "docker", "--cpus", "4000")
    assert ended.code == 2
    assert "creating sandbox" in last_line(ended)
    assert left_behind(home) == before


@pytest.mark.usefixtures("docker")
def test_a_secret_is_not_put_into_a_container(ajet: Ajet, unfinished: None) -> None:
    ended = ajet("client", "run", "--sandbox", "docker", "--env", "OPENAI_API_KEY=sk-1234")
    assert ended.code == 2
    assert "OPENAI_API_KEY" in ended.line
    assert "sk-1234" not in ended.line


@pytest.mark.usefixtures("docker")
def test_an_agents_folder_with_a_link_or_too_many_bytes_is_refused(
    ajet: Ajet, tmp_path: Path, unfinished: None
) -> None:
    folder = agent_folder(tmp_path, ENDLESS_AGENT)
    (Path(folder) / "link").symlink_to("/etc/passwd")
    ended = ajet("client", "run", folder, "--sandbox", "docker")
    assert ended.code == 2
    assert "symbolic link" in ended.line
    (Path(folder) / "link").unlink()
    with open(Path(folder) / "big", "wb") as file:
        file.truncate(17 << 20)
    ended = ajet("client", "run", folder, "--sandbox", "docker")
    assert ended.code == 2
    assert "one of its own" in ended.line


def test_an_interrupt_ends_the_agent_and_leaves_nothing(tmp_path: Path, home: Path, trains: Trains, kind: str) -> None:
    """Open episodes are given up (a lease granted while it was leaving runs out by itself); no container is left."""
    server = trains(steps=1_000_000, lease_ttl_s=2.0)
    said = "print('one more play', flush=True)\n    await"
    folder = agent_folder(tmp_path, ENDLESS_AGENT.replace("await", said))
    command = [sys.executable, "-m", "research", "client", "run", folder, "--sandbox", kind, "--concurrency", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        assert process.stderr is not None
        assert any("one more play" in line for line in process.stderr), "it is heard while it plays"
        process.send_signal(signal.SIGINT if kind == "docker" else signal.SIGTERM)
        _, err = process.communicate(timeout=400)
    assert process.returncode == 130, err
    assert "given up" in err
    deadline = time.monotonic() + 20.0
    while status_of(server).open_episodes:
        assert time.monotonic() < deadline
    if kind == "docker":
        assert containers_of(home) == []


def heed_interrupts() -> None:
    """Undo what a shell does to what it starts in the background, and what would be inherited from it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def containers_of(home: Path) -> list[str]:
    """Return the names of the containers that an installation has in the engine."""
    with contextlib.closing(connect(os.environ).client) as client:
        own = (home / "containers" / ".installation").read_text()
        found = client.containers.list(all=True, filters={"label": f"ajet.installation={json.loads(own)['id']}"})
        return [str(container.name) for container in found]


HANGING_AGENT = """
import asyncio
import os

async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    print("hanging in", os.getpid(), flush=True)
    await asyncio.sleep(600)
"""


def test_a_killed_run_takes_what_it_started_with_it_and_the_next_one_has_its_places_at_once(
    tmp_path: Path, home: Path, trains: Trains, kind: str
) -> None:
    """The lease alone would hold the places for an hour."""
    server = trains(steps=1_000_000, lease_ttl_s=3600.0, drain_timeout_s=3600.0)
    folder = agent_folder(tmp_path, HANGING_AGENT)
    command = [sys.executable, "-m", "research", "client", "run", folder, "--sandbox", kind, "--concurrency", "4"]
    with started(command) as doomed:
        said = list(itertools.islice(lines_with("hanging in", doomed.stderr), 4))
    with SwarmClient(server.url, server.admin_token) as client:
        left = {episode.id for episode in client.episodes().episodes}
        with started(command) as next_one:
            assert next(lines_with("hanging in", next_one.stderr)), "there was room at once"
            found = {episode.id: episode for episode in client.episodes().episodes}
            assert {found[id].state for id in left} <= {"aborted", "fenced"}, "it gave up, or was taken over from"
            assert until(lambda: not lives(int(said[0].split()[-1]), kind, home))


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the block ends, which kills it."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_with(words: str, stream: Any) -> Iterator[str]:
    return (line for line in stream if words in line)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def lives(pid: int, kind: str, home: Path) -> bool:
    """Return whether the first run's agent goes on: its process, or more than the second run's container."""
    if kind == "docker":
        return len(running_containers(home)) > 1
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def running_containers(home: Path) -> list[str]:
    with contextlib.closing(connect(os.environ).client) as client:
        running = {str(container.name) for container in client.containers.list()}
    return [name for name in containers_of(home) if name in running]
