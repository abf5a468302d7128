"""Cores, memory, devices, run slots of this machine.

GPUs are asked for by their makers' own tools, in processes of their own, as a driver that hangs would take this one
along. A device's id is its index as `nvidia-smi` counts (CUDA_DEVICE_ORDER=PCI_BUS_ID), which vLLM and Ray take too.

What crashes leave behind is found by whoever wants a slot: a row is nobody's any more where its study has no controller
and its attempt does not run, by the record of its sandbox.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import psutil

from research.installation.home import Home
from sandboxes import ProcessSandbox, Sandbox
from studies import EventLog
from studies.log.locks import ControllerLeases, Holder, LeaseWatch, Slot, SlotRequest, SlotRow, Slots, find_free_slot
from swarm.job import Job

RUN_BYTES = 3 << 29
"""Memory one run of the tiny model takes: server, client, W&B. 1.5 GiB, generous."""
_BYTES_PER_PARAMETER = 28
"""Of a larger model: weights, gradients and two moments in float32, and activations of about as much again."""
_BYTES_UNDER_ADAPTER = 14
"""Where an adapter is all that is trained: a server of 134,515,008 parameters took 3.1 GB, its client 0.4 GB."""
_TINY = 1_000_000
"""Parameters of a model of which it needs no measurement that several fit on a device."""
_SHARED = 0.9
"""Part of a device's memory that runs share which were measured: the rest is for what allocators keep."""
DEVICES: Final = "AJET_DEVICES"
"""Names the variable that tells a run's processes which devices it has, in words."""
_TOOL_S = 10.0
Span = tuple[datetime, datetime]

UNDER_WAY_S: Final = 30.0
"""How long after its controller's death a launch may still start: a sandbox waits 20 s for its own."""


def cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def run_bytes(parameters: int, peak: int | None = None, *, adapter: bool = False) -> int:
    """Return the memory that one run of a model takes, by the `peak` of a check of the model where there was one."""
    each = _BYTES_UNDER_ADAPTER if adapter else _BYTES_PER_PARAMETER
    return RUN_BYTES + (each * parameters if peak is None else peak)


def max_parallel_runs(each: int = RUN_BYTES) -> int:
    """Return how many runs this machine carries, of a core and so many bytes of free memory each; at least one."""
    return max(1, min(cores(), psutil.virtual_memory().available // each))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that computes; `memory` in bytes, 0 where its tool does not say."""

    id: str
    name: str
    memory: int
    kind: Literal["cuda", "rocm", "mps"] = "cuda"


class FoundDevices(NamedTuple):
    """The devices that this process may use, and what kept a tool from telling, in one line."""

    devices: tuple[Device, ...] = ()
    fault: str = ""


def find_devices() -> FoundDevices:
    """Return the devices of this machine, as long as PATH and the variables that hide some stay as they are."""
    return _find_devices(tuple(map(os.environ.get, ("PATH", *_VISIBLE["rocm"]))))


_VISIBLE: Final = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "mps": (),
}
"""Variables that name the devices a process sees, by kind."""


@cache
def _find_devices(_: tuple[str | None, ...]) -> FoundDevices:
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return FoundDevices((Device("0", "Apple MPS", psutil.virtual_memory().total, "mps"),))
    fault, tools = "", (("nvidia-smi", _NVIDIA, _read_nvidia), ("rocm-smi", _ROCM, _read_rocm))
    for tool, arguments, read in tools:
        if shutil.which(tool) is None:
            continue
        try:
            done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_TOOL_S, check=False)
            if done.returncode == 0:
                return FoundDevices(_select_visible(read(done.stdout)))
            fault = f"{tool} ended with {done.returncode}: {' '.join((done.stderr or done.stdout).split())[:200]}"
        except subprocess.TimeoutExpired:
            fault = f"{tool} said nothing in {_TOOL_S:g} s"
        except (OSError, ValueError, AttributeError) as error:
            fault = f"{tool} was not understood: {' '.join(str(error).split())[:200]}"
    return FoundDevices((), fault)


_NVIDIA: Final = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_ROCM: Final = ("--showproductname", "--showmeminfo", "vram", "--json")


def _read_nvidia(text: str) -> dict[str, Device]:
    found = {}
    for line in filter(str.strip, text.splitlines()):
        index, uuid, name, memory = (part.strip() for part in line.split(","))
        found[uuid] = Device(index, name, (int(memory) if memory.isdigit() else 0) << 20)
    return found


def _read_rocm(text: str) -> dict[str, Device]:
    cards = {name.removeprefix("card"): card for name, card in json.loads(text).items() if name.startswith("card")}
    said = {index: {key.lower(): value for key, value in card.items()} for index, card in cards.items()}
    memory = {index: int(card.get("vram total memory (b)", 0)) for index, card in said.items()}
    return {i: Device(i, card.get("card series", "AMD GPU"), memory[i], "rocm") for i, card in said.items()}


def _select_visible(found: Mapping[str, Device]) -> tuple[Device, ...]:
    """Return those of the devices, by uuid, that variables leave, in their order; as CUDA does, none from the first on
    that is not known."""
    kind = next((device.kind for device in found.values()), "cuda")
    wanted = next((os.environ[name] for name in _VISIBLE[kind] if name in os.environ), None)
    if wanted is None:
        return tuple(found.values())
    chosen = list[Device]()
    for word in map(str.strip, wanted.split(",")):
        named = [each for uuid, each in found.items() if word == each.id or uuid[: max(8, len(word))] == word]
        if not (named := [Device(word, "MIG instance", 0)] if word.startswith("MIG-") else named):
            break
        chosen.append(named[0])
    return tuple(dict.fromkeys(chosen))


def devices_of(job: Job) -> tuple[Device, ...]:
    """Return the devices on which a job computes here, as its backend will choose; none for one that has a CPU, or a
    cluster elsewhere."""
    away = job.backend == "verl" and job.verl_fields.address is not None
    if job.device == "cpu" or job.backend == "fake" or away or not (found := find_devices().devices):
        return ()
    if job.backend == "verl":  # which may have a torch of its own
        return tuple(device for device in found if device.kind != "mps")
    build = _torch_build()
    kinds = {"mps"} if job.device == "mps" else {"rocm" if "rocm" in build else "cuda"}
    kinds |= {"mps"} if job.device == "auto" else set()
    return () if build == "cpu" and job.device == "auto" else tuple(each for each in found if each.kind in kinds)


def _torch_build() -> str:
    """Return what torch's version says of its build: cu130, rocm7.0, cpu, or nothing."""
    try:
        return version("torch").partition("+")[2]
    except PackageNotFoundError:
        return "cpu"


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many runs of a job this machine makes at once: on devices, of which each run has `each` whole ones or shares
    one with others, `share` of them; else by cores and memory."""

    runs: int
    devices: tuple[Device, ...] = ()
    each: int = 1
    share: int = 1

    @classmethod
    def on_devices(cls, devices: tuple[Device, ...], each: int, parameters: int, needs: int | None) -> Self:
        """`needs` is the memory of a run as it was measured; a device is shared by what was, and by tiny models."""
        each, share = min(each, len(devices)), 1
        if each == 1 and (needs is not None or parameters <= _TINY):
            room = _SHARED * min(device.memory for device in devices) // run_bytes(parameters, needs)
            share = max(1, min(int(room), cores() // len(devices)))
        return cls(min(len(devices) // each * share, max_parallel_runs()), devices, each, share)

    def describe(self) -> str:
        if not self.devices:
            return f"{cores()} cores: {self.runs} at once"
        how = f"{self.each} devices a run" if self.each > 1 else "one a device"
        how = f"up to {self.share} a device" if self.share > 1 else how
        return f"{describe_devices(self.devices)}: {self.runs} at once, {how}"


def describe_devices(devices: Iterable[Device]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in Counter(device.name for device in devices).items())


def device_variables(slot: Slot | None) -> dict[str, str]:
    """Return the variables by which a run sees the devices of its slot alone."""
    if slot is None or not slot.devices:
        return {}
    known = {device.id: device for device in find_devices().devices}
    had = [known.get(device, Device(device, "unknown device", 0)) for device in slot.devices]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if had[0].kind == "cuda" else {}
    return {DEVICES: describe_devices(had), **order, **dict.fromkeys(_VISIBLE[had[0].kind], ",".join(slot.devices))}


def describe() -> dict[str, Any]:
    """Return the machine as `study.created` stores it: cpus, memory_gib, platform, and devices where it has some."""
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    found = {"devices": describe_devices(devices)} if (devices := find_devices().devices) else {}
    return {"cpus": cores(), "memory_gib": memory, "platform": platform.platform(terse=True), **found}


class MachineSlots:
    """The slots that one study takes on this machine. The caller holds the study's lease."""

    def __init__(
        self, log: EventLog, home: Home, study: str, sandbox: Sandbox, controllers: LeaseWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`sandbox` is that of this installation's attempts; `clock` stands while the machine sleeps."""
        me = Holder.here(home.path)
        self._slots = Slots(log, me.host)
        self._home, self._study, self._sandbox, self._clock = home, study, sandbox, clock
        self._controllers = controllers or LeaseWatch(ControllerLeases(log), me)
        self._unstarted: dict[SlotRow, float] = {}
        self._spans: dict[str, tuple[float, float | None]] = {}
        """From when to when each attempt of another study ran, in Unix seconds, by its name; None while it runs."""
        self._own: list[SlotRow] = []
        self._asked = False

    @property
    def waits(self) -> bool:
        return any(row.slot is None for row in self._own)

    def poll(self, attempts: Collection[str]) -> None:
        """Read what the study holds, and give back what is for none of these attempts, which go on."""
        self._own = [row for row in self._slots.rows() if row.study == self._study]
        self._asked = False
        here = [row for row in self._own if row.host == self._slots.host]
        goes_on = [row for row in here if row.slot is None or row.attempt in attempts]
        self._give_back([row for row in self._own if row not in goes_on])

    def take(self, attempt: str, parallel: int, capacity: Capacity | None = None) -> bool:
        """Take a slot for an attempt, of devices where its `capacity` has some, else one of `parallel` of the cores;
        False where it has to wait, and stands in the line until `yield_slot`."""
        self._asked = True
        rows = [row for row in self._slots.rows() if row.host == self._slots.host]
        self._unstarted = {row: since for row, since in self._unstarted.items() if row in rows}
        left = [row for row in rows if row.study != self._study and self._is_abandoned(row)]
        silent = {row.study for row in rows if row.slot is None and self._controllers.is_silent(row.study)}
        ask = SlotRequest(self._study, attempt, str(self._home.path), parallel)
        if capacity is not None and capacity.devices:
            ids = tuple(device.id for device in capacity.devices)
            ask = replace(ask, parts=capacity.share, devices=ids, each=capacity.each)
        others = [row for row in rows if row not in left]
        in_line = any(row.slot is None and (row.study, row.attempt) == (self._study, attempt) for row in rows)
        if in_line and find_free_slot(others, ask, silent) is None:
            return False  # nothing is written while nothing changes
        taken = self._slots.take(ask, left, silent)
        self._own = [row for row in self._own if row.slot is not None and row.attempt != attempt]
        self._own.append(taken)
        return taken.slot is not None

    def slot_of(self, attempt: str) -> Slot | None:
        return next((row.slot for row in self._own if row.attempt == attempt), None)

    def give_back(self, attempt: str) -> None:
        self._give_back([row for row in self._own if row.attempt == attempt])

    def yield_slot(self) -> None:
        """Leave the line, unless a slot was asked for since the last look."""
        if not self._asked:
            self._give_back([row for row in self._own if row.slot is None])

    def holders(self) -> Mapping[str, int]:
        """Return how many slots of this machine each other study has; the largest first."""
        here = [row for row in self._slots.rows() if row.host == self._slots.host and row.study != self._study]
        held = Counter(row.study for row in here if row.slot is not None)
        return dict((held or Counter(row.study for row in here)).most_common())

    def is_driven(self, study: str) -> bool:
        return not self._controllers.is_gone(study)

    def spans(self, now: datetime) -> list[Span]:
        """Return from when to when each attempt of another study ran here; one that runs has run until now."""
        others = {h.name: h for h in self._sandbox.list() if h.labels.get("study", self._study) != self._study}
        for name, handle in others.items():
            if self._spans.get(name, (0.0, None))[1] is None:
                self._spans[name] = handle.run_times()
        for name, (began, ended) in self._spans.items():
            if ended is None and name not in others:  # it ended, and was pruned
                self._spans[name] = began, time.time()
        return [
            (datetime.fromtimestamp(began, UTC), now if ended is None else datetime.fromtimestamp(ended, UTC))
            for began, ended in self._spans.values()
        ]

    def _give_back(self, rows: list[SlotRow]) -> None:
        if rows:
            self._slots.give_back(rows)
            self._own = [row for row in self._own if row not in rows]

    def _is_abandoned(self, row: SlotRow) -> bool:
        if row.slot is None:
            return self._controllers.is_gone(row.study)
        own = row.home == str(self._home.path)
        sandbox = self._sandbox if own else ProcessSandbox(Home(Path(row.home), "").sandboxes)
        try:
            handle = sandbox.adopt(row.attempt)
            runs = handle is not None and handle.poll() is None
        except OSError:  # of another user, or on a full disk: it may run
            return False
        if runs or not self._controllers.is_gone(row.study):
            self._unstarted.pop(row, None)
            return False
        return handle is not None or self._clock() - self._unstarted.setdefault(row, self._clock()) >= UNDER_WAY_S
