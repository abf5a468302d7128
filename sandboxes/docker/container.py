"""The Docker sandbox: untrusted code in containers that outlive their controller.

The truth about a container is in its folder, the same for any later controller of this machine: spec.json (no values of
its environment), lock (held while launched or settled), started.json (never started again), stop.json, exit.json
(written once, with hashed results), output.log, results/NAME, cleared (the engine holds nothing of it any more). Only
containers with the label of this installation (`root/.installation`) are touched.

A container that cannot be asked is not lost: nothing is concluded until its engine answers. Whoever polls an ended one
settles it under the folder's lock; all stays in the engine until `exit.json` is written, so a full disk or a killed
controller costs nothing. One created and not started is started by the next poll. Nothing in PID 1's frames is trusted.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sandboxes.docker import launch
from sandboxes.docker.engine import ContainerEngine, EngineMissing, EngineRefusal, inspect, wrap_errors
from sandboxes.shim import has_started, write_durably
from sandboxes.spec import (
    Exit,
    FolderHandle,
    SandboxError,
    SandboxSpec,
    fsync_folder,
    hold_lock,
    read,
    wait_until,
    write_once,
)

LINE_BYTES = 16_384
TROUBLE_BYTES = 4_096
NOT_COLLECTED = "the container ended before it was read"
SIGNALLED = 128
"""From here on an exit code means a signal, or (255) that the engine itself was gone when the container ended."""
OVERDUE_S = launch.GRACE_S + 30.0
"""A container still running so long after its time limit has a PID 1 that does not do its work."""
LAST_WORDS_S = 15.0
KILL_WAIT_S = 20.0
GOES_S = 5.0
"""Within so long a container that is being removed is seen to be."""
TICK_S = 0.05
REAPED_AT_ONCE = 8


@dataclass(slots=True)
class FrameReport:
    """All that the frames of a container say: how the command `ended` by PID 1, with what it counted; its results."""

    ended: Exit | None = None
    dropped_bytes: int | None = None
    oom_kills: int | None = None
    results: dict[str, bytes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Of the results that were asked for, those that there are not, and why."""
    trouble: str = ""


def read_frames(log: bytes, limits: Mapping[str, int]) -> FrameReport:
    """Return what `log` reports of the results in `limits` (name to most bytes); the first word on each is the last."""
    report, parts = FrameReport(), {name: bytearray() for name in limits}
    for line in (line[:LINE_BYTES] for line in log.split(b"\n") if line.strip()):
        try:
            frame = json.loads(line)
        except (ValueError, RecursionError):
            frame = None
        if not isinstance(frame, dict):
            report.trouble = (report.trouble + line.decode(errors="replace") + "\n")[:TROUBLE_BYTES]
        elif "exit" in frame:
            if report.ended is None and frame["exit"] in ("finished", "error", "timeout", "stopped"):
                keys = ("code", "dropped", "oom_kills")
                counts = (count if type(count := frame.get(key)) is int else 0 for key in keys)
                code, report.dropped_bytes, report.oom_kills = counts
                report.ended = Exit(frame["exit"], code)
        elif (
            isinstance(name := frame.get("result"), str)
            and name in parts.keys() - report.results.keys() - report.refused.keys()
        ):
            data = parts[name]
            if "data" in frame:
                try:
                    data += base64.b64decode(str(frame["data"]), validate=True)
                except ValueError:
                    report.refused[name] = "damaged on its way: not base64"
                if len(data) > limits[name]:
                    report.refused[name] = f"too large: more than {limits[name]} bytes"
            elif "refused" in frame:
                report.refused[name] = str(frame["refused"])[:TROUBLE_BYTES]
            elif frame.get("sha256") == hashlib.sha256(data).hexdigest():
                report.results[name] = bytes(data)
            else:
                report.refused[name] = "damaged on its way: its hash is another"
    for name in limits.keys() - report.results.keys() - report.refused.keys():
        report.refused[name] = NOT_COLLECTED
    return report


def collect(engine: ContainerEngine, container: str, state: Mapping[str, Any], folder: Path) -> None:
    """Write the output, the results and the end of the ended `container` into `folder`."""
    spec = read(folder / "spec.json") or {}
    output, said = read_log(engine, container, out=True), read_log(engine, container, out=False)
    report = read_frames(said, spec.get("results", {}))
    ended = classify_exit(state, report, read(folder / "stop.json"))
    trouble = f"\n[PID 1 says: {report.trouble.strip()}]\n" if report.trouble else ""
    try:
        (folder / "results").mkdir(mode=0o700, exist_ok=True)
        write_durably(folder / "output.log", output + trouble.encode())  # the engine's copy is removed afterwards
        for name, data in report.results.items():
            write_durably(folder / "results" / name, data)
        fsync_folder(folder / "results")
        record_exit(folder, ended, report)
    except OSError as error:
        raise SandboxError(
            f"sandbox {folder.name}: it ended, but what it left cannot be written to {folder}: {error}. "
            "The engine keeps it; make room, and look again"
        ) from error


def classify_exit(state: Mapping[str, Any], report: FrameReport, asked: Mapping[str, Any] | None) -> Exit:
    """Return how it ended: PID 1's word, which nobody can forge, corrected by what only we and the engine know."""
    if (ended := report.ended) is not None:
        if ended.reason == "stopped" and asked is None:
            return Exit("killed", ended.code)  # somebody asked the engine, not us
        if ended.reason == "error" and (state["OOMKilled"] or report.oom_kills):
            return Exit("out_of_memory", ended.code)
        return ended
    code = int(state["ExitCode"])  # PID 1 left no word: it was killed, or never came to its work
    if state["OOMKilled"]:
        return Exit("out_of_memory", code)
    if asked is not None:
        return Exit("timeout" if asked.get("overdue") else "stopped", code)
    return Exit("error" if 0 < code < SIGNALLED else "killed", code)


def record_exit(folder: Path, ended: Exit, report: FrameReport | None = None) -> None:
    report = report or FrameReport(refused=dict.fromkeys((read(folder / "spec.json") or {}).get("results", {}), "lost"))
    results = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in report.results.items()
    }
    value = {
        "reason": ended.reason, "code": ended.code, "ended_at": time.time(), "results": results,
        "refused": report.refused, "dropped_bytes": report.dropped_bytes, "oom_kills": report.oom_kills,
    }  # fmt: skip
    write_once(folder / "exit.json", value)


def read_log(engine: ContainerEngine, container: str, *, out: bool, lines: int | None = None) -> bytes:
    """Return the container's standard output or error as the engine has it: so many lines of its end, or all."""
    with wrap_errors(engine, f"reading the log of container {container}"):
        tail: Any = "all" if lines is None else lines
        return engine.client.api.logs(container, stdout=out, stderr=not out, stream=False, tail=tail)


def _status(found: Mapping[str, Any] | None) -> str | None:
    return None if found is None else str(found["State"]["Status"])


class ContainerHandle(FolderHandle):
    """A container that was launched, seen through its folder and its engine."""

    tick_s = TICK_S

    def __init__(self, sandbox: "DockerSandbox", name: str) -> None:
        super().__init__(sandbox.root / name)
        self._sandbox, self._engine = sandbox, sandbox.engine
        self._container = launch.container_name(name, sandbox.installation)

    def poll(self) -> Exit | None:
        """Return how it ended, once its output and results are in the folder; None while it runs."""
        if (ended := self._exit()) is not None:
            if not (self._folder / "cleared").exists():  # a controller was killed after it wrote the end
                with suppress(SandboxError), hold_lock(self._folder):  # the next look tries again
                    self._sandbox.clear(self.name)
            return ended
        if self._is_running(inspect(self._engine, self._container)):
            return None
        try:
            with hold_lock(self._folder):
                self._settle()
        except EngineMissing:
            return self._exit()  # removed between two questions: the next look finds it lost
        except EngineRefusal:
            if not self._is_being_removed():
                raise  # else: somebody removes it at this moment, and it is lost once it is gone
        except OSError as error:
            raise SandboxError(
                f"sandbox {self.name}: cannot write what became of it to {self._folder}: {error}. "
                "Make room, and look again"
            ) from error
        return self._exit()

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        if tail_bytes <= 0:
            return ""
        output, text = self._folder / "output.log", b""
        try:
            settled = output.exists()
            text = (
                output.read_bytes() if settled else read_log(self._engine, self._container, out=True, lines=tail_bytes)
            )
        except EngineMissing:
            with suppress(FileNotFoundError):  # lost, if not settled just now
                text = output.read_bytes()
        except EngineRefusal:
            if not self._is_being_removed():
                raise
        return text[-tail_bytes:].decode(errors="replace")

    def results(self) -> Mapping[str, Path]:
        return {name: self._folder / "results" / name for name in self._read("exit").get("results", {})}

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End it: asked, told again after `grace_s`, killed; idempotent. PID 1 waits GRACE_S at most, should we die."""
        asked = {"asked_at": time.time()}
        if self._exit() is None and _status(inspect(self._engine, self._container)) == "created":
            self._record_stop(asked)  # before a look at it would start it
        if self.poll() is None:
            self._record_stop(asked)
            for signal, patience_s in (("SIGTERM", grace_s), ("SIGTERM", LAST_WORDS_S), ("SIGKILL", KILL_WAIT_S)):
                self._signal(signal)
                if wait_until(lambda: self.poll() is not None, patience_s, TICK_S):
                    break
        if (ended := self._exit()) is None:
            raise SandboxError(f"sandbox {self.name}: expected its container to die when killed; it still runs")
        return ended

    def _is_running(self, found: Mapping[str, Any] | None) -> bool:
        limit_s, started = self._read("spec").get("time_limit_s"), self._read("started").get("started_at")
        overdue = limit_s is not None and started is not None and time.time() > started + limit_s + OVERDUE_S
        return _status(found) in ("running", "paused", "restarting", "removing") and not overdue

    def _is_being_removed(self) -> bool:
        """Return whether somebody removes it: the engine then tells nothing of it, or that it runs, though killed."""
        gone = (None, "removing", "dead")
        return wait_until(lambda: _status(inspect(self._engine, self._container)) in gone, GOES_S, TICK_S)

    def _is_overdue_by_engine(self, state: Mapping[str, Any]) -> bool:
        """Return whether it is overdue by the engine's clock, too: a busy engine may have started it long after."""
        with wrap_errors(self._engine, "asking for the engine's time"):
            now = datetime.fromisoformat(self._engine.client.api.info()["SystemTime"])
        ran_s = (now - datetime.fromisoformat(state["StartedAt"])).total_seconds()
        return bool(ran_s > self._read("spec")["time_limit_s"] + OVERDUE_S)

    def _record_stop(self, asked: Mapping[str, Any]) -> None:
        """Write down that it is to end; a full disk must not keep it running, though it will look killed then."""
        with suppress(OSError):
            write_once(self._folder / "stop.json", asked)

    def _settle(self) -> None:
        if self._exit() is not None:
            return
        attributes = inspect(self._engine, self._container)
        if attributes is None or _status(attributes) == "dead":  # somebody's removal got stuck: its log is gone
            if (started := read(self._folder / "started.json")) is None:
                raise SandboxError(
                    f"sandbox {self.name}: it was never started, for the engine refused; launch it again"
                )
            if started["engine"] != self._sandbox.engine_id:
                raise SandboxError(
                    f"sandbox {self.name}: it was started in another engine than the one at {self._engine.host}. "
                    f"Name that one in DOCKER_HOST; if it is gone for good, remove {self._folder}"
                )
            record_exit(self._folder, Exit("lost", None))
            self._sandbox.clear(self.name)
        elif _status(attributes) == "created":
            if (self._folder / "stop.json").exists():
                record_exit(self._folder, Exit("stopped", None))
                self._sandbox.clear(self.name)
            else:
                self._sandbox.start(self.name)
        elif self._is_running(attributes):
            return
        elif attributes["State"]["Running"] and self._is_overdue_by_engine(attributes["State"]):
            self._record_stop({"asked_at": time.time(), "overdue": True})
            self._signal("SIGKILL")
        elif not attributes["State"]["Running"]:
            collect(self._engine, self._container, attributes["State"], self._folder)
            self._sandbox.clear(self.name)

    def _signal(self, signal: str) -> None:
        with suppress(EngineRefusal), wrap_errors(self._engine, f"signalling sandbox {self.name}"):
            self._engine.client.api.kill(self._container, signal)


class DockerSandbox:
    """Launches containers in an engine, exactly once by name, with their folders under `root`."""

    def __init__(self, root: Path, engine: ContainerEngine) -> None:
        self.root = root
        self.engine = engine

    @cached_property
    def installation(self) -> str:
        """The random id by which this installation's containers and volumes are known."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_once(self.root / ".installation", {"id": secrets.token_hex(6)})
        return str((read(self.root / ".installation") or {})["id"])

    @cached_property
    def engine_id(self) -> str:
        """The engine's own id: another one knows nothing of our containers."""
        with wrap_errors(self.engine, "asking for the engine's id"):
            return str(self.engine.client.api.info()["ID"])

    def run(self, spec: SandboxSpec) -> ContainerHandle:
        launch.check(spec)
        folder = self.root / spec.name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with hold_lock(folder):
                if not has_started(folder):
                    status = launch.find_status(self.engine, self.installation, spec.name)
                    if status is None:
                        launch.make(self.engine, self.installation, spec, folder)
                    else:
                        write_once(folder / "spec.json", launch.to_json(spec))
                    if status in (None, "created"):
                        self.start(spec.name)
                    else:  # it was started, and the folder does not know: starting what has ended would run it again
                        launch.record_start(self.engine_id, folder)
        except EngineMissing as error:
            raise SandboxError(
                f"sandbox {spec.name}: expected its parts to stay in the engine; somebody removed one meanwhile "
                f"({error}). Launch it again"
            ) from error
        except OSError as error:
            raise SandboxError(f"cannot launch sandbox {spec.name} in {folder}: {error}") from error
        return ContainerHandle(self, spec.name)

    def adopt(self, name: str) -> ContainerHandle | None:
        return ContainerHandle(self, name) if has_started(self.root / name) else None

    def start(self, name: str) -> None:
        launch.start(self.engine, self.engine_id, self.installation, name, self.root / name)

    def clear(self, name: str) -> None:
        launch.clear(self.engine, name, self.installation)
        (self.root / name / "cleared").touch()

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        """Stop, settle and remove what this installation has in the engine under `labels`; return the names."""
        ours = {launch.INSTALLATION: self.installation, **{launch.OF_SPEC + key: of for key, of in labels.items()}}
        wanted: dict[str, Any] = {"label": [f"{key}={value}" for key, value in ours.items()]}
        with wrap_errors(self.engine, "listing this installation's containers and volumes"):
            api = self.engine.client.api
            found = [*api.containers(all=True, filters=wanted), *(api.volumes(filters=wanted)["Volumes"] or [])]
        names = sorted({thing["Labels"][launch.NAME] for thing in found})
        with ThreadPoolExecutor(REAPED_AT_ONCE) as pool:
            return list(pool.map(self._reap, names))

    def _reap(self, name: str) -> str:
        folder = self.root / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(folder):
            started = has_started(folder)
            if not started:
                launch.clear(self.engine, name, self.installation)
        if started:
            ContainerHandle(self, name).stop()
            with hold_lock(folder):
                launch.clear(self.engine, name, self.installation)
        return name
