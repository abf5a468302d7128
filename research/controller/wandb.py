"""Weights & Biases: whether logs are sent, and the sending of logs and artifacts.

Nothing is sent where `WANDB_MODE` (else `mode` of W&B's settings) is not `online` or `WANDB_DISABLED` is set; else a
copy is sent if the server's key is known (`WANDB_API_KEY`, or ~/.netrc), which is looked at, never kept. A study keeps
the choice it began with.

A thread beside the controller sends the copies. No training and no verdict waits for W&B or fails with it: waits are
bounded, failures are retried for `LATEST_S` at most, and the state follows from the study's log and the attempts'
folders. A log is sent once, from its first row; after an interruption the missing rows are added once it is whole.

W&B's client may block for ever, so it runs in a process of its own, `python -m research.controller.wandb COMMAND JSON`,
which prints one line of JSON and ends once its stdin does.
"""

from __future__ import annotations

import json
import netrc
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as BadSettings
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from research.files import ignore_disk_full
from research.installation.home import Home
from research.runs.files import AttemptFolder
from research.runs.wandb_log import WRITTEN_NOT_FINITE, find_log, read_log, read_rows
from studies import AttemptState, EventLog, RunState, StoreError, StudyLog, StudyState
from studies.checks.evidence import CollectError

CLOUD_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
"""Under which `wandb login` writes down a key of W&B's cloud, by the client's version."""
SHORTEST_KEY = 40
"""Characters; W&B's own client refuses a shorter one."""
_YES = {"1", "true", "yes", "on"}


class OnlineLogging(BaseModel):
    """Where a study's logs are sent, as its settings record it; no key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = ""
    """Scheme, host and port of W&B's server; empty for W&B's cloud."""
    entity: str = ""
    """User or team; empty for whoever is logged in."""
    project: str = "ajet"

    @property
    def server(self) -> str:
        return self.base_url or "W&B's cloud"


@dataclass(frozen=True, slots=True)
class WandbLogin:
    """What the rule says here and now, and why; `online` is None where nothing is sent."""

    online: OnlineLogging | None
    why: str


def wandb_login(environ: Mapping[str, str]) -> WandbLogin:
    """Return whether logs are sent to W&B, by an environment and the user's files."""
    settings = _read_settings(environ)
    mode = environ.get("WANDB_MODE") or settings.get("mode", "")
    if mode not in ("", "online"):
        return WandbLogin(None, f"W&B's mode is {mode}")
    if environ.get("WANDB_DISABLED", "").lower() in _YES:
        return WandbLogin(None, "WANDB_DISABLED is set")
    base_url = _parse_address(environ.get("WANDB_BASE_URL") or settings.get("base_url", ""))
    if base_url is None:
        return WandbLogin(None, "WANDB_BASE_URL is no address; expected http://HOST:PORT or https://HOST")
    problem, source = _find_key(environ, base_url)
    if problem:
        return WandbLogin(None, problem)
    online = OnlineLogging(
        base_url=base_url,
        entity=environ.get("WANDB_ENTITY") or settings.get("entity", ""),
        project=environ.get("WANDB_PROJECT") or "ajet",
    )
    return WandbLogin(online, source)


def online_logging_of(settings: Mapping[str, Any]) -> OnlineLogging | None:
    """Return where a study that was created with these settings sends its logs; None for nowhere."""
    found = settings.get("wandb")
    return None if found is None else OnlineLogging.model_validate(found)


def _find_key(environ: Mapping[str, str], base_url: str) -> tuple[str, str]:
    if key := environ.get("WANDB_API_KEY"):
        if len(key) < SHORTEST_KEY:
            return f"WANDB_API_KEY has {len(key)} characters; a key has {SHORTEST_KEY}", ""
        return "", "WANDB_API_KEY is set"
    hosts = (urlsplit(base_url).netloc,) if base_url else CLOUD_HOSTS
    for path in _netrc_files(environ):
        try:
            entries = netrc.netrc(path)
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError) as error:
            return f"cannot read {path}: {error}", ""
        known = next((host for host in hosts if (found := entries.authenticators(host)) and found[2]), None)
        return ("", f"logged in to {known}") if known else (f"not logged in to {hosts[0]}", "")
    return f"not logged in to {hosts[0]}", ""


def _netrc_files(environ: Mapping[str, str]) -> list[Path]:
    if path := environ.get("NETRC"):
        return [Path(path).expanduser()]
    return [_home(environ) / ".netrc", _home(environ) / "_netrc"]


def _read_settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(_settings_folder(environ) / "settings")
    except (BadSettings, OSError, UnicodeDecodeError):  # W&B's client says so itself when it is used
        return {}
    return dict(parser["default"]) if parser.has_section("default") else {}


def _settings_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("WANDB_CONFIG_DIR") or str(_home(environ) / ".config" / "wandb")).expanduser()


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _parse_address(text: str) -> str | None:
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}"


ANSWER_S = 60.0
"""For W&B to answer a question: importing its client takes seconds on a busy machine."""
_KEPT = ("WANDB_API_KEY", "WANDB_CONFIG_DIR", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CREDENTIALS_FILE")
_QUIET = {
    "WANDB_MODE": "online", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true", "WANDB_DISABLE_JOB_CREATION": "true",
    "WANDB_X_DISABLE_STATS": "true", "WANDB_X_DISABLE_META": "true", "WANDB_X_DISABLE_MACHINE_INFO": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false", "WANDB_SAVE_CODE": "false",
}  # fmt: skip
_FOLDERS = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")


class WandbUnavailable(Exception):
    """W&B's client did not do what it was asked; the message says so in one line."""


class WandbViewer(NamedTuple):
    """Who is logged in, and the address of W&B's pages."""

    entity: str
    pages: str


class WandbProcess:
    """One call under way; what it says goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._said = said

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for so long at most; return its exit code, None where it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_line(self) -> str:
        return (self._said.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]


class WandbClient:
    """Calls on one server of W&B. A context; leaving it ends every call that is under way."""

    def __init__(self, online: OnlineLogging, environ: Mapping[str, str]) -> None:
        self._online = online
        self._environ = environ

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="ajet-wandb-", ignore_cleanup_errors=True)
        self._stdin, self._stdin_writer = os.pipe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._stdin_writer, self._stdin):
            os.close(end)
        self._folder.cleanup()

    def viewer(self) -> WandbViewer:
        found = self._call("viewer", {})
        return WandbViewer(self._online.entity or str(found["entity"]), str(found["pages"]).rstrip("/"))

    def last_step(self, entity: str, run_id: str) -> int | None:
        """Return the last step that W&B shows of a run, 0 before its first, None where it knows no such run."""
        found = self._call("last_step", {"path": f"{entity}/{self._online.project}/{run_id}"})["step"]
        return None if found is None else max(0, int(found))

    def send(self, log: Path, entity: str, said: Path, *, live: bool) -> WandbProcess:
        """Begin to send an offline log; with `live` what is added to it too, until it is closed."""
        given = {"log": str(log), "entity": entity, "project": self._online.project, "live": live}
        return self._start("send", given, said)

    def complete(self, log: Path, entity: str, run_id: str, after: int, said: Path) -> WandbProcess:
        """Begin to add to a run what a log has after a step."""
        run = {"id": run_id, "entity": entity, "project": self._online.project}
        return self._start("complete", {"log": str(log), "run": run, "after": after}, said)

    def log_artifact(
        self, run: Mapping[str, Any], artifact: Mapping[str, Any], files: list[Path], entity: str, said: Path
    ) -> WandbProcess:
        """Begin to log files as an artifact of a run."""
        where = {"entity": entity, "project": self._online.project}
        given = {"run": {**run, **where}, "artifact": artifact, "files": [str(path) for path in files]}
        return self._start("keep", given, said)

    def _call(self, command: str, given: Mapping[str, Any]) -> dict[str, Any]:
        said = Path(self._folder.name) / f"{command}.txt"
        said.unlink(missing_ok=True)
        process = self._start(command, given, said)
        code = process.wait(ANSWER_S)
        if code is None:
            process.end()
            raise WandbUnavailable(f"{self._online.server} did not answer within {ANSWER_S:g} s")
        if code:
            raise WandbUnavailable(process.last_line())
        try:
            found: dict[str, Any] = json.loads(process.last_line())
        except ValueError as error:  # on a full disk, say, its answer was cut
            raise WandbUnavailable(f"expected an answer of W&B's client; found {process.last_line()[:80]!r}") from error
        return found

    def _start(self, command: str, given: Mapping[str, Any], said: Path) -> WandbProcess:
        said.parent.mkdir(parents=True, exist_ok=True)
        with open(said, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "research.controller.wandb", command, json.dumps(given)],
                env=self._environment(), stdin=self._stdin, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return WandbProcess(process, said)

    def _environment(self) -> dict[str, str]:
        own = {key: value for key, value in self._environ.items() if not key.startswith("WANDB_") or key in _KEPT}
        folders = dict.fromkeys(_FOLDERS, self._folder.name)
        server = {"WANDB_BASE_URL": self._online.base_url} if self._online.base_url else {}
        return {**own, **folders, **_QUIET, **server}


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


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """How the copy of an attempt's log stands at W&B, for the study's log."""

    run_id: str
    attempt: int
    url: str
    standing: CopyState
    reason: str = ""

    def payload(self) -> dict[str, Any]:
        reason = {"reason": self.reason} if self.reason else {}
        return {"run_id": self.run_id, "attempt": self.attempt, "url": self.url, "standing": self.standing, **reason}


class AttemptCopy:
    """The copy of the log of one attempt, W&B run `tracking_id`. `now` is a monotonic clock."""

    def __init__(
        self, run_id: str, attempt: int, folder: AttemptFolder, calls: WandbClient, now: Callable[[], float]
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
        return self._sending is not None

    def advance(self, entity: str, *, over: bool, may_send: bool) -> CopyState | None:
        """Do what can be done now; return how the copy stands where that is news. Raises WandbUnavailable."""
        if over and self._over_at is None:
            self._over_at = self._now()
        if self.settled or self._now() < self._again_at:
            return None
        if self._sending is not None:
            self._check_process(self._sending)
            return None
        log = self._find_log()
        if log is None:
            self.settled = over
            return None
        if not log.with_suffix(".wandb.syncstate").exists():
            return self._send(log, entity, may_send)
        logged = self._find_last_step(log)
        if logged is None:
            self.settled = over
            self._back_off()
            return None
        return self._check_copy(log, logged, entity)

    @property
    def _said(self) -> Path:
        return self._folder.log("wandb")

    def end(self) -> None:
        if self._sending is not None:
            self._sending.end()
            self._sending = None

    def _send(self, log: Path, entity: str, may_send: bool) -> CopyState | None:
        over = self._over_at is not None
        if over and self._find_last_step(log) is None:
            self.settled = True  # an attempt that left no whole log gave no result either
            return None
        if self._is_too_late():
            self.settled = True
            return "failed"
        if not may_send:
            return None
        self._sending = self._calls.send(log, entity, self._said, live=not over)
        return "sending"

    def _check_process(self, sending: WandbProcess) -> None:
        code = sending.poll()
        if code is None and self._may_end():
            return
        self.end()
        if code != 0:
            self._completed = False
            self.reason = f"sending it did not end well: {sending.last_line()}" if code else "sending it took too long"
            self._back_off()

    def _may_end(self) -> bool:
        """Return whether a sending may end by itself: not that of a log which nobody will close."""
        if self._over_at is None:
            return True
        log = self._find_log()
        return log is not None and self._find_last_step(log) is not None and self._now() - self._over_at < ENDING_S

    def _check_copy(self, log: Path, logged: int, entity: str) -> CopyState | None:
        try:
            shown = self._calls.last_step(entity, self.tracking_id)
        except WandbUnavailable as error:
            self.reason = str(error)
            self._back_off()
            raise
        if shown is not None and shown >= logged:
            self.settled, self.reason = True, ""
            return "sent"
        self.reason = "W&B knows no such run" if shown is None else f"W&B shows {shown} of {logged} steps"
        if self._is_too_late():
            self.settled = True
            return "failed"
        self._back_off()
        self._send_missing(log, entity, shown)
        return None

    def _send_missing(self, log: Path, entity: str, shown: int | None) -> None:
        """Have sent what is not there, unless it may only be late."""
        last = shown or 0
        if self._last_at is None or last != self._last:
            self._last, self._last_at = last, self._now()
        went_well = _is_synced(log) or self._completed
        if shown is not None and self._now() - self._last_at < (SHOWN_S if went_well else CUT_S):
            return
        if last == 0:
            self._sending = self._calls.send(log, entity, self._said, live=False)
        elif not _is_synced(log):
            self._sending = self._calls.complete(log, entity, self.tracking_id, last, self._said)
            self._completed = True
        self._last_at = None  # what was sent now has as long to be shown

    def _is_too_late(self) -> bool:
        return self._over_at is not None and self._now() - self._over_at > LATEST_S

    def _back_off(self) -> None:
        self._again_at = self._now() + self._pause_s
        self._pause_s = min(LONGEST_S, 2 * self._pause_s)

    def _find_log(self) -> Path | None:
        try:
            path = find_log(self._folder.path, self.tracking_id)
        except CollectError:
            return None
        return path if path.stat().st_size >= BEGUN_BYTES else None

    def _find_last_step(self, path: Path) -> int | None:
        """Return the last step of a log that was closed, 0 where it has none, None while it is open."""
        if self._logged is None:
            try:
                found = read_log(path)
            except CollectError:  # half of a record is there
                return None
            self._logged = max(found.history, default=0) if found.ended else None
        return self._logged


def _is_synced(log: Path) -> bool:
    return log.with_suffix(".wandb.synced").exists()


def run_url(pages: str, entity: str, project: str, tracking_id: str) -> str:
    return f"{pages}/{entity}/{project}/runs/{tracking_id}"


MOST_CHECKPOINT_BYTES = 256 * 2**20
"""A larger checkpoint stays where it is, which is said."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Files to be sent: the W&B run that holds them, what they are called, and where W&B's client says what it does."""

    run: Mapping[str, Any]
    artifact: Mapping[str, Any]
    files: list[Path]
    said: Path


class UploadQueue:
    """The files of one study that are to be sent, and the one that is under way."""

    def __init__(self, home: Home, study: str, warn: Callable[[str], None]) -> None:
        self._home = home
        self._study = study
        self._warn = warn
        self._waiting: deque[Upload] = deque()
        self._under_way: tuple[Upload, WandbProcess] | None = None

    def add_checkpoint(self, run: RunState, attempt: int) -> None:
        """Have the last checkpoint of a run sent, if it left one that is not too large."""
        folder = AttemptFolder(self._home.attempt(self._study, run.run_id, attempt))
        found = sorted((folder.server / "checkpoints").glob("step-*"))
        if not found:
            return
        if (size := _count_bytes(found[-1])) > MOST_CHECKPOINT_BYTES:
            self._warn(f"not sent to W&B: the checkpoint {found[-1]} of {size / 2**20:.0f} MiB; at most "
                       f"{MOST_CHECKPOINT_BYTES / 2**20:.0f} MiB are")  # fmt: skip
            return
        about = {"study": self._study, "arm": run.spec.arm, "seed": run.spec.seed, "checkpoint": found[-1].name}
        artifact = {"name": f"checkpoint-{run.run_id}", "type": "model", "metadata": about}
        of = {"id": f"{run.run_id}-a{attempt}", "resume": "must"}
        self._waiting.append(Upload(of, artifact, [found[-1]], folder.log("wandb")))

    def add_report(self, state: StudyState) -> None:
        """Have the report on a study sent before anything else, if it has one."""
        if state.report is None:
            return
        folder = self._home.study(self._study)
        files = [folder / state.report[kind]["path"] for kind in ("markdown", "html")]
        run = {"id": f"{self._study}-report", "name": "report", "group": self._study, "job_type": "report",
               "tags": [self._study], "resume": "allow", "config": {"study": self._study}}  # fmt: skip
        artifact = {"name": f"report-{self._study}", "type": "report"}
        self._waiting.appendleft(Upload(run, artifact, files, folder / "wandb.log"))

    def advance(self, calls: WandbClient, entity: str) -> bool:
        """Send the next file unless one is under way; return whether anything is left to wait for."""
        if self._under_way is not None:
            file, process = self._under_way
            if (code := process.poll()) is None:
                return True
            self._under_way = None
            if code:
                self._warn(f"not sent to W&B: {file.artifact['name']} ({process.last_line()})")
        if self._waiting:
            file = self._waiting[0]  # where a full disk lets nothing be started, it waits on
            self._under_way = file, calls.log_artifact(file.run, file.artifact, file.files, entity, file.said)
            self._waiting.popleft()
        return self._under_way is not None

    def end(self) -> None:
        if self._under_way is not None:
            file, process = self._under_way
            process.end()
            self._waiting.appendleft(file)
        if self._waiting:
            self._warn(f"not sent to W&B: {', '.join(str(file.artifact['name']) for file in self._waiting)}")


def _count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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


class LogMirror(Protocol):
    """Tells how the copies of a study's logs stand at W&B."""

    def updates(self) -> Iterable[CopyStatus]:
        """Yield what was found; each is found again unless the one after it is asked for, as once it is written."""
        ...

    def settle(self) -> None:
        """Wait, for a bounded time, until it has found all that is to be found of the attempts that ended."""
        ...


class NoMirror:
    """Finds nothing: of studies that are logged offline."""

    def updates(self) -> Iterable[CopyStatus]:
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
        """`say` takes where the study is shown, `warn` that it is not; a line that cannot be written is dropped."""
        self._home = home
        self._study = study
        self._online = online
        self._say = ignore_disk_full(say)
        self._warn = ignore_disk_full(warn)
        self._environ = environ
        self._now = now
        self._found: deque[CopyStatus] = deque()
        self._copies: dict[tuple[str, int], AttemptCopy] = {}
        self._files = UploadQueue(home, study, self._warn)
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

    def updates(self) -> Iterator[CopyStatus]:
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
            with WandbClient(self._online, self._environ) as calls, closing(EventLog(self._home.database)) as log:
                study = StudyLog(log, self._study)
                try:
                    while not self._over.wait(AGAIN_S if self._lost else LOOK_S):
                        self._attempt(lambda: self._check_copies(calls, study))
                    if not self._leaving.is_set() and not self._lost:
                        self._attempt(lambda: self._finish(calls, study.state()))
                finally:
                    for copy in self._copies.values():
                        copy.end()
                    self._files.end()
        except Exception as error:  # noqa: BLE001 - whatever it is ends what is sent only
            self._warn(f"sending to W&B ended ({type(error).__name__}: {error}); the study goes on without it")
        finally:
            self._over.set()  # first, as whoever settles looks at it last
            self._at_rest.set()

    def _attempt(self, look: Callable[[], None]) -> None:
        """Do something; say once that it fails, with the reason, and once that it works again."""
        try:
            look()
        except WandbUnavailable as error:
            self._report_failure(f"W&B does not answer as it should ({error})")
        except (StoreError, OSError) as error:  # the event log's server starts again, or a disk is full for a while
            self._report_failure(f"sending to W&B waits ({type(error).__name__}: {error})")
        else:
            if self._lost:
                self._warn("W&B is back")
            self._lost = False

    def _report_failure(self, why: str) -> None:
        if not self._lost:
            self._warn(f"{why}; the study goes on, and logs here")
        self._lost = True
        self._at_rest.set()

    def _check_copies(self, calls: WandbClient, study: StudyLog) -> None:
        at_rest = self._at_rest  # before the study is read: what ends meanwhile was not looked at
        state = study.state()
        if self._viewer is None:
            self._viewer = calls.viewer()
            self._say(f"W&B         {group_url(self._viewer, self._online, self._study)}")
        waited = False
        for run in state.every_run.values():  # of earlier rounds, too: their last copies come late
            for attempt in run.attempts:
                key = run.run_id, attempt.number
                if key not in self._copies:
                    self._copies[key] = AttemptCopy(
                        run.run_id, attempt.number, self._folder(run, attempt), calls, self._now
                    )
                    self._copies[key].settled = attempt.standing == "sent"
                copy = self._copies[key]
                self._advance_copy(self._viewer, copy, run, attempt)
                waited = waited or (attempt.status is not None and not copy.settled)
        if not waited:
            at_rest.set()
            self._files.advance(calls, self._viewer.entity)

    def _advance_copy(self, viewer: WandbViewer, copy: AttemptCopy, run: RunState, attempt: AttemptState) -> None:
        may_send = sum(each.sends for each in self._copies.values()) < MOST_SENDING
        standing = copy.advance(viewer.entity, over=attempt.status is not None, may_send=may_send)
        if standing is None:
            return
        url = run_url(viewer.pages, viewer.entity, self._online.project, copy.tracking_id)
        self._found.append(CopyStatus(run.run_id, attempt.number, url, standing, copy.reason))
        if standing == "sent":
            self._files.add_checkpoint(run, attempt.number)

    def _finish(self, calls: WandbClient, state: StudyState) -> None:
        """Send the report, and the checkpoints that are left, as far as the time goes."""
        if self._viewer is None:
            return
        until = self._now() + CLOSING_S
        self._files.add_report(state)
        while self._files.advance(calls, self._viewer.entity) and self._now() < until and not self._leaving.is_set():
            self._leaving.wait(0.1)

    def _folder(self, run: RunState, attempt: AttemptState) -> AttemptFolder:
        return AttemptFolder(self._home.attempt(self._study, run.run_id, attempt.number))


def group_url(viewer: WandbViewer, online: OnlineLogging, study: str) -> str:
    return f"{viewer.pages}/{viewer.entity}/{online.project}/groups/{study}"


Given = Mapping[str, Any]


def main() -> int:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    command, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        answer = _COMMANDS[command](given)
    except Exception as error:  # noqa: BLE001 - W&B's client may raise anything; whoever started this is told
        sys.stderr.write(" ".join(f"{type(error).__name__}: {error}".split()) + "\n")
        return 1
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    if os.getpgid(0) == os.getpid():  # whatever W&B's client started stands in the same group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _find_viewer(given: Given) -> Given:
    import wandb

    return {"entity": wandb.Api().default_entity, "pages": wandb.setup().settings.app_url}


def _send(given: Given) -> Given:
    live = ["--live"] if given["live"] else []
    # A log that was sent in part is sent again as a whole, whatever W&B's client noted of it.
    sys.argv = ["wandb", "beta", "sync", "--no-skip-synced", "-e", given["entity"], "-p", given["project"], *live,
                given["log"]]  # fmt: skip
    try:
        runpy.run_module("wandb", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"wandb beta sync ended with code {ended.code}") from ended
    return {}


def _find_last_step(given: Given) -> Given:
    import wandb

    try:
        return {"step": wandb.Api().run(given["path"]).lastHistoryStep}
    except (wandb.errors.CommError, ValueError) as error:
        if "Could not find" not in str(error):
            raise
        return {"step": None}


def _complete(given: Given) -> Given:
    import wandb

    run = wandb.init(mode="online", resume="must", **given["run"])
    for row in read_rows(Path(given["log"])):
        if row["_step"] > given["after"]:
            run.log(
                {
                    key: (float(value) if value in WRITTEN_NOT_FINITE else value)
                    for key, value in row.items()
                    if not key.startswith("_")
                },
                step=row["_step"],
            )
    run.finish()
    return {}


def _log_artifact(given: Given) -> Given:
    import wandb

    run = wandb.init(mode="online", **given["run"])
    artifact = wandb.Artifact(**given["artifact"])
    for path in given["files"]:
        add = artifact.add_dir if os.path.isdir(path) else artifact.add_file
        add(path, policy="immutable", skip_cache=True)  # no second copy of what may be large
    run.log_artifact(artifact).wait()
    run.finish()
    return {}


_COMMANDS: Mapping[str, Callable[[Given], Given]] = {
    "viewer": _find_viewer,
    "send": _send,
    "complete": _complete,
    "last_step": _find_last_step,
    "keep": _log_artifact,
}


if __name__ == "__main__":
    sys.exit(main())
