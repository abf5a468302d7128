"""The market's own agent, twenty times slower: its tool might be a browser, a compiler, or a person."""

import asyncio
import os
import time
from typing import Any

from swarm.environments import get_environment
from swarm.environments.play import agent_of

SLOWNESS = float(os.environ.get("SLOWNESS", "20"))
play = agent_of(get_environment("market"))


async def agent(episode: Any) -> Any:
    began = time.monotonic()
    outcome = await play(episode)
    await asyncio.sleep((SLOWNESS - 1) * (time.monotonic() - began))
    return outcome
