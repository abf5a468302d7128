"""The built-in agent: it carries messages between a game and the policy, and adds nothing.

A play whose conversation no longer fits the model's context is over: what it is worth is what it was worth so far. What
a play is worth is checked against what its environment promises, so that a reward that is no number, or lies out of
range, is a failed play with its reason and never trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from swarm.client import Agent, Episode
from swarm.environments.base import Environment, Game, Message, Outcome, PlainEnvironment, PlainGame, Task
from swarm.environments.playing.code import call
from swarm.environments.playing.rewards import Reward, RewardFailed, finite
from swarm.errors import ContextExceeded

OnPlay = Callable[[Task, list[Message]], None]
"""Called with the conversation of each play that came to its end."""
_KEPT = ("role", "content", "tool_calls", "reasoning_content")
"""What of a policy's message goes back to it."""


async def play(game: Game, episode: Episode[Any]) -> tuple[list[Message], Outcome]:
    """Play one game to its end with the episode's policy; return the whole conversation and what it was worth.

    What may block runs in a thread, so that no other play waits for it.
    """
    plain = isinstance(game, PlainGame)
    messages = chat_messages(await _done(plain, game.opening), "opening")
    if not messages:
        raise TypeError("expected a message or more of opening(), found none")
    tools: dict[str, Any] = {"tools": list(game.tools)} if game.tools else {}
    while True:
        try:
            reply = await episode.chat(messages, **tools)
        except ContextExceeded:
            if messages[-1:] and any(message["role"] == "assistant" for message in messages):
                return messages, await _done(plain, game.outcome)
            raise
        messages.append(_answer(reply.raw["choices"][0]["message"]))
        following = chat_messages(await _done(plain, game.answer, dict(messages[-1])) or [], "answer")
        if not following:
            return messages, await _done(plain, game.outcome)
        messages += following


def chat_messages(found: Any, method: str) -> list[Message]:
    """Return a copy of the chat messages that a game's method gave; raises TypeError for what are none."""
    if not isinstance(found, list | tuple) or not all(map(_is_message, found)):
        raise TypeError(f"expected a list of chat messages of {method}(), found {found!r:.80}")
    return list(found)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def agent_of(environment: Environment, reward: Reward | None = None, on_play: OnPlay | None = None) -> Agent:
    """Return the agent that plays an environment's tasks: its own, or the one that carries its games' messages.

    The environment judges, or `reward` does in its place; `on_play` hears of games only.
    """
    if environment.has("agent"):

        async def own(episode: Episode[Any]) -> Outcome:
            return judged(environment, await environment.agent(episode))

        return own

    async def agent(episode: Episode[Any]) -> Outcome:
        game = await _done(isinstance(environment, PlainEnvironment), environment.game, episode.task)
        messages, found = await play(game, episode)
        outcome = judged(environment, found)
        if on_play is not None:
            on_play(episode.task, messages)
        return outcome if reward is None else await reward(episode.task, messages, outcome)

    return agent


def judged(environment: Environment, outcome: Outcome) -> Outcome:
    """Return an outcome with its success said, after checking it; raises RewardFailed for what cannot be one."""
    if not isinstance(outcome, Outcome):
        raise RewardFailed(f"expected an Outcome of a play, found {type(outcome).__name__}: {outcome!r:.80}")
    reward, (low, high) = _finite(outcome.reward, "reward"), environment.reward_range
    if not low <= reward <= high:
        raise RewardFailed(
            f"expected a reward within reward_range, {low:g} to {high:g}, found {reward:g}; mend it, or say the range"
        )
    facts = {name: _finite(value, f"fact {name!r}") for name, value in _facts(outcome.facts).items()}
    return replace(outcome, reward=reward, success=_solved(environment, outcome, reward), facts=facts)


def _solved(environment: Environment, outcome: Outcome, reward: float) -> bool:
    if isinstance(outcome.success, str):  # "no" would be a success
        raise RewardFailed(f"expected success as True or False, found {outcome.success!r:.80}")
    if outcome.success is not None:
        return bool(outcome.success)
    if environment.solved_at is None:
        raise RewardFailed("expected an outcome that says success, or an environment with solved_at; found neither")
    return reward >= environment.solved_at


def _facts(facts: Any) -> Mapping[str, Any]:
    if not isinstance(facts, Mapping) or not all(isinstance(name, str) for name in facts):
        raise RewardFailed(f'expected facts as {{"name": number}}, found {facts!r:.80}')
    return facts


def _finite(value: Any, what: str) -> float:
    if (number := finite(value)) is None:
        raise RewardFailed(f"expected a finite number as the {what} of a play, found {value!r:.80}")
    return number


def _answer(message: Mapping[str, Any]) -> Message:
    return {name: message[name] for name in _KEPT if name == "content" or message.get(name)}


async def _done(plain: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments) if plain else await call(function, *arguments)
