"""Cores, memory, threads, run slots of this machine.

What crashes leave behind is found by whoever wants a slot: a row is nobody's any more where its study has no controller
and its attempt does not run, by the record of its sandbox.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from research.installation.home import Home
from sandboxes import ProcessSandbox, Sandbox
from studies import EventLog
from studies.log.locks import ControllerLeases, Holder, LeaseWatch, SlotRequest, SlotRow, Slots, find_free_slot

RUN_BYTES = 3 << 29
"""Memory one run of the tiny model takes: server, client, W&B. 1.5 GiB, generous."""
_BYTES_PER_PARAMETER = 28
"""Of a larger model: weights, gradients and two moments in float32, and activations of about as much again."""
_BYTES_UNDER_ADAPTER = 14
"""Where an adapter is all that is trained: a server of 134,515,008 parameters took 3.1 GB, its client 0.4 GB."""
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

    def take(self, attempt: str, parallel: int) -> bool:
        """Take a slot for an attempt; False where it has to wait, and stands in the line until `yield_slot`."""
        self._asked = True
        rows = [row for row in self._slots.rows() if row.host == self._slots.host]
        self._unstarted = {row: since for row, since in self._unstarted.items() if row in rows}
        left = [row for row in rows if row.study != self._study and self._is_abandoned(row)]
        silent = {row.study for row in rows if row.slot is None and self._controllers.is_silent(row.study)}
        ask = SlotRequest(self._study, attempt, str(self._home.path), parallel)
        others = [row for row in rows if row not in left]
        in_line = any(row.slot is None and (row.study, row.attempt) == (self._study, attempt) for row in rows)
        if in_line and find_free_slot(others, ask, silent) is None:
            return False  # nothing is written while nothing changes
        taken = self._slots.take(ask, left, silent)
        self._own = [row for row in self._own if row.slot is not None and row.attempt != attempt]
        self._own.append(taken)
        return taken.slot is not None

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
