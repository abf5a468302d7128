"""The watchdog beside a running training: says when a locked rule stops it.

Metrics are polled and may lack steps, so they only raise a suspicion; whether a rule holds is read in the tracker's
log, where the collector will find the same. No rule that stops a training needs a later step, so that both agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from research.runs.collect import ReadTracking, history_of
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.wandb_log import read_tracking
from studies.checks.alarms import Alarm, detect_silence, find_abort_alarm, find_alarms
from studies.checks.evidence import CollectError
from studies.records.procedure import Watchdog
from studies.records.runs import AttemptFailed
from swarm.wire import Status

READ_AGAIN_S = 10.0
"""A log that did not confirm a suspicion is not read again for so long: reading takes W&B's reader seconds."""
RECALL_S = 120.0
"""For the tracker to write what it was told: seconds, and a minute beside other runs."""
LOOK_S = 1.0


class TrainingMonitor:
    """Monitors one training. `now` is a monotonic clock."""

    def __init__(
        self,
        folder: AttemptFolder,
        spec: AttemptSpec,
        read: ReadTracking = read_tracking,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.alarm: Alarm | None = None
        """The alarm that stops it, once there is one."""
        self._folder = folder
        self._spec = spec
        self._read = read
        self._now = now
        # Of a training without locked limits it is asked that its server answers.
        self._limits = spec.watchdog or Watchdog(heartbeat_s=spec.silence_s)
        self._history: list[dict[str, Any]] = []
        self._suspect = False
        """A rule that stops the training holds in what was heard."""
        self._heard_at = now()
        self._read_at = -READ_AGAIN_S
        self._stops = asyncio.Event()
        self._pending_evaluations, self._pending_since = (0, 0), now()

    async def load_history(self, steps: int) -> None:
        """Judge the steps that were trained before this attempt; AttemptFailed if they do not come into the log.

        W&B writes a step when it hears of the next one; that a rule held was read in such a log, too.
        """
        if self._spec.watchdog is None or steps == 0:
            return
        until, expected = self._now() + RECALL_S, steps - 1
        while len(rows := await self._rows()) < expected:
            if self._now() > until:
                said = f"expected {expected} steps of earlier attempts in the tracker's log; found {len(rows)}"
                raise AttemptFailed("tracking_unreadable", said)
            await asyncio.sleep(LOOK_S)
        self._history = rows
        self.alarm = self.alarm or find_abort_alarm(find_alarms(rows, self._limits))

    def reset_silence(self) -> None:
        self._heard_at = self._now()

    async def wait_for_stop(self) -> None:
        await self._stops.wait()

    def check_silence(self) -> Alarm | None:
        step = self._history[-1]["step"] if self._history else 0
        return detect_silence(self._now() - self._heard_at, self._limits, step)

    def evaluation_wait_s(self, status: Status) -> float:
        """Return for how many seconds training has waited for an evaluation of which no episode ended."""
        pending = (status.policy_version, status.awaited_evaluations)
        if pending != self._pending_evaluations or not status.awaited_evaluations:
            self._pending_evaluations, self._pending_since = pending, self._now()
        return self._now() - self._pending_since

    async def update(self, status: Status) -> None:
        self.reset_silence()
        if self._spec.watchdog is None or self.alarm is not None or status.step == 0:
            return
        if not self._history or status.step > self._history[-1]["step"]:
            self._history.append({"step": status.step, "metrics": dict(status.metrics)})
            self._suspect = find_abort_alarm(find_alarms(self._history, self._limits)) is not None
        if self._suspect and self._now() - self._read_at >= READ_AGAIN_S:
            self.alarm = find_abort_alarm(find_alarms(await self._rows(), self._limits))
            self._heard_at = self._read_at = self._now()
        if self.alarm is not None:
            self._stops.set()

    async def _rows(self) -> list[dict[str, Any]]:
        """Return the steps in the log; none while it cannot be read, for it is being written."""
        try:
            return history_of(await asyncio.to_thread(self._read, self._folder.path, self._spec.tracking_id))
        except CollectError:  # it is asked again, and for good when the run is collected
            return []
