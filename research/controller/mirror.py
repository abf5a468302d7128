"""The mirror of a study at W&B: the log of each attempt.

A thread beside the controller sends each attempt's log by `wandb beta sync --live`, once, and then looks for the last
step that W&B shows of it. No training and no verdict waits for W&B or fails with it: waits are bounded, failures are
retried for `LATEST_S` at most, and the state follows from the study's log and the attempts' folders. After an
interruption the missing rows are added once the log is whole.
"""

import os
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from research.controller.wandb import OnlineLogging, WandbClient, WandbProcess
from research.errors import NotReady
from research.files import ignore_disk_full
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.runs.files import AttemptFolder
from research.runs.wandb_log import find_log, read_log
from studies import EventLog, StoreError, StudyLog
from studies.checks.conditions import CollectError

CopyState = Literal["sending", "sent", "failed"]
"""How W&B's copy of a log stands: on its way, there to its last step, or not there in time."""
FIRST_S, LONGEST_S = 1.0, 30.0
"""Between two tries; the pause is doubled after each that failed."""
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
LOOK_S = 1.0
AGAIN_S = 10.0
"""Seconds between two tries of a server that does not answer."""
MOST_SENDING = 4
"""Copies that are sent at a time; each takes a process of W&B's client."""
SETTLE_S = 45.0
"""Most seconds that a report waits for copies under way."""
LEAVING_S = 5.0
"""Most seconds that a study which is left waits for a look that is under way."""


def describe_error(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


class Trouble:
    """Something that may fail again and again: `tell` is told once why, and once that it is over."""

    def __init__(self, tell: Note, describe: Callable[[Exception], str], over: str) -> None:
        self._tell = tell
        self._describe = describe
        self._over = over
        self.lasts = False

    def attempt(self, act: Callable[[], None], errors: tuple[type[Exception], ...] = (Exception,)) -> None:
        """Do it, whichever of these errors it raises: those of a client are many."""
        try:
            act()
        except errors as error:
            if not self.lasts:
                self._tell(self._describe(error))
            self.lasts = True
        else:
            if self.lasts:
                self._tell(self._over)
            self.lasts = False


class StudyView:
    """A thread beside a study, from entering to leaving, which is bounded; the study never fails with it. `say` takes
    where the study is shown, `warn` that it is not; a line that cannot be written is dropped."""

    def __init__(self, name: str, say: Note, warn: Note, describe: Callable[[Exception], str], over: str) -> None:
        self._say, self._warn = ignore_disk_full(say), ignore_disk_full(warn)
        self._trouble = Trouble(self._warn, describe, over)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._error = error
        self._over.set()
        with suppress(KeyboardInterrupt):  # whoever waits no longer is not kept
            self._leave()

    @abstractmethod
    def _work(self) -> None: ...

    @abstractmethod
    def _leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """How the copy of an attempt's log stands at W&B, for the study's log."""

    run_id: str
    attempt: int
    url: str
    standing: CopyState
    reason: str = ""

    def payload(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "reason" or value}


class AttemptCopy:
    """The copy of the log of one attempt, W&B run `tracking_id`. `now` is a monotonic clock."""

    def __init__(
        self, tracking_id: str, folder: AttemptFolder, client: WandbClient, now: Callable[[], float], *, settled: bool
    ) -> None:
        self.tracking_id = tracking_id
        self.settled = settled
        """Whether nothing more is to be done for it."""
        self.reason = ""
        """Why it is not there yet, as far as is known."""
        self.sending: WandbProcess | None = None
        self._folder = folder
        self._client = client
        self._now = now
        self._shown = -1
        """The last step that was seen at W&B, since `_shown_at`; none since something was sent."""
        self._shown_at = 0.0
        self._completed = False
        """Whether rows that were not there were added, as far as W&B's client knows."""
        self._logged: int | None = None
        """The last step of its log, once that is closed."""
        self._over_at: float | None = None
        self._again_at = 0.0
        self._pause_s = FIRST_S

    def advance(self, *, over: bool, may_send: bool) -> CopyState | None:
        """Do what can be done now; return how the copy stands where that is news. Raises NotReady."""
        now = self._now()
        if over and self._over_at is None:
            self._over_at = now
        if self.settled or now < self._again_at:
            return None
        log: Path | None = None
        with suppress(CollectError):
            path = find_log(self._folder.path, self.tracking_id)
            log = path if path.stat().st_size >= BEGUN_BYTES else None
        begun = log is not None and log.with_suffix(".wandb.syncstate").exists()
        # Reading a log takes the longer the longer it is: not at each look at one that grows.
        logged = None if log is None or not (over or (begun and self.sending is None)) else self._last_step(log)
        if (sending := self.sending) is not None:
            code, awaited = sending.poll(), not over or logged is not None
            if code is None and awaited and (self._over_at is None or self._now() - self._over_at < ENDING_S):
                return None
            self.end()
            if code != 0:  # 0 is no proof: W&B's client ends so where its server refused rows, too
                self._completed = False
                how = f"did not end well: {sending.last_line()}" if code else "took too long"
                self.reason = f"sending it {how}"
                self._back_off()
            return None
        if log is None or (over and logged is None):
            self.settled = over  # an attempt that left no whole log gave no result either
            return None
        late = self._over_at is not None and now - self._over_at > LATEST_S
        if begun:
            return self._check_copy(log, logged, late=late)
        self.settled = late
        if not late and may_send:
            self._send(log, live=not over)
            return "sending"
        return "failed" if late else None

    def end(self) -> None:
        if self.sending is not None:
            self.sending.end()
            self.sending = None

    def _send(self, log: Path, *, live: bool) -> None:
        self.sending = self._client.start("send", self._folder.log("wandb"), log=str(log), live=live)

    def _check_copy(self, log: Path, logged: int | None, *, late: bool) -> CopyState | None:
        self._back_off()
        if logged is None:
            return None
        try:
            shown = self._client.last_step(self.tracking_id)
        except NotReady as error:
            self.reason = str(error)
            raise
        if shown is not None and shown >= logged:
            self.settled, self.reason = True, ""
            return "sent"
        self.reason = "W&B knows no such run" if shown is None else f"W&B shows {shown} of {logged} steps"
        if late:
            self.settled = True
            return "failed"
        last, now = shown or 0, self._now()
        synced = log.with_suffix(".wandb.synced").exists()  # as W&B's client notes once it sent a whole log
        if last != self._shown:
            self._shown, self._shown_at = last, now
        if shown is not None and now - self._shown_at < (SHOWN_S if synced or self._completed else CUT_S):
            return None  # it may only be late
        if last == 0:
            self._send(log, live=False)
        elif not synced:
            given = {"log": str(log), "run": self.tracking_id, "after": last}
            self.sending = self._client.start("complete", self._folder.log("wandb"), **given)
            self._completed = True
        self._shown = -1
        return None

    def _back_off(self) -> None:
        self._again_at = self._now() + self._pause_s
        self._pause_s = min(LONGEST_S, 2 * self._pause_s)

    def _last_step(self, path: Path) -> int | None:
        """Return the last step of a log that was closed, 0 where it has none, None while it is open."""
        if self._logged is None:
            with suppress(CollectError):  # half of a record is there
                log = read_log(path)
                self._logged = max(log.history, default=0) if log.ended else None
        return self._logged


class WandbMirror(StudyView):
    """Sends the logs of a study from entering to leaving, and tells how their copies stand at W&B."""

    def __init__(
        self, home: Home, study: str, online: OnlineLogging, say: Note, warn: Note,
        environ: Mapping[str, str] = os.environ, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__("wandb-mirror", say, warn, _describe_trouble, "W&B is back")
        self._home, self._study, self._online, self._environ, self._now = home, study, online, environ, now
        self._news: deque[CopyStatus] = deque()
        self._copies: dict[tuple[str, int], AttemptCopy] = {}
        self._at_rest = threading.Event()
        """Set by a look that began after it was made, and saw nothing under way: of each `settle` its own."""

    def _leave(self) -> None:
        self._thread.join(LEAVING_S)

    def updates(self) -> Iterator[CopyStatus]:
        """Yield what is new; each is yielded again unless the one after it is asked for, as once it is written."""
        while self._news:
            yield self._news[0]
            self._news.popleft()

    def settle(self) -> None:
        """Wait until nothing is under way of attempts that ended, for `SETTLE_S` at most; for no lost server."""
        at_rest = self._at_rest = threading.Event()
        if not self._trouble.lasts and not self._over.is_set():
            at_rest.wait(SETTLE_S)

    def _work(self) -> None:
        try:
            with WandbClient(self._online, self._environ) as client, closing(EventLog(self._home.database)) as log:
                study = StudyLog(log, self._study)
                try:
                    while not self._over.wait(AGAIN_S if self._trouble.lasts else LOOK_S):
                        # The event log's server starts again, or a disk is full for a while.
                        look = partial(self._check_copies, client, study)
                        self._trouble.attempt(look, (NotReady, StoreError, OSError))
                        if self._trouble.lasts:
                            self._at_rest.set()
                finally:
                    for copy in self._copies.values():
                        copy.end()
        except Exception as error:  # noqa: BLE001 - whatever it is ends what is sent only
            self._warn(f"sending to W&B ended ({type(error).__name__}: {error}); the study goes on without it")
        finally:
            self._over.set()  # first, as whoever settles looks at it last
            self._at_rest.set()

    def _check_copies(self, client: WandbClient, study: StudyLog) -> None:
        at_rest = self._at_rest  # before the study is read: what ends meanwhile was not looked at
        state = study.state()
        if client.log_in():
            self._say(f"W&B         {client.page('groups', self._study)}")
        waits = False
        for run in state.every_run.values():  # of earlier rounds, too: their last copies come late
            for attempt in run.attempts:
                key = run.run_id, attempt.number
                if key not in self._copies:
                    folder = AttemptFolder(self._home.attempt(self._study, *key))
                    self._copies[key] = AttemptCopy(
                        f"{run.run_id}-a{attempt.number}", folder, client, self._now, settled=attempt.standing == "sent"
                    )
                copy, over = self._copies[key], attempt.status is not None
                may_send = sum(each.sending is not None for each in self._copies.values()) < MOST_SENDING
                if (standing := copy.advance(over=over, may_send=may_send)) is not None:
                    self._news.append(CopyStatus(*key, client.page("runs", copy.tracking_id), standing, copy.reason))
                waits = waits or (over and not copy.settled)
        if not waits:
            at_rest.set()


def _describe_trouble(error: Exception) -> str:
    why = f"sending to W&B waits ({type(error).__name__}: {error})"
    if isinstance(error, NotReady):
        why = f"W&B does not answer as it should ({error})"
    return f"{why}; the study goes on, and logs here"
