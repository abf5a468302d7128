"""A stand-in for W&B's server on loopback, which the real `wandb` client logs to and syncs to.

It answers what the client of the pinned version was seen to ask, keeps everything in memory, and fails where a test
tells it to. It picks one plain rule where W&B's own server has rules that nobody here knows (a run that is started
again, rate limits, how late a row can be read): what passes here is proven of the client and of this project's code,
not of W&B.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

ENTITY = "standin"
HISTORY = "wandb-history.jsonl"
_SLOTS = {
    "displayName": "display_name", "groupName": "group", "jobType": "job_type", "notes": "notes", "tags": "tags",
    "config": "config", "summaryMetrics": "summary",
}  # fmt: skip


def node_id(*parts: object) -> str:
    return base64.b64encode(":".join(map(str, parts)).encode()).decode()


def moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class StoredRun:
    """One run."""

    entity: str
    project: str
    name: str
    display_name: str = ""
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: list[str] = field(default_factory=list)
    config: str = "{}"
    summary: str = "{}"
    streams: dict[str, dict[int, str]] = field(default_factory=dict)
    """Lines by file and offset; one sent again for an offset replaces the first."""
    complete: bool = False
    exit_code: int | None = None
    created: str = field(default_factory=moment)

    @property
    def history(self) -> list[dict[str, Any]]:
        lines = (line for _, line in sorted(self.streams.get(HISTORY, {}).items()))
        return sorted((json.loads(line, parse_constant=str) for line in lines), key=lambda row: row.get("_step", 0))

    @property
    def steps(self) -> list[int]:
        return [row["_step"] for row in self.history]

    @property
    def values(self) -> dict[str, Any]:
        return {key: value["value"] for key, value in json.loads(self.config).items()}

    @property
    def state(self) -> Literal["running", "finished", "failed"]:
        if not self.complete:
            return "running"
        return "failed" if self.exit_code else "finished"

    @property
    def id(self) -> str:
        return node_id("Run", self.name, self.project, self.entity)

    def gql(self) -> dict[str, Any]:
        history = self.history
        counts = Counter(key for row in history for key in row)
        keys = {key: {"typeCounts": [{"type": "number", "count": count}]} for key, count in counts.items()}
        last = max((row.get("_step", -1) for row in history), default=-1)
        project = {"id": node_id("Project", self.project), "internalId": "1", "name": self.project,
                   "entity": {"id": node_id("Entity", self.entity), "name": self.entity}}  # fmt: skip
        return {
            "__typename": "Run", "id": self.id, "name": self.name, "displayName": self.display_name or self.name,
            "projectId": 1, "sweepName": None, "state": self.state, "config": self.config, "group": self.group,
            "jobType": self.job_type, "tags": self.tags, "commit": None, "readOnly": False, "createdAt": self.created,
            "heartbeatAt": moment(), "description": None, "notes": self.notes, "systemMetrics": "{}",
            "summaryMetrics": self.summary, "historyLineCount": len(self.streams.get(HISTORY, {})),
            "eventsLineCount": 0, "logLineCount": 0, "user": {"name": "Stand-in", "username": ENTITY},
            "stopped": False, "project": project,
            "historyKeys": {"keys": keys, "lastStep": last, "sets": []} if history else None,
        }  # fmt: skip


class Runs:
    """All runs. One that is started again keeps its rows, and gets those that come after them."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str, str], StoredRun] = {}

    def find(self, given: dict[str, Any]) -> StoredRun | None:
        entity = given.get("entity") or given.get("entityName") or ENTITY
        name = given.get("run") or given.get("name") or given.get("runName") or given.get("runId")
        return self.by_name.get((entity, given.get("project") or given.get("projectName") or "", name or ""))

    def upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        run = next((run for run in self.by_name.values() if run.id == given.get("id")), None) or self.find(given)
        inserted = run is None
        if run is None:
            run = StoredRun(given.get("entity") or ENTITY, given.get("project") or "uncategorized", given["name"])
            self.by_name[run.entity, run.project, run.name] = run
        for key, slot in _SLOTS.items():
            if given.get(key) is not None:
                setattr(run, slot, given[key])
        return {"upsertBucket": {"bucket": run.gql(), "inserted": inserted}}

    def stream(self, run: StoredRun, body: dict[str, Any]) -> None:
        for file, part in body.get("files", {}).items():
            lines = run.streams.setdefault(file, {})
            lines.update(enumerate(part["content"], part["offset"]))
        run.complete = bool(body.get("complete", False))
        run.exit_code = body.get("exitcode") if run.complete else None


OPERATION = re.compile(r"^\s*(?:query|mutation)\s+(\w+)", re.M)
KEY = "0123456789abcdef" * 2 + "01234567"
Given = dict[str, Any]


@dataclass(slots=True)
class Fault:
    """The next `times` answers on what begins with `on` fail; `keep` stores what was sent all the same."""

    on: str
    status: int = 500
    times: int = 1
    keep: bool = False
    delay_s: float = 0.0


class UnknownOperation(Exception):
    """The stand-in was not taught it."""


class StandIn:
    """What the server holds, and what it is told to do wrong."""

    def __init__(self) -> None:
        self.url = ""
        self.runs = Runs()
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.withheld = 0
        """Rows that readers are not shown yet: W&B's may be late."""

    @property
    def environment(self) -> dict[str, str]:
        return {"WANDB_MODE": "online", "WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}

    def run(self, name: str, project: str = "ajet") -> StoredRun:
        return self.runs.by_name[ENTITY, project, name]

    def holds(self, name: str, project: str = "ajet") -> bool:
        found = self.runs.by_name.get((ENTITY, project, name))
        return found is not None and found.complete

    def rows(self, name: str, project: str = "ajet") -> int:
        found = self.runs.by_name.get((ENTITY, project, name))
        return 0 if found is None else len(found.history)

    def fail(self, on: str, **how: Any) -> None:
        """Have the next answers on `file_stream`, `storage` or a GraphQL operation fail (`Fault`)."""
        self.faults.append(Fault(on, **how))

    def fault(self, on: str) -> Fault | None:
        for fault in self.faults:
            if on.startswith(fault.on) and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def answer(self, operation: str, given: Given, base: str) -> Mapping[str, Any]:
        if operation in _FIXED:
            return _FIXED[operation]
        run = self.runs.find(given)
        taught: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "UpsertBucket": lambda: self.runs.upsert(given),
            "RunResumeStatus": lambda: {"model": _resumed(run, given)},
            "CreateRunFiles": lambda: {"createRunFiles": _run_files(run, given, base)},
            "RunHistoryKeys": lambda: {"project": {"run": run and {"historyKeys": self._keys(run)}}},
            **dict.fromkeys(_ABOUT_A_RUN, lambda: {"project": {"run": None if run is None else run.gql()}}),
        }
        if operation not in taught:
            raise UnknownOperation(operation)
        return taught[operation]()

    def _keys(self, run: StoredRun) -> dict[str, Any] | None:
        shown = run.steps[: len(run.steps) - self.withheld]
        return {"keys": {}, "lastStep": shown[-1], "sets": []} if shown else None


_NOBODY: Mapping[str, Any] = {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}}
_VIEWER: Mapping[str, Any] = {
    "viewer": {
        "__typename": "User", "id": "VXNlcjox", "entity": ENTITY, "username": ENTITY, "name": "Stand-in",
        "email": "standin@example.invalid", "admin": False, "flags": "{}", "deletedAt": None, "apiKeys": _NOBODY,
        "teams": _NOBODY,
    }
}  # fmt: skip
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "Viewer": _VIEWER,
    "GetViewer": _VIEWER,
    "GetDefaultEntity": _VIEWER,
    "ServerFeaturesQuery": {"serverInfo": {"features": []}},
    "OrganizationCoreWeaveOrganizationID": {"entity": {"organization": None}},
}
_ABOUT_A_RUN = ("Run", "RunState", "QueryRunInfo", "RunStoppedStatus")


def _resumed(run: StoredRun | None, given: Given) -> dict[str, Any]:
    model: dict[str, Any] = {"id": "project", "name": given["project"], "bucket": None,
                             "entity": {"id": "entity", "name": given.get("entity") or ENTITY}}  # fmt: skip
    if run is not None:
        tail = [json.dumps(row) for row in run.history[-1:]]
        model["bucket"] = {**run.gql(), "historyTail": json.dumps(tail), "eventsTail": "[]", "wandbConfig": '{"t": {}}'}
    return model


def _run_files(run: StoredRun | None, given: Given, base: str) -> dict[str, Any]:
    files = [{"name": name, "uploadUrl": f"{base}/storage/run/{name}"} for name in given["files"]]
    return {"runID": "" if run is None else run.id, "uploadHeaders": [], "files": files}


def application(standin: StandIn) -> FastAPI:
    app = FastAPI()

    async def told_to_fail(on: str) -> Fault | None:
        standin.seen[on] += 1
        fault = standin.fault(on)
        await asyncio.sleep(fault.delay_s if fault else 0)
        return fault

    @app.post("/graphql")
    async def graphql(request: Request) -> Response:
        body = await _json(request)
        found = OPERATION.search(body.get("query", ""))
        operation = body.get("operationName") or (found.group(1) if found else "?")
        given = {key: value for key, value in (body.get("variables") or {}).items() if value is not None}
        if not request.headers.get("authorization"):
            return JSONResponse({"errors": [{"message": "no key"}]}, status_code=401)
        if fault := await told_to_fail(operation):
            return JSONResponse({"errors": [{"message": "told to fail"}]}, status_code=fault.status)
        try:
            return JSONResponse({"data": standin.answer(operation, given, standin.url)})
        except UnknownOperation:
            standin.unknown[operation] += 1
            return JSONResponse({"errors": [{"message": f"the stand-in does not know {operation}"}]})

    @app.post("/files/{entity}/{project}/{name}/file_stream")
    async def file_stream(entity: str, project: str, name: str, request: Request) -> Response:
        body, fault = await _json(request), await told_to_fail("file_stream")
        run = standin.runs.by_name.get((entity, project, name))
        if run is not None and (fault is None or fault.keep):
            standin.runs.stream(run, body)
        status = 404 if run is None else 200 if fault is None else fault.status
        return JSONResponse({"limits": {}, "stopped": False}, status_code=status)

    @app.put("/storage/{key:path}")
    async def put(key: str, request: Request) -> Response:
        if fault := await told_to_fail("storage"):
            return Response(status_code=fault.status)
        await request.body()
        return Response(status_code=200)

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
    async def other(path: str, request: Request) -> Response:
        standin.unknown[f"{request.method} /{path}"] += 1
        return Response(status_code=404)

    return app


async def _json(request: Request) -> Given:
    raw = await request.body()
    text = gzip.decompress(raw) if request.headers.get("content-encoding") == "gzip" else raw
    found: Given = json.loads(text)
    return found


@contextmanager
def standing_in() -> Iterator[StandIn]:
    standin = StandIn()
    server = uvicorn.Server(uvicorn.Config(application(standin), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started:
        assert time.monotonic() < deadline, "expected the stand-in to bind"
        time.sleep(0.01)
    standin.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield standin
    finally:
        server.should_exit = True
        thread.join(10)
