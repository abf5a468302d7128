"""Weights & Biases: whether logs are sent there, and calls of its client, each in a process of its own.

Nothing is sent where `WANDB_MODE` (else `mode` of W&B's settings) is not `online` or `WANDB_DISABLED` is set; else a
copy is sent if the server's key is known (`WANDB_API_KEY`, or ~/.netrc), which is looked at, never kept. A study keeps
the choice it began with.

W&B's client may block for ever, so it runs as `python -m research.controller.wandb COMMAND JSON`, which prints one line
of JSON and ends once its stdin does.
"""

import json
import netrc
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as BadSettings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from research.errors import NotReady
from research.runs.wandb_log import WRITTEN_NOT_FINITE, read_rows

CLOUD_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
"""Under which `wandb login` writes down a key of W&B's cloud, by the client's version."""
SHORTEST_KEY = 40
"""Characters; W&B's own client refuses a shorter one."""
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
    home = Path(environ.get("HOME") or Path.home())
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(Path(environ.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb").expanduser() / "settings")
    except (BadSettings, OSError, UnicodeDecodeError):  # W&B's client says so itself when it is used
        parser.clear()
    settings = dict(parser["default"]) if parser.has_section("default") else {}
    mode = environ.get("WANDB_MODE") or settings.get("mode", "")
    if mode not in ("", "online"):
        return WandbLogin(None, f"W&B's mode is {mode}")
    if environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        return WandbLogin(None, "WANDB_DISABLED is set")
    base_url = _parse_address(environ.get("WANDB_BASE_URL") or settings.get("base_url", ""))
    if base_url is None:
        return WandbLogin(None, "WANDB_BASE_URL is no address; expected http://HOST:PORT or https://HOST")
    has_key, why = _find_key(environ, home, (urlsplit(base_url).netloc,) if base_url else CLOUD_HOSTS)
    if not has_key:
        return WandbLogin(None, why)
    entity = environ.get("WANDB_ENTITY") or settings.get("entity", "")
    project = environ.get("WANDB_PROJECT") or "ajet"
    return WandbLogin(OnlineLogging(base_url=base_url, entity=entity, project=project), why)


def _find_key(environ: Mapping[str, str], home: Path, hosts: tuple[str, ...]) -> tuple[bool, str]:
    if key := environ.get("WANDB_API_KEY"):
        if len(key) < SHORTEST_KEY:
            return False, f"WANDB_API_KEY has {len(key)} characters; a key has {SHORTEST_KEY}"
        return True, "WANDB_API_KEY is set"
    own = environ.get("NETRC")
    for path in [Path(own).expanduser()] if own else [home / ".netrc", home / "_netrc"]:
        try:
            entries = netrc.netrc(path)
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError) as error:
            return False, f"cannot read {path}: {error}"
        for host in hosts:
            if (entry := entries.authenticators(host)) and entry[2]:
                return True, f"logged in to {host}"
        break
    return False, f"not logged in to {hosts[0]}"


def _parse_address(text: str) -> str | None:
    """Return scheme, host and port of an address without what else stands in it; None for no address."""
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


class WandbProcess(subprocess.Popen[bytes]):
    """One call of W&B's client under way, which prints to the end of a file."""

    def __init__(
        self, command: str, given: Mapping[str, Any], output: Path, environ: dict[str, str], stdin: int
    ) -> None:
        self._output = output
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "ab") as file:
            super().__init__(
                [sys.executable, "-m", "research.controller.wandb", command, json.dumps(given)],
                env=environ, stdin=stdin, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def last_line(self) -> str:
        return (self._output.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]


class WandbClient:
    """Calls on one server of W&B. A context; leaving it ends every call that is under way."""

    def __init__(self, online: OnlineLogging, environ: Mapping[str, str]) -> None:
        self.server = online.server
        self.entity = online.entity
        self._project = online.project
        self._pages = ""
        own = {key: value for key, value in environ.items() if not key.startswith("WANDB_") or key in _KEPT}
        self._environ = {**own, **_QUIET, **({"WANDB_BASE_URL": online.base_url} if online.base_url else {})}

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="ajet-wandb-", ignore_cleanup_errors=True)
        self._environ |= dict.fromkeys(_FOLDERS, self._folder.name)
        self._stdin, self._stdin_writer = os.pipe()
        return self

    def __exit__(self, *error: object) -> None:
        for end in (self._stdin_writer, self._stdin):
            os.close(end)
        self._folder.cleanup()

    def log_in(self) -> bool:
        """Ask who is logged in and where W&B's pages are; return False where that was asked before."""
        if self._pages:
            return False
        viewer = self.ask("viewer")
        self.entity, self._pages = self.entity or str(viewer["entity"]), str(viewer["pages"]).rstrip("/")
        return True

    def page(self, kind: Literal["groups", "runs"], name: str) -> str:
        return f"{self._pages}/{self.entity}/{self._project}/{kind}/{name}"

    def last_step(self, run_id: str) -> int | None:
        """Return the last step that W&B shows of a run, 0 before its first, None where it knows no such run."""
        step = self.ask("last_step", run=run_id)["step"]
        return None if step is None else max(0, int(step))

    def ask(self, command: str, **given: Any) -> dict[str, Any]:
        """Return the answer of a short call; raise NotReady where there is none."""
        output = Path(self._folder.name) / f"{command}.txt"
        output.unlink(missing_ok=True)
        process = self.start(command, output, **given)
        try:
            code = process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            process.end()
            raise NotReady(f"{self.server} did not answer within {ANSWER_S:g} s") from None
        if code:
            raise NotReady(process.last_line())
        try:
            answer: dict[str, Any] = json.loads(process.last_line())
        except ValueError as error:  # on a full disk, say, its answer was cut
            raise NotReady(f"expected an answer of W&B's client; found {process.last_line()[:80]!r}") from error
        return answer

    def start(self, command: str, output: Path, **given: Any) -> WandbProcess:
        where = {"entity": self.entity, "project": self._project}
        return WandbProcess(command, {**where, **given}, output, self._environ, self._stdin)


def main() -> int:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    command, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        answer = _COMMANDS[command](**given)
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


def _find_viewer(entity: str, project: str) -> dict[str, Any]:
    import wandb

    return {"entity": wandb.Api().default_entity, "pages": wandb.setup().settings.app_url}


def _send(entity: str, project: str, log: str, live: bool) -> None:
    # A log that was sent in part is sent again as a whole, whatever W&B's client noted of it.
    sys.argv = ["wandb", "beta", "sync", "--no-skip-synced", "-e", entity, "-p", project, log]
    if live:
        sys.argv.insert(-1, "--live")
    try:
        runpy.run_module("wandb", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"wandb beta sync ended with code {end.code}") from end


def _find_last_step(entity: str, project: str, run: str) -> dict[str, Any]:
    import wandb

    try:
        return {"step": wandb.Api().run(f"{entity}/{project}/{run}").lastHistoryStep}
    except (wandb.errors.CommError, ValueError) as error:
        if "Could not find" not in str(error):
            raise
        return {"step": None}


def _complete(entity: str, project: str, log: str, run: str, after: int) -> None:
    import wandb

    resumed = wandb.init(mode="online", resume="must", id=run, entity=entity, project=project)
    for row in read_rows(Path(log)):
        if row["_step"] > after:
            values = {key: value for key, value in row.items() if not key.startswith("_")}
            floats = {key: float(value) for key, value in values.items() if value in WRITTEN_NOT_FINITE}
            resumed.log(values | floats, step=row["_step"])
    resumed.finish()


_COMMANDS: Mapping[str, Callable[..., dict[str, Any] | None]] = {
    "viewer": _find_viewer, "send": _send, "complete": _complete, "last_step": _find_last_step,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
