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
import typer.main
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from research import files
from research.cli.research import research
from research.controller.options import ResearchOptions
from research.installation.home import Home
from research.orchestration import prefect_api, worker
from research.orchestration.deployment import FlowParameters, ProcessPool, form_schema
from research.orchestration.server import PrefectServer
from research.orchestration.worker import StudyWorker
from sandboxes import SandboxError
from studies import StoreError, StudyState


@pytest.fixture
def looking(client: object, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> StudyWorker:
    @contextmanager
    def connected(api: str) -> Iterator[Any]:
        yield SimpleNamespace(read_flow_runs=lambda **wanted: [])

    monkeypatch.setattr(worker, "ensure_server", lambda folder: PrefectServer("http://here:1", reused=True))
    monkeypatch.setattr(worker, "connect", connected)
    monkeypatch.setattr(worker, "is_registered", lambda client, home: True)
    monkeypatch.setattr(worker, "register", lambda *pool, limits: None)
    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    return worker.StudyWorker(home, ProcessPool("x", home.path, 1), lambda line: None, said.append)


@pytest.fixture
def said() -> list[str]:
    return []


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


def test_a_study_that_cannot_be_settled_keeps_no_other_from_it(
    looking: StudyWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, flow_runs = list[str](), looking._flow_runs
    studies = [StudyState(id="first"), StudyState(id="second")]

    def settle(client: object, study: StudyState) -> None:
        tried.append(study.id)
        if study.id == "first":
            raise OSError("its folder")

    looking._home.prefect.mkdir()
    monkeypatch.setattr(flow_runs, "_settle", settle)
    monkeypatch.setattr(flow_runs, "_put_back", lambda client: tried.append("forms"))
    monkeypatch.setattr(flow_runs, "_unowned", SimpleNamespace(find=lambda: studies))
    with pytest.raises(OSError, match="its folder"):
        flow_runs.settle(cast("Any", None))
    assert tried == ["first", "second", "forms"]


def test_nothing_is_settled_on_a_full_disk(looking: StudyWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process could not even begin, so that all tries of a study would be gone within minutes."""
    looks: list[object] = []
    monkeypatch.setattr(looking, "_start", lambda: None)
    monkeypatch.setattr(looking._flow_runs, "settle", looks.append)
    with monkeypatch.context() as full:
        full.setattr(files, "free_bytes", lambda folder: 0)
        with pytest.raises(SandboxError, match="Free some space"):
            looking._tick()
    assert looks == []
    looking._tick()
    assert len(looks) == 1


def test_what_lasts_is_said_once_and_its_end_once(
    looking: StudyWorker, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(client: object) -> None:
        raise SandboxError("no room")

    monkeypatch.setattr(looking, "_start", lambda: None)
    with monkeypatch.context() as full:
        full.setattr(looking._flow_runs, "settle", settle)
        for _ in range(3):
            looking._trouble.attempt(looking._tick)
    assert said == ["the worker waits (SandboxError: no room)"]
    looking._trouble.attempt(looking._tick)
    looking._trouble.attempt(looking._tick)
    (line,) = said[1:]
    assert "goes on" in line


def test_a_line_that_a_full_disk_does_not_take_ends_no_worker(looking: StudyWorker) -> None:
    def full(line: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    def fail() -> None:
        raise SandboxError("no room")

    StudyWorker(looking._home, looking._pool, full, full)._trouble.attempt(fail)


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://prefect")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


AWAY = httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("errors", "most_s", "raised"),
    [
        pytest.param((AWAY, refusal(503), httpx.ReadTimeout("slow")), 60.0, None, id="starts again"),
        pytest.param((refusal(404),), 60.0, httpx.HTTPStatusError, id="refused"),
        pytest.param((AWAY, AWAY), -1.0, httpx.ConnectError, id="stays away"),
        pytest.param((StoreError("starts again"),) * 2, -1.0, StoreError, id="no event log"),
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


def options() -> dict[str, str]:
    app = typer.Typer(add_completion=False)
    app.command()(research)
    command = typer.main.get_command(app)
    return {str(each.name): each.opts[0] for each in command.params}


def test_each_field_is_described_in_order_and_refers_to_nothing() -> None:
    form = form_schema(FlowParameters)
    fields = list(form["properties"].values())
    assert all(field["position"] == number and field["description"] for number, field in enumerate(fields))
    assert "$ref" not in str(form)
    Draft202012Validator(form).validate({name: field.get("default") for name, field in form["properties"].items()})


def test_what_was_asked_in_a_form_is_a_command_that_asks_for_the_same() -> None:
    asked = ResearchOptions(topic="group size 4 vs 8", held=["steps=20"], max_runs=8, effect=0.2, sandbox="process")
    command = asked.command()
    assert command[:2] == ("research", "group size 4 vs 8")
    assert dict(zip(command[2::2], command[3::2], strict=True)) == {
        "--set": "steps=20", "--max-runs": "8", "--effect": "0.2", "--sandbox": "process",
    }  # fmt: skip
    assert set(command[2::2]) <= set(options().values())
    without = ResearchOptions(vary=["group_size=4,8", "steps=3,4"]).command()
    assert without == ("research", "--vary", "group_size=4,8", "--vary", "steps=3,4")
    assert ResearchOptions(topic="is it so?", explore=True).command() == ("research", "is it so?", "--explore")
    assert ResearchOptions(topic="group size 4 vs 8", shape="apart").command() == ("research", "group size 4 vs 8")


def test_a_topic_that_no_store_holds_is_refused() -> None:
    with pytest.raises(ValidationError, match="topic"):
        ResearchOptions(topic="group size\x00 4 vs 8")
