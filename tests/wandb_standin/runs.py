"""Runs as the stand-in keeps them: what was upserted, and the lines of their file streams by offset."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

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
