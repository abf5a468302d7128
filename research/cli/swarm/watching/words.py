"""What is said of a server in words and numbers, by the live screen and the twelve lines alike."""

from __future__ import annotations

from collections.abc import Mapping

from research.durations import format_seconds
from sandboxes.shown import shown
from swarm.snapshot import Snapshot
from swarm.wire import EvaluationSummary, ServerState, Status

NOTHING = "-"
UNOPENED = (ServerState.OFFLINE, ServerState.BOOTING)
"""States in which nobody knows the step of a training that may be on disk."""
_MOST_DROPS = 4
_MOST_WAITS = 3


def job_words(snapshot: Snapshot) -> str:
    """Return the job: environment, model, algorithm."""
    if snapshot.environment is None:
        return (snapshot.status.job_digest or "none")[:16]
    return f"{snapshot.environment}, {snapshot.model}, {snapshot.algorithm}"


def step_words(snapshot: Snapshot) -> str:
    """Return the step, and the time left where it is known."""
    status = snapshot.status
    if not status.steps:
        return NOTHING
    done = f"{NOTHING if status.state in UNOPENED else status.step} of {status.steps}"
    if status.finished:
        return f"{done}, finished"
    return done if snapshot.seconds_left is None else f"{done}, about {format_seconds(snapshot.seconds_left)} left"


def state_words(status: Status) -> str:
    """Return the state, with the reason of a failure."""
    return status.state + (f": {status.reason}" if status.reason else ", updating" if status.updating else "")


def waits_words(snapshot: Snapshot) -> str:
    """Return what the step waits for, the most pressing first."""
    named = "; ".join(wait.text for wait in snapshot.waits[:_MOST_WAITS])
    more = len(snapshot.waits) - _MOST_WAITS
    return (named or "nothing") + (f"; and {more} more" if more > 0 else "")


def evaluation_words(status: Status) -> str:
    """Return the last evaluation of `eval_every`, and the best; the latter's score is optimistic."""
    if status.evaluation is None:
        return NOTHING if status.best is None else f"best {_scored(status.best)}"
    last, best = status.evaluation, "" if status.best is None else f", best {_scored(status.best)}"
    what = "reward" if last.success is None else "success"
    return f"{what} {_scored(last)} ({last.episodes} episodes){best}"


def _scored(found: EvaluationSummary) -> str:
    score = found.reward if found.success is None else found.success
    return f"{score:.3g} at step {found.step}"


def tokens_words(snapshot: Snapshot) -> str:
    """Return how many tokens are sampled and trained in a second."""
    return f"{rate(snapshot.sampled_per_s)} sampled, {rate(snapshot.trained_per_s)} trained per second"


def rate(value: float | None) -> str:
    """Return a rate."""
    return NOTHING if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Return a metric."""
    return NOTHING if value is None else f"{value:.3g}"


def line_words(snapshot: Snapshot) -> str:
    """Return how many wait for an episode, and for how long."""
    if not snapshot.line:
        return "nobody in line"
    return f"{snapshot.line} in line, the first for {format_seconds(snapshot.line_age_s or 0.0)}"


def drops_words(snapshot: Snapshot) -> str:
    """Return how many episodes were dropped, by reason, the most frequent first, and the tasks that are skipped."""
    skipped = [f"{shown(task)!r} {times} times" for task, times in list(snapshot.skipped_tasks.items())[-_MOST_DROPS:]]
    of_tasks = f"; tasks skipped, as they failed again and again: {', '.join(skipped)}" if skipped else ""
    return counted_words(snapshot.drops) + of_tasks


def refusals_words(snapshot: Snapshot) -> str:
    """Return how many model calls were refused, by code, and what the last was told."""
    return f"{counted_words(snapshot.refusals)}; the last: {shown(snapshot.refusal or NOTHING)}"


def counted_words(counts: Mapping[str, int]) -> str:
    """Return how many there are, by reason, the most frequent first."""
    found = sorted(counts.items(), key=lambda reason: (-reason[1], reason[0]))
    if not found:
        return "none"
    named = ", ".join(f"{count} {reason}" for reason, count in found[:_MOST_DROPS])
    more = len(found) - _MOST_DROPS
    return f"{sum(counts.values())}: {named}" + (f" and {more} more reasons" if more > 0 else "")
