"""`ajet swarm top`: rich.Live over /snapshot.

A frame is lines of text, each cut to the terminal's width; what says most stands first, so that a low terminal shows
it. Steps are asked for again only once there may be others. A server that does not answer is shown as it was.
"""

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from research.cli.app import console, make_table, print_json
from research.installation.servers import Server, connect_server
from research.text import format_seconds
from sandboxes.spec import escape_control, escape_line
from swarm.client import SwarmClient
from swarm.errors import Unreachable
from swarm.snapshot import Snapshot, StepRecord, describe_side_conversations
from swarm.wire import EvaluationSummary, ServerState, Status

REWARD: Final = "critic/rewards/mean"
SUCCESS: Final = "critic/success/mean"
CURVES: Final = {
    "reward": REWARD, "success": SUCCESS, "loss": "actor/pg_loss", "entropy": "actor/entropy", "KL": "actor/ppo_kl",
    "clipped": "actor/pg_clipfrac", "evaluated": "eval/success/mean",
}  # fmt: skip
"""The curves that are shown, by what a person calls them."""
_KEYS: Final = (*CURVES.values(), "eval/reward/mean")
PLOTTED = 240
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class TopFrame:
    """One look."""

    url: str
    snapshot: Snapshot
    first: StepRecord | None
    steps: tuple[StepRecord, ...]
    silent_s: float = 0.0
    """Seconds since the server answered last; 0 where it just did."""


class Watcher:
    """Looks at one server, again and again."""

    def __init__(self, url: str, client: SwarmClient) -> None:
        self._url, self._client = url, client
        self._seen: object = None
        self._frame: TopFrame | None = None
        self._heard = time.monotonic()

    def poll(self) -> TopFrame:
        """Return what there is now; raise Unreachable where it never answered."""
        try:
            snapshot = self._client.snapshot(within_s=ANSWER_S)
            first, steps = self._curves(snapshot)
        except Unreachable:
            if self._frame is None:
                raise
            return replace(self._frame, silent_s=max(time.monotonic() - self._heard, 0.1))
        self._heard = time.monotonic()
        self._frame = TopFrame(self._url, snapshot, first, steps)
        return self._frame

    def _curves(self, snapshot: Snapshot) -> tuple[StepRecord | None, tuple[StepRecord, ...]]:
        status = snapshot.status
        seen = (status.job_digest, status.state, status.step, status.evaluation)
        if self._frame is not None and seen == self._seen:
            return self._frame.first, self._frame.steps
        first = self._client.history(0, _KEYS, 1).steps
        steps = self._client.history(0, _KEYS, PLOTTED, newest=True).steps
        self._seen = seen if steps and steps[-1].step >= status.step else None  # the store may be a moment behind
        return first[0] if first else None, steps


@contextmanager
def cbreak_mode() -> Iterator[None]:
    """Let keys come at once and unseen while inside; nothing changes where nobody types at a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def wait_for_key(key: str, within_s: float) -> bool:
    """Wait so many seconds; return at once with whether the key was pressed."""
    if not sys.stdin.isatty():
        time.sleep(within_s)
        return False
    until = time.monotonic() + within_s
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not typed or key in typed.lower():
                return True
    return False


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return at most `width` bars, of half the height where all are alike; a value that is not known is a space."""
    count = min(len(values), max(1, width))
    places = [place * len(values) // count for place in range(count + 1)] if count else []
    parts = []
    for begin, end in pairwise(places):
        numbers = [value for value in values[begin:end] if value is not None]
        parts.append(fmean(numbers) if numbers else None)
    known = [part for part in parts if part is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def bar(value: float) -> str:
        return BARS[min(len(BARS) - 1, int((value - low) / (high - low) * len(BARS))) if high > low else len(BARS) // 2]

    return "".join(" " if part is None else bar(part) for part in parts)


NOTHING = "-"
UNOPENED = (ServerState.OFFLINE, ServerState.BOOTING)
"""States in which nobody knows the step of a training that may be on disk."""
_MOST_DROPS = 4
_MOST_WAITS = 3
MORE = "ajet swarm top (live), ajet swarm episodes, ajet swarm status --json (all metrics)"


def status_lines(frame: TopFrame, where: str) -> list[tuple[str, str]]:
    """Return what a server does, as names and words; `where` says which one it is."""
    snapshot, status = frame.snapshot, frame.snapshot.status
    job = f"{snapshot.environment}, {snapshot.model}, {snapshot.algorithm}"
    reason = f": {status.reason}" if status.reason else ", updating" if status.updating else ""
    line = "nobody in line"
    if snapshot.line:
        line = f"{snapshot.line} in line, the first for {format_seconds(snapshot.line_age_s or 0.0)}"
    sampled, trained = (
        NOTHING if rate is None else f"{rate:,.0f}" for rate in (snapshot.sampled_per_s, snapshot.trained_per_s)
    )
    waits = [wait.text for wait in snapshot.waits]
    more_waits = f"; and {len(waits) - _MOST_WAITS} more" if len(waits) > _MOST_WAITS else ""
    episodes = f"{status.open_episodes} open, {status.collected_episodes} of {status.needed_episodes} collected"
    last = escape_line(snapshot.refusal or NOTHING)
    skipped = [
        f"{escape_control(task)!r} {times} times" for task, times in list(snapshot.skipped_tasks.items())[-_MOST_DROPS:]
    ]
    step = NOTHING
    if status.steps:
        step = f"{NOTHING if status.state in UNOPENED else status.step} of {status.steps}"
        left = snapshot.seconds_left
        step += ", finished" if status.finished else f", about {format_seconds(left)} left" if left is not None else ""
    of_tasks = f"; tasks skipped, as they failed again and again: {', '.join(skipped)}" if skipped else ""
    rows = {
        "server": where,
        "state": f"{status.state}{reason}",
        "job": (status.job_digest or "none")[:16] if snapshot.environment is None else job,
        "new training": status.fresh_start,
        "step": step,
        "reward": _last_and_first(frame, REWARD),
        "success": _last_and_first(frame, SUCCESS),
        "warning": snapshot.flat,
        "evaluation": _format_evaluation(status),
        "episodes": f"{episodes}, {line}",
        "tokens": f"{sampled} sampled, {trained} trained per second",
        "waits for": f"{'; '.join(waits[:_MOST_WAITS]) or 'nothing'}{more_waits}",
        "drops": format_counts(snapshot.drops) + of_tasks,
        "refused": f"calls {format_counts(snapshot.refusals)}; the last: {last}" if snapshot.refusals else None,
        "note": describe_side_conversations(snapshot.side_conversations) or None,
        "more": MORE,
    }
    return [(name, text) for name, text in rows.items() if text is not None]


def _format_evaluation(status: Status) -> str:
    def format_score(evaluation: EvaluationSummary) -> str:
        score = evaluation.reward if evaluation.success is None else evaluation.success
        return f"{score:.3g} at step {evaluation.step}"

    parts = []
    if (last := status.evaluation) is not None:
        what = "reward" if last.success is None else "success"
        parts.append(f"{what} {format_score(last)} ({last.episodes} episodes)")
    if status.best is not None:
        parts.append(f"best {format_score(status.best)}")
    return ", ".join(parts) or NOTHING


def _last_and_first(frame: TopFrame, metric: str) -> str:
    last, first = (frame.steps[-1] if frame.steps else None), frame.first
    if last is None or metric not in last.metrics:
        return NOTHING
    records = [last]
    if first is not None and first.step != last.step and metric in first.metrics:
        records.append(first)
    return ", ".join(f"{record.metrics[metric]:.3g} at step {record.step}" for record in records)


def format_counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda reason: (-reason[1], reason[0]))
    if not ordered:
        return "none"
    named = ", ".join(f"{count} {reason}" for reason, count in ordered[:_MOST_DROPS])
    more = len(ordered) - _MOST_DROPS
    return f"{sum(counts.values())}: {named}" + (f" and {more} more reasons" if more > 0 else "")


LEAST_WIDTH = 60
_NAME = 10
_NUMBERS = 20
"""Columns for what is written beside a curve."""
_WIDEST = 8
"""Bars of one value, where there are few of them."""
_STYLES = {ServerState.FAILED: "bold red", ServerState.OFFLINE: "yellow", ServerState.BOOTING: "yellow"}
_MOST = {"streams": 8, "owners": 6, "drops": 5}
_LONGEST_CELL = 60
_STATUS_ONLY = ("server", "reward", "success", "waits for", "refused", "note", "more")
"""Lines of the status that the screen shows otherwise, or not."""


def screen(frame: TopFrame, width: int) -> Group:
    """Return a frame, whose lines are cut where they are longer than `width`."""
    return Group(*_head(frame), *_curves(frame, max(LEAST_WIDTH, width)), *_tables(frame.snapshot))


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _head(frame: TopFrame) -> Iterator[Text]:
    snapshot, status = frame.snapshot, frame.snapshot.status
    at = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    yield _line(("ajet swarm top", "bold"), f"  {frame.url}  {at}  ", ("q quits", "dim"))
    if frame.silent_s:
        yield _line((f"no answer for {format_seconds(frame.silent_s)}; this is what it said before", "bold red"))
    styles = {
        "state": _STYLES.get(status.state, "bold green"), "step": "bold", "warning": "yellow",
        "drops": "yellow" if snapshot.drops else "",
    }  # fmt: skip
    rows = [(name, text, styles.get(name, "")) for name, text in status_lines(frame, "") if name not in _STATUS_ONLY]
    waits = [(wait.text, "yellow") for wait in snapshot.waits[:4]] or [("nothing", "")]
    rows[3:3] = [("" if number else "waits for", text, style) for number, (text, style) in enumerate(waits)]
    for name, text, style in rows:
        yield _line((f"{name:<{_NAME}} ", "dim"), (escape_line(text), style))


def _curves(frame: TopFrame, width: int) -> Iterator[Text]:
    room = width - _NAME - 1 - _NUMBERS
    if frame.steps:
        first, last = frame.steps[0].step, frame.steps[-1].step
        yield _line((f"{'':<{_NAME}} {f'steps {first} to {last}':<{room}} {'now':>9} {'first':>9}", "dim"))
    for name, metric in CURVES.items():
        values = [record.metrics.get(metric) for record in frame.steps]
        known = [value for value in values if value is not None]
        if any(known):  # what is 0 throughout, as KL is in one step on policy, says nothing
            wide = max(1, min(_WIDEST, room // len(values)))
            bars = sparkline([value for value in values for _ in range(wide)], room)
            before = known[0] if frame.first is None else frame.first.metrics.get(metric, known[0])
            numbers = f" {known[-1]:>9.3g} {before:>9.3g}"
            yield _line((f"{name:<{_NAME}} ", "dim"), (f"{bars:<{room}}", "cyan"), numbers)


def _tables(snapshot: Snapshot) -> Iterator[RenderableType]:
    streams = sorted(snapshot.streams[: _MOST["streams"]], key=lambda stream: stream.name)  # each stays in its row
    yield from _table(
        ("stream", "share", "groups", "whole", "trained", "in play", "lacking"),
        [
            (
                stream.name, NOTHING if stream.share is None else f"{stream.share:.0%}", str(stream.groups_open),
                str(stream.groups_whole), str(stream.groups_trained), str(stream.episodes_open), str(stream.lacking),
            )
            for stream in streams
        ],
        len(snapshot.streams) - len(streams) + snapshot.streams_left_out,
    )  # fmt: skip
    owners = sorted(snapshot.owners[: _MOST["owners"]], key=lambda owner: owner.owner)
    yield from _table(
        ("client", "open", "heard", "oldest"),
        [(one.owner, str(one.open), format_seconds(one.heard_s), format_seconds(one.oldest_s)) for one in owners],
        len(snapshot.owners) - len(owners) + snapshot.owners_left_out,
    )
    drops = [
        (time.strftime("%H:%M:%S", time.localtime(drop.at)), drop.reason, drop.stream, drop.owner, drop.episode)
        for drop in snapshot.recent_drops[: _MOST["drops"]]
    ]
    yield from _table(("last drops", "reason", "stream", "client", "episode"), drops, 0)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left_out: int) -> Iterator[RenderableType]:
    if rows:
        cells = ([Text(escape_line(cell)[:_LONGEST_CELL]) for cell in row] for row in rows)
        yield make_table(header, cells, right=header[1:] if header[0] != "last drops" else (), wraps=header[:1])
    if left_out:
        yield _line((f"and {left_out} more", "dim"))


EVERY_S = 1.0
PIPED_WIDTH = 80
"""Columns of a frame that goes to no terminal."""


def top(
    server: Server = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The data of one frame, machine-readable.")] = False,
) -> None:
    """Watch the swarm server train, live: what its step waits for, streams, clients, curves, drops.

    `q` or Ctrl-C ends it; the server goes on. Where the output is no terminal one frame is printed.

    Examples:
        ajet swarm top
        ajet swarm top --once
        ajet swarm top --server http://10.0.0.7:8700
    """
    at, out = connect_server(server), console()
    width = out.width if out.is_terminal else PIPED_WIDTH
    with SwarmClient(at.url, at.token) as client:
        watcher = Watcher(at.url, client)
        if json:
            frame = watcher.poll()
            print_json({"url": frame.url, "snapshot": frame.snapshot, "first": frame.first, "steps": frame.steps})
        elif once or not out.is_terminal:
            out.print(screen(watcher.poll(), width), width=PIPED_WIDTH)
        else:
            first = watcher.poll()  # what is wrong is told on the screen that stays
            live = Live(screen(first, width), console=out, screen=True, auto_refresh=False)
            with suppress(KeyboardInterrupt), cbreak_mode(), live:
                while not wait_for_key("q", EVERY_S):
                    live.update(screen(watcher.poll(), out.width), refresh=True)
