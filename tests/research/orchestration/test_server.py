"""A Prefect server: named by the environment, or started once, found again, moved off a taken port, stopped."""

from __future__ import annotations

import base64
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from research.orchestration import server
from research.orchestration.server import (
    DATABASE,
    PrefectServer,
    PrefectUnavailable,
    ensure_server,
    find_named_server,
    read_password,
    record_process,
    stop_server,
)
from tests.research.orchestration.shown import http_server


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_what_begins_and_steers_studies_is_there_without_prefect_which_reads_its_settings_at_import() -> None:
    modules = "research.cli.research, research.cli.steering, research.cli.system, research.orchestration.supervision"
    script = f"import sys, {modules}; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:1"], ids=["of one's own", "named"])
def test_where_prefect_is_not_installed_a_line_says_how_to_have_it(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", address)
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(PrefectUnavailable, match=r"'ajet\[prefect\]'$"):
        ensure_server(tmp_path / "prefect")
    assert not (tmp_path / "prefect").exists()


@pytest.mark.slow
def test_a_server_is_started_beside_a_taken_port_found_again_and_stopped(
    tmp_path: Path, taken: int, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "prefect"
    request.addfinalizer(lambda: stop_server(folder))
    with ThreadPoolExecutor(2) as two:  # a study and `ajet up`, say, begin at the same moment
        both = sorted(two.map(lambda _: ensure_server(folder, port=taken), range(2)), key=lambda one: one.reused)
    first, again = both
    assert (first.reused, again.reused, again.url) == (False, True, first.url)
    assert str(taken) in (first.note or "")

    entry = base64.b64encode(read_password(folder).encode()).decode()
    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
    assert first.password == again.password == folder / "password"
    of_another = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for method, path, headers, answer in (
        ("OPTIONS", "flow_runs/filter", of_another, 400), ("POST", "flow_runs/filter", of_another, 401),
        ("POST", "deployments/filter", {"Host": "evil.example"}, 401), ("GET", "admin/settings", {}, 401),
        ("GET", "admin/settings", {"Authorization": f"Basic {base64.b64encode(b'ajet:ajet').decode()}"}, 401),
    ):  # fmt: skip
        asked = urllib.request.Request(
            f"{first.api}/{path}", b"{}" if method == "POST" else None, headers, method=method
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=60)
        assert (path, refused.value.code) == (path, answer)
    asked = urllib.request.Request(f"{first.api}/admin/settings", headers={"Authorization": f"Basic {entry}"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        settings = json.load(reply)
    assert settings["server"]["analytics_enabled"] is False
    services = settings["server"]["services"]
    for ends in ("cancellation_cleanup", "pause_expirations", "triggers", "event_persister"):
        assert services[ends]["enabled"]  # what is cancelled or paused must end, and people's automations act

    pid = json.loads((folder / "server.json").read_text())["pid"]
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    listening = {c.laddr.ip for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"}
    assert listening == {"127.0.0.1"}

    assert stop_server(folder)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not stop_server(folder)


def test_what_a_user_says_of_prefects_server_counts_and_nothing_of_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda command, *, env, **_: given.update(env))
    monkeypatch.setenv("PREFECT_API_KEY", "of a cloud")
    server._launch(tmp_path, 4321)
    assert given["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4321,http://localhost:4321"
    assert given["PREFECT_SERVER_API_AUTH_STRING"] == read_password(tmp_path) != ""
    assert "PREFECT_API_KEY" not in given
    own = {
        "PREFECT_SERVER_API_AUTH_STRING": "me:mine", "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "https://mine.example",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true", DATABASE: "postgresql+asyncpg://me@db.example/prefect",
    }  # fmt: skip
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    server._launch(tmp_path, 4321)
    assert own.items() <= given.items()
    assert server.client_environment(tmp_path)["PREFECT_API_AUTH_STRING"] == "me:mine"
    monkeypatch.setenv("PREFECT_API_URL", "http://team.example/api")
    assert "PREFECT_API_AUTH_STRING" not in server.client_environment(tmp_path)


def test_a_server_that_lets_in_everybody_as_earlier_versions_did_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_server(lambda asked: (200, b"{}")) as port:
        again = PrefectServer(f"http://127.0.0.1:{port}", reused=False)
        record_process(tmp_path / "server.json", os.getpid(), url=f"http://127.0.0.1:{port}")
        monkeypatch.setattr(server, "_group_of", lambda pid: os.getpid() if pid == os.getpid() else None)
        monkeypatch.setattr(server, "end_group", lambda group, grace_s: True)
        monkeypatch.setattr(server, "_start", lambda folder, wanted: again if wanted == port else None)
        assert ensure_server(tmp_path) is again
    assert not (tmp_path / "server.json").exists()


@pytest.mark.slow
def test_a_server_whose_port_somebody_else_took_meanwhile_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two installations begin at once: both found the port free, and the other one's server answers there."""
    looks = iter([True])
    free = server._is_free
    monkeypatch.setattr(server, "_is_free", lambda port: next(looks, None) or free(port))
    told: list[str | None] = []

    def another(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        told.append(asked.headers["Authorization"])
        return 200, json.dumps({"home": "/another/installation/prefect"}).encode()

    with http_server(another) as port:
        try:
            slower = ensure_server(tmp_path, port=port)
        finally:
            stop_server(tmp_path)
    assert str(port) not in slower.url
    assert not any(told)  # whoever listens there is told no password
    assert str(port) in (slower.note or "")


@pytest.mark.slow
def test_a_server_whose_start_was_interrupted_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as waiting:
            waiting.setattr("research.orchestration.server.time.sleep", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ensure_server(tmp_path, port=0)
        pid = json.loads((tmp_path / "server.json").read_text())["pid"]
        assert ensure_server(tmp_path, port=0).reused
        assert json.loads((tmp_path / "server.json").read_text())["pid"] == pid
    finally:
        stop_server(tmp_path)


def test_what_a_killed_server_left_is_ended_by_stopping_it(tmp_path: Path) -> None:
    started = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=sys.stdin).pid)"
    leader = subprocess.Popen(
        [sys.executable, "-c", f"{started}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert leader.stdout is not None
    left = psutil.Process(int(leader.stdout.readline()))
    record_process(tmp_path / "server.json", leader.pid, url="http://127.0.0.1:9")
    leader.kill()
    leader.wait()
    assert left.is_running()
    assert stop_server(tmp_path)
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE
    assert not stop_server(tmp_path)


def test_a_process_lives_whatever_the_clock_is_set_to_and_no_other_boots_process_does(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    record_process(path, os.getpid())
    known = server.read_process(path)
    assert known is not None
    assert server.is_alive(known)
    assert not server.is_alive({**known, "boot": "another"})
    assert not server.is_alive({**known, "started_s": known["started_s"] - 60.0})


def test_who_starts_a_server_and_was_suspended_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_START_TIMEOUT_S", 0.0)
    with FileLock(tmp_path / "starting.lock"), pytest.raises(PrefectUnavailable, match="suspended"):
        ensure_server(tmp_path)


def test_a_server_that_cannot_be_noted_on_a_full_disk_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        started.append(subprocess.Popen(command, start_new_session=True))
        return started[-1]

    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(server, "_launch", launch)
    monkeypatch.setattr(server, "write_json", full)
    with pytest.raises(OSError, match="full"):
        ensure_server(tmp_path, port=0)
    (process,) = started
    assert process.poll() is not None


AUTH = "admin:pa55word"


@pytest.fixture
def guarded() -> Iterator[str]:
    entry = f"Basic {base64.b64encode(AUTH.encode()).decode()}"

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        return 200 if asked.path == "/api/health" or asked.headers["Authorization"] == entry else 401, b""

    with http_server(answer) as port:
        yield f"http://127.0.0.1:{port}"


def refusal(**environment: str) -> str:
    with pytest.raises(PrefectUnavailable) as refused:
        find_named_server(environment)
    said = str(refused.value)
    assert "\n" not in said
    assert "pa55word" not in said
    return said


@pytest.mark.parametrize("end", ["", "/", "/api", "/api/"])
def test_whoever_has_the_key_is_let_in_and_whoever_has_not_is_told_so(guarded: str, end: str) -> None:
    assert find_named_server({"PREFECT_API_URL": guarded + end, "PREFECT_API_AUTH_STRING": AUTH}) == guarded
    assert "refuses whoever names" in refusal(PREFECT_API_URL=guarded + end)
    assert find_named_server({}) is find_named_server({"PREFECT_API_URL": ""}) is None
    wrong = refusal(PREFECT_API_URL=guarded + end, PREFECT_API_AUTH_STRING="admin:pa55word-of-before")
    assert "PREFECT_API_AUTH_STRING says (401)" in wrong


@pytest.mark.parametrize(
    ("address", "named"),
    [
        *((wrong, "http://HOST:4200/api") for wrong in ("127.0.0.1:4200", "nonsense", "http://", "file:///etc")),
        ("http://host:none/api", "http://HOST:4200/api"),
        ("http://127.0.0.1:9/api", "PREFECT_API_URL"),
        (f"http://{AUTH}@127.0.0.1:9/api", "PREFECT_API_AUTH_STRING=USER:PASSWORD"),
    ],
)
def test_what_is_no_address_answers_nothing_or_has_a_password_in_it_is_refused(address: str, named: str) -> None:
    assert named in refusal(PREFECT_API_URL=address)
