"""A training like that of `training.py` whose agent waits for a tool between two calls, as one that searches does.

    python -m rig.latency run FOLDER       trains what FOLDER/training.json says; writes FOLDER/trained.json

The tool is simulated: it takes time and does nothing. How long is drawn from a log-normal distribution, by the
episode's task and turn and a seed of the order, so that two trainings of one seed wait alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rig.training import run
from swarm.client import Agent, Episode
from swarm.environments import Outcome, said
from swarm.environments.base import PlainEnvironment


def waiting_agent(environment: PlainEnvironment, median_s: float, sigma: float, seed: int) -> Agent:
    """Return the built-in agent, with a tool that takes its time before each following message."""
    plays: Counter[str] = Counter()

    async def agent(episode: Episode[Any]) -> Outcome:
        game = environment.game(episode.task)
        plays[episode.task.id] += 1
        draw = random.Random(f"{seed}:{episode.task.id}:{plays[episode.task.id]}")
        messages = game.opening()
        for _ in itertools.count():
            reply = await episode.chat(messages)
            following = game.answer(said(reply.content))
            if not following:
                break
            await asyncio.sleep(median_s * draw.lognormvariate(0.0, sigma))
            messages += [said(reply.content), *following]
        return game.outcome()

    return agent


def main() -> None:
    """Train."""
    folder = Path(sys.argv[2])
    tool = json.loads((folder / "training.json").read_text())["tool"]
    run(folder, lambda environment: waiting_agent(environment, **tool)).write(folder / "trained.json")


if __name__ == "__main__":
    main()
