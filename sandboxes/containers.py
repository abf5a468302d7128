"""The Docker sandbox: runs untrusted code in containers that outlive their controller and can harm nothing.

What a container may do is in `sandboxes.options`. As with the process sandbox, the truth about one is in its folder,
and any later controller of this machine reads the same:

    spec.json       what to run; no value of its environment
    lock            held while it is launched or settled
    started.json    it was started, when and in which engine: it will never be started again
    stop.json       somebody asked to stop it
    exit.json       how it ended, which results it left (hashed), which not and why; written once
    output.log      its output: the beginning and the end of it;  results/NAME
    cleared         the engine holds nothing of it any more

While it runs the engine holds it under a name made of its own and the installation's, a random id in
`root/.installation`; by that label only what this installation started is ever touched. A container that cannot be
asked is not lost: nothing is concluded until the engine that started it answers.

In an engine that does not see this machine's files the exchange folder reaches into the container through a tunnel of
the process that last ran or adopted it by `run` (`sandboxes.tunnel`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from sandboxes import launching, options, settling
from sandboxes.asking import EngineRefused, asking, inspect
from sandboxes.engine import Engine
from sandboxes.folders import locked, read, until, write_once
from sandboxes.spec import Exit, ExitReason, Handle, SandboxError, SandboxSpec
from sandboxes.tunnel import Tunnel

OVERDUE_S = options.GRACE_S + 30.0
"""A container still running so long after its time limit has a PID 1 that does not do its work."""
LAST_WORDS_S = 5.0
KILL_WAIT_S = 20.0
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Result:
    """A file the command left, collected."""

    path: Path
    sha256: str
    size: int


def _status(found: Mapping[str, Any] | None) -> str | None:
    return None if found is None else str(found["State"]["Status"])


class Containers:
    """This installation's part of an engine."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self.root = root
        self.engine = engine

    @cached_property
    def installation(self) -> str:
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
        return options.container_name(name, self.installation)

    def start(self, name: str) -> None:
        """Start the created container of a sandbox."""
        launching.start(self.engine, self.engine_id, self.installation, name, self.root / name)

    def clear(self, name: str) -> None:
        """Remove all that the engine holds of an ended sandbox."""
        launching.clear(self.engine, name, self.installation)
        (self.root / name / "cleared").touch()


class ContainerHandle:
    """A container that was launched, seen through its folder and its engine."""

    def __init__(self, containers: Containers, name: str) -> None:
        self._containers = containers
        self._name = name
        self._folder = containers.root / name

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

    def poll(self) -> Exit | None:
        """Return how it ended, once its output and results are in the folder; None while it runs."""
        if (ended := self._exit()) is not None:
            self._try_clear()
            return ended
        if self._runs(inspect(self._engine, self._container)):
            return None
        with self._locked():
            self._settle()
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
            text = self._output() or settling.log(self._engine, self._container, out=True, lines=tail_bytes)
        except NotFound:
            text = self._output() or b""  # settled just now, or lost
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
        """End it: asked, told again after `grace_s` (its PID 1 kills everything and reports), killed; idempotent."""
        asked = {"asked_at": time.time()}
        if self._exit() is None and _status(inspect(self._engine, self._container)) == "created":
            write_once(self._folder / "stop.json", asked)  # before a look at it would start it
        if self.poll() is None:
            write_once(self._folder / "stop.json", asked)
            for signal, patience_s in (("SIGTERM", grace_s), ("SIGTERM", LAST_WORDS_S), ("SIGKILL", KILL_WAIT_S)):
                self._signal(signal)
                if until(lambda: self.poll() is not None, patience_s, TICK_S):
                    break
        if (ended := self._exit()) is None:
            raise SandboxError(f"sandbox {self.name}: expected its container to die when killed; it still runs")
        return ended

    @property
    def _engine(self) -> Engine:
        return self._containers.engine

    @property
    def _container(self) -> str:
        return self._containers.container(self._name)

    def _locked(self) -> Any:
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

    def _overdue(self) -> bool:
        limit_s = self._spec().get("time_limit_s")
        started = (read(self._folder / "started.json") or {}).get("started_at")
        return limit_s is not None and started is not None and time.time() > started + limit_s + OVERDUE_S

    def _settle(self) -> None:
        """Do what is to be done with a container that is not simply running; the lock is held."""
        if self._exit() is not None:
            return
        found = inspect(self._engine, self._container)
        if found is None:
            self._conclude_lost()
        elif _status(found) == "created":
            self._start_or_cancel()
        elif self._runs(found):
            return
        elif found["State"]["Running"]:
            write_once(self._folder / "stop.json", {"asked_at": time.time(), "overdue": True})
            self._signal("SIGKILL")
        else:
            settling.collect(self._engine, self._container, found["State"], self._folder)
            self._containers.clear(self._name)

    def _conclude_lost(self) -> None:
        """The engine says that there is no such container: believe it if it is the one that started it."""
        if (started := read(self._folder / "started.json")) is None:
            raise SandboxError(f"sandbox {self.name}: it was never started, for the engine refused; launch it again")
        if started["engine"] != self._containers.engine_id:
            raise SandboxError(
                f"sandbox {self.name}: it was started in another engine than the one at {self._engine.host}. "
                f"Name that one in DOCKER_HOST; if it is gone for good, remove {self._folder}"
            )
        settling.conclude(self._folder, Exit("lost", None))
        self._containers.clear(self._name)

    def _start_or_cancel(self) -> None:
        if (self._folder / "stop.json").exists():
            settling.conclude(self._folder, Exit("stopped", None))
            self._containers.clear(self._name)
        else:
            self._containers.start(self._name)

    def _signal(self, signal: str) -> None:
        """Signal PID 1; a container that does not run needs none."""
        from docker.errors import NotFound

        with suppress(NotFound, EngineRefused), asking(self._engine, f"signalling sandbox {self.name}"):
            if (inspect(self._engine, self._container) or {}).get("State", {}).get("Paused"):
                self._engine.client.api.unpause(self._container)
            self._engine.client.api.kill(self._container, signal)

    def _try_clear(self) -> None:
        """Clear away what a controller that was killed after writing the end has left."""
        if not (self._folder / "cleared").exists():
            # How it ended is known whether or not the engine answers; the next look tries again.
            with suppress(SandboxError), self._locked():
                self._containers.clear(self._name)


class DockerSandbox:
    """Launches containers in an engine, exactly once by name, with their folders under `root`."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self._containers = Containers(root, engine)
        self._tunnels: dict[str, Tunnel] = {}

    @property
    def isolates(self) -> bool:
        """True: see `sandboxes.options`."""
        return True

    @property
    def installation(self) -> str:
        """The random id of this installation, a label of all it has in the engine."""
        return self._containers.installation

    def run(self, spec: SandboxSpec) -> ContainerHandle:
        """Launch `spec`, or adopt what was launched under its name; raise SandboxError when it must not run."""
        options.check(spec)
        options.check_engine(spec, self._containers.engine)
        folder = self._containers.root / spec.name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(folder):
                if not self._begun(spec.name):
                    self._launch(spec, folder)
        except OSError as error:
            raise SandboxError(f"cannot launch sandbox {spec.name} in {folder}: {error}") from error
        self._connect(spec)
        return ContainerHandle(self._containers, spec.name)

    def adopt(self, name: str) -> ContainerHandle | None:
        """Return the handle of what was launched under `name`, or None if nothing was."""
        return ContainerHandle(self._containers, name) if self._begun(name) else None

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        """Stop, settle and remove what this installation has in the engine under `labels`; return the names."""
        names = sorted(self._held(labels))
        for name in names:
            if self._begun(name):
                ContainerHandle(self._containers, name).stop()
            with self._lock(name):
                if not self._begun(name) or (self._containers.root / name / "exit.json").exists():
                    launching.clear(self._containers.engine, name, self.installation)
        return names

    def list(self, labels: Mapping[str, str] | None = None) -> list[Handle]:
        """Return handles of all sandboxes whose labels include `labels`, oldest first."""
        wanted = (labels or {}).items()
        specs = [(spec["created_at"], path.parent.name) for path in self._containers.root.glob("*/spec.json")
                 if (spec := read(path)) is not None and wanted <= spec["labels"].items()]  # fmt: skip
        return [ContainerHandle(self._containers, name) for _, name in sorted(specs) if self._begun(name)]

    def _lock(self, name: str) -> Any:
        (self._containers.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        return locked(self._containers.root / name)

    def _begun(self, name: str) -> bool:
        """Return whether it was started and never must be again."""
        return any((self._containers.root / name / file).exists() for file in ("started.json", "exit.json"))

    def _launch(self, spec: SandboxSpec, folder: Path) -> None:
        containers = self._containers
        if launching.launched(containers.engine, containers.installation, spec.name):
            write_once(folder / "spec.json", launching.to_json(spec))
        else:
            launching.make(containers.engine, containers.installation, spec, folder)
        containers.start(spec.name)

    def _connect(self, spec: SandboxSpec) -> None:
        """Bring the exchange folder into a container whose engine does not see it, for as long as both live."""
        containers, known = self._containers, self._tunnels.get(spec.name)
        if containers.engine.local or spec.exchange is None or (known is not None and known.alive):
            return
        self._tunnels[spec.name] = Tunnel(
            containers.engine.client, containers.container(spec.name), spec.exchange, tuple(spec.ports.values())
        )

    def _held(self, labels: Mapping[str, str]) -> set[str]:
        """Return the names of the sandboxes of which the engine holds anything."""
        ours = {options.INSTALLATION: self.installation, **{options.OF_SPEC + key: of for key, of in labels.items()}}
        wanted: dict[str, Any] = {"label": [f"{key}={value}" for key, value in ours.items()]}
        api = self._containers.engine.client.api
        with asking(self._containers.engine, "listing this installation's containers and volumes"):
            found = [*api.containers(all=True, filters=wanted), *(api.volumes(filters=wanted)["Volumes"] or [])]
        return {thing["Labels"][options.NAME] for thing in found}
