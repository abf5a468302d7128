"""The watchdog beside a running training: it takes the metrics of the steps, and says when a locked rule stops it.

Metrics are polled and may lack steps, so they only raise a suspicion; whether a rule holds is read in the tracker's
log, where the collector will find the same. No rule that stops a training needs a later step, so that both agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from research.results.alarms import Alarm, alarms, silence, stopping
from research.results.attempt_files import AttemptFolder, AttemptSpec
from research.results.collect import ReadTracking, history_of
from research.results.wandb_reader import TrackingUnreadable, read_tracking
from studies.records.design_parts import Watchdog
from swarm.wire import Status

READ_AGAIN_S = 10.0
"""A log that did not confirm a suspicion is not read again for so long: reading takes W&B's reader seconds."""
UNWATCHED = Watchdog(heartbeat_s=120.0)
"""What is asked of the training of a design without a watchdog: that its server answers."""


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
        self._limits = spec.watchdog or UNWATCHED
        self._heard: list[dict[str, Any]] = []
        self._heard_at = now()
        self._read_at = -READ_AGAIN_S
        self._stops = asyncio.Event()

    def begin(self) -> None:
        """Count a silence from now on."""
        self._heard_at = self._now()

    async def stops(self) -> None:
        """Wait until a rule stops the training."""
        await self._stops.wait()

    def silent(self) -> Alarm | None:
        """Return the alarm of a server that has been silent for too long."""
        step = self._heard[-1]["step"] if self._heard else 0
        return silence(self._now() - self._heard_at, self._limits, step)

    async def hear(self, status: Status) -> None:
        """Take the server's status, with the metrics of its newest step."""
        self.begin()
        if self._spec.watchdog is None or self.alarm is not None or status.step == 0:
            return
        if not self._heard or status.step > self._heard[-1]["step"]:
            self._heard.append({"step": status.step, "metrics": dict(status.metrics)})
        if stopping(alarms(self._heard, self._limits)) and self._now() - self._read_at >= READ_AGAIN_S:
            self.alarm = await self._in_the_log()
            self._heard_at = self._read_at = self._now()
        if self.alarm is not None:
            self._stops.set()

    async def _in_the_log(self) -> Alarm | None:
        try:
            run = await asyncio.to_thread(self._read, self._folder.path, self._spec.tracking_id)
        except TrackingUnreadable:  # it is being written; it is asked again, and for good when the run is collected
            return None
        return stopping(alarms(history_of(run), self._limits))
