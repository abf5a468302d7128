"""Evaluations during training: whenever the server waits for one, tasks are played with the weights that serve.

One process stays for the whole training, because starting one costs more than an evaluation of a small model. All
evaluations so far stand in one file, which is written anew after each, whole or not at all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from swarm.client import AsyncSwarmClient, EpisodeResult
from swarm.client.rollout import ENGINE_OFF_S
from swarm.errors import EngineUnavailable, InvalidRequest, ServerFailed, Unreachable
from swarm.wire import ServerState, Status

LOOK_S: Final = 0.1
"""Seconds between two looks at the server."""
UNSEEN: Final = 0.5
"""Share of the time between the last two evaluations for which it is not looked after one: they are evenly spaced, and
each look takes the server a little of what it trains with."""


class AwaitedEvaluation(NamedTuple):
    """What training waits for: so many episodes of a policy version."""

    version: int
    episodes: int


async def awaited(client: AsyncSwarmClient, episodes: int | None) -> AsyncIterator[AwaitedEvaluation]:
    """Yield what training waits for, whenever it does, until the job is finished; None: however many episodes.

    A server that came back may wait for the same version again: for as many as had ended before it went away. Raises
    InvalidRequest where it waits for another number of episodes than `episodes`: the training would go on in the middle
    of an evaluation, or not at all.
    """
    since, played = time.monotonic(), -1
    async for status in _statuses(client):
        if not status.awaited_evaluations:
            await asyncio.sleep(LOOK_S)
            continue
        if episodes is not None and status.policy_version != played:  # else it forgot what was played
            _require(status, episodes)
        between = time.monotonic() - since
        left = status.awaited_evaluations if status.policy_version == played else status.evaluation_episodes
        yield AwaitedEvaluation(status.policy_version, left)
        since, played = time.monotonic(), status.policy_version
        await asyncio.sleep(UNSEEN * between)


async def _statuses(client: AsyncSwarmClient) -> AsyncIterator[Status]:
    """Yield the server's status again and again until its job is finished.

    A server that is away, or off, is waited for as one that trains waits for it (ENGINE_OFF_S); raises ServerFailed at
    once, Unreachable or EngineUnavailable then.
    """
    heard = time.monotonic()
    while True:
        try:
            status = await client.status()
            if status.state is ServerState.OFFLINE:
                raise EngineUnavailable(f"the engine of the swarm server at {client.url} is off")
        except (Unreachable, EngineUnavailable):
            if time.monotonic() - heard > ENGINE_OFF_S:
                raise
            await asyncio.sleep(LOOK_S)
            continue
        if status.state is ServerState.FAILED:
            raise ServerFailed(f"the server FAILED: {status.reason}")
        if status.finished:
            return
        heard = time.monotonic()
        yield status
        heard = time.monotonic()  # what was done with it took its time


def _require(status: Status, episodes: int) -> None:
    if status.evaluation_episodes != episodes:
        raise InvalidRequest(
            f"expected a server that waits for {episodes} evaluation episodes of version {status.policy_version}; "
            f"found one that waits for {status.evaluation_episodes}: play as many as its job's evaluation_episodes"
        )


def require_of(results: Sequence[EpisodeResult], version: int) -> None:
    """Raise InvalidRequest unless all plays began with one version's weights: training waited for none of the rest."""
    if other := [result for result in results if result.policy_version != version]:
        raise InvalidRequest(
            f"expected {len(results)} plays of version {version}; found {len(other)} that began with version "
            f"{other[0].policy_version}, as somebody else evaluated too: let nobody else evaluate"
        )


class EvaluationsFile:
    """The file of all evaluations during a training; what a former process wrote there stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = {found["policy_version"]: found for found in _read(path)}

    def add(self, evaluation: dict[str, Any]) -> dict[str, Any]:
        """Take an evaluation in place of an earlier one of its version; return what the file is to hold."""
        self._made[evaluation["policy_version"]] = evaluation
        return {"evaluations": [self._made[version] for version in sorted(self._made)]}

    def __len__(self) -> int:
        """Return how many evaluations there are."""
        return len(self._made)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text())["evaluations"]
        return [dict(each) for each in found if isinstance(each["policy_version"], int)]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"expected the evaluations of a training in {path}, or no file; move it away") from error
