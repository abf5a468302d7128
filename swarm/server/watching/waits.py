"""Why the present step is not done: pure reading of a training, in the words a person is told.

The order is that of what to do: what keeps everything from going on first, then an evaluation or a full disk, then the
episodes that a batch lacks, by stream, with the stragglers of a full one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from swarm.server.episodes.episodes import LeasedEpisode
from swarm.server.training.training import Training
from swarm.snapshot import StepWait
from swarm.wire import ServerState

HOW_TO_EVALUATE = "ajet client run --evaluations"
MOST_STREAMS = 8
"""Streams that are named as waited for."""


def waits_of(state: ServerState, reason: str | None, training: Training | None) -> tuple[StepWait, ...]:
    """Return what the present step of a server in this state waits for, the most pressing first."""
    if state is ServerState.OFFLINE or training is None:
        return (StepWait(what="engine", text="the engine is off"),)
    if state is ServerState.BOOTING:
        return (StepWait(what="engine", text="the model is being loaded"),)
    if state is ServerState.FAILED:
        return (StepWait(what="failed", text=reason or "the server failed"),)
    if training.rollout.ledger.awaited:
        return (_evaluation(training),)
    if training.finished:
        return (StepWait(what="nothing", text="the training is finished"),)
    if training.waiting is not None:
        return (StepWait(what="room", text=training.waiting),)
    return (*_learning(training), *_rollout(state, training))


def _evaluation(training: Training) -> StepWait:
    awaited = training.rollout.ledger.unplayed
    played = sum(episode.kind == "eval" for episode in training.rollout.leases)
    who = f"{played} in play" if played else f"nobody plays them: {HOW_TO_EVALUATE}"
    text = f"{awaited} evaluation episodes of version {training.version} ({who})"
    return StepWait(what="evaluation", text=text, count=awaited)


def _learning(training: Training) -> Iterator[StepWait]:
    if training.updating:
        yield StepWait(what="learning", text=f"step {training.step + 1} is being learned")


def _rollout(state: ServerState, training: Training) -> Iterator[StepWait]:
    if state is ServerState.WEIGHT_SYNCING:
        return
    groups = training.rollout.groups
    if groups.complete:
        if state is ServerState.ROLLING_POST:
            calls = training.rollout.gate.in_flight
            yield StepWait(what="generation", text=f"{calls} generations to end", count=calls)
        return
    playing = [episode for episode in training.rollout.leases if episode.kind == "train"]
    if groups.full:
        yield from _stragglers(training, playing)
    else:
        yield from _lacking(training, Counter(episode.stream for episode in playing))


def _stragglers(training: Training, playing: list[LeasedEpisode]) -> Iterator[StepWait]:
    """Yield what a batch with all its places taken waits for: the episodes in play, named after the oldest."""
    awaited = training.rollout.groups.awaited
    late = sorted((e for e in playing if e.id in awaited), key=lambda episode: episode.begun_at)
    prepared = sum(one.id in awaited for one in training.rollout.leases.prepared)
    if prepared:
        yield StepWait(what="episodes", text=f"{prepared} episodes whose teams have not decided", count=prepared)
    if late:
        age = max(0.0, training.rollout.ledger.clock() - late[0].begun_at)
        text = f"{len(late)} episodes in play, the oldest for {age:.0f} s ({late[0].owner}, stream {late[0].stream})"
        yield StepWait(what="straggler", text=text, stream=late[0].stream, count=len(late), age_s=age)


def _lacking(training: Training, playing: Counter[str]) -> Iterator[StepWait]:
    """Yield the episodes that the batch lacks, by stream where streams have shares, the most first."""
    groups, job = training.rollout.groups, training.job
    lacking = groups.streams.lacking(groups.done)
    size = 1 if job.batch_rule == "episodes" else job.group_size
    ended = Counter[str]()
    for group in groups:
        if size > 1 and group.whole_since is None:
            ended[group.stream] += len(group.ended)
    for stream, places in lacking.most_common(MOST_STREAMS):
        missing = places * size - (ended[stream] if stream else ended.total())
        if places and missing > 0:
            played = playing[stream] if stream else playing.total()
            of = f" of stream {stream}" if stream else ""
            who = f"{played} in play" if played else "nobody plays"
            yield StepWait(
                what="episodes", text=f"{missing} episodes{of} ({who})", stream=stream or None, count=missing
            )
