"""The copy of one attempt's log at W&B: sent while it grows, and asked for its last step once the log is whole.

W&B's client sends a log from its first row, after whatever the run at W&B holds, so a log is sent once. Where that was
cut short (the controller was killed, the server was gone), the rows that are not there are added once the log is whole,
by going on with the run. W&B's client notes beside the log that a sending began, and that it ended well.

A step of it waits for a server when that is asked, for a bounded time; what else is under way is looked at again
later. A copy that does not come is tried again with exponential backoff, for `LATEST_S` at most; a later controller
begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from research.attempts.backoff import FIRST_S, LONGEST_S
from research.results.attempt_files import AttemptFolder
from research.results.wandb_reader import TrackingUnreadable, find_log, read_log
from research.tracking.calls import WandbCalls, WandbProcess, WandbUnavailable

Standing = Literal["sending", "sent", "failed"]
"""How W&B's copy of a log stands: on its way, there to its last step, or not there in time."""

LATEST_S = 600.0
"""How long a copy may be behind once its log is whole."""
ENDING_S = 60.0
"""For a sending to end once its attempt has."""
CUT_S = 15.0
"""For rows that were sent to be shown, before a copy whose sending was cut short counts as all that was sent."""
SHOWN_S = 120.0
"""For rows to be shown after a sending, or an adding, that ended well for W&B's client: what is sent twice stands there
twice, and rows lag by seconds, rarely minutes."""
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
        self._last = 0
        self._last_at: float | None = None
        """The last step that was seen at W&B, and since when."""
        self._completed = False
        """Whether rows that were not there were added, as far as W&B's client knows."""
        self._logged: int | None = None
        """The last step of its log, once that is closed."""
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
        log = self._log()
        if log is None:
            self.settled = over
            return None
        if not _was_begun(log):
            return self._send(log, entity, may_send)
        logged = self._last_logged(log)
        if logged is None:
            self.settled = over
            self._wait()
            return None
        return self._ask(log, logged, entity)

    @property
    def _said(self) -> Path:
        return self._folder.log("wandb")

    def end(self) -> None:
        """End a sending."""
        if self._sending is not None:
            self._sending.end()
            self._sending = None

    def _send(self, log: Path, entity: str, may_send: bool) -> Standing | None:
        over = self._over_at is not None
        if over and self._last_logged(log) is None:
            self.settled = True  # an attempt that left no whole log gave no result either
            return None
        if self._is_too_late():
            self.settled = True
            return "failed"
        if not may_send:
            return None
        self._sending = self._calls.send(log, entity, self._said, live=not over)
        return "sending"

    def _look_after(self, sending: WandbProcess) -> None:
        code = sending.ended()
        if code is None and self._may_still_end():
            return
        self.end()
        if code != 0:
            self._completed = False
            self.reason = f"sending it did not end well: {sending.last_line()}" if code else "sending it took too long"
            self._wait()

    def _may_still_end(self) -> bool:
        """Return whether a sending may end by itself: not that of a log which nobody will close."""
        if self._over_at is None:
            return True
        log = self._log()
        return log is not None and self._last_logged(log) is not None and self._now() - self._over_at < ENDING_S

    def _ask(self, log: Path, logged: int, entity: str) -> Standing | None:
        try:
            shown = self._calls.last_step(entity, self.tracking_id)
        except WandbUnavailable as error:
            self.reason = str(error)
            self._wait()
            raise
        if shown is not None and shown >= logged:
            self.settled, self.reason = True, ""
            return "sent"
        self.reason = "W&B knows no such run" if shown is None else f"W&B shows {shown} of {logged} steps"
        if self._is_too_late():
            self.settled = True
            return "failed"
        self._wait()
        self._mend(log, entity, shown)
        return None

    def _mend(self, log: Path, entity: str, shown: int | None) -> None:
        """Have sent what is not there, unless it may only be late."""
        last = shown or 0
        if self._last_at is None or last != self._last:
            self._last, self._last_at = last, self._now()
        went_well = _ended_well(log) or self._completed
        if shown is not None and self._now() - self._last_at < (SHOWN_S if went_well else CUT_S):
            return
        if last == 0:
            self._sending = self._calls.send(log, entity, self._said, live=False)
        elif not _ended_well(log):
            self._sending = self._calls.complete(log, entity, self.tracking_id, last, self._said)
            self._completed = True
        self._last_at = None  # what was sent now has as long to be shown

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

    def _last_logged(self, path: Path) -> int | None:
        """Return the last step of a log that was closed, 0 where it has none, None while it is open."""
        if self._logged is None:
            try:
                found = read_log(path)
            except TrackingUnreadable:  # half of a record is there
                return None
            self._logged = max(found.history, default=0) if found.ended else None
        return self._logged


def _was_begun(log: Path) -> bool:
    return log.with_suffix(".wandb.syncstate").exists()


def _ended_well(log: Path) -> bool:
    return log.with_suffix(".wandb.synced").exists()


def page_of(pages: str, entity: str, project: str, tracking_id: str) -> str:
    """Return the address of a run's page."""
    return f"{pages}/{entity}/{project}/runs/{tracking_id}"
