"""Reading a run back from the offline log that W&B wrote, with W&B's own reader.

`wandb leet inspect --json FILE` prints the log's records, one JSON object a line. What is read is what was
logged: config updates in their order and history rows. The run's summary is never looked at.

The watchdog beside a running training says when a locked rule stops it. Metrics are polled and may lack steps, so they
only raise a suspicion; whether a rule holds is read in the log, where the collector will find the same. No rule that
stops a training needs a later step, so that both agree.
"""

import asyncio
import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from research.runs.files import AttemptFolder, AttemptSpec
from studies.checks.alarms import AbortWatch, Alarm, detect_silence, find_abort_alarm, find_alarms
from studies.checks.conditions import CollectError
from studies.records.procedure import Watchdog
from studies.records.runs import AttemptFailed
from swarm.wire import Status

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


def _inspect(path: Path) -> Iterator[str]:
    path, package = path.absolute(), find_spec("wandb")
    core = Path(package.origin if package and package.origin else "wandb").with_name("bin") / "wandb-core"
    limit_s = TIMEOUT_S + (path.stat().st_size / READ_PER_S if path.exists() else 0.0)
    variables = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    variables |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}

    def read(*command: str) -> subprocess.CompletedProcess[bytes]:
        # A session of its own: Ctrl-C is for the study, and a reader killed by it would look like a broken log.
        return subprocess.run(
            command, env=variables, capture_output=True, timeout=limit_s, check=False, start_new_session=True
        )

    try:
        options = ("--no-observability", "--json", "--run-file", str(path), str(path.parent.parent))
        # What the command below runs, once it has imported W&B, which takes seconds.
        done = read(str(core), "leet", "inspect", *options) if core.exists() else None
        if done is None or done.returncode:
            done = read(sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path))
    except subprocess.TimeoutExpired as error:
        raise _unreadable(f"W&B's reader took more than {limit_s:.0f} s for {path}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise _unreadable(f"W&B's reader ended with code {done.returncode} for {path}: {said[0]}")
    return (line.decode(errors="replace") for line in io.BytesIO(done.stdout))  # of 100,000 steps hundreds of MB


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
                numbers = {sys.intern(key): float(each) for key, each in row.items() if type(each) in (int, float)}
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


ReadTracking = Callable[[Path, str], TrackedRun]
"""Reads the tracker's log of the run with this id, under a folder; CollectError where it cannot be read."""


def history_of(run: TrackedRun, *, whole: bool = True) -> list[dict[str, Any]]:
    """Return a row for each training step of a tracked run; unless `whole`, also for one that was refused."""
    return [
        {"step": step, "metrics": metrics, **({"not_finite": sorted(names)} if names else {})}
        for step, metrics in sorted(run.history.items())
        if "critic/rewards/mean" in metrics or not whole
        for names in [run.not_finite.get(step, [])]
    ]


READ_AGAIN_S = 10.0
"""A log that does not show a suspicion's step yet is not read again for so long: reading takes W&B's reader seconds."""
RECALL_S = 120.0
"""For the tracker to write more of what it was told: seconds, and a minute beside other runs."""
LOOK_S = 1.0


class TrainingMonitor:
    """Monitors one training. `now` is a monotonic clock."""

    def __init__(
        self, folder: AttemptFolder, spec: AttemptSpec, read: ReadTracking = read_tracking,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.alarm: Alarm | None = None
        """The alarm that stops it, once there is one; `stops` is set then."""
        self.stops = asyncio.Event()
        self._folder, self._spec, self._read, self._now = folder, spec, read, now
        # Of a training without locked limits it is asked that its server answers.
        self._limits = spec.watchdog or Watchdog(heartbeat_s=spec.silence_s)
        self._heard = AbortWatch(self._limits)
        self._suspected: int | None = None  # the step up to which a rule that stops it held in what was heard
        self._heard_at = now()
        self._read_at = -READ_AGAIN_S
        self._pending, self._pending_since = (0, 0), now()

    async def load_history(self, steps: int) -> None:
        """Judge the steps that were trained before this attempt; AttemptFailed if they do not come into the log. W&B
        writes a step when it hears of the next one; that a rule held was read in such a log, too."""
        if self._spec.watchdog is None or steps == 0:
            return
        most, until, expected = -1, 0.0, steps - 1
        while len(rows := await self._rows()) < expected:
            if len(rows) > most:
                most, until = len(rows), self._now() + RECALL_S
            if self._now() > until:
                said = f"expected {expected} steps of earlier attempts in the tracker's log; found {len(rows)}"
                raise AttemptFailed("tracking_unreadable", said)
            await asyncio.sleep(LOOK_S)
        for row in rows:
            self._heard.add(row)
        self.alarm = self.alarm or find_abort_alarm(find_alarms(rows, self._limits))

    def reset_silence(self) -> None:
        self._heard_at = self._now()

    def check_silence(self) -> Alarm | None:
        return detect_silence(self._now() - self._heard_at, self._limits, self._heard.step)

    def evaluation_wait_s(self, status: Status) -> float:
        """Return for how many seconds training has waited for an evaluation of which no episode ended."""
        pending = (status.policy_version, status.awaited_evaluations)
        if pending != self._pending or not status.awaited_evaluations:
            self._pending, self._pending_since = pending, self._now()
        return self._now() - self._pending_since

    async def update(self, status: Status) -> None:
        self.reset_silence()
        if self._spec.watchdog is None or self.alarm is not None or status.step == 0:
            return
        if status.step > self._heard.step and self._heard.add({"step": status.step, "metrics": status.metrics}):
            self._suspected = status.step
        if self._suspected is not None and self._now() - self._read_at >= READ_AGAIN_S:
            rows = await self._rows()
            self.alarm = find_abort_alarm(find_alarms(rows, self._limits))
            if rows and rows[-1]["step"] >= self._suspected:
                self._suspected = None
            self._heard_at = self._read_at = self._now()
        if self.alarm is not None:
            self.stops.set()

    async def _rows(self) -> list[dict[str, Any]]:
        try:
            return history_of(await asyncio.to_thread(self._read, self._folder.path, self._spec.tracking_id))
        except CollectError:  # it is asked again, and for good when the run is collected
            return []
