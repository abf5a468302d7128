"""What a server does, in twelve lines."""

from __future__ import annotations

from research.cli.swarm.watching.frame import REWARD, SUCCESS, TopFrame
from research.cli.swarm.watching.words import (
    drops_words,
    evaluation_words,
    job_words,
    line_words,
    number,
    refusals_words,
    state_words,
    step_words,
    tokens_words,
    waits_words,
)
from swarm.snapshot import StepRecord, side_words

MORE = "ajet swarm top (live), ajet swarm episodes, ajet swarm status --json (all metrics)"


def status_lines(frame: TopFrame, where: str) -> list[tuple[str, str]]:
    """Return the lines, each with its name; where a training began beside others, that is one more."""
    snapshot, status = frame.snapshot, frame.snapshot.status
    episodes = f"{status.open_episodes} open, {status.collected_episodes} of {status.needed_episodes} collected"
    return [
        ("server", where),
        ("state", state_words(status)),
        ("job", job_words(snapshot)),
        *([("new training", status.fresh_start)] if status.fresh_start is not None else []),
        ("step", step_words(snapshot)),
        ("reward", _now_and_then(frame, REWARD)),
        ("success", _now_and_then(frame, SUCCESS)),
        *([("warning", snapshot.flat)] if snapshot.flat is not None else []),
        ("evaluation", evaluation_words(status)),
        ("episodes", f"{episodes}, {line_words(snapshot)}"),
        ("tokens", tokens_words(snapshot)),
        ("waits for", waits_words(snapshot)),
        ("drops", drops_words(snapshot)),
        *([("refused", f"calls {refusals_words(snapshot)}")] if snapshot.refusals else []),
        *([("note", note)] if (note := side_words(snapshot.side_conversations)) else []),
        ("more", MORE),
    ]


def _now_and_then(frame: TopFrame, metric: str) -> str:
    last = frame.steps[-1] if frame.steps else None
    if last is None or metric not in last.metrics:
        return "-"
    return f"{_at(last, metric)}{_from(frame.first, last, metric)}"


def _from(first: StepRecord | None, last: StepRecord, metric: str) -> str:
    return "" if first is None or first.step == last.step or metric not in first.metrics else f", {_at(first, metric)}"


def _at(record: StepRecord, metric: str) -> str:
    return f"{number(record.metrics[metric])} at step {record.step}"
