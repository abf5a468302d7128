"""Task runs of one flow run, written with the times that the study's log gives them.

They are told as Prefect's own engine tells of tasks, by an event for each state, because a state that is set through
the API gets the server's time instead: right for what happens now, wrong for what is told after an outage. The events
go by one request for many of them, so that a server that is gone is noticed, and their ids follow from what they say,
so that telling them again changes nothing. The server takes them into its memory and writes them within a second or
two: what was told just before it went away is in doubt, and is told again (`doubt`).

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect.client.orchestration import SyncPrefectClient

from research.orchestration.shown.rows import OPEN, RowState, TaskRow
from research.orchestration.shown.training import TrainingLine

_AT_ONCE: Final = 200
"""Events of one request, and task runs of one answer. Prefect's queue holds 10,000 events and drops what is beyond."""
_TASK: Final = "ajet"
"""Key of the task that all of them are runs of."""


class TaskRuns:
    """The task runs of a flow run."""

    def __init__(self, client: SyncPrefectClient, flow_run: UUID) -> None:
        self._client = client
        self._flow_run = flow_run
        self._told: set[str] = set()
        self.doubtful = False
        """Whether what was told may be lost, so that all rows are to be put again."""

    def doubt(self) -> None:
        """Take nothing for told any more."""
        self._told.clear()
        self.doubtful = True

    def put(self, rows: Iterable[TaskRow]) -> None:
        """Tell the states of rows that were not told yet."""
        new = [event for row in rows for event in self._events(row)]
        self._send(new)
        self._told |= {event["id"] for event in new}
        self.doubtful = False

    def log(self, lines: Iterable[tuple[str, TrainingLine]]) -> None:
        """Add lines to the logs of task runs, by their rows' keys; the flow run's own log does not show them."""
        self._client.create_logs(
            {"name": "training", "level": logging.INFO, "task_run_id": str(self._id(key)), "message": line.text,
             "timestamp": line.at.isoformat()}
            for key, line in lines
        )  # fmt: skip

    def close(self, message: str) -> None:
        """End every task run that is open on the server, whoever wrote it."""
        now = datetime.now(UTC)
        self._send([self._closing(found, now, message) for found in self._open()])

    def _send(self, events: Sequence[Mapping[str, Any]]) -> None:
        for start in range(0, len(events), _AT_ONCE):
            self._client.request("POST", "/events", json=events[start : start + _AT_ONCE])

    def _id(self, key: str) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self._flow_run}/{key}")

    def _events(self, row: TaskRow) -> Iterator[dict[str, Any]]:
        task_run = self._id(row.key)
        for place, state in enumerate(row.states):
            identity = str(uuid5(task_run, f"{state.kind}/{state.name}/{state.at.isoformat()}"))
            if identity not in self._told:
                before = row.states[place - 1] if place else None
                about = _task_run(row, row.states[: place + 1])
                yield self._event(identity, task_run, about, before, state)

    def _event(
        self, identity: str, task_run: UUID, about: Mapping[str, Any], before: RowState | None, state: RowState
    ) -> dict[str, Any]:
        """Return an event as `prefect.utilities.engine.emit_task_run_state_change_event` writes it."""
        return {
            "id": identity,
            "occurred": state.at.isoformat(),
            "event": f"prefect.task-run.{state.name}",
            "resource": {
                "prefect.resource.id": f"prefect.task-run.{task_run}",
                "prefect.resource.name": about["name"],
                "prefect.state-message": state.message,
                "prefect.state-name": state.name,
                "prefect.state-timestamp": state.at.isoformat(),
                "prefect.state-type": state.kind,
                "prefect.orchestration": "client",
            },
            "related": [
                {"prefect.resource.id": f"prefect.flow-run.{self._flow_run}", "prefect.resource.role": "flow-run"},
                *({"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
                  for tag in about.get("tags", ())),
            ],
            "payload": {
                "intended": {"from": before.kind if before is not None else None, "to": state.kind},
                "initial_state": None if before is None else _state(before),
                "validated_state": {**_state(state), "data": None},
                "task_run": dict(about),
            },
        }  # fmt: skip

    def _open(self) -> list[dict[str, Any]]:
        about = {
            "flow_runs": {"id": {"any_": [str(self._flow_run)]}},
            "task_runs": {"state": {"type": {"any_": sorted(OPEN)}}},
            "limit": _AT_ONCE,
        }
        found: list[dict[str, Any]] = []
        while True:
            page = self._client.request("POST", "/task_runs/filter", json={**about, "offset": len(found)}).json()
            found += page
            if len(page) < _AT_ONCE:
                return found

    def _closing(self, found: Mapping[str, Any], now: datetime, message: str) -> dict[str, Any]:
        task_run, last = UUID(found["id"]), datetime.fromisoformat(found["state"]["timestamp"])
        about = {name: found[name] for name in ("name", "task_key", "dynamic_key", "tags", "run_count")}
        row = TaskRow(found["dynamic_key"], found["name"], (), (RowState(found["state_type"], "", last),))
        ended = row.then("CANCELLED", "Cancelled", now.isoformat(), message).states[-1]
        about |= _end(ended.at, begun=found["start_time"] is not None)
        return self._event(str(uuid5(task_run, "closed")), task_run, about, None, ended)


def _task_run(row: TaskRow, states: Sequence[RowState]) -> dict[str, Any]:
    """Return what a task run is as of the last of its states so far."""
    last = states[-1]
    about: dict[str, Any] = {
        "name": row.name,
        "task_key": _TASK,
        "dynamic_key": row.key,
        "tags": list(row.tags),
        "expected_start_time": states[0].at.isoformat(),
    }
    end = next((state.at for state in states if state.kind not in OPEN), None)
    if end is not None:
        about |= _end(end, begun=any(state.kind == "RUNNING" for state in states))
    if (start := next((state.at for state in states if state.kind == "RUNNING"), None)) is not None:
        took = ((end or last.at) - start).total_seconds()
        about |= {"run_count": 1, "start_time": start.isoformat(), "total_run_time": took}
    return about


def _end(at: datetime, begun: bool) -> dict[str, Any]:
    """Return how a task run ended; the bar of one that never began would reach from when it was expected to its end."""
    end = at.isoformat()
    return {"end_time": end} if begun else {"end_time": end, "expected_start_time": end}


def _state(state: RowState) -> dict[str, Any]:
    scheduled = {"scheduled_time": state.at.isoformat()} if state.kind == "SCHEDULED" else {}
    return {"type": state.kind, "name": state.name, "message": state.message or None, "state_details": scheduled}
