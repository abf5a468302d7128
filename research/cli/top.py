"""`ajet swarm top`: rich.Live over /snapshot.

A frame is lines of text, each cut to the terminal's width; what says most stands first, so that a low terminal shows
it. Steps are asked for again only once there may be others. A server that does not answer is shown as it was.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Annotated, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from research.cli.app import console, print_json
from research.installation.servers import Server, connect_server
from research.terminal import strip_control_chars
from research.text import format_seconds
from sandboxes.spec import escape_control
from swarm.client import SwarmClient
from swarm.errors import Unreachable
from swarm.snapshot import Snapshot, StepRecord, describe_side_conversations
from swarm.wire import EvaluationSummary, ServerState, Status

REWARD: Final = "critic/rewards/mean"
SUCCESS: Final = "critic/success/mean"
CURVES: Final = {
    "reward": REWARD,
    "success": SUCCESS,
    "loss": "actor/pg_loss",
    "entropy": "actor/entropy",
    "KL": "actor/ppo_kl",
    "clipped": "actor/pg_clipfrac",
    "evaluated": "eval/success/mean",
}
"""The curves that are shown, by what a person calls them."""
_KEYS: Final = (*CURVES.values(), "eval/reward/mean")
PLOTTED = 240
"""Last steps that are plotted."""
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class TopFrame:
    """One look."""

    url: str
    snapshot: Snapshot
    first: StepRecord | None
    """The first step that is known."""
    steps: tuple[StepRecord, ...]
    silent_s: float = 0.0
    """Seconds since the server answered last; 0 where it just did."""


class Watcher:
    """Looks at one server, again and again; `now` counts seconds."""

    def __init__(self, url: str, client: SwarmClient, now: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._client = client
        self._now = now
        self._seen: object = None
        self._frame: TopFrame | None = None
        self._heard = now()

    def poll(self) -> TopFrame:
        """Return what there is now; raise Unreachable where it never answered."""
        try:
            snapshot = self._client.snapshot(within_s=ANSWER_S)
            first, steps = self._curves(snapshot)
        except Unreachable:
            if self._frame is None:
                raise
            return replace(self._frame, silent_s=max(self._now() - self._heard, 0.1))
        self._heard = self._now()
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
PLAIN = "_.-=+*%#"
"""The same for a terminal that has no more than ASCII."""


def sparkline(values: Sequence[float | None], width: int, bars: str = BARS) -> str:
    """Return at most `width` bars, of half the height where all are alike; a value that is not known is a space."""
    count = min(len(values), max(1, width))
    places = [place * len(values) // count for place in range(count + 1)] if count else []
    parts = [_mean(values[begin:end]) for begin, end in pairwise(places)]
    known = [part for part in parts if part is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def bar(value: float) -> str:
        return bars[min(len(bars) - 1, int((value - low) / (high - low) * len(bars)) if high > low else len(bars) // 2)]

    return "".join(" " if part is None else bar(part) for part in parts)


def _mean(part: Sequence[float | None]) -> float | None:
    known = [value for value in part if value is not None]
    return fmean(known) if known else None


NOTHING = "-"
UNOPENED = (ServerState.OFFLINE, ServerState.BOOTING)
"""States in which nobody knows the step of a training that may be on disk."""
_MOST_DROPS = 4
_MOST_WAITS = 3


def job_words(snapshot: Snapshot) -> str:
    if snapshot.environment is None:
        return (snapshot.status.job_digest or "none")[:16]
    return f"{snapshot.environment}, {snapshot.model}, {snapshot.algorithm}"


def step_words(snapshot: Snapshot) -> str:
    status = snapshot.status
    if not status.steps:
        return NOTHING
    done = f"{NOTHING if status.state in UNOPENED else status.step} of {status.steps}"
    if status.finished:
        return f"{done}, finished"
    return done if snapshot.seconds_left is None else f"{done}, about {format_seconds(snapshot.seconds_left)} left"


def state_words(status: Status) -> str:
    return status.state + (f": {status.reason}" if status.reason else ", updating" if status.updating else "")


def waits_words(snapshot: Snapshot) -> str:
    named = "; ".join(wait.text for wait in snapshot.waits[:_MOST_WAITS])
    more = len(snapshot.waits) - _MOST_WAITS
    return (named or "nothing") + (f"; and {more} more" if more > 0 else "")


def evaluation_words(status: Status) -> str:
    """Return the last evaluation of `eval_every`, and the best; the latter's score is optimistic."""
    if status.evaluation is None:
        return NOTHING if status.best is None else f"best {_format_score(status.best)}"
    last, best = status.evaluation, "" if status.best is None else f", best {_format_score(status.best)}"
    what = "reward" if last.success is None else "success"
    return f"{what} {_format_score(last)} ({last.episodes} episodes){best}"


def _format_score(found: EvaluationSummary) -> str:
    score = found.reward if found.success is None else found.success
    return f"{score:.3g} at step {found.step}"


def tokens_words(snapshot: Snapshot) -> str:
    sampled, trained = (
        NOTHING if rate is None else f"{rate:,.0f}" for rate in (snapshot.sampled_per_s, snapshot.trained_per_s)
    )
    return f"{sampled} sampled, {trained} trained per second"


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def line_words(snapshot: Snapshot) -> str:
    if not snapshot.line:
        return "nobody in line"
    return f"{snapshot.line} in line, the first for {format_seconds(snapshot.line_age_s or 0.0)}"


def drops_words(snapshot: Snapshot) -> str:
    skipped = [
        f"{escape_control(task)!r} {times} times" for task, times in list(snapshot.skipped_tasks.items())[-_MOST_DROPS:]
    ]
    of_tasks = f"; tasks skipped, as they failed again and again: {', '.join(skipped)}" if skipped else ""
    return format_counts(snapshot.drops) + of_tasks


def format_counts(counts: Mapping[str, int]) -> str:
    found = sorted(counts.items(), key=lambda reason: (-reason[1], reason[0]))
    if not found:
        return "none"
    named = ", ".join(f"{count} {reason}" for reason, count in found[:_MOST_DROPS])
    more = len(found) - _MOST_DROPS
    return f"{sum(counts.values())}: {named}" + (f" and {more} more reasons" if more > 0 else "")


LEAST_WIDTH = 60
_NAME = 10
"""Columns of a line's name."""
_NUMBERS = 20
"""Columns for what is written beside a curve."""
_WIDEST = 8
"""Bars of one value, where there are few of them."""
_OWNER = 24
"""Characters of an owner's name beside a drop."""
_STYLES = {ServerState.FAILED: "bold red", ServerState.OFFLINE: "yellow", ServerState.BOOTING: "yellow"}
_MOST = {"streams": 8, "owners": 6, "drops": 5}
"""Rows of each table."""


def screen(frame: TopFrame, width: int, *, unicode: bool = True) -> list[Text]:
    width = max(LEAST_WIDTH, width)
    lines = [*_head(frame), *_curves(frame, width, unicode), *_streams(frame.snapshot, width)]
    lines += [*_owners(frame.snapshot, width), *_drops(frame.snapshot)]
    for line in lines:
        said = strip_control_chars(line.plain).replace("\n", " ").replace("\t", " ")
        line.plain = said if unicode else said.encode("ascii", "replace").decode()
        line.truncate(width, overflow="ellipsis" if unicode else "crop")
    return lines


def _head(frame: TopFrame) -> Iterator[Text]:
    snapshot, status = frame.snapshot, frame.snapshot.status
    at = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    yield Text.assemble(("ajet swarm top", "bold"), f"  {frame.url}  {at}  ", ("q quits", "dim"))
    if frame.silent_s:
        yield Text(f"no answer for {format_seconds(frame.silent_s)}; this is what it said before", "bold red")
    yield _format_row("state", state_words(status), _STYLES.get(status.state, "bold green"))
    yield _format_row("job", job_words(snapshot))
    yield _format_row("step", step_words(snapshot), "bold")
    waits = snapshot.waits or ()
    yield _format_row("waits for", waits[0].text if waits else waits_words(snapshot), "bold yellow" if waits else "")
    for wait in waits[1:4]:
        yield _format_row("", wait.text, "yellow")
    open_ones = f"{status.open_episodes} open, {status.collected_episodes} of {status.needed_episodes} collected"
    yield _format_row("episodes", f"{open_ones}, {line_words(snapshot)}")
    yield _format_row("tokens", tokens_words(snapshot))
    if status.evaluation is not None or status.best is not None:
        yield _format_row("evaluation", evaluation_words(status))
    if snapshot.flat is not None:
        yield _format_row("warning", snapshot.flat, "yellow")
    yield _format_row("drops", drops_words(snapshot), "" if not snapshot.drops else "yellow")


def _format_row(name: str, said: str, style: str = "") -> Text:
    return Text.assemble((f"{name:<{_NAME}} ", "dim"), (said, style))


def _curves(frame: TopFrame, width: int, unicode: bool) -> Iterator[Text]:
    """Yield a line for each curve that has a value beside 0: its bars, where it is and where it came from."""
    room = width - _NAME - 1 - _NUMBERS
    if frame.steps:
        first, last = frame.steps[0].step, frame.steps[-1].step
        yield Text(f"{'':<{_NAME}} {f'steps {first} to {last}':<{room}} {'now':>9} {'first':>9}", "dim")
    for name, metric in CURVES.items():
        values = [record.metrics.get(metric) for record in frame.steps]
        known = [value for value in values if value is not None]
        if any(known):  # what is 0 throughout, as KL is in one step on policy, says nothing
            wide = max(1, min(_WIDEST, room // len(values)))
            bars = sparkline([each for each in values for _ in range(wide)], room, BARS if unicode else PLAIN)
            before = known[0] if frame.first is None else frame.first.metrics.get(metric, known[0])
            numbers = f" {number(known[-1]):>9} {number(before):>9}"
            yield Text.assemble((f"{name:<{_NAME}} ", "dim"), (f"{bars:<{room}}", "cyan"), numbers)


def _streams(snapshot: Snapshot, width: int) -> Iterator[Text]:
    shown = sorted(snapshot.streams[: _MOST["streams"]], key=lambda stream: stream.name)  # each stays in its row
    rows = [
        (
            stream.name, "-" if stream.share is None else f"{stream.share:.0%}", str(stream.groups_open),
            str(stream.groups_whole), str(stream.groups_trained), str(stream.episodes_open), str(stream.lacking),
        )
        for stream in shown
    ]  # fmt: skip
    header = ("stream", "share", "groups", "whole", "trained", "in play", "lacking")
    left_out = len(snapshot.streams) - len(shown) + snapshot.streams_left_out
    yield from _table(header, rows, left_out, width)


def _owners(snapshot: Snapshot, width: int) -> Iterator[Text]:
    shown = sorted(snapshot.owners[: _MOST["owners"]], key=lambda owner: owner.owner)
    rows = [
        (owner.owner, str(owner.open), format_seconds(owner.heard_s), format_seconds(owner.oldest_s)) for owner in shown
    ]
    left_out = len(snapshot.owners) - len(shown) + snapshot.owners_left_out
    yield from _table(("client", "open", "heard", "oldest"), rows, left_out, width)


def _drops(snapshot: Snapshot) -> Iterator[Text]:
    shown = snapshot.recent_drops[: _MOST["drops"]]
    if shown:
        yield Text("last drops", "dim")
    for drop in shown:
        at = time.strftime("%H:%M:%S", time.localtime(drop.at))
        yield Text.assemble(
            f"  {at} ", (drop.reason, "yellow"), f"  {drop.stream}  {drop.owner[:_OWNER]}  {drop.episode}"
        )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left_out: int, width: int) -> Iterator[Text]:
    """Yield a table whose first column gives way; nothing for no rows."""
    if not rows:
        return
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns[1:]]
    first = min(max(map(len, columns[0])), max(_NAME, width - sum(widths) - 2 * len(widths)))

    def line(row: Sequence[str]) -> str:
        cells = [f"{cell:>{size}}" for cell, size in zip(row[1:], widths, strict=True)]
        return "  ".join([f"{row[0][:first]:<{first}}", *cells])

    yield Text(line(header), "dim")
    yield from (Text(line(row)) for row in rows)
    if left_out:
        yield Text(f"and {left_out} more", "dim")


MORE = "ajet swarm top (live), ajet swarm episodes, ajet swarm status --json (all metrics)"


def status_lines(frame: TopFrame, where: str) -> list[tuple[str, str]]:
    snapshot, status = frame.snapshot, frame.snapshot.status
    episodes = f"{status.open_episodes} open, {status.collected_episodes} of {status.needed_episodes} collected"
    last = escape_control(snapshot.refusal or NOTHING)
    return [
        ("server", where),
        ("state", state_words(status)),
        ("job", job_words(snapshot)),
        *([("new training", status.fresh_start)] if status.fresh_start is not None else []),
        ("step", step_words(snapshot)),
        ("reward", _last_and_first(frame, REWARD)),
        ("success", _last_and_first(frame, SUCCESS)),
        *([("warning", snapshot.flat)] if snapshot.flat is not None else []),
        ("evaluation", evaluation_words(status)),
        ("episodes", f"{episodes}, {line_words(snapshot)}"),
        ("tokens", tokens_words(snapshot)),
        ("waits for", waits_words(snapshot)),
        ("drops", drops_words(snapshot)),
        *([("refused", f"calls {format_counts(snapshot.refusals)}; the last: {last}")] if snapshot.refusals else []),
        *([("note", note)] if (note := describe_side_conversations(snapshot.side_conversations)) else []),
        ("more", MORE),
    ]


def _last_and_first(frame: TopFrame, metric: str) -> str:
    last = frame.steps[-1] if frame.steps else None
    if last is None or metric not in last.metrics:
        return "-"
    told = [last]
    if frame.first is not None and frame.first.step != last.step and metric in frame.first.metrics:
        told.append(frame.first)
    return ", ".join(f"{number(record.metrics[metric])} at step {record.step}" for record in told)


EVERY_S = 1.0
"""Seconds between two frames."""
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

        ajet swarm top --json
    """
    at = connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        watcher = Watcher(at.url, client)
        if json:
            frame = watcher.poll()
            print_json({"url": frame.url, "snapshot": frame.snapshot, "first": frame.first, "steps": frame.steps})
        elif once or not console().is_terminal:
            console().print(_render(watcher.poll()), no_wrap=True)
        else:
            _live(watcher)


def _live(watcher: Watcher) -> None:
    first = watcher.poll()  # what is wrong is told on the screen that stays
    try:
        with cbreak_mode(), Live(_render(first), console=console(), screen=True, auto_refresh=False) as live:
            while not wait_for_key("q", EVERY_S):
                live.update(_render(watcher.poll()), refresh=True)
    except KeyboardInterrupt:
        return


def _render(frame: TopFrame) -> Group:
    out = console()
    width = out.width if out.is_terminal else PIPED_WIDTH
    return Group(*screen(frame, width, unicode=out.encoding.startswith("utf")))
