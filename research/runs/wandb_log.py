"""Reading a run back from the offline log that W&B wrote, with W&B's own reader.

`wandb leet inspect --json FILE` prints the log's records, one JSON object a line. What is read is what was
logged: config updates in their order and history rows. The run's summary is never looked at.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.checks.evidence import CollectError

TIMEOUT_S = 120.0
READ_PER_S = 1e5
"""Bytes of a log that the reader is sure to read in a second: the log of a long training is long."""
WRITTEN_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How W&B writes numbers for which JSON has no form."""


@dataclass(slots=True)
class TrackedRun:
    """What a W&B run logged. `history` maps each step to its finite metrics, in the order of the log."""

    project: str = ""
    group: str = ""
    id: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, float]] = field(default_factory=dict)
    not_finite: dict[int, list[str]] = field(default_factory=dict)
    """Names of the metrics of a step that were logged as NaN or infinity."""
    ended: bool = False
    """Whether the log was closed: what is missing after that was never logged."""


def find_log(directory: Path, run_id: str) -> Path:
    """Return the one offline log of W&B run `run_id` under `directory`/wandb; CollectError."""
    pattern = f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise _unreadable(f"expected one W&B log {pattern} in {directory}; found {len(found)}")
    return found[0]


def read_log(path: Path) -> TrackedRun:
    return parse(_inspect(path))


def read_tracking(directory: Path, run_id: str) -> TrackedRun:
    return read_log(find_log(directory, run_id))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the history rows of the log at `path` as W&B wrote them; CollectError."""
    records = (json.loads(line) for line in _inspect(path))
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def _inspect(path: Path) -> list[str]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    limit_s = TIMEOUT_S + (path.stat().st_size / READ_PER_S if path.exists() else 0.0)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    try:
        # A session of its own: Ctrl-C is for the study, and a reader killed by it would look like a broken log.
        done = subprocess.run(
            command,
            env={**kept, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"},
            capture_output=True,
            timeout=limit_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(f"W&B's reader took more than {limit_s:.0f} s for {path}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise _unreadable(f"W&B's reader ended with code {done.returncode} for {path}: {said[0]}")
    return done.stdout.decode(errors="replace").splitlines()


def parse(lines: Iterable[str]) -> TrackedRun:
    """Return the run that the reader's lines describe; CollectError for lines that are no records."""
    run = TrackedRun()
    for line in lines:
        try:
            record = json.loads(line)
            kind = record["type"]
            value = record[record["type"]]
            if kind == "run":
                run.project, run.id, run.group = value["project"], value["run_id"], value.get("run_group", "")
                run.config.update(_without_private(value.get("config", {}).get("update", {})))
            elif kind == "config":
                run.config.update(_without_private(value.get("update", {})))
            elif kind == "history":
                step, row = int(value["item"]["_step"]), _without_private(value["item"])
                numbers = {key: float(each) for key, each in row.items() if type(each) in (int, float)}
                finite = {key: number for key, number in numbers.items() if math.isfinite(number)}
                run.history.setdefault(step, {}).update(finite)
                strange = [key for key, each in row.items() if each in WRITTEN_NOT_FINITE]
                if names := [*strange, *(numbers.keys() - finite.keys())]:
                    run.not_finite.setdefault(step, []).extend(names)
            elif kind == "exit":
                run.ended = True
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(f"expected W&B records, one a line; found {line[:120]!r} ({error!r})") from error
    return run


def _unreadable(reason: str) -> CollectError:
    return CollectError("tracking_unreadable", reason)


def _without_private(update: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in update.items() if not key.startswith("_")}
