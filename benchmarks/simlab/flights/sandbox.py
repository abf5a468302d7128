"""A sandbox whose attempts are simulated: they take simulated time, end as the world and the plan of faults say.

It stands behind the seam `sandboxes.Sandbox`, and its state is on disk, so that what was launched outlives a controller
that was killed: each launch and each end is a file, and every start is a line of `starts.log`, which is how a duplicate
would be seen. Nothing runs: an attempt whose time is over is written when somebody looks.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from research.runs.files import AttemptFolder, AttemptSpec
from sandboxes import Exit, Handle, SandboxError, SandboxSpec
from simlab.flights.attempt_files import (
    SIMULATED,
    Alter,
    SimulatedFiles,
    configuration,
    evaluation,
    remains,
    unaltered,
    write,
)
from simlab.flights.clock import BEGIN, SimClock
from simlab.flights.faults import NO_FAULTS, Fault, Faults
from simlab.worlds.world import World

STARTS = "starts.log"
_SHORT = 0.4
"""Share of its time after which an attempt that goes wrong does so."""


class SimSandbox:
    """Simulated attempts under a folder. `alter` may change what one leaves behind."""

    isolates = False

    def __init__(
        self, root: Path, world: World, clock: SimClock, *, noise_world: World | None = None,
        faults: Faults = NO_FAULTS, alter: Alter = unaltered,
    ) -> None:  # fmt: skip
        """`noise_world` is where A/A runs come from (default: `world`)."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._world = world
        self._noise_world = noise_world or world
        self.clock = clock
        self.faults = faults
        self.alter = alter

    def world_of(self, order: AttemptSpec) -> World:
        """Return the world that an attempt's run comes from."""
        return self._noise_world if order.spec.phase == "noise" else self._world

    def run(self, spec: SandboxSpec) -> Handle:
        """Launch an attempt, or adopt it; SandboxError while the plan lets nothing start."""
        if (found := self.adopt(spec.name)) is not None:
            return found
        passed = (self.clock.true - BEGIN).total_seconds()
        if any(begin <= passed < end for begin, end in self.faults.refusing):
            raise SandboxError("expected a sandbox that starts attempts; the simulated one refuses for a while")
        self._launch(spec)
        return SimHandle(self, spec.name)

    def adopt(self, name: str) -> Handle | None:
        """Return the handle of an attempt that was launched, or None."""
        return SimHandle(self, name) if (self.root / name / "launch.json").exists() else None

    def list(self, labels: Mapping[str, str] | None = None) -> list[Handle]:
        """Return all attempts with these labels, oldest first."""
        wanted = (labels or {}).items()
        found = [path.parent for path in self.root.glob("*/launch.json") if wanted <= _read(path)["labels"].items()]
        return [SimHandle(self, path.name) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]

    def starts(self) -> Counter[str]:
        """Return how often each attempt was started."""
        path = self.root / STARTS
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def running(self) -> dict[str, datetime]:
        """Return the attempts that nobody has seen end, with the moment each of them will."""
        launched = (path.parent for path in self.root.glob("*/launch.json"))
        return {
            path.name: datetime.fromisoformat(_read(path / "launch.json")["ends"])
            for path in launched
            if not (path / "end.json").exists()
        }

    def _launch(self, spec: SandboxSpec) -> None:
        order = AttemptSpec.model_validate_json(AttemptFolder(spec.directory).spec.read_text())
        neighbours = len(self.running())
        seconds, fault = self._seconds(order, neighbours), self.faults.of(order)
        limit = spec.time_limit_s or float("inf")
        takes = min(limit, seconds * (_SHORT if fault in ("crash", "out_of_memory", "lost", "garbled") else 1.0))
        takes = limit if fault == "hang" else takes
        value = {
            "directory": str(spec.directory), "labels": {**spec.labels, SIMULATED: "true"}, "fault": fault,
            "seconds": seconds, "neighbours": neighbours, "over": seconds > limit,
            "began": self.clock.true.isoformat(), "ends": (self.clock.true + timedelta(seconds=takes)).isoformat(),
        }  # fmt: skip
        with open(self.root / STARTS, "a") as starts:
            starts.write(f"{spec.name}\n")
        (self.root / spec.name).mkdir()
        _write(self.root / spec.name / "launch.json", value)

    def _seconds(self, order: AttemptSpec, neighbours: int) -> float:
        steps = int(order.spec.job["steps"])
        return self.world_of(order).seconds(configuration(order), steps, neighbours)


class SimHandle:
    """A simulated attempt."""

    def __init__(self, sandbox: SimSandbox, name: str) -> None:
        self.name = name
        self._sandbox = sandbox
        self._folder = sandbox.root / name
        self._launch: dict[str, Any] = _read(self._folder / "launch.json")

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the spec's labels."""
        return dict(self._launch["labels"])

    def run_times(self) -> tuple[float, float | None]:
        """Return when it was launched and when its time was over, in simulated Unix seconds; None while it runs."""
        began, ends = (datetime.fromisoformat(self._launch[key]).timestamp() for key in ("began", "ends"))
        return began, None if self.poll() is None else ends

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it goes on."""
        if (self._folder / "end.json").exists():
            return self._end()
        if self._sandbox.clock.true < datetime.fromisoformat(self._launch["ends"]):
            return None
        ended = self._finish()
        _write(self._folder / "end.json", {"reason": ended.reason, "code": ended.code})
        return ended

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Let simulated time pass until it ends, or `timeout_s` is over."""
        clock, ends = self._sandbox.clock, datetime.fromisoformat(self._launch["ends"])
        clock.advance_to(ends if timeout_s is None else min(ends, clock.true + timedelta(seconds=timeout_s)))
        return self.poll()

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        """Return the end of what it said."""
        path = self._folder / "output.log"
        text = path.read_bytes() if path.exists() else b""
        return text[-tail_bytes:].decode(errors="replace")

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End it; what had ended stays as it was, and a second copy of it may still write (`duplicate`)."""
        if (ended := self.poll()) is None:
            ended = Exit("stopped", -15)
            _write(self._folder / "end.json", {"reason": ended.reason, "code": ended.code})
        return ended

    def _end(self) -> Exit:
        found = _read(self._folder / "end.json")
        if self._launch["fault"] == "duplicate" and found["reason"] == "finished":
            self._end_again()
        return Exit(found["reason"], found["code"])

    def _finish(self) -> Exit:
        fault: Fault = self._launch["fault"]
        if fault == "hang" or self._launch["over"]:
            return Exit("timeout", -15)
        if fault == "lost":
            return Exit("lost", None)
        if fault == "out_of_memory":
            return Exit("out_of_memory", 137)
        if fault == "crash":
            self._say("simulated attempt: Traceback (most recent call last): the simulated process died\n")
            return Exit("error", -9)
        if fault == "garbled":
            AttemptFolder(self._directory).outcome.write_text('{"status": "fini')
            return Exit("finished", 0)
        left = self._remains()[1]
        if fault == "lag" and left.tracked is not None:
            visible = self._sandbox.clock.true + timedelta(seconds=self._sandbox.faults.lag_s)
            left = replace(left, tracked={**left.tracked, "visible_at": visible.isoformat()})
        write(AttemptFolder(self._directory), left)
        self._say(left.log)
        return Exit("finished" if left.code == 0 else "error", left.code)

    def _end_again(self) -> None:
        """Write other results over those that were collected."""
        order, left = self._remains()
        forged = evaluation(order, int(order.spec.job["steps"]), 1.0)
        write(AttemptFolder(self._directory), replace(left, final=forged))

    def _remains(self) -> tuple[AttemptSpec, SimulatedFiles]:
        order = AttemptSpec.model_validate_json(AttemptFolder(self._directory).spec.read_text())
        played, left = remains(self._sandbox.world_of(order), order, self._launch["seconds"])
        return order, self._sandbox.alter(order, played, left)

    def _say(self, text: str) -> None:
        (self._folder / "output.log").write_text(text)

    @property
    def _directory(self) -> Path:
        return Path(self._launch["directory"])


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value


def _write(path: Path, value: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    os.replace(draft, path)
