"""`ajet swarm top`, and the lines of `ajet swarm status`: what a server does, and short curves of its steps."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Final

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from research.cli.app import console, make_facts, print_json
from research.installation.servers import Server, connect_server
from research.text import format_seconds
from sandboxes.spec import escape_line
from swarm.client import SwarmClient
from swarm.errors import Unreachable
from swarm.snapshot import Snapshot, StepRecord, describe_side_conversations
from swarm.wire import ServerState

CURVES: Final = {
    "reward": "critic/rewards/mean", "success": "critic/success/mean", "loss": "actor/pg_loss",
    "entropy": "actor/entropy", "KL": "actor/ppo_kl", "clipped": "actor/pg_clipfrac", "evaluated": "eval/success/mean",
}  # fmt: skip
"""The curves that are shown, by what a person calls them."""
_KEYS: Final = (*CURVES.values(), "eval/reward/mean")
BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH, _NUMBERS_WIDTH = 30, 36
NOTHING = "-"
_MOST = 4
"""Reasons of drops, tasks and things waited for that are named."""
_MOST_ROWS = 8
"""Streams, and clients, that are named."""
_STYLES = {
    "state": "bold", "step": "bold", "no answer": "bold red", "warning": "yellow", "waits for": "yellow",
    **dict.fromkeys(CURVES, "cyan"),
}  # fmt: skip
MORE = "ajet swarm top (live, q ends it), ajet swarm episodes, ajet swarm status --json (all metrics)"


@dataclass(frozen=True, slots=True)
class TopFrame:
    """One look."""

    snapshot: Snapshot
    first: StepRecord | None
    steps: tuple[StepRecord, ...]
    silent: bool = False
    """The server did not answer since."""


def poll(client: SwarmClient, before: TopFrame | None = None) -> TopFrame:
    """Return what there is now; raise Unreachable. Steps are asked for again only once there may be others."""
    snapshot = client.snapshot(within_s=5.0)
    if before is not None and before.steps and before.steps[-1].step == snapshot.status.step:
        now, then = snapshot.status, before.snapshot.status
        if (now.job_digest, now.step, now.evaluation) == (then.job_digest, then.step, then.evaluation):
            return replace(before, snapshot=snapshot, silent=False)
    first = client.history(0, _KEYS, 1).steps
    return TopFrame(snapshot, first[0] if first else None, client.history(0, _KEYS, 240, newest=True).steps)


def screen(where: str, frame: TopFrame) -> Table:
    """Return what a server does, a name and words a line; `where` says which one it is."""
    lines, before = [], ""
    for name, text in (("server", where), *_facts(frame), *_curves(frame), *_lists(frame.snapshot), ("more", MORE)):
        lines.append(("" if name == before else name, Text(text, _STYLES.get(name, ""))))
        before = name
    return make_facts(lines)


def _facts(frame: TopFrame) -> Iterator[tuple[str, str]]:
    snapshot, status = frame.snapshot, frame.snapshot.status
    if frame.silent:
        since = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
        yield "no answer", f"since {since}; this is what it said then"
    reason = f": {status.reason}" if status.reason else ", updating" if status.updating else ""
    playing = status.open_episodes or snapshot.line or status.updating  # else there is no pace
    yield "state", escape_line(f"{status.state}{reason}")
    job = f"{snapshot.environment}, {snapshot.model}, {snapshot.algorithm}"
    yield "job", escape_line((status.job_digest or "none")[:16] if snapshot.environment is None else job)
    if status.fresh_start is not None:
        yield "new training", escape_line(status.fresh_start)
    step = NOTHING
    if status.steps:  # nobody knows the step of a training that may be on disk
        unopened = status.state in (ServerState.OFFLINE, ServerState.BOOTING)
        step = f"{NOTHING if unopened else status.step} of {status.steps}"
        left = snapshot.seconds_left if playing else None
        step += ", finished" if status.finished else f", about {format_seconds(left)} left" if left is not None else ""
    yield "step", step
    if snapshot.flat is not None:
        yield "warning", snapshot.flat
    for wait in snapshot.waits[:_MOST]:
        yield "waits for", escape_line(wait.text)
    if len(snapshot.waits) > _MOST or not snapshot.waits:
        yield "waits for", f"{len(snapshot.waits) - _MOST} more" if snapshot.waits else "nothing"
    line = "nobody in line"
    if snapshot.line:
        line = f"{snapshot.line} in line, the first for {format_seconds(snapshot.line_age_s or 0.0)}"
    collected = f"{status.collected_episodes} of {status.needed_episodes} collected"
    yield "episodes", f"{status.open_episodes} open, {collected}, {line}"
    rates = (snapshot.sampled_per_s, snapshot.trained_per_s) if playing else (None, None)
    sampled, trained = (NOTHING if rate is None else f"{rate:,.0f}" for rate in rates)
    yield "tokens", f"{sampled} sampled, {trained} trained per second"
    skipped = [f"{task!r} {times} times" for task, times in list(snapshot.skipped_tasks.items())[-_MOST:]]
    of_tasks = f"; tasks skipped, as they failed again and again: {', '.join(skipped)}" if skipped else ""
    yield "drops", escape_line(format_counts(snapshot.drops) + of_tasks)
    if snapshot.refusals:
        last = snapshot.refusal or NOTHING
        yield "refused", escape_line(f"calls {format_counts(snapshot.refusals)}; the last: {last}")
    if snapshot.side_conversations:
        yield "note", describe_side_conversations(snapshot.side_conversations)
    for name, score in (("evaluation", status.evaluation), ("best", status.best)):
        if score is not None:
            value = f"reward {score.reward:.3g}" if score.success is None else f"success {score.success:.3g}"
            yield name, f"{value} at step {score.step} ({score.episodes} episodes)"


def format_counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda reason: (-reason[1], reason[0]))
    if not ordered:
        return "none"
    named = ", ".join(f"{count} {reason}" for reason, count in ordered[:_MOST])
    more = len(ordered) - _MOST
    return f"{sum(counts.values())}: {named}" + (f" and {more} more reasons" if more > 0 else "")


def _curves(frame: TopFrame) -> Iterator[tuple[str, str]]:
    for name, metric in CURVES.items():
        values = [record.metrics.get(metric) for record in frame.steps]
        if not any(values) and name not in ("reward", "success"):
            continue  # what is 0 throughout, as KL is in one step on policy, says nothing
        records = [record for record in (frame.first, *frame.steps) if record is not None and metric in record.metrics]
        ends = {record.step: record.metrics[metric] for record in (*records[-1:], *records[:1])}
        numbers = ", ".join(f"{value:.3g} at step {step}" for step, value in ends.items()) or NOTHING
        yield name, f"{numbers:<{_NUMBERS_WIDTH}} {sparkline(values, _CURVE_WIDTH)}".rstrip()


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return at most `width` bars, of half the height where all are alike; a value that is not known is a space."""
    count, parts = min(len(values), width), []
    for place in range(count):
        part = values[place * len(values) // count : (place + 1) * len(values) // count]
        numbers = [value for value in part if value is not None]
        parts.append(fmean(numbers) if numbers else None)
    known = [part for part in parts if part is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def bar(value: float) -> str:
        return BARS[min(len(BARS) - 1, int((value - low) / (high - low) * len(BARS))) if high > low else len(BARS) // 2]

    return "".join(" " if part is None else bar(part) for part in parts)


def _lists(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for stream in sorted(snapshot.streams[:_MOST_ROWS], key=lambda stream: stream.name):  # each stays in its row
        name = stream.name if stream.share is None else f"{stream.name} ({stream.share:.0%})"
        groups = f"{stream.groups_trained} trained, {stream.groups_open} open, {stream.groups_whole} whole"
        plays = f"{stream.episodes_open} in play, {stream.lacking} lacking"
        yield "streams", escape_line(f"{name}: groups {groups}; {plays}")
    if more := len(snapshot.streams[_MOST_ROWS:]) + snapshot.streams_left_out:
        yield "streams", f"and {more} more"
    for one in sorted(snapshot.owners[:_MOST_ROWS], key=lambda one: one.owner):
        heard, oldest = format_seconds(one.heard_s), format_seconds(one.oldest_s)
        yield "clients", escape_line(f"{one.owner}: {one.open} open, heard {heard} ago, the oldest for {oldest}")
    if more := len(snapshot.owners[_MOST_ROWS:]) + snapshot.owners_left_out:
        yield "clients", f"and {more} more"


def top(
    server: Server = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The data of one frame, machine-readable.")] = False,
) -> None:
    """Watch the swarm server train, live: what its step waits for, streams, clients, curves, drops.

    `q` or Ctrl-C ends it; the server goes on. Without a terminal one frame is printed.

    Examples:
        ajet swarm top
        ajet swarm top --once
        ajet swarm top --server http://10.0.0.7:8700
    """
    at, out = connect_server(server), console()
    with SwarmClient(at.url, at.token) as client:
        frame = poll(client)  # what is wrong is told on the screen that stays
        if json:
            print_json({"url": at.url, "snapshot": frame.snapshot, "first": frame.first, "steps": frame.steps})
        elif once or not (out.is_terminal and sys.stdin.isatty()):
            out.print(screen(at.url, frame))
        else:
            with suppress(KeyboardInterrupt):
                _watch(client, at.url, frame)


def _watch(client: SwarmClient, url: str, frame: TopFrame) -> None:
    keyboard, typed = sys.stdin.fileno(), b" "
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)  # keys come at once and unseen
    try:
        with Live(screen(url, frame), console=console(), screen=True, auto_refresh=False) as live:
            while typed and b"q" not in typed.lower():
                try:
                    frame = poll(client, frame)
                except Unreachable:
                    frame = replace(frame, silent=True)
                live.update(screen(url, frame), refresh=True)
                typed = os.read(keyboard, 64) if select.select([keyboard], [], [], 1.0)[0] else b" "
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
