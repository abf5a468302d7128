"""A study at W&B: a thread beside the controller that sends copies of its logs, and tells how they stand.

No training and no verdict waits for W&B or fails with it. What is found goes to the controller, which writes it to the
study's log between its own steps (`attempt.copied`); before a report it waits for copies that are under way, for a
bounded time. A W&B that does not answer is reported once and tried again. What the thread knows is rebuilt from the
study's log and the attempts' folders: killed anywhere, the next controller's goes on.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from types import TracebackType
from typing import Protocol, Self

from research.installation.disk import unless_full
from research.installation.home import Home
from research.results.attempt_files import AttemptFolder
from research.tracking.calls import WandbCalls, WandbUnavailable, WandbViewer
from research.tracking.copies import AttemptCopy, CopyFinding, page_of
from research.tracking.files import SentFiles
from research.tracking.login import OnlineLogging
from studies import AttemptState, EventLog, RunState, StoreError, StudyLog, StudyState

LOOK_S = 1.0
AGAIN_S = 10.0
"""Seconds between two tries of a server that does not answer."""
MOST_SENDING = 4
"""Copies that are sent at a time; each takes a process of W&B's client."""
SETTLE_S = 45.0
"""Most seconds that a report waits for copies under way."""
CLOSING_S = 30.0
"""Most seconds that files of a study which is over are sent; a look that is under way may take as long again."""
LEAVING_S = 5.0
"""Most seconds that a study waits which is left at once, or whose W&B does not answer."""

Say = Callable[[str], None]
"""Takes one line for whoever watches."""


class TellsOfCopies(Protocol):
    """Tells how the copies of a study's logs stand at W&B."""

    def found(self) -> Iterable[CopyFinding]:
        """Yield what was found; each is found again unless the one after it is asked for, as once it is written."""
        ...

    def settle(self) -> None:
        """Wait, for a bounded time, until it has found all that is to be found of the attempts that ended."""
        ...


class NoMirror:
    """Finds nothing: of studies that are logged offline."""

    def found(self) -> Iterable[CopyFinding]:
        """Return nothing."""
        return ()

    def settle(self) -> None:
        """Return at once."""


NO_MIRROR = NoMirror()


class WandbMirror:
    """Sends the logs of a study from entering to leaving."""

    def __init__(
        self,
        home: Home,
        study: str,
        online: OnlineLogging,
        say: Say,
        warn: Say,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say` takes where the study is shown, `warn` that it is not; `now` is a monotonic clock.

        A line that can be written nowhere, as on a full disk, is dropped.
        """
        self._home = home
        self._study = study
        self._online = online
        self._say = unless_full(say)
        self._warn = unless_full(warn)
        self._environ = environ
        self._now = now
        self._found: deque[CopyFinding] = deque()
        self._copies: dict[tuple[str, int], AttemptCopy] = {}
        self._files = SentFiles(home, study, self._warn)
        self._viewer: WandbViewer | None = None
        self._lost = False
        self._over, self._leaving = threading.Event(), threading.Event()
        self._at_rest = threading.Event()
        """Set by a look that began after it was made, and found nothing under way: of each `settle` its own."""
        self._thread = threading.Thread(target=self._work, name="wandb-mirror", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._leaving.set()
        self._over.set()
        with suppress(KeyboardInterrupt):  # whoever waits no longer is not kept
            self._thread.join(LEAVING_S if self._lost or error is not None else 2 * CLOSING_S)

    def found(self) -> Iterator[CopyFinding]:
        """Yield what was found; each is found again unless the one after it is asked for."""
        while self._found:
            yield self._found[0]
            self._found.popleft()

    def settle(self) -> None:
        """Wait until nothing is under way of attempts that ended, for `SETTLE_S` at most; for no lost server."""
        at_rest = self._at_rest = threading.Event()
        if not self._lost and not self._over.is_set():
            at_rest.wait(SETTLE_S)

    def _work(self) -> None:
        try:
            with WandbCalls(self._online, self._environ) as calls, closing(EventLog(self._home.database)) as log:
                study = StudyLog(log, self._study)
                try:
                    while not self._over.wait(AGAIN_S if self._lost else LOOK_S):
                        self._try(lambda: self._look(calls, study))
                    if not self._leaving.is_set() and not self._lost:
                        self._try(lambda: self._finish(calls, study.state()))
                finally:
                    self._end()
        except Exception as error:  # noqa: BLE001 - whatever it is ends what is sent only
            self._warn(f"sending to W&B ended ({type(error).__name__}: {error}); the study goes on without it")
        finally:
            self._over.set()  # first, as whoever settles looks at it last
            self._at_rest.set()

    def _try(self, look: Callable[[], None]) -> None:
        """Do something; say once that it fails, with the reason, and once that it works again."""
        try:
            look()
        except WandbUnavailable as error:
            self._miss(f"W&B does not answer as it should ({error})")
        except (StoreError, OSError) as error:  # the event log's server starts again, or a disk is full for a while
            self._miss(f"sending to W&B waits ({type(error).__name__}: {error})")
        else:
            if self._lost:
                self._warn("W&B is back")
            self._lost = False

    def _miss(self, why: str) -> None:
        if not self._lost:
            self._warn(f"{why}; the study goes on, and logs here")
        self._lost = True
        self._at_rest.set()

    def _look(self, calls: WandbCalls, study: StudyLog) -> None:
        at_rest = self._at_rest  # before the study is read: what ends meanwhile was not looked at
        state = study.state()
        if self._viewer is None:
            self._viewer = calls.viewer()
            self._say(f"W&B         {group_page(self._viewer, self._online, self._study)}")
        waited = False
        for run in state.every_run.values():  # of earlier rounds, too: their last copies come late
            for attempt in run.attempts:
                copy = self._copy(calls, run, attempt)
                self._go_on(self._viewer, copy, run, attempt)
                waited = waited or (attempt.status is not None and not copy.settled)
        if not waited:
            at_rest.set()
            self._files.go_on(calls, self._viewer.entity)

    def _copy(self, calls: WandbCalls, run: RunState, attempt: AttemptState) -> AttemptCopy:
        key = run.run_id, attempt.number
        if key not in self._copies:
            self._copies[key] = AttemptCopy(run.run_id, attempt.number, self._folder(run, attempt), calls, self._now)
            self._copies[key].settled = attempt.standing == "sent"
        return self._copies[key]

    def _go_on(self, viewer: WandbViewer, copy: AttemptCopy, run: RunState, attempt: AttemptState) -> None:
        may_send = sum(each.sends for each in self._copies.values()) < MOST_SENDING
        standing = copy.go_on(viewer.entity, over=attempt.status is not None, may_send=may_send)
        if standing is None:
            return
        url = page_of(viewer.pages, viewer.entity, self._online.project, copy.tracking_id)
        self._found.append(CopyFinding(run.run_id, attempt.number, url, standing, copy.reason))
        if standing == "sent":
            self._files.add_checkpoint(run, attempt.number)

    def _finish(self, calls: WandbCalls, state: StudyState) -> None:
        """Send the report, and the checkpoints that are left, as far as the time goes."""
        if self._viewer is None:
            return
        until = self._now() + CLOSING_S
        self._files.add_report(state)
        while self._files.go_on(calls, self._viewer.entity) and self._now() < until and not self._leaving.is_set():
            self._leaving.wait(0.1)

    def _end(self) -> None:
        for copy in self._copies.values():
            copy.end()
        self._files.end()

    def _folder(self, run: RunState, attempt: AttemptState) -> AttemptFolder:
        return AttemptFolder(self._home.attempt(self._study, run.run_id, attempt.number))


def group_page(viewer: WandbViewer, online: OnlineLogging, study: str) -> str:
    """Return the address of the page of all runs of a study."""
    return f"{viewer.pages}/{viewer.entity}/{online.project}/groups/{study}"
