"""The live screen of `ajet swarm top`: a frame as lines of text, each cut to the terminal's width.

What says most stands first, so that a low terminal shows it. Without colour and without Unicode it says the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.text import Text

from research.cli.output import bare
from research.cli.swarm.watching.frame import CURVES, TopFrame
from research.cli.swarm.watching.sparkline import BARS, PLAIN, sparkline
from research.cli.swarm.watching.words import (
    drops_words,
    evaluation_words,
    job_words,
    line_words,
    number,
    state_words,
    step_words,
    tokens_words,
    waits_words,
)
from research.durations import format_seconds
from swarm.snapshot import Snapshot
from swarm.wire import ServerState

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
    """Return the lines of a frame."""
    width = max(LEAST_WIDTH, width)
    lines = [*_head(frame), *_curves(frame, width, unicode), *_streams(frame.snapshot, width)]
    lines += [*_owners(frame.snapshot, width), *_drops(frame.snapshot)]
    for line in lines:
        line.plain = _one_line(line.plain, unicode)
        line.truncate(width, overflow="ellipsis" if unicode else "crop")
    return lines


def _one_line(text: str, unicode: bool) -> str:
    """Return what others said as one line that steers no terminal."""
    said = bare(text).replace("\n", " ").replace("\t", " ")
    return said if unicode else said.encode("ascii", "replace").decode()


def _head(frame: TopFrame) -> Iterator[Text]:
    snapshot, status = frame.snapshot, frame.snapshot.status
    at = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    yield Text.assemble(("ajet swarm top", "bold"), f"  {frame.url}  {at}  ", ("q quits", "dim"))
    if frame.silent_s:
        yield Text(f"no answer for {format_seconds(frame.silent_s)}; this is what it said before", "bold red")
    yield _named("state", state_words(status), _STYLES.get(status.state, "bold green"))
    yield _named("job", job_words(snapshot))
    yield _named("step", step_words(snapshot), "bold")
    waits = snapshot.waits or ()
    yield _named("waits for", waits[0].text if waits else waits_words(snapshot), "bold yellow" if waits else "")
    for wait in waits[1:4]:
        yield _named("", wait.text, "yellow")
    open_ones = f"{status.open_episodes} open, {status.collected_episodes} of {status.needed_episodes} collected"
    yield _named("episodes", f"{open_ones}, {line_words(snapshot)}")
    yield _named("tokens", tokens_words(snapshot))
    if status.evaluation is not None or status.best is not None:
        yield _named("evaluation", evaluation_words(status))
    if snapshot.flat is not None:
        yield _named("warning", snapshot.flat, "yellow")
    yield _named("drops", drops_words(snapshot), "" if not snapshot.drops else "yellow")


def _named(name: str, said: str, style: str = "") -> Text:
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
