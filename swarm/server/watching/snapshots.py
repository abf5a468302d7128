"""A snapshot of a server: one pass over its open episodes and groups, then the largest of each.

What it costs grows with the number of open episodes, and what it answers does not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from swarm.errors import NotFound
from swarm.job import Job, ModelSpec, TinyModel
from swarm.server.episodes.episodes import LeasedEpisode
from swarm.server.service.core import SwarmServer
from swarm.server.training.training import Training
from swarm.server.watching.waits import waits_of
from swarm.snapshot import DropSnapshot, OwnerSnapshot, Snapshot, StreamSnapshot

MOST_OWNERS = 20
MOST_STREAMS = 50
MOST_DROPS = 20
_COUNTS = ("begun", "ended", "trained", "evaluated", "aborted", "fenced")


def snapshot_of(server: SwarmServer) -> Snapshot:
    """Return what the server does now; the training's part is empty while the engine is off."""
    status, training = server.status(), server.opened
    told = Snapshot(at=time.time(), status=status, waits=waits_of(status.state, status.reason, training))
    if (job := _job(server)) is not None:
        told = told.model_copy(
            update={"environment": job.environment, "model": model_in_words(job.model), "algorithm": job.algorithm}
        )
    return told if training is None else _with_training(told, training)


def model_in_words(model: ModelSpec) -> str:
    """Return a job's model as a person names it."""
    if isinstance(model, TinyModel):
        return f"tiny ({model.layers} layers of {model.hidden_size})"
    return model.path.rstrip("/").rpartition("/")[2] or model.path


def _job(server: SwarmServer) -> Job | None:
    try:
        return server.job
    except NotFound:
        return None


def _with_training(told: Snapshot, training: Training) -> Snapshot:
    rollout, pace, metrics = training.rollout, training.pace, training.metrics
    pace.sampled(rollout.ledger.sampled_tokens)
    leases = list(rollout.leases)
    owners, streams = _owners(leases, rollout.ledger.clock()), _streams(training, leases)
    left = training.job.steps - training.step
    seconds = metrics.get("timing_s/step")
    step_s = pace.step_s if pace.step_s is not None else seconds
    return told.model_copy(
        update={
            "seconds_left": None if step_s is None else left * step_s,
            "streams": tuple(streams[:MOST_STREAMS]),
            "streams_left_out": max(0, len(streams) - MOST_STREAMS),
            "owners": tuple(owners[:MOST_OWNERS]),
            "owners_left_out": max(0, len(owners) - MOST_OWNERS),
            "line": len(rollout.ledger.line),
            "line_age_s": rollout.ledger.line.age_s,
            "sampled_tokens": rollout.ledger.sampled_tokens,
            "sampled_per_s": pace.sampled_per_s,
            "trained_per_s": metrics["tokens/trained"] / seconds if seconds and "tokens/trained" in metrics else None,
            "episodes": {name: rollout.counts[name] for name in _COUNTS},
            "drops": _counted(rollout.counts, "drop_"),
            "flat": training.flat,
            "refusals": _counted(rollout.counts, "refused_"),
            "refusal": rollout.ledger.refusal,
            "recent_drops": tuple(
                DropSnapshot(**one._asdict()) for one in list(rollout.ledger.lost)[: -MOST_DROPS - 1 : -1]
            ),
            "side_conversations": rollout.counts["side_conversations"],
            "skipped_tasks": dict(rollout.ledger.skipped),
        }
    )


def _counted(counts: Counter[str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in sorted(counts.items()) if name.startswith(prefix)}


def _owners(leases: Iterable[LeasedEpisode], now: float) -> list[OwnerSnapshot]:
    """Return what each owner holds, the one with the most first."""
    held: dict[str, list[LeasedEpisode]] = {}
    for episode in leases:
        held.setdefault(episode.owner, []).append(episode)
    found = [
        OwnerSnapshot(
            owner=owner,
            open=len(episodes),
            heard_s=max(0.0, now - max(episode.heard_at for episode in episodes)),
            oldest_s=max(0.0, now - min(episode.begun_at for episode in episodes)),
        )
        for owner, episodes in held.items()
    ]
    return sorted(found, key=lambda owner: (-owner.open, owner.owner))


def _streams(training: Training, leases: Iterable[LeasedEpisode]) -> list[StreamSnapshot]:
    """Return where each stream stands, those that are played first."""
    groups = training.rollout.groups
    episodes = Counter(episode.stream for episode in leases if episode.kind == "train")
    begun = Counter(group.stream for group in groups)
    whole = Counter(group.stream for group in groups if group.whole_since is not None)
    found = [
        StreamSnapshot(
            name=stream.name,
            share=stream.share,
            cursor=stream.cursor,
            groups_trained=stream.groups_trained,
            groups_open=begun[stream.name] - whole[stream.name],
            groups_whole=whole[stream.name],
            episodes_open=episodes[stream.name],
            lacking=sum(stream.unfinished.values()),
        )
        for stream in groups.streams.status(begun, groups.unfinished())
    ]
    return sorted(found, key=lambda stream: (-stream.episodes_open, -stream.groups_open, stream.name))
