"""A real Prefect server: started once, found again, moved off a taken port, stopped."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from research.orchestration.server import PrefectUnavailable, ensure_server, stop_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("prefect")
    yield path
    stop_server(path)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_server_is_started_beside_a_taken_port_found_again_and_stopped(
    folder: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with ThreadPoolExecutor(2) as two:  # a study and `ajet up`, say, begin at the same moment
        both = sorted(two.map(lambda _: ensure_server(folder, port=taken), range(2)), key=lambda one: one.reused)
    first, again = both
    assert not first.reused
    assert first.note is not None
    assert str(taken) in first.note
    assert again.reused
    assert again.url == first.url

    with urllib.request.urlopen(f"{first.api}/admin/settings", timeout=10) as reply:
        settings = json.load(reply)
    assert settings["server"]["analytics_enabled"] is False
    services = settings["server"]["services"]
    for ends in ("cancellation_cleanup", "pause_expirations"):
        assert services[ends]["enabled"], "what is cancelled or paused after its controller was killed must end"

    pid = json.loads((folder / "server.json").read_text())["pid"]
    listening = {c.laddr.ip for p in family(pid) for c in p.net_connections("tcp") if c.status == "LISTEN"}
    assert listening == {"127.0.0.1"}

    assert stop_server(folder)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not stop_server(folder)


def test_an_address_the_user_names_must_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{closed}/api")
    with pytest.raises(PrefectUnavailable, match="PREFECT_API_URL"):
        ensure_server(tmp_path)


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_a_server_whose_start_was_interrupted_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

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
