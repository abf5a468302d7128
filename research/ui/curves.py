"""Any metric that a run logged, and charts as plain data, which `charts.html.jinja` draws as SVG of any width.

Of collected runs by their hashed snapshot, of running ones by their server. A snapshot is kept by run and sha256, so
that what is drawn is what was collected. A log that cannot be read says so of its run alone.

Horizontal places are thousandths of the width, vertical ones pixels. A long curve keeps its first and its last point,
and the lowest and the highest of each column: nothing is averaged or drawn by lot, and no other curve changes it.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from research.files import read_json
from research.installation.home import Home
from research.installation.servers import find_swarm
from research.runs.files import AttemptFolder
from research.runs.wandb_log import find_log, history_of, read_log
from studies import RunState
from studies.checks.conditions import CollectError, read_collected
from studies.report.elements import ARMS
from studies.report.evidence import NOT_GIVEN
from studies.report.figure_data import Points, SeedCurve, mean_of
from studies.report.wording import format_signed, percent, plural, span, true_minus
from swarm.client.async_client import AsyncSwarmClient
from swarm.errors import SwarmError, Unreachable
from swarm.snapshot import Snapshot, StepRecord

ACROSS: Final = 1000
_COLUMNS: Final = 250
_ROOM: Final = 10.0
"""Pixels above the highest and below the lowest value."""
_DASHES: Final = ("", "7 3", "2 3", "10 3 2 3", "4 4", "12 4")
_MARKS: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z", "M0-5l4.5 8h-9z", "M0-5l5 5l-5 5l-5-5z",
    "M0 5l4.5-8h-9z", "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
)  # fmt: skip
Range = tuple[float, float]
Ticks = tuple[tuple[float, str], ...]
"""Where values stand at an axis, and what is written there."""


class Look(NamedTuple):
    """How an arm is drawn: the number of its colour, its dashes and its marker."""

    color: int
    dash: str
    mark: str

    @classmethod
    def at(cls, place: int) -> Look:
        return cls(place % ARMS, _DASHES[place % len(_DASHES)], _MARKS[place % len(_MARKS)])


class Series(NamedTuple):
    """One curve to be drawn; `arm` names its look in the legend. A mean is thick; of one that goes on the mark at its
    end is hollow."""

    name: str
    points: Points
    arm: str = ""
    look: Look = Look.at(0)
    mean: bool = False
    running: bool = False


class Chart(NamedTuple):
    """A chart: series, each with its path and the place of its marker; what it leaves out; a line of a table each."""

    id: str
    label: str
    x_name: str
    height: int
    lines: tuple[tuple[Series, str, tuple[float, float]], ...]
    x_ticks: Ticks
    y_ticks: Ticks
    legend: Mapping[str, Look]
    notes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def fraction(value: float, ends: Range) -> float:
    """Return where a value lies between two ends, from 0 to 1; in the middle where the ends are alike."""
    low, half = ends[0], ends[1] / 2 - ends[0] / 2  # the whole of it may be more than a number holds
    return min(1.0, max(0.0, (value / 2 - low / 2) / half)) if half > 0 else 0.5


def range_of(values: Iterable[float]) -> Range:
    """Return the ends of the finite values; of none (0, 1)."""
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def ticks(ends: Range, about: int) -> Ticks:
    """Return about so many round values between two ends, one more at most, with what tells them apart; an end where
    there is none."""
    low, half = ends[0], ends[1] / 2 - ends[0] / 2
    if half <= 0 or (power := 10.0 ** math.floor(math.log10(raw := half / about * 2))) <= 0:
        return ((low, true_minus(f"{low:.4g}")),)
    step = next((power * size for size in (1, 2, 5) if power * size >= raw), 10 * power)
    numbers = range(math.ceil(low / step), math.floor(ends[1] / step) + 1)
    values = sorted({value for number in numbers if low <= (value := number * step) <= ends[1]}) or [low]
    last, first = (math.floor(math.log10(size) + 1e-9) for size in (step, max(map(abs, values)) or step))
    form = f",.{max(0, -last)}f" if last > -6 and first < 9 else f".{min(17, max(1, first - last + 1))}g"
    return tuple((value, true_minus(format(value, form))) for value in values)


def decimate(points: Points, column: Callable[[float], int]) -> Points:
    """Return, of points that are ordered by x, the first and the last, and the lowest and highest of each column."""
    kept = {0, len(points) - 1} if points else set[int]()
    for _, group in groupby(range(len(points)), key=lambda at: column(points[at][0])):
        members = list(group)
        kept |= {min(members, key=lambda at: points[at][1]), max(members, key=lambda at: points[at][1])}
    return tuple(points[at] for at in sorted(kept))


def line_chart(
    label: str, x_name: str, series: Sequence[Series], *, x_range: Sequence[float] = (), height: int = 240,
    notes: Sequence[str] = (),
) -> Chart:  # fmt: skip
    """Return a chart. `x_range` is what the x axis shows at least, so that curves are decimated alike whichever of them
    are shown."""
    finite = [(each, tuple(sorted(p for p in each.points if all(map(math.isfinite, p))))) for each in series]
    drawn = [(each, points) for each, points in finite if points]
    xs = range_of((*x_range, *(x for _, points in drawn for x, _ in points)))
    ys = range_of(y for _, points in drawn for _, y in points)
    strange = sum(len(each.points) - len(points) for each, points in finite)

    def down(y: float) -> float:
        return round(height - _ROOM - fraction(y, ys) * (height - 2 * _ROOM), 1)

    def curve(each: Series, points: Points) -> tuple[Series, str, tuple[float, float]]:
        kept = decimate(points, lambda x: int(fraction(x, xs) * _COLUMNS))
        places = [(round(fraction(x, xs) * ACROSS, 1), down(y)) for x, y in kept]
        return each, "M" + "L".join(f"{x:g} {y:g}" for x, y in places), places[-1]

    def row(each: Series, points: Points) -> tuple[str, ...]:
        (from_x, first), (to_x, last), ys = points[0], points[-1], [y for _, y in points]
        values = (first, last, min(ys), max(ys))
        return each.name, f"{from_x:,.15g} to {to_x:,.15g}", *(true_minus(f"{value:.4g}") for value in values)

    said = [*notes, *([f"{plural(strange, 'value')}: no finite number"] if strange else [])]
    return Chart(
        "chart-" + "".join(char if char.isalnum() else "-" for char in label), label, x_name, height,
        tuple(curve(*each) for each in drawn), tuple((fraction(x, xs) * ACROSS, text) for x, text in ticks(xs, 6)),
        tuple((down(y), text) for y, text in ticks(ys, 5)), {each.arm: each.look for each, _ in drawn if each.arm},
        tuple(said), tuple(row(*each) for each in drawn),
    )  # fmt: skip


def extent(values: Iterable[float | None]) -> Range:
    """Return what an axis of differences shows: zero, the finite values, and some room."""
    low, high = range_of((0.0, *(value for value in values if value is not None)))
    room = 0.04 * ((high - low) or 1.0)
    return (low - room, high + room) if math.isfinite(room) else (low, high)


def interval_bar(
    estimate: float | None, low: float | None = None, high: float | None = None, *, level: float | None = None,
    margin: float | None = None, predicted: Range | None = None, ends: Range | None = None, unit: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return what `charts.html.jinja` draws of a difference, on an axis with the given ends, which are its own unless
    given: places in per cent of the width, spans as (place, width)."""
    observed = None if low is None or high is None else (low, high)
    size = None if margin is None else (-margin, margin)
    axis = ends or extent((estimate, *(observed or ()), *(size or ()), *(predicted or ())))

    def at(value: float) -> float:
        return round(100 * fraction(value, axis), 2)

    def along(ends: Range | None) -> Range | None:
        return None if ends is None else (at(ends[0]), round(at(ends[1]) - at(ends[0]), 2))

    said = ["nothing observed" if estimate is None else f"observed {format_signed(estimate, unit=unit)}"]
    if observed:
        said.append(f"interval {span(*observed, unit=unit)}" + (f" ({percent(level)})" if level else ""))
    said += [f"predicted {span(*predicted, unit=unit)}"] if predicted else []
    said += [f"too small to matter within {span(*size, unit=unit)}"] if size else []
    return {
        "label": ", ".join(said), "zero": at(0.0), "estimate": None if estimate is None else at(estimate),
        "interval": along(observed), "margin": along(size), "predicted": along(predicted),
        "ticks": tuple((at(value), text) for value, text in ticks(axis, 3)),
    }  # fmt: skip


MOST_CURVES: Final = 60
"""Curves of single runs that one chart draws."""
MOST_KEPT: Final = 4_000_000
"""Values of snapshots that are kept in memory: 64 MiB."""
MOST_AVERAGED, MOST_MEANT = 400, 1e300
"""Runs whose files are read for the means of one chart, and the size from which on values are part of none: their sum
may be more than a number holds."""
MOST_LIVE: Final = 256
"""Attempts whose servers' steps are kept."""
MOST_ASKED: Final = 64
"""Servers that are asked at once: those that hang hold no others up."""
ANSWER_S: Final = 1.5
FRESH_S: Final = 1.0
SILENT_S: Final = 10.0
"""For so long a server that answered, and one that did not, is not asked again."""
_UNREADABLE: Final = (*NOT_GIVEN, CollectError, SwarmError, OSError, RuntimeError)
"""What files and servers raise that hold or tell something else than was expected, numbers of any size included."""


class RunCurves(NamedTuple):
    """The metrics of one run, each by training steps as step, value, step, value, ..."""

    metrics: Mapping[str, array[float]]
    fault: str = ""
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
Steps = Iterable[tuple[int, Mapping[str, Any]]]
AskServer = Callable[[Path, int], tuple[Snapshot, Sequence[StepRecord]]]
"""Returns what the server of a folder does, and its finished steps after one; raises what `_UNREADABLE` has."""


def ask_server(folder: Path, after: int) -> tuple[Snapshot, Sequence[StepRecord]]:
    process = find_swarm(folder)
    token = (read_json(folder / "tokens.json") or {}).get("viewer") if process else None
    if process is None or not token:
        raise Unreachable("its server does not run")

    async def look() -> tuple[Snapshot, Sequence[StepRecord]]:
        steps, begin, until = list[StepRecord](), after, time.monotonic() + ANSWER_S / 2
        async with asyncio.timeout(ANSWER_S), AsyncSwarmClient(process.url, str(token)) as client:
            snapshot = await client.snapshot()
            while True:
                page = await client.history(begin, (), 500)
                steps += page.steps
                if page.next is None or time.monotonic() > until:  # the next look has the rest of a long one
                    return snapshot, steps
                begin = page.next

    return asyncio.run(look())


class CurveReader:
    """Reads the curves of runs of an installation; safe to use from several threads."""

    def __init__(self, home: Home, ask: AskServer = ask_server, now: Callable[[], float] = time.monotonic) -> None:
        self._home, self._ask, self._now = home, ask, now
        self._kept: OrderedDict[tuple[str, str], RunCurves] = OrderedDict()
        self._live: OrderedDict[Path, tuple[RunCurves, float]] = OrderedDict()
        self._size, self._lock = 0, Lock()

    def read(self, study: str, run: RunState, *, log: bool = False) -> RunCurves:
        """Return the curves of a run. With `log`, of one that has neither snapshot nor server, by the tracker's log,
        which takes seconds to read."""
        try:
            rows: Callable[[], Iterable[Mapping[str, Any]]]
            if run.collected is not None:
                stored, folder = run.collected["snapshot"], self._home.study(study)
                key, rows = (
                    (run.run_id, stored["sha256"]),
                    lambda: json.loads(read_collected(folder, stored))["history"],
                )
            elif not run.attempts:
                return NOTHING
            else:
                attempt = AttemptFolder(self._home.attempt(study, run.run_id, run.attempts[-1].number))
                found = self.server(attempt.server) if run.active is not None else NOTHING
                if found.metrics or not log:
                    return found
                path = find_log(attempt.path, attempt.path.name)
                key, rows = (str(path), str(path.stat())), lambda: history_of(read_log(path), whole=False)
            return self._keep(key, rows)
        except _UNREADABLE as error:
            return RunCurves({}, _reason(error))

    def read_all(self, runs: Iterable[PlottedRun]) -> list[RunCurves]:
        with ThreadPoolExecutor(MOST_ASKED) as pool:
            return list(pool.map(lambda each: self.read(each.study, each.run), runs))

    def _keep(self, key: tuple[str, str], rows: Callable[[], Iterable[Mapping[str, Any]]]) -> RunCurves:
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
        strange = ((row, dict.fromkeys(row.get("not_finite", ()), math.nan)) for row in rows())
        found = _curves((int(row["step"]), row["metrics"] | unsaid) for row, unsaid in strange)
        with self._lock:
            self._size += 0 if key in self._kept else found.size
            self._kept[key] = found
            while self._size > MOST_KEPT and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1].size
        return found

    def server(self, folder: Path) -> RunCurves:
        """Return what the server of a folder tells, or told before it fell silent."""
        before, due = self._live.get(folder, (NOTHING, -math.inf))
        if self._now() < due:
            return before
        wait_s, after = FRESH_S, max((int(flat[-2]) for flat in before.metrics.values()), default=0)
        try:
            snapshot, steps = self._ask(folder, after)
            if snapshot.status.step < after:  # it began anew
                before, after, (snapshot, steps) = NOTHING, 0, self._ask(folder, 0)
            found = _curves(((each.step, each.metrics) for each in steps if each.step > after), before, snapshot)
        except _UNREADABLE as error:
            wait_s, found = SILENT_S, before._replace(fault=_reason(error), snapshot=None)
        with self._lock:
            self._live[folder] = found, self._now() + wait_s
            self._live.move_to_end(folder)
            if len(self._live) > MOST_LIVE:
                self._live.popitem(last=False)
        return found


def _reason(error: Exception) -> str:
    said = getattr(error, "reason", "") or str(error) or "it does not answer"
    return said if isinstance(error, CollectError | SwarmError | TimeoutError) else f"{type(error).__name__}: {said}"


def _curves(steps: Steps, before: RunCurves = NOTHING, snapshot: Snapshot | None = None) -> RunCurves:
    whole = defaultdict(lambda: array("d"), {name: array("d", flat) for name, flat in before.metrics.items()})
    for step, values in steps:
        for name, value in values.items():
            if isinstance(value, int | float):
                whole[name].extend((step, value))
    return RunCurves(dict(whole), snapshot=snapshot)


class PlottedRun(NamedTuple):
    """A run with the group whose curves are alike in colour: `place` is the group's number among all."""

    study: str
    run: RunState
    group: str
    place: int
    round: int = 1


def metric_chart(
    reader: CurveReader, every: Sequence[PlottedRun], shown: Sequence[PlottedRun], metric: str, *, steps: bool = False
) -> tuple[Chart, set[str]]:
    """Return the curves of the first runs of `shown`, one of each group in turn, with the mean of each of their groups
    over all its collected runs of `every`, whichever are shown; and the names of all that these logged."""
    sizes = {each.run.run_id: each.run.spec.job.get("episodes_per_step") for each in every}
    by_episodes = not steps and all(isinstance(size, int) and size > 0 for size in sizes.values())
    scales: Mapping[str, Any] = sizes if by_episodes else dict.fromkeys(sizes, 1)
    groups = _by_group(shown)
    turns = ((turn, each) for group in groups.values() for turn, each in enumerate(group))
    chosen = [each for _, each in sorted(turns, key=lambda pair: pair[0])[:MOST_CURVES]]
    series, notes, names = list[Series](), list[str](), set[str]()
    for each, found in zip(chosen, reader.read_all(chosen), strict=True):
        names |= found.metrics.keys()
        name = f"{each.group}, seed {each.run.spec.seed}, run {each.run.run_id}"
        notes += [f"run {each.run.run_id[:8]}: {found.fault}"] if found.fault else []
        if points := found.points(metric, scales[each.run.run_id]):
            series.append(Series(name, points, each.group, Look.at(each.place), running=each.run.active is not None))
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
        read = [reader.read(each.study, each.run).points(metric, scales[each.run.run_id]) for each in runs]
        usual = (tuple(point for point in points if abs(point[1]) < MOST_MEANT) for points in read)
        seeds = [SeedCurve("", 0, points) for points in usual if points]
        if len(seeds) > 1:
            name = f"{group}, mean of {len(seeds)} runs" + (f" of {len(read)}" if len(seeds) < len(read) else "")
            series.append(Series(name, mean_of(seeds), group, Look.at(runs[0].place), mean=True))
    most = max((int(each.run.spec.job.get("steps") or 0) * scales[each.run.run_id] for each in every), default=0)
    x_name = "training episodes" if by_episodes else "training steps"
    return line_chart(metric, x_name, series, x_range=(0.0, float(most)), notes=notes), names


def _by_group(runs: Iterable[PlottedRun]) -> dict[str, list[PlottedRun]]:
    groups = defaultdict[str, list[PlottedRun]](list)
    for each in runs:
        groups[each.group].append(each)
    return groups
