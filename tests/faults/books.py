"""The clients' books against what the weights hold and what the store says: nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine

from swarm.client import AsyncSwarmClient
from swarm.job import Job
from swarm.store import reading
from swarm.wire import EpisodeSummary
from tests.faults.harness import Books, Play, Server

DOCUMENTED = {
    "lease_lost", "episode_ended", "unreachable", "engine_unavailable", "store_unavailable", "throttled",
    "server_failed", "job_finished",
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """What a fake checkpoint was trained on: of each step, each episode's sampled tokens."""

    steps: dict[int, dict[str, int]]

    @property
    def step_of(self) -> dict[str, int]:
        return {episode: step for step, batch in self.steps.items() for episode in batch}


def newest_weights(directory: Path) -> Weights:
    """Return what the newest whole checkpoint below a server's directory holds; every episode in it is there once."""
    found = [json.loads(path.read_text()) for path in directory.glob("**/checkpoints/**/fake.json")]
    newest = max(found, key=lambda value: int(value["version"]))
    steps = [step for step, _ in newest["trained"]]
    assert steps == list(range(1, newest["version"] + 1)), f"each step once and in order, found {steps}"
    times = Counter(name for _, batch in newest["trained"] for name, _ in batch)
    twice = [name for name, number in times.items() if number > 1]
    assert not twice, f"trained more than once: {twice}"
    return Weights({step: dict(batch) for step, batch in newest["trained"]})


async def check(books: Books, job: Job, server: Server) -> dict[str, EpisodeSummary]:
    """Assert that a finished training and its clients tell the same story; return what the store says of each episode.

    It stops the engine first, so that all is written. An episode that was begun and never called may be unknown to the
    store: its beginning is not waited for.
    """
    async with AsyncSwarmClient(server.url, server.token) as client:
        await client.stop()
    weights, stored = newest_weights(server.directory), stored_episodes(server.directory)
    assert len(weights.steps) == job.steps
    assert all(len(batch) == job.episodes_per_step for batch in weights.steps.values())
    assert set(weights.step_of) <= set(books.plays), "trained what no client ever played"
    for name, play in books.plays.items():
        if name in stored:
            _check_one(play, stored[name], weights)
        else:
            assert not play.tokens, f"{name} was served, and the store does not know it"
    assert set(books.told) <= DOCUMENTED, set(books.told) - DOCUMENTED
    return stored


def _check_one(play: Play, stored: EpisodeSummary, weights: Weights) -> None:
    step = weights.step_of.get(play.episode)
    assert stored.step == step, f"{play}: the store says step {stored.step}, the weights say {step}"
    if step is not None:
        assert play.end_sent, f"{play} was trained, and nobody ended it"
        assert stored.state == "consumed"
        trained = weights.steps[step][play.episode]
        assert trained == play.tokens or (play.doubtful and trained > play.tokens), (trained, play)
    elif play.acknowledged:
        assert stored.state == "dropped", f"{play} was acknowledged, is not trained, and is {stored.state}"
        assert stored.reason, f"{play} was dropped without a reason"
    else:
        assert stored.state != "open"


def stored_episodes(directory: Path) -> dict[str, EpisodeSummary]:
    engine = create_engine(f"sqlite:///{directory / 'store.sqlite3'}")
    with engine.connect() as connection:
        found = reading.episodes(connection, training=1, limit=1_000_000).episodes
    engine.dispose()
    return {episode.id: episode for episode in found}
