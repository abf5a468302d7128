"""The built-in agent: it carries messages between a game and the policy, and adds nothing."""

from __future__ import annotations

from typing import Any

from swarm.client import Agent, Episode
from swarm.environments.base import Environment, Game, Outcome


async def play(game: Game, episode: Episode[Any]) -> Outcome:
    """Play one game to its end with the episode's policy; return what it was worth."""
    messages = game.opening()
    while True:
        reply = await episode.chat(messages)
        following = game.answer(reply.content)
        if following is None:
            return game.outcome()
        messages += [{"role": "assistant", "content": reply.content}, following]


def agent_of(environment: Environment) -> Agent:
    """Return the agent that plays an environment's tasks."""

    async def agent(episode: Episode[Any]) -> Outcome:
        return await play(environment.game(episode.task), episode)

    return agent
