"""The built-in agent: it carries messages between a game and the policy, and adds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarm.client import Agent, Episode
from swarm.environments.base import Environment, Game, Message, Outcome, Task
from swarm.environments.playing.rewards import Reward

OnPlay = Callable[[Task, list[Message]], None]
"""Called with the conversation of each play that came to its end."""


async def play(game: Game, episode: Episode[Any]) -> tuple[list[Message], Outcome]:
    """Play one game to its end with the episode's policy; return the whole conversation and what it was worth."""
    messages = game.opening()
    while True:
        reply = await episode.chat(messages)
        messages.append({"role": "assistant", "content": reply.content})
        following = game.answer(reply.content)
        if following is None:
            return messages, game.outcome()
        messages.append(following)


def agent_of(environment: Environment, reward: Reward | None = None, on_play: OnPlay | None = None) -> Agent:
    """Return the agent that plays an environment's tasks; the games judge, or `reward` does in their place."""

    async def agent(episode: Episode[Any]) -> Outcome:
        messages, outcome = await play(environment.game(episode.task), episode)
        if on_play is not None:
            on_play(episode.task, messages)
        return outcome if reward is None else await reward(episode.task, messages, outcome)

    return agent
