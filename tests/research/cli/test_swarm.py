"""The servers of an installation, and those of others, as `ajet swarm` starts, finds, lists and commands them."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from research.cli import swarm
from research.errors import BadInput, NotReady
from research.installation.home import Home
from research.installation.servers import (
    Binding,
    ServerConnection,
    SwarmProcess,
    connect_server,
    ensure_server,
    find_swarm,
    load_binding,
    resolve_target,
    servers,
    start_swarm,
    stop_swarm,
    validate_name,
)
from swarm.client import SwarmClient
from swarm.client.transport import server_folder
from swarm.wire import ServerState
from tests.research.cli.conftest import Ajet, own_server, server_of

pytestmark = pytest.mark.slow

JOB = {"backend": "fake", "steps": 3, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}


@pytest.fixture(autouse=True)
def _ends_what_a_test_started(home: Path) -> Iterator[None]:
    yield
    for _, process in servers(Home(home, "")):
        if process is not None and process.pid != os.getpid():
            stop_swarm(process)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwarmProcess]:
    folder = tmp_path_factory.mktemp("far")
    with own_server(folder):
        yield server_of(folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    return path


@pytest.fixture
def job(file: Path) -> str:
    return str(file)


def test_several_servers_run_in_one_installation_each_with_its_own_job(ajet: Ajet, home: Path, job: str) -> None:
    for options in ((), ("--name", "speaker"), ("--name", "listener-2")):
        started = ajet("swarm", "start", *options, "--port", "0", "--job", job, "--json")
        assert started.code == 0, started.err
    rows = ajet("swarm", "list", "--json").data
    assert [row["name"] for row in rows] == [None, "listener-2", "speaker"]
    assert {row["state"] for row in rows} == {"ROLLING"}
    assert len({row["url"] for row in rows}) == 3
    assert "listener-2" in ajet("swarm", "list").out
    assert ajet("swarm", "status", "--server", "speaker", "--json").data["url"] == rows[2]["url"]
    with SwarmClient.from_home("speaker", home=home) as client:
        assert client.status().state is ServerState.ROLLING
    keys = json.loads((home / "swarms" / "speaker" / "tokens.json").read_text())
    for role in ("admin", "client", "viewer"):
        assert ajet("swarm", "token", "--name", "speaker", "--role", role).out.strip() == keys[role]
    ajet("swarm", "stop", "--server", "").refused("of a server")
    assert ajet("swarm", "stop", "--server", "speaker").code == 0
    again = {row["name"]: row["state"] for row in ajet("swarm", "list", "--json").data}
    assert again == {None: "ROLLING", "listener-2": "ROLLING", "speaker": "down"}
    ajet("swarm", "status", "--server", "speaker").refused("`ajet swarm start --name speaker`")
    started = ajet("swarm", "start", "--name", "speaker", "--json").data
    assert started["url"] == rows[2]["url"]  # its clients find it


def test_a_server_may_be_elsewhere(
    ajet: Ajet, far: SwarmProcess, home: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ajet("swarm", "status", "--server", far.url).refused("AJET_TOKEN")
    monkeypatch.setenv("AJET_TOKEN", far.admin_token)
    monkeypatch.setenv("AJET_SERVER", far.url)
    assert ajet("swarm", "start", "--job", job).code == 0
    assert find_swarm(home / "swarm") is None  # what is watched is what was started
    ajet("swarm", "start", "--job", job, "--host", "127.0.0.1").refused("AJET_SERVER")
    status = ajet("swarm", "status", "--json").data
    assert (status["state"], status["pid"]) == ("ROLLING", None)
    with SwarmClient.from_environment() as client:
        assert client.status().state is ServerState.ROLLING
    assert ajet("swarm", "episodes").code == 0
    assert ajet("swarm", "shares", "--json").data == {"changed": False, "streams": []}
    assert "process there goes" in ajet("swarm", "stop").out
    assert ajet("swarm", "status", "--json").data["state"] == "OFFLINE"


@pytest.mark.parametrize(
    ("asked", "name", "server", "found"),
    [
        ("", None, None, (None, None)), ("far", None, None, ("far", None)), ("http://a:1", None, None, (None, "http://a:1")),
        ("http://a:1", "here", None, ("here", None)), ("far", None, "other", (None, "other")),
    ],
)  # fmt: skip
def test_what_starts_is_what_is_named_else_what_is_watched(asked: str, name: Any, server: Any, found: Any) -> None:
    assert resolve_target(name, server, {"AJET_SERVER": asked}) == found


def test_a_wrong_key_is_refused_and_not_shown(ajet: Ajet, far: SwarmProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "nobodys-key")
    for command in (("swarm", "status"), ("client", "run")):
        assert "nobodys-key" not in ajet(*command, "--server", far.url).refused("AJET_TOKEN")


@pytest.mark.parametrize("name", ["../out", "Speaker", "a b", "-x", "x-", "", "a" * 65, "a/b"])
def test_a_name_that_could_be_no_folder_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="name of a"):
        validate_name(name)


def test_a_server_starts_again_as_it_was_and_its_secrets_are_in_no_process_list_log_or_status(
    ajet: Ajet, home: Path, tmp_path: Path, job: str
) -> None:
    secret, own = "s3cret-" * 6, tmp_path / "token"
    own.write_text(secret)
    own.chmod(0o600)
    options = ("--store", f"sqlite:///{tmp_path / 'elsewhere-secret.db'}", "--peer", "http://127.0.0.1:7")
    started = ajet("swarm", "start", "--port", "0", *options, "--token-file", str(own), "--job", job)
    assert (started.code, (tmp_path / "elsewhere-secret.db").exists()) == (0, True)
    process, tokens = server_of(home), home / "swarm" / "tokens.json"
    command = " ".join(psutil.Process(process.pid).cmdline())
    told = [
        started.out + started.err, ajet("swarm", "status", "--json").out, ajet("swarm", "list", "--json").out, command,
        (home / "swarm" / "server.log").read_text(),
    ]  # fmt: skip
    secrets = [*json.loads(tokens.read_text()).values(), secret, "elsewhere-secret"]
    assert (all(told), [key for key in secrets for text in told if key in text]) == (True, [])
    assert "http://127.0.0.1:7" in command
    for path in (tokens, home / "swarm" / "start.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ajet("swarm", "start", "--store", f"sqlite:///{tmp_path / 'other.db'}").refused("(store)", "`ajet swarm stop`")
    ajet("swarm", "start", "--port", "1").refused("(port)")
    assert ajet("swarm", "stop").code == 0
    (home / "swarm" / "store.sqlite3").unlink(missing_ok=True)
    assert ajet("swarm", "start", "--port", "0").code == 0
    assert not (home / "swarm" / "store.sqlite3").exists()  # it writes where it did before


def test_a_flag_comes_before_the_environment(home: Path, far: SwarmProcess, server: SwarmProcess) -> None:
    here, place = server, Home(home, "")
    known = {"AJET_SERVER": far.url, "AJET_TOKEN": "t" * 9}
    assert connect_server(None, environ={}, home=place).url == here.url
    assert connect_server(None, environ=known, home=place).token == "t" * 9
    assert connect_server(here.url, environ=known, home=place, role="client").token == here.client_token
    with pytest.raises(BadInput, match="an address like"):
        connect_server("localhost:8700", environ=known, home=place)
    for mistyped in (
        "htps://me:hunter2@h", "http://me:hunter2@h:0", "http://me:hunter2@h:99999", "me:hunter2@h:1",
        "http:/me:hunter2@h", "http://me:hunter2@h//x", "http://me:hunter2/@h", "http://me:hunter2@h?to=//h",
    ):  # fmt: skip
        with pytest.raises(BadInput, match="found a name or password in it") as refused:
            connect_server(mistyped, environ=known, home=place)
        assert "hunter2" not in str(refused.value)
    assert connect_server("http://h/of@me", environ=known, home=place).url == "http://h/of@me"
    with pytest.raises(NotReady, match="called ghost"):
        connect_server("ghost", environ=known, home=place)


def test_what_an_agent_plays_on_shows_no_key_to_whoever_prints_it(home: Path) -> None:
    running = SwarmProcess("http://127.0.0.1:7", os.getpid(), "admin-key", home, "client-key")
    assert "key" not in repr(ServerConnection(running.url, running.key("client"), running))


def test_a_store_s_password_is_shown_nowhere(ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_SWARM_STORE", "postgresql+psycopg://me:hunter2@127.0.0.1:9/ajet")
    assert "hunter2" not in ajet("swarm", "start", "--name", "a", "--port", "0").refused("me:***@127.0.0.1:9")
    assert not [path for path in home.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_a_full_disk_takes_nothing_of_how_a_server_was_started_last(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = server_folder(home, None)
    folder.mkdir(parents=True)
    (folder / "start.json").write_text(json.dumps(asdict(Binding(store="sqlite:///kept.db"))))

    def fill(path: Path, data: bytes, **same: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def refuse(*arguments: Any, **same: Any) -> SwarmProcess:
        monkeypatch.setattr("research.installation.servers.write_bytes", fill)
        raise NotReady("x")

    monkeypatch.setattr("research.installation.servers.start_swarm", refuse)
    with pytest.raises(OSError, match="No space"):
        ensure_server(Home(home, ""), None, {"peers": ("http://127.0.0.1:7",)}, port=0, idle=True)
    assert load_binding(folder).store == "sqlite:///kept.db"


def test_a_start_that_is_refused_leaves_no_server_in_the_list(ajet: Ajet, home: Path) -> None:
    ajet("swarm", "start", "--name", "open", "--host", "0.0.0.0").refused("--token-file")
    assert ajet("swarm", "list", "--json").data == []


@pytest.mark.parametrize("text", ['{"host": ', '{"host": "127.0.0.1"}', "[]"])
def test_a_broken_record_of_the_last_start_is_said_in_a_line(ajet: Ajet, home: Path, text: str) -> None:
    kept = home / "swarms" / "a" / "start.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(text)
    ajet("swarm", "start", "--name", "a", "--port", "0").refused(str(kept))


def test_two_starts_of_one_name_at_once_end_with_one_server(home: Path) -> None:
    command = [sys.executable, "-m", "research", "swarm", "start", "--name", "twice", "--port", "0", "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [process.communicate(timeout=400) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    urls = {json.loads(out)["url"] for out, _ in ended}
    running = server_of(home, "twice")
    assert urls == {running.url}
    serving = [each for each in psutil.process_iter(["cmdline"]) if str(running.folder) in (each.info["cmdline"] or [])]
    assert [each.pid for each in serving] == [running.pid]


def test_a_failed_server_tries_again(
    ajet: Ajet, home: Path, file: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found, nothing = start_swarm(home / "swarm", models=home / "models", port=0), tmp_path / "nothing"
    request.addfinalizer(lambda: stop_swarm(found))
    file.write_text(json.dumps({"model": {"kind": "path", "path": str(nothing)}}))
    ajet("swarm", "start", "--job", str(file)).refused("no such folder", str(nothing))
    assert "FAILED" in ajet("swarm", "status").out
    nothing.mkdir()
    again = ajet("swarm", "start")
    assert (again.code, "trying again" in again.err) == (2, True)
    assert "no config.json" in again.err.splitlines()[-1]
    file.write_text(json.dumps(JOB))
    mended = ajet("swarm", "start", "--job", str(file))
    assert (mended.code, "ROLLING" in mended.out) == (0, True), mended.err


@pytest.mark.usefixtures("server")
def test_another_job_is_refused_with_what_differs_and_the_command_that_helps(ajet: Ajet, file: Path) -> None:
    assert ajet("swarm", "start", "--job", str(file)).code == 0
    file.write_text(json.dumps({**JOB, "steps": 5}))
    ajet("swarm", "start", "--job", str(file)).refused("steps 5, not 3", "`ajet swarm stop`")


def test_a_server_that_stands_still_is_told_so(ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "RETRY_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        mute = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = SwarmProcess(mute, os.getpid(), "a" * 40, home / "swarm", "c" * 40)
        monkeypatch.setattr("research.installation.servers.find_swarm", lambda _: found)
        ajet("swarm", "status").refused("within 0.5 s", f"process {os.getpid()}", "server.log", "`ajet swarm stop`")
