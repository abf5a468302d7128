"""The handle of a container: its life cycle from started to settled, as its folder and its engine show it.

A container that cannot be asked is not lost: nothing is concluded until the engine that started it answers. Whoever
polls one that ended settles it, under the folder's lock; whoever polls one that was created and not started, because
its controller was killed in between, starts it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from sandboxes.docker import launching, options, settling
from sandboxes.docker.asking import EngineRefused, asking, inspect
from sandboxes.docker.engine import ContainerEngine
from sandboxes.folders import launched_and_ended, locked, read, until, write_once
from sandboxes.spec import Exit, ExitReason, SandboxError

OVERDUE_S = options.GRACE_S + 30.0
"""A container still running so long after its time limit has a PID 1 that does not do its work."""
LAST_WORDS_S = 5.0
KILL_WAIT_S = 20.0
GOES_S = 5.0
"""Within so long a container that is being removed is seen to be."""
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Result:
    """A file the command left, collected."""

    path: Path
    sha256: str
    size: int


def _status(found: Mapping[str, Any] | None) -> str | None:
    return None if found is None else str(found["State"]["Status"])


class Installation:
    """This installation's part of an engine."""

    def __init__(self, root: Path, engine: ContainerEngine) -> None:
        self.root = root
        self.engine = engine

    @cached_property
    def id(self) -> str:
        """The random id by which its containers and volumes are known."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_once(self.root / ".installation", {"id": secrets.token_hex(6)})
        return str((read(self.root / ".installation") or {})["id"])

    @cached_property
    def engine_id(self) -> str:
        """The engine's own id: another one knows nothing of our containers."""
        with asking(self.engine, "asking for the engine's id"):
            return str(self.engine.client.api.info()["ID"])

    def container(self, name: str) -> str:
        """Return the engine's name of a sandbox."""
        return options.container_name(name, self.id)

    def start(self, name: str) -> None:
        """Start the created container of a sandbox."""
        launching.start(self.engine, self.engine_id, self.id, name, self.root / name)

    def clear(self, name: str) -> None:
        """Remove all that the engine holds of an ended sandbox."""
        launching.clear(self.engine, name, self.id)
        (self.root / name / "cleared").touch()


class ContainerHandle:
    """A container that was launched, seen through its folder and its engine."""

    def __init__(self, installation: Installation, name: str) -> None:
        self._installation = installation
        self._name = name
        self._folder = installation.root / name

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._name

    @property
    def image(self) -> str | None:
        """The id of its image."""
        return cast("str | None", self._spec().get("image"))

    @property
    def labels(self) -> Mapping[str, str]:
        """The spec's labels."""
        return cast(Mapping[str, str], self._spec().get("labels", {}))

    def ran(self) -> tuple[float, float | None]:
        """Return when it was launched and when it ended, in Unix seconds; None while it runs."""
        return launched_and_ended(self._folder, self.poll())

    def poll(self) -> Exit | None:
        """Return how it ended, once its output and results are in the folder; None while it runs."""
        if (ended := self._exit()) is not None:
            self._try_clear()
            return ended
        if self._runs(inspect(self._engine, self._container)):
            return None
        self._look_closer()
        return self._exit()

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait until it ends; None when the time is over first."""
        until(lambda: self.poll() is not None, float("inf") if timeout_s is None else timeout_s, TICK_S)
        return self.poll()

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        """Return the end of its standard output and error, also while it runs, decoded with replacement."""
        from docker.errors import NotFound

        if tail_bytes <= 0:
            return ""
        try:
            if (text := self._output()) is None:
                text = settling.log(self._engine, self._container, out=True, lines=tail_bytes)
        except NotFound:
            text = self._output() or b""  # settled just now, or lost
        except EngineRefused:
            if not self._goes():
                raise
            text = b""
        return text[-tail_bytes:].decode(errors="replace")

    def results(self) -> Mapping[str, Result]:
        """Return what it left of the results the spec names, once it has ended."""
        found = (read(self._folder / "exit.json") or {}).get("results", {})
        return {name: Result(self._folder / "results" / name, **of) for name, of in found.items()}

    @property
    def dropped_bytes(self) -> int:
        """How much of its output was dropped, once it has ended."""
        return int((read(self._folder / "exit.json") or {}).get("dropped_bytes") or 0)

    def refused(self) -> Mapping[str, str]:
        """Return the results the spec names that were not collected, each with the reason, once it has ended."""
        return cast(Mapping[str, str], (read(self._folder / "exit.json") or {}).get("refused", {}))

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End it: asked, told again after `grace_s` (its PID 1 kills everything and reports), killed; idempotent.

        Its PID 1 waits `options.GRACE_S` at most, so that it ends though the controller dies in between.
        """
        asked = {"asked_at": time.time()}
        if self._exit() is None and _status(inspect(self._engine, self._container)) == "created":
            self._note(asked)  # before a look at it would start it
        if self.poll() is None:
            self._note(asked)
            for signal, patience_s in (("SIGTERM", grace_s), ("SIGTERM", LAST_WORDS_S), ("SIGKILL", KILL_WAIT_S)):
                self._signal(signal)
                if until(lambda: self.poll() is not None, patience_s, TICK_S):
                    break
        if (ended := self._exit()) is None:
            raise SandboxError(f"sandbox {self.name}: expected its container to die when killed; it still runs")
        return ended

    @property
    def _engine(self) -> ContainerEngine:
        return self._installation.engine

    @property
    def _container(self) -> str:
        return self._installation.container(self._name)

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self._folder)

    def _spec(self) -> dict[str, Any]:
        return read(self._folder / "spec.json") or {}

    def _exit(self) -> Exit | None:
        value = read(self._folder / "exit.json")
        return None if value is None else Exit(cast(ExitReason, value["reason"]), value["code"])

    def _output(self) -> bytes | None:
        try:
            return (self._folder / "output.log").read_bytes()
        except FileNotFoundError:
            return None

    def _runs(self, found: Mapping[str, Any] | None) -> bool:
        """Return whether there is nothing to do but wait."""
        return _status(found) in ("running", "paused", "restarting", "removing") and not self._overdue()

    def _goes(self) -> bool:
        """Return whether somebody removes it, so that the engine tells nothing of it any more.

        Of one that is killed for it the engine says for a moment that it runs.
        """
        gone = (None, "removing", "dead")
        return until(lambda: _status(inspect(self._engine, self._container)) in gone, GOES_S, TICK_S)

    def _overdue(self) -> bool:
        limit_s = self._spec().get("time_limit_s")
        started = (read(self._folder / "started.json") or {}).get("started_at")
        return limit_s is not None and started is not None and time.time() > started + limit_s + OVERDUE_S

    def _really_overdue(self, state: Mapping[str, Any]) -> bool:
        """Return whether it is overdue by the engine's clock, too: a busy engine may have started it long after."""
        with asking(self._engine, "asking for the engine's time"):
            now = datetime.fromisoformat(self._engine.client.api.info()["SystemTime"])
        ran_s = (now - datetime.fromisoformat(state["StartedAt"])).total_seconds()
        return bool(ran_s > self._spec()["time_limit_s"] + OVERDUE_S)

    def _note(self, asked: Mapping[str, Any]) -> None:
        """Write down that it is to end; a full disk must not keep it running, though it will look killed then."""
        with suppress(OSError):
            write_once(self._folder / "stop.json", asked)

    def _look_closer(self) -> None:
        from docker.errors import NotFound

        try:
            with self._locked():
                self._settle()
        except NotFound:
            return  # removed between two questions: the next look finds it lost
        except EngineRefused:
            if not self._goes():
                raise  # else: somebody removes it at this moment, and it is lost once it is gone
        except OSError as error:
            raise SandboxError(
                f"sandbox {self.name}: cannot write what became of it to {self._folder}: {error}. "
                "Make room, and look again"
            ) from error

    def _settle(self) -> None:
        """Do what is to be done with a container that is not simply running; the lock is held."""
        if self._exit() is not None:
            return
        found = inspect(self._engine, self._container)
        if found is None or _status(found) == "dead":  # somebody's removal got stuck: its log is gone
            self._conclude_lost()
        elif _status(found) == "created":
            self._start_or_cancel()
        elif self._runs(found):
            return
        elif found["State"]["Running"] and self._really_overdue(found["State"]):
            self._note({"asked_at": time.time(), "overdue": True})
            self._signal("SIGKILL")
        elif not found["State"]["Running"]:
            settling.collect(self._engine, self._container, found["State"], self._folder)
            self._installation.clear(self._name)

    def _conclude_lost(self) -> None:
        """The engine says that there is no such container: believe it if it is the one that started it."""
        if (started := read(self._folder / "started.json")) is None:
            raise SandboxError(f"sandbox {self.name}: it was never started, for the engine refused; launch it again")
        if started["engine"] != self._installation.engine_id:
            raise SandboxError(
                f"sandbox {self.name}: it was started in another engine than the one at {self._engine.host}. "
                f"Name that one in DOCKER_HOST; if it is gone for good, remove {self._folder}"
            )
        settling.conclude(self._folder, Exit("lost", None))
        self._installation.clear(self._name)

    def _start_or_cancel(self) -> None:
        if (self._folder / "stop.json").exists():
            settling.conclude(self._folder, Exit("stopped", None))
            self._installation.clear(self._name)
        else:
            self._installation.start(self._name)

    def _signal(self, signal: str) -> None:
        """Signal PID 1; a container that does not run needs none, and the engine resumes one that is paused."""
        from docker.errors import NotFound

        with suppress(NotFound, EngineRefused), asking(self._engine, f"signalling sandbox {self.name}"):
            self._engine.client.api.kill(self._container, signal)

    def _try_clear(self) -> None:
        """Clear away what a controller that was killed after writing the end has left."""
        if not (self._folder / "cleared").exists():
            # How it ended is known whether or not the engine answers; the next look tries again.
            with suppress(SandboxError), self._locked():
                self._installation.clear(self._name)
