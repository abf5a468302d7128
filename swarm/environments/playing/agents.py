"""Agents from a file: any function of an episode that returns what the play was worth, async or plain.

    async def agent(episode): ...   episode.task.data; await episode.chat(messages); episode.base_url, .api_key, .model
    def agent(episode): ...         the same with calls that block, in a thread of its own

The first failures of a user's code are written to stderr, each in one line with its place; all are counted.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from swarm.client import Agent, Episode, Result, plain_agent
from swarm.client.agents import UnusableReward, worth_of
from swarm.client.failures import limited_s
from swarm.environments.playing.code import is_async, load, where_of
from swarm.environments.playing.rewards import RewardFailed
from swarm.errors import SwarmError

MOST_REPORTED = 5


def load_agent(place: str) -> Agent:
    """Load the agent at `FILE.py[:NAME]`, called `agent` if no name is given; raises InvalidRequest."""
    function = load(place, "agent", takes="episode")
    return function if is_async(function) else plain_agent(function)


def report_failures(agent: Agent) -> Agent:
    """Return the agent with its first failures written to stderr; those of the server are reported by the rollout."""
    left = MOST_REPORTED
    limited = False

    async def play(episode: Episode[Any]) -> Result:
        nonlocal left, limited
        try:
            return _finite(await agent(episode))
        except SwarmError:
            raise
        except (Exception, SystemExit) as error:
            if limited_s(error) is not None:
                if not limited:
                    said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                    sys.stderr.write(f"rate-limited: {said}; such plays are played again after a pause, and counted\n")
                limited = True
                raise
            if left > 0:
                left -= 1
                sys.stderr.write(_line(episode, error) + ("" if left else "; further ones are counted only") + "\n")
            if isinstance(error, SystemExit):  # it ends its play, not the process
                raise RuntimeError(f"it raised SystemExit({error})") from error
            raise

    return play


def _finite(result: Result) -> Result:
    reward, _ = worth_of(result)
    if not math.isfinite(reward):
        raise UnusableReward(f"expected the agent to return a finite reward, found {reward!r}")
    return result


def _line(episode: Episode[Any], error: BaseException) -> str:
    what = str(error) if isinstance(error, RewardFailed) else f"{type(error).__name__}: {error}{where_of(error)}"
    return f"a play of {episode.task.id} failed: {' '.join(what.split())}"
