"""The copy of one attempt's log at W&B: sent while it grows, and compared once it is whole.

A step of it waits for a server when the copy is read, for a bounded time; what else is under way is looked at again
later. A copy that does not come is tried again with exponential backoff, for `LATEST_S` at most; a later controller
begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.attempts.backoff import FIRST_S, LONGEST_S
from research.results.attempt_files import AttemptFolder
from research.results.wandb_reader import TrackedRun, TrackingUnreadable, find_log, read_log
from research.tracking.calls import WandbCalls, WandbProcess, WandbUnavailable
from research.tracking.comparison import Standing, compare

LATEST_S = 600.0
"""How long a copy may be behind once its log is whole."""
ENDING_S = 60.0
"""For a sending to end once its attempt has."""
BEGUN_BYTES = 8
"""What a log has at least in which something was written: W&B's client begins with seven bytes."""


@dataclass(frozen=True, slots=True)
class CopyFinding:
    """How the copy of an attempt's log stands at W&B, for the study's log."""

    run_id: str
    attempt: int
    url: str
    standing: Standing
    reason: str = ""

    def payload(self) -> dict[str, Any]:
        """Return it as `attempt.copied` has it."""
        reason = {"reason": self.reason} if self.reason else {}
        return {"run_id": self.run_id, "attempt": self.attempt, "url": self.url, "standing": self.standing, **reason}


class AttemptCopy:
    """The copy of the log of one attempt, W&B run `tracking_id`. `now` is a monotonic clock."""

    def __init__(
        self, run_id: str, attempt: int, folder: AttemptFolder, calls: WandbCalls, now: Callable[[], float]
    ) -> None:
        self.run_id = run_id
        self.attempt = attempt
        self.tracking_id = f"{run_id}-a{attempt}"
        self.settled = False
        """Whether nothing more is to be done for it."""
        self.reason = ""
        """Why it is not there yet, as far as is known."""
        self._folder = folder
        self._calls = calls
        self._now = now
        self._sending: WandbProcess | None = None
        self._sent = False
        self._whole: TrackedRun | None = None
        self._over_at: float | None = None
        self._again_at = 0.0
        self._pause_s = FIRST_S

    @property
    def sends(self) -> bool:
        """Whether a process sends it now."""
        return self._sending is not None

    def go_on(self, entity: str, *, over: bool, may_send: bool) -> Standing | None:
        """Do what can be done now; return how the copy stands where that is news. Raises WandbUnavailable.

        `over` says that its attempt has ended, `may_send` that one more process may be started.
        """
        if over and self._over_at is None:
            self._over_at = self._now()
        if self.settled or self._now() < self._again_at:
            return None
        if self._sending is not None:
            self._look_after(self._sending)
            return None
        return self._compare(entity) if self._sent else self._send(entity, may_send)

    def end(self) -> None:
        """End a sending."""
        if self._sending is not None:
            self._sending.end()
            self._sending = None

    def _send(self, entity: str, may_send: bool) -> Standing | None:
        log = self._log()
        if log is None or (self._over_at is not None and self._whole_log(log) is None):
            self.settled = self._over_at is not None  # an attempt that left no whole log gave no result either
            return None
        if self._is_too_late():
            self.settled = True
            return "lacking"
        if not may_send:
            return None
        said = self._folder.log("wandb")
        self._sending = self._calls.send(log, entity, said, live=self._whole is None)
        return "sending"

    def _look_after(self, sending: WandbProcess) -> None:
        code = sending.ended()
        if code is None and self._may_still_end():
            return
        self.end()
        self._sent = code == 0
        if code != 0:
            self.reason = f"sending it did not end well: {sending.last_line()}" if code else "sending it took too long"
            self._wait()

    def _may_still_end(self) -> bool:
        """Return whether a sending may end by itself: not that of a log which nobody will close."""
        if self._over_at is None:
            return True
        log = self._log()
        return log is not None and self._whole_log(log) is not None and self._now() - self._over_at < ENDING_S

    def _compare(self, entity: str) -> Standing | None:
        log = self._log()
        whole = None if log is None else self._whole_log(log)
        if whole is None:  # W&B's client gave up before the training did
            self._sent = False
            self._wait()
            return None
        try:
            online = self._calls.history(entity, self.tracking_id)
        except WandbUnavailable as error:
            self.reason = str(error)
            self._wait()
            raise
        standing, self.reason = compare(whole, online)
        if standing == "lacking" and not self._is_too_late():
            self._sent = online is not None and bool(online.run.history)  # else nothing is there to be doubled
            self._wait()
            return None
        self.settled = True
        return standing

    def _is_too_late(self) -> bool:
        return self._over_at is not None and self._now() - self._over_at > LATEST_S

    def _wait(self) -> None:
        self._again_at = self._now() + self._pause_s
        self._pause_s = min(LONGEST_S, 2 * self._pause_s)

    def _log(self) -> Path | None:
        try:
            path = find_log(self._folder.path, self.tracking_id)
        except TrackingUnreadable:
            return None
        return path if path.stat().st_size >= BEGUN_BYTES else None

    def _whole_log(self, path: Path) -> TrackedRun | None:
        """Return what a log holds that was closed, None while it is open."""
        if self._whole is None:
            try:
                found = read_log(path)
            except TrackingUnreadable:  # half of a record is there
                return None
            self._whole = found if found.ended else None
        return self._whole


def page_of(pages: str, entity: str, project: str, tracking_id: str) -> str:
    """Return the address of a run's page."""
    return f"{pages}/{entity}/{project}/runs/{tracking_id}"
