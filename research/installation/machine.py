"""Cores, memory, devices, run slots of this machine.

What crashes leave behind is found by whoever wants a slot: a row is nobody's any more where its study has no controller
and its attempt does not run, by the record of its sandbox.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from research.errors import BadInput
from research.installation.home import Home
from research.text import MOST_SECONDS, is_duration, parse_budget
from research.text import describe as describe_fault
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


_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_VISIBLE: Final = {"cuda": (_CUDA,), "rocm": ("HIP_VISIBLE_DEVICES", _CUDA), "mps": ()}
"""Variables that name the devices a process sees, by kind."""
_TOOLS: Final = (
    ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"),
    ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"),
)


@cache
def find_devices() -> tuple[tuple[Device, ...], str]:
    """Return the devices that this process may use, and what kept a tool from telling, in one line."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return (Device("0", "Apple MPS", psutil.virtual_memory().total, "mps"),), ""
    fault = ""
    for command in filter(lambda each: shutil.which(each[0]), _TOOLS):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
            if done.returncode == 0:
                return _select_visible((_read_nvidia if command is _TOOLS[0] else _read_rocm)(done.stdout)), ""
            fault = f"{command[0]} ended with {done.returncode}: {done.stderr or done.stdout}"
        except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired) as error:
            fault = f"{command[0]} was not understood: {error}"
    return (), " ".join(fault.split())[:200]


def _read_nvidia(text: str) -> dict[str, Device]:
    rows = (map(str.strip, line.split(",")) for line in text.splitlines() if line.strip())
    return {uuid: Device(index, name, (int(m) if m.isdigit() else 0) << 20) for index, uuid, name, m in rows}


def _read_rocm(text: str) -> dict[str, Device]:
    named = {name.removeprefix("card"): card for name, card in json.loads(text).items() if name.startswith("card")}
    cards = {index: {key.lower(): str(value) for key, value in card.items()} for index, card in named.items()}
    amd, memory = "AMD GPU", "vram total memory (b)"
    return {i: Device(i, card.get("card series", amd), int(card.get(memory, 0)), "rocm") for i, card in cards.items()}


def _select_visible(found: Mapping[str, Device]) -> tuple[Device, ...]:
    """Return those of the devices, by uuid, that variables leave; as CUDA does, none from the first unknown one on."""
    kind = next((device.kind for device in found.values()), "cuda")
    wanted = next((os.environ[name] for name in _VISIBLE[kind] if name in os.environ), None)
    chosen = list[Device]() if wanted is not None else list(found.values())
    for word in map(str.strip, (wanted or "").split(",")):
        named = [each for uuid, each in found.items() if word == each.id or uuid[: max(8, len(word))] == word]
        if not (named := [Device(word, "MIG instance", 0)] if word.startswith("MIG-") else named):
            break
        chosen.append(named[0])
    return tuple(dict.fromkeys(chosen))


def devices_of(job: Job) -> tuple[Device, ...]:
    """Return the devices on which a job computes here, as its backend will choose; none on a CPU or elsewhere."""
    away = job.backend == "verl" and job.verl_fields.address is not None
    if job.device == "cpu" or job.backend == "fake" or away or not (found := find_devices()[0]):
        return ()
    if job.backend == "verl":  # which may have a torch of its own
        return tuple(device for device in found if device.kind != "mps")
    build = _torch_build()
    kinds = {"mps"} if job.device == "mps" else {"rocm" if "rocm" in build else "cuda"}
    kinds |= {"mps"} if job.device == "auto" else set()
    return () if build == "cpu" and job.device == "auto" else tuple(each for each in found if each.kind in kinds)


def _torch_build() -> str:
    """Return what torch's version says of its build: cu130, rocm7.0, cpu, or nothing."""
    return version("torch").partition("+")[2] if find_spec("torch") else "cpu"


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many runs of a job go at once: on devices, of which each run has `each` whole ones or shares one with others,
    `share` of them; else by cores and memory, or on swarm servers, one a server."""

    runs: int
    servers: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    each: int = 1
    share: int = 1

    def describe(self) -> str:
        each = "one a device" if self.each == 1 else f"{self.each} devices a run"
        how = f", {each if self.share == 1 else f'up to {self.share} a device'}" if self.devices else ""
        here = describe_devices(self.devices) or f"{cores()} cores"
        where = "swarm servers, not asked" if self.servers else here
        return f"{where}: {self.runs} run{'s' * (self.runs > 1)} at once{how}"


class PriceTable(BaseModel):
    """`prices.json` of the home, or the file that AJET_PRICES names: an hour of a device, by its name, of a core, of a
    swarm server, by its address; a million tokens that a language model reads and writes, by its name. `*` is any
    other; what is left out has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: str = Field(default="", max_length=8)
    gpu_hour: Mapping[str, NonNegativeFloat] = {}
    cpu_hour: NonNegativeFloat | None = None
    server_hour: Mapping[str, NonNegativeFloat] = {}
    planner_million_tokens: Mapping[str, tuple[NonNegativeFloat, NonNegativeFloat]] = {}

    @classmethod
    def load(cls, home: Home) -> Self:
        """Raise BadInput for a file that is no such table, or is named and not there."""
        named, path = os.environ.get("AJET_PRICES"), home.path / "prices.json"
        try:
            return cls.model_validate_json(Path(named or path).read_bytes()) if named or path.exists() else cls()
        except (OSError, ValueError) as error:
            told = describe_fault(error) if isinstance(error, ValidationError) else " ".join(str(error).split())[:200]
            raise BadInput(f"expected prices as docs/machines.md says in {named or path}; found {told}") from error

    def of_run(self, on: Capacity) -> list[tuple[str, float, float | None]]:
        """Return what an hour of one run takes: of what, how many hours of it, and the price of one."""
        if not (on.servers or on.devices):
            return [("a core", cores() / on.runs, self.cpu_hour)]
        known = self.server_hour if on.servers else self.gpu_hour
        names = on.servers or [device.name for device in on.devices]
        each = 1 if on.servers else on.each / on.share
        return [(name, each / len(names), known.get(name, known.get("*"))) for name in names]

    def seconds_for(self, text: str, on: Capacity) -> float:
        """Return for how long a study may hold what `text` names, with commas between: time, hours of GPUs (`8gpuh`)
        or of cores (`8cpuh`), money (`20USD`). A study holds what all its runs at once take. Raises BadInput."""
        return min(self._seconds_for(part, on) for part in text.split(","))

    def _seconds_for(self, text: str, on: Capacity) -> float:
        named = _AMOUNT.fullmatch(text)
        unit = "" if named is None else named[2].lower()
        if named is None or is_duration(text):
            return parse_budget(text)
        if unit not in {*_HOURS, self.currency.lower()}:
            money = f"{self.currency} (prices.json)" if self.currency else "money (prices.json names no currency)"
            raise BadInput(f"expected a budget in d, h, m, s, gpuh, cpuh or {money}; found {text.strip()!r:.60}")
        parts = self.of_run(on)
        unpriced = [name for name, _, price in parts if price is None]
        lacks = f"no price of {unpriced[0]} in prices.json" if unpriced and unit not in _HOURS else ""
        if unit in _HOURS and _HOURS[unit] != ("servers" if on.servers else "GPUs" if on.devices else "cores"):
            lacks = f"no {_HOURS[unit]}"
        if lacks:
            raise BadInput(f"expected a budget that can be told in time; found {text.strip()!r:.60} and {lacks} "
                           f"({on.describe()}); name time, such as 2h, or see docs/machines.md")  # fmt: skip
        rate = on.runs * sum(amount * (1.0 if unit in _HOURS else price or 0.0) for _, amount, price in parts)
        seconds = min(3600 * float(named[1]) / rate, MOST_SECONDS) if rate else MOST_SECONDS
        if seconds < 1:
            raise BadInput(f"expected a budget of 1 s at least; found {text.strip()!r:.60}, which is less; name more")
        return seconds


def read_budget(home: Home, text: str, on: Capacity) -> float:
    """Return the seconds of a budget, by the home's prices if it is not time alone; BadInput."""
    return parse_budget(text) if is_duration(text) else PriceTable.load(home).seconds_for(text, on)


_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([^\W\d_]+|[$€£¥])\s*")
_HOURS: Final = {"gpuh": "GPUs", "cpuh": "cores"}


def describe_devices(devices: Iterable[Device]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in Counter(device.name for device in devices).items())


def device_variables(slot: Slot | None) -> dict[str, str]:
    """Return the variables by which a run sees the devices of its slot alone."""
    if slot is None or not slot.devices:
        return {}
    had = [device for device in find_devices()[0] if device.id in slot.devices] or [Device("", "unknown", 0)]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if had[0].kind == "cuda" else {}  # ids are as nvidia-smi counts
    return {DEVICES: describe_devices(had), **order, **dict.fromkeys(_VISIBLE[had[0].kind], ",".join(slot.devices))}


def describe() -> dict[str, Any]:
    """Return the machine as `study.created` stores it: cpus, memory_gib, platform."""
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    return {"cpus": cores(), "memory_gib": memory, "platform": platform.platform(terse=True)}


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
        """Take a slot for an attempt, of devices if `capacity` has some; False: it waits in line until `yield_slot`."""
        self._asked = True
        rows = [row for row in self._slots.rows() if row.host == self._slots.host]
        self._unstarted = {row: since for row, since in self._unstarted.items() if row in rows}
        left = [row for row in rows if row.study != self._study and self._is_abandoned(row)]
        silent = {row.study for row in rows if row.slot is None and self._controllers.is_silent(row.study)}
        on = capacity if capacity is not None and capacity.devices else Capacity(parallel, share=parallel)
        ids = tuple(device.id for device in on.devices)
        ask = SlotRequest(self._study, attempt, str(self._home.path), on.share, ids, on.each)
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
