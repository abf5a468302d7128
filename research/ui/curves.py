"""Any metric that a run logged: of collected runs by their hashed snapshot, of running ones by their server.

A snapshot is kept by run and sha256, so that what is drawn is what was collected. A log that cannot be read says so of
its run alone.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any, Final

from research.files import read_json
from research.installation.home import Home
from research.installation.servers import find_swarm
from research.runs.files import AttemptFolder
from research.runs.wandb_log import find_log, history_of, read_log
from research.ui.charts import MOST_CURVES, Chart, Series, line_chart
from studies import RunState
from studies.checks.conditions import CollectError, read_collected
from studies.report.figure_data import Points, SeedCurve, mean_of
from swarm.client.async_client import AsyncSwarmClient
from swarm.errors import SwarmError
from swarm.snapshot import Snapshot, StepRecord

MOST_KEPT: Final = 4_000_000
"""Values of snapshots that are kept in memory: 64 MiB."""
MOST_AVERAGED: Final = 400
"""Runs whose files are read for the means of one chart."""
MOST_LIVE: Final = 64
"""Attempts whose servers' steps are kept."""
ANSWER_S: Final = 1.5
FRESH_S: Final = 1.0
SILENT_S: Final = 10.0
"""For so long a server that answered, and one that did not, is not asked again."""
_PAGE: Final = 500
_UNREADABLE: Final = (CollectError, OSError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class RunCurves:
    """The metrics of one run, each by training steps as step, value, step, value, ..."""

    metrics: Mapping[str, array[float]]
    fault: str = ""
    """Why its log cannot be read, or not to its end."""
    snapshot: Snapshot | None = None
    """What its server does, where it answers."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.metrics))

    @property
    def size(self) -> int:
        return sum(map(len, self.metrics.values()))

    def points(self, metric: str, scale: int = 1) -> Points:
        flat = self.metrics.get(metric, array("d"))
        return tuple((step * scale, value) for step, value in zip(flat[::2], flat[1::2], strict=True))


NOTHING: Final = RunCurves({})
AskServer = Callable[[Path, int], tuple[Snapshot, Sequence[StepRecord]]]
"""Returns what the server of a folder does, and its finished steps after one; raises SwarmError or OSError."""


def ask_server(folder: Path, after: int) -> tuple[Snapshot, Sequence[StepRecord]]:
    process = find_swarm(folder)
    token = (read_json(folder / "tokens.json") or {}).get("viewer") if process else None
    if process is None or not token:
        raise FileNotFoundError("its server does not run")

    async def look() -> tuple[Snapshot, Sequence[StepRecord]]:
        steps, begin = list[StepRecord](), after
        async with asyncio.timeout(ANSWER_S), AsyncSwarmClient(process.url, str(token)) as client:
            snapshot = await client.snapshot()
            while True:
                page = await client.history(begin, (), _PAGE)
                steps += page.steps
                if page.next is None:
                    return snapshot, steps
                begin = page.next

    return asyncio.run(look())


class CurveReader:
    """Reads the curves of runs of an installation; safe to use from several threads."""

    def __init__(self, home: Home, ask: AskServer = ask_server, now: Callable[[], float] = time.monotonic) -> None:
        self._home, self._ask, self._now = home, ask, now
        self._kept: OrderedDict[tuple[str, object], RunCurves] = OrderedDict()
        self._size = 0
        self._live: dict[Path, RunCurves] = {}
        self._due: dict[Path, float] = {}
        self._lock = RLock()

    def read(self, study: str, run: RunState, *, log: bool = False) -> RunCurves:
        """Return the curves of a run. With `log`, of one that has neither snapshot nor server, by the tracker's log,
        which takes seconds to read."""
        try:
            if run.collected is not None:
                stored = run.collected["snapshot"]
                return self._keep((run.run_id, stored["sha256"]), lambda: self._collected(study, stored))
            if not run.attempts:
                return NOTHING
            folder = AttemptFolder(self._home.attempt(study, run.run_id, run.attempts[-1].number))
            found = self.server(folder.server) if run.active is not None else NOTHING
            if found.metrics or not log:
                return found
            path = find_log(folder.path, folder.path.name)
            stamp = path.stat()
            return self._keep((str(path), (stamp.st_size, stamp.st_mtime_ns)), lambda: _logged(path))
        except _UNREADABLE as error:
            return RunCurves({}, getattr(error, "reason", "") or f"{type(error).__name__}: {error}")

    def _keep(self, key: tuple[str, object], read: Callable[[], RunCurves]) -> RunCurves:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = read()
        with self._lock:
            self._size += 0 if key in self._kept else found.size
            self._kept[key] = found
            while self._size > MOST_KEPT and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1].size
        return found

    def _collected(self, study: str, stored: Mapping[str, Any]) -> RunCurves:
        folder = self._home.study(study)
        if not (folder / stored["path"]).resolve().is_relative_to(folder.resolve()):
            raise ValueError("its file lies outside the study's folder")
        return _curves(
            (int(row["step"]), row["metrics"]) for row in json.loads(read_collected(folder, stored))["history"]
        )

    def server(self, folder: Path) -> RunCurves:
        """Return what the server of a folder tells, or told before it fell silent."""
        before = self._live.get(folder, NOTHING)
        if self._now() < self._due.get(folder, -math.inf):
            return before
        wait_s = FRESH_S
        after = max((int(flat[-2]) for flat in before.metrics.values()), default=0)
        try:
            snapshot, steps = self._ask(folder, after)
            if snapshot.status.step < after:  # it began anew
                before, (snapshot, steps) = NOTHING, self._ask(folder, 0)
            metrics = {name: array("d", flat) for name, flat in before.metrics.items()}
            found = _curves(((record.step, record.metrics) for record in steps), metrics, snapshot)
        except (SwarmError, OSError, ValueError) as error:
            wait_s = SILENT_S
            found = replace(before, fault=str(error) or "its server does not answer", snapshot=None)
        with self._lock:
            self._live.pop(folder, None)
            self._live[folder], self._due[folder] = found, self._now() + wait_s
            while len(self._live) > MOST_LIVE:
                self._due.pop(gone := next(iter(self._live)), None)
                del self._live[gone]
        return found


def _curves(
    steps: Iterable[tuple[int, Mapping[str, Any]]], metrics: Mapping[str, array[float]] | None = None,
    snapshot: Snapshot | None = None,
) -> RunCurves:  # fmt: skip
    whole: defaultdict[str, array[float]] = defaultdict(lambda: array("d"), metrics or {})
    for step, values in steps:
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                whole[name].extend((step, value))
    return RunCurves(dict(whole), snapshot=snapshot)


def _logged(path: Path) -> RunCurves:
    return _curves((int(row["step"]), row["metrics"]) for row in history_of(read_log(path), whole=False))


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """A run with the group whose curves are alike in colour: `place` is the group's number among all."""

    study: str
    run: RunState
    group: str
    place: int


def metric_chart(
    reader: CurveReader, every: Sequence[PlottedRun], shown: Sequence[PlottedRun], metric: str, *, steps: bool = False
) -> tuple[Chart, set[str]]:
    """Return the curves of the first runs of `shown`, one of each group in turn, with the mean of each of their groups
    over all its collected runs of `every`, whichever are shown; and the names of all that these logged."""
    sizes = {each.run.run_id: each.run.spec.job.get("episodes_per_step") for each in every}
    scales = {run: size for run, size in sizes.items() if isinstance(size, int) and size > 0 and not steps}
    scales = scales if len(scales) == len(sizes) else dict.fromkeys(sizes, 1)
    by_episodes = not steps and any(scale > 1 for scale in scales.values())
    groups = _by_group(shown)
    turns = ((turn, each) for group in groups.values() for turn, each in enumerate(group))
    chosen = [each for _, each in sorted(turns, key=lambda pair: pair[0])[:MOST_CURVES]]
    series, notes, names = list[Series](), list[str](), set[str]()
    for each in chosen:
        found = reader.read(each.study, each.run)
        names |= found.metrics.keys()
        name = f"{each.group}, seed {each.run.spec.seed}, run {each.run.run_id}"
        points = found.points(metric, scales[each.run.run_id])
        notes += [f"run {each.run.run_id[:8]}: {found.fault}"] if found.fault else []
        if points:
            series.append(Series(name, points, each.group, each.place, running=each.run.active is not None))
    if len(chosen) < len(shown):
        notes.append(f"{len(chosen)} of {len(shown):,} runs are drawn")
    room = MOST_AVERAGED
    for group, runs in _by_group(each for each in every if each.run.status == "collected").items():
        if group not in groups or len(runs) < 2:
            continue
        room -= len(runs)
        if room < 0:
            notes.append(f"no mean of {group}: {len(runs):,} runs are more than are read at once")
            continue
        read = [(each.run, reader.read(each.study, each.run).points(metric, scales[each.run.run_id])) for each in runs]
        seeds = [SeedCurve(run.run_id, run.spec.seed, points) for run, points in read if points]
        if len(seeds) > 1:
            name = f"{group}, mean of {len(seeds)} runs" + (f" of {len(read)}" if len(seeds) < len(read) else "")
            series.append(Series(name, mean_of(seeds), group, runs[0].place, mean=True))
    most = max((int(each.run.spec.job.get("steps") or 0) * scales[each.run.run_id] for each in every), default=0)
    x_name = "training episodes" if by_episodes else "training steps"
    id = "chart-" + "".join(char if char.isalnum() else "-" for char in metric)
    return line_chart(id, metric, x_name, series, x_range=(0.0, float(most)), notes=notes), names


def _by_group(runs: Iterable[PlottedRun]) -> dict[str, list[PlottedRun]]:
    groups = defaultdict[str, list[PlottedRun]](list)
    for each in runs:
        groups[each.group].append(each)
    return groups
