"""Studies that a real Prefect server shows: one that is driven with fake attempts, and one that is written by hand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

from playwright.sync_api import Page
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Suspended

from research.installation.home import Home
from research.orchestration.projection import ControllerSession
from research.orchestration.server import PrefectServer
from studies import EventLog, EventType, StudyState
from studies.report import build_report
from tests.research.bench import STUDY, Bench
from tests.studies.synthetic import STUDY as SYNTHETIC
from tests.studies.synthetic import Synthetic

PATIENCE_S = 600.0

CANCELLED = "cancelled in the Prefect UI"
PAUSED = "paused in the Prefect UI"


class Watched:
    def __init__(self, bench: Bench, client: SyncPrefectClient, log: EventLog) -> None:
        self.bench = bench
        self.client = client
        self.loop = bench.loop()
        self.session = ControllerSession(bench.home, log, self.loop.state(), client)
        self.refresh()

    def refresh(self) -> None:
        self.session.refresh()

    @contextmanager
    def another_session(self) -> Iterator[ControllerSession]:
        with closing(EventLog(self.bench.home.database, clock=self.bench.clock)) as log:
            yield ControllerSession(self.bench.home, log, self.loop.state(), self.client)

    def tick(self) -> StudyState:
        self.bench.clock.advance(1)
        return self.loop.tick()

    @property
    def flow_run(self) -> FlowRun:
        return self.client.read_flow_run(shown_in(self.bench.home.study(STUDY) / "prefect.json"))

    def click(self, button: str) -> None:
        assert press(self.client, self.flow_run.id, button) in ("ACCEPT", "REJECT")

    def shown(self) -> str:
        return str(state_of(self.flow_run).name)


class Asking(Watched):
    @property
    def keys(self) -> dict[str, str]:
        """Names of what the form on the study's flow run consists of."""
        return state_of(self.flow_run).state_details.run_input_keyset or {}

    def submit(self, **fields: Any) -> str:
        result = self.client.resume_flow_run(self.flow_run.id, run_input=fields)
        return str(result.status.value)

    def state(self) -> StudyState:
        return self.loop.state()


class Told:
    def __init__(self, path: Path, client: SyncPrefectClient) -> None:
        self.home = Home.locate({"AJET_HOME": str(path)}).prepare()
        self.folder = self.home.study(SYNTHETIC)
        self.synthetic = Synthetic(self.folder)
        self.client = client
        self.synthetic.create()

    def session(self) -> ControllerSession:
        return ControllerSession(self.home, self.synthetic.log, self.synthetic.state(), self.client)

    def begin(self) -> tuple[ControllerSession, UUID]:
        session = self.session()
        session.refresh()
        return session, self.identity

    @property
    def identity(self) -> UUID:
        return shown_in(self.folder / "prefect.json")

    def conclude(self) -> str:
        self.synthetic.lock()
        for spec in self.synthetic.plan():
            self.synthetic.run(spec)
        self.synthetic.judge()
        self.synthetic.conclude()
        return self.report()

    def report(self) -> str:
        report = build_report(self.synthetic.state(), self.folder)
        paths = {"markdown": report.markdown, "html": report.html}
        payload = {kind: {"path": path.name, "sha256": "0" * 64} for kind, path in paths.items()}
        self.synthetic.append(EventType.REPORT_BUILT, **payload)
        return report.markdown.read_text()


def press(client: SyncPrefectClient, run: UUID, button: str) -> str:
    if button == "resume":
        client.resume_flow_run(run)
        return "ACCEPT"
    if button == "retry":
        again = State[Any](type=StateType.SCHEDULED, name="AwaitingRetry", message="Retry from the UI")
        return str(client.set_flow_run_state(run, again, force=True).status.value)
    state: State[Any] = Suspended(timeout_seconds=300) if button == "pause" else State(type=StateType.CANCELLING)
    return str(client.set_flow_run_state(run, state).status.value)


def runs_of(client: SyncPrefectClient, study: str) -> list[FlowRun]:
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[study])))
    return sorted(runs, key=lambda run: str(run.created))


def shown_in(note: Path) -> UUID:
    return UUID(json.loads(note.read_text())["flow_run"])


def task_runs(
    client: SyncPrefectClient, flow_run: UUID, shown: Callable[[dict[str, dict[str, Any]]], bool]
) -> dict[str, dict[str, Any]]:
    """Return the task runs of a flow run by name once they are as wanted: the server writes them in the background."""
    query = {"flow_runs": {"id": {"any_": [str(flow_run)]}}, "sort": "EXPECTED_START_TIME_ASC"}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = client.request("POST", "/task_runs/filter", json=query).json()
        named = {row["name"]: row for row in found}
        assert len(named) == len(found)  # no row is there twice
        if all(row["state"] is not None for row in found) and shown(named):
            return named
        assert time.monotonic() < deadline, {name: row["state_name"] for name, row in named.items()}
        time.sleep(0.05)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def artifacts_of(client: SyncPrefectClient, flow_run: UUID) -> dict[str, dict[str, Any]]:
    query = {"artifacts": {"flow_run_id": {"any_": [str(flow_run)]}}}
    found = client.request("POST", "/artifacts/filter", json=query).json()
    assert len({artifact["key"] for artifact in found}) == len(found)
    return {artifact["key"]: artifact for artifact in found}


@contextmanager
def http_server(answer: Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]) -> Iterator[int]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def logs_of(client: SyncPrefectClient, task_run: str) -> list[str]:
    query = {"logs": {"task_run_id": {"any_": [task_run]}}, "sort": "TIMESTAMP_ASC"}
    return [line["message"] for line in client.request("POST", "/logs/filter", json=query).json()]


def state_of(run: FlowRun) -> State[Any]:
    assert run.state is not None
    return run.state


def visit(page: Page, server: PrefectServer, path: str) -> None:
    """Open one of Prefect's pages as a person does: a browser that is new is asked for the password."""
    if page.url == "about:blank":
        assert server.password is not None
        page.goto(server.url)
        page.wait_for_url(lambda url: "/login" in url)
        page.locator("input").first.fill(server.password.read_text().strip())
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "/login" not in url)
    page.goto(f"{server.url}/v2/{path}")
