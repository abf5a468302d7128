"""What a worker does in a look, where its server moves or is away, and where one study cannot be handed over."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from research import files
from research.installation.home import Home
from research.orchestration import PrefectServer, prefect_api, worker
from research.orchestration.deployment import ProcessPool
from research.orchestration.worker import StudyWorker
from sandboxes import SandboxError


@pytest.fixture
def looking(client: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyWorker:
    @contextmanager
    def connected(api: str) -> Iterator[None]:
        yield None

    monkeypatch.setattr(worker, "ensure_server", lambda folder: PrefectServer("http://here:1", reused=True))
    monkeypatch.setattr(worker, "connect", connected)
    monkeypatch.setattr(worker, "register", lambda *told: None)
    monkeypatch.setattr(worker, "StalledFlowRuns", lambda home: SimpleNamespace(reschedule=lambda client: None))
    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    return worker.StudyWorker(home, ProcessPool("x", home.path), 1, lambda line: None, lambda line: None)


def test_a_worker_whose_server_came_back_elsewhere_begins_anew(
    looking: StudyWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    alive = cast("Any", SimpleNamespace(poll=lambda: None, pid=0))
    monkeypatch.setattr(looking, "_process", alive)
    monkeypatch.setattr(looking, "_end", lambda: done.append("ended"))
    monkeypatch.setattr(looking, "_start", lambda: done.append(f"started at {looking.server.api}"))
    looking._tick()
    assert done == []
    monkeypatch.setattr(worker, "ensure_server", lambda folder: PrefectServer("http://here:2", reused=False))
    looking._tick()
    assert done == ["ended", "started at http://here:2/api"]


def test_a_study_that_cannot_be_handed_over_keeps_no_other_from_it(
    looking: StudyWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def hand_over(client: object, study: str) -> None:
        tried.append(study)
        if study == "first":
            raise OSError("its folder cannot be read")

    monkeypatch.setattr(looking, "_reschedule", hand_over)
    monkeypatch.setattr(looking, "_unowned_studies", SimpleNamespace(find=lambda: ["first", "second"]))
    with pytest.raises(OSError, match="its folder"):
        looking._reschedule_all()
    assert tried == ["first", "second"]


def test_nothing_is_handed_over_on_a_full_disk(looking: StudyWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process could not even begin, so that all tries of a study would be gone within minutes."""
    tried: list[str] = []
    monkeypatch.setattr(looking, "_reschedule", lambda client, study: tried.append(study))
    monkeypatch.setattr(looking, "_unowned_studies", SimpleNamespace(find=lambda: ["left"]))
    with monkeypatch.context() as full:
        full.setattr(files, "free_bytes", lambda folder: 0)
        with pytest.raises(SandboxError, match="Free some space"):
            looking._reschedule_all()
    assert tried == []
    looking._reschedule_all()
    assert tried == ["left"]


def test_what_lasts_is_said_once_and_its_end_once(looking: StudyWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def hand_over_all() -> None:
        raise SandboxError("no room")

    monkeypatch.setattr(looking, "_start", lambda: None)
    monkeypatch.setattr(looking, "_warn", said.append)
    with monkeypatch.context() as full:
        full.setattr(looking, "_reschedule_all", hand_over_all)
        for _ in range(3):
            looking._try(looking._tick)
    assert said == ["the worker waits (SandboxError: no room)"]
    looking._try(looking._tick)
    looking._try(looking._tick)
    (line,) = said[1:]
    assert "goes on" in line


def test_a_line_that_a_full_disk_does_not_take_ends_no_worker(looking: StudyWorker) -> None:
    def full(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail() -> None:
        raise SandboxError("no room")

    StudyWorker(looking._home, looking._pool, 1, full, full)._try(fail)


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://prefect")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


AWAY = httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("errors", "most_s", "raised"),
    [
        pytest.param((AWAY, refusal(503), httpx.ReadTimeout("slow")), 60.0, None, id="starts again"),
        pytest.param((refusal(404),), 60.0, httpx.HTTPStatusError, id="a refusal is an answer"),
        pytest.param((AWAY, AWAY), -1.0, httpx.ConnectError, id="stays away"),
    ],
)
def test_a_server_that_is_away_is_waited_for_and_said_once(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[Exception, ...], most_s: float, raised: type[Exception] | None
) -> None:
    monkeypatch.setattr(prefect_api, "AGAIN_S", 0.0)
    left, noted = list(errors), list[str]()

    def ask() -> str:
        if left:
            raise left.pop(0)
        return "here"

    if raised is not None:
        with pytest.raises(raised):
            prefect_api.retry(ask, noted.append, most_s)
        return
    assert prefect_api.retry(ask, noted.append, most_s) == "here"
    (line,) = noted
    assert "ConnectError: refused" in line
