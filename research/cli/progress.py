"""The study as it runs, on a terminal: runs, success, time and budget left.

On a terminal it is a live screen; elsewhere (a pipe, a log file) it is one line per change. What it shows is
read from the study's state and the attempts' progress files; it decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from research.cli.app import make_table
from research.cli.studies import describe_pause, render_opening, render_question
from research.controller.progress import NONE_DOUBTED, format_success, progress_lines, progress_of, verdict_key
from research.scheduler.budget import GIVEN_UP
from research.scheduler.steps import SHRINK_RULE
from research.text import format_seconds
from studies import RunState, StudyState
from studies.records.verdict import Verdict

Progress = Mapping[str, Any]
ReadProgress = Callable[[RunState], Progress]

_STYLES = {"planned": "dim", "running": "bold cyan", "ended": "yellow", "collected": "green", "invalid": "red"}


class LiveScreen:
    """A live screen for a terminal; use as a context manager and feed `observe`."""

    def __init__(
        self,
        console: Console,
        budget_left: Callable[[StudyState], float],
        read: ReadProgress,
        doubts: Mapping[str, str] = NONE_DOUBTED,
    ) -> None:
        """`doubts` says by its key in the progress lines why a verdict does not follow, which is not shown then."""
        self._doubts = doubts
        self._budget_left = budget_left
        self._read = read
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._last_draw = 0.0
        self._state: StudyState | None = None

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._live.__exit__(*exc)

    def observe(self, state: StudyState) -> None:
        self._state = state
        now = time.monotonic()
        if now - self._last_draw >= 0.5 or state.report is not None:
            self._last_draw = now
            self._draw()

    def note(self, line: str) -> None:
        self._draw(Text(line, "cyan"))

    def _draw(self, *notes: Text) -> None:
        if (state := self._state) is None:
            parts: tuple[RenderableType, ...] = notes
        else:
            parts = (screen(state, self._budget_left(state), self._read, self._doubts), *notes)
        self._live.update(_WrappedScreen(Group(*parts)))


class _WrappedScreen:
    """A screen that wraps its lines by itself: a live screen counts them, and cuts what its console does not wrap."""

    def __init__(self, what: RenderableType) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._what, options.update(no_wrap=False, overflow="fold"))


@dataclass(eq=False)
class LineLog:
    """One line per change, for output that is no terminal."""

    write: Callable[[str], None]
    budget_left: Callable[[StudyState], float]
    doubts: Mapping[str, str] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _paused: bool = False

    def observe(self, state: StudyState) -> None:
        before = not self._seen and any(run.attempts for run in state.every_run.values())  # the study is not new
        when = "earlier" if before else f"{format_seconds(self.budget_left(state))} left"
        for key, line in progress_lines(state, self.doubts):
            if key not in self._seen:
                self._seen.add(key)
                self.write(f"[{when}] {line}")
        if self._paused != (now := state.status == "paused"):
            self._paused = now
            self.write(describe_pause(state) if now else f"study {state.id} is paused no more")

    def note(self, line: str) -> None:
        if line not in self._seen:
            self._seen.add(line)
            self.write(line)


def screen(
    state: StudyState, budget_left_s: float, read: ReadProgress, doubts: Mapping[str, str] = NONE_DOUBTED
) -> Group:
    def verdict_line(begin: str, verdict: Verdict) -> Text:
        doubt = doubts.get(verdict_key(verdict))
        told = f"{verdict.verdict}. {verdict.reason}" if doubt is None else f"does not follow: {doubt}"
        return Text(f"{begin}: {told}", "dim")

    spent, left = format_seconds(state.budget_s - budget_left_s), format_seconds(budget_left_s)
    analyses = len(state.design.looks) if state.design else 0
    verdicts = [
        verdict_line(f"{v.hypothesis}  {f'look {v.look} of {analyses}' if v.last is None else 'last look'}", v)
        for v in state.verdicts
    ]
    rounds = [
        verdict_line(f"round {each.round}  {verdict.hypothesis}", verdict)
        for each in state.rounds_before
        for verdict in each.verdicts
    ]
    if state.most_rounds > 1:
        rounds.append(Text(f"round {state.round} of at most {state.most_rounds}", "bold"))
    amended = state.budget_amended  # what was foreseen before is shown no more, but a cut screen is
    given_up = [
        Text(f"{d.action}: {d.reason}", "yellow")
        for d in state.decisions
        if d.rule == SHRINK_RULE and (d.seq > amended or d.action not in GIVEN_UP)
    ]
    names = ("run", "arm", "seed", "status", "progress", "train", "hidden")
    # Where a terminal is narrow the bar and the arm's name give way, and no number does.
    table = make_table(names, (), wraps=("arm", "progress"), padding=(0, 2, 0, 0))
    table.columns[names.index("progress")].max_width = 24
    for run in state.runs.values():
        progress = read(run) if run.active is not None else {}
        tries = f" (try {len(run.attempts)})" if len(run.attempts) > 1 else ""
        what = str(progress.get("stage", run.status)) if run.active is not None else run.status
        steps = int(progress.get("steps") or run.spec.job["steps"])
        done = steps if run.status == "collected" else int(progress.get("step") or 0)
        train, hidden = (
            "" if (value := progress.get(f"{split}_success")) is None else f"{value:.2f}"
            for split in ("train", "hidden")
        )
        arm, bar = Text(run.spec.arm, no_wrap=True, overflow="ellipsis"), ProgressBar(total=steps, completed=done)
        status = Text(what + tries, _STYLES[run.status])
        table.add_row(run.run_id[:8], arm, str(run.spec.seed), status, bar, train, format_success(run) or hidden)
    return Group(
        Text.assemble(("study ", "dim"), (state.id, "bold")),
        *render_opening(state),
        *rounds,
        Text(f"{progress_of(state)}; {spent} spent, {left} of the budget left", "dim"),
        table,
        *(verdicts if analyses > 1 else []),
        *given_up,
        *([Text(describe_pause(state), "yellow")] if state.status == "paused" else []),
        *([] if state.open_question is None else [render_question(state)]),
    )
