"""The built-in agent, the evaluator, and evaluations during training.

The agent carries messages between game and policy and adds nothing. A play that no longer fits the context is over and
worth what it was worth so far; a reward that is no number or out of range is a failed play, never trained on.

Which tasks the evaluator plays, and in which order, follows from the seed alone, and the games judge, so nothing that a
training client says enters. During training one process stays, as starting one costs more than an evaluation of a small
model; it plays whenever the server waits for one. Files are written anew, whole or not at all.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Final

from swarm.client import Agent, AsyncSwarmClient, Episode, EpisodeResult
from swarm.client.episode import Result
from swarm.client.rollout import ENGINE_OFF_S
from swarm.environments import user_code
from swarm.environments.base import Environment, Game, Message, Outcome, PlainEnvironment, PlainGame, Split, Task
from swarm.environments.registry import get_environment
from swarm.environments.user_code import SLOTS, Advantage, Reward, RewardFailed, TaskWeights, call, call_slot, load
from swarm.errors import ContextExceeded, EngineUnavailable, InvalidRequest, ServerFailed, Unreachable
from swarm.wire import ServerState

LOOK_S: Final = 0.1
"""Seconds between two looks at the server."""
UNSEEN: Final = 0.5
"""Share of the time between the last two evaluations for which it is not looked after one: they are evenly spaced, and
each look takes the server a little of what it trains with."""


async def pending_evaluations(client: AsyncSwarmClient, episodes: int | None) -> AsyncIterator[tuple[int, int]]:
    """Yield a policy version and of how many episodes of it training waits for, whenever it does, until the job is
    finished; `episodes` None: however many.

    A server that came back may wait for the same version again: for as many as had ended before it went away. Raises
    InvalidRequest where it waits for another number of episodes than `episodes`: the training would go on in the middle
    of an evaluation, or not at all. ServerFailed at once, and what else keeps it from answering after ENGINE_OFF_S.
    """
    since = heard = time.monotonic()
    played = -1
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
        if not status.awaited_evaluations:
            await asyncio.sleep(LOOK_S)
            continue
        wanted = status.evaluation_episodes
        if status.policy_version != played and episodes not in (None, wanted):  # else it forgot what was played
            raise InvalidRequest(
                f"expected a server that waits for {episodes} evaluation episodes of version {status.policy_version}; "
                f"found one that waits for {wanted}: play as many as its job's evaluation_episodes"
            )
        between = time.monotonic() - since
        yield status.policy_version, status.awaited_evaluations if status.policy_version == played else wanted
        since, played = time.monotonic(), status.policy_version
        await asyncio.sleep(UNSEEN * between)
        heard = time.monotonic()  # what was done with it took its time


def require_version(results: Sequence[EpisodeResult], version: int) -> None:
    """Raise InvalidRequest unless all plays began with one version's weights: training waited for none of the rest."""
    if other := [result for result in results if result.policy_version != version]:
        raise InvalidRequest(
            f"expected {len(results)} plays of version {version}; found {len(other)} that began with version "
            f"{other[0].policy_version}, as somebody else evaluated too: let nobody else evaluate"
        )


class EvaluationsFile:
    """The file of all evaluations during a training; what a former process wrote there stays."""

    def __init__(self, path: Path) -> None:
        self._made: dict[int, dict[str, Any]] = {}
        try:
            for found in json.loads(path.read_text())["evaluations"]:
                if isinstance(version := found["policy_version"], int):
                    self._made[version] = dict(found)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            wrong = f"expected the evaluations of a training in {path}, or no file; move it away"
            raise InvalidRequest(wrong) from error

    def add(self, evaluation: dict[str, Any]) -> dict[str, Any]:
        self._made[evaluation["policy_version"]] = evaluation
        return {"evaluations": [self._made[version] for version in sorted(self._made)]}

    def __len__(self) -> int:
        return len(self._made)


MOST_MESSAGES: Final = 20
MOST_CHARACTERS: Final = 2000
"""What is kept of a play at most: its first messages, and of each its beginning."""
MOST_REASON: Final = 200
"""Characters that are kept of the error by which an agent failed a play."""
MOST_CHOSEN_BYTES: Final = 1 << 18
"""Of the chosen plays of one evaluation, as JSON."""


class Transcripts:
    """Keeps the first play of each of some tasks, to be read; nothing is computed from it."""

    def __init__(self, tasks: Collection[str]) -> None:
        self._tasks = dict.fromkeys(tasks)
        self._recorded: dict[str, list[dict[str, str]]] = {}

    def record(self, task: Task, messages: list[Message]) -> None:
        if task.id in self._tasks and task.id not in self._recorded:
            self._recorded[task.id] = [
                {"role": str(message["role"]), "content": format_message(message, MOST_CHARACTERS)}
                for message in messages[:MOST_MESSAGES]
            ]

    def take(self, chosen: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the plays of all tasks, or of the `chosen` ones as far as there is room, and forget all plays."""
        recorded, self._recorded, kept, left = self._recorded, {}, list[dict[str, Any]](), MOST_CHOSEN_BYTES
        for task in self._tasks if chosen is None else chosen:
            if task in recorded and (chosen is None or (left := left - len(json.dumps(recorded[task]))) >= 0):
                kept.append({"task_id": task, "messages": recorded[task]})
        return kept


def choose_plays(results: Sequence[EpisodeResult], kinds: Mapping[str, str], most: int) -> list[str]:
    """Return the tasks whose first plays are worth reading: half of them failures, spread over the kinds of task. Where
    there are too few of one sort, there are more of the other. No play that its agent failed is among them."""
    sorts: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for result in results:
        if result.sample == 0 and not result.failed:
            sorts[bool(result.success)].setdefault(kinds.get(result.task_id, ""), []).append(result.task_id)
    failed, solved = (
        [task for row in zip_longest(*sorts[sort].values()) for task in row if task is not None]
        for sort in (False, True)
    )
    count = max(most // 2, most - len(solved))
    return [*failed[:count], *solved[: most - min(count, len(failed))]]


async def evaluate(
    client: AsyncSwarmClient,
    agent: Agent,
    tasks: Sequence[Task],
    *,
    episodes: int,
    seed: int,
    concurrency: int,
    timeout_s: float,
    worst: Result = 0.0,
) -> list[EpisodeResult]:
    """Let `agent` play `episodes` of the tasks, each equally often, +-1; return their worth, `worst` if it failed."""
    results: list[EpisodeResult] = []
    for sample, chosen in enumerate(rounds(tasks, episodes, seed)):
        played = await client.evaluate(agent, chosen, concurrency=concurrency, timeout_s=timeout_s, worst=worst)
        results += [replace(result, sample=sample) for result in played]
    return results


def worst_outcome(environment: Environment | None) -> Result:
    """Return what a play of an environment is worth that its agent failed: its least reward, its worst facts."""
    if environment is None:
        return 0.0
    return Outcome(environment.reward_range[0], False, {name: worst for name, (worst, _) in environment.facts.items()})


def rounds(tasks: Sequence[Task], episodes: int, seed: int) -> list[list[Task]]:
    """Return the tasks to play, a list per round, `episodes` in all; a seeded choice without repeats in a round."""
    rng = random.Random(seed)
    full, rest = divmod(episodes, len(tasks))
    return [rng.sample(tasks, len(tasks)) for _ in range(full)] + ([rng.sample(tasks, rest)] if rest else [])


def outcomes(
    results: Sequence[EpisodeResult], environment: str | None, split: Split, kept: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return results as the evaluator's file has them, with plays `kept`; no `environment`: success may be unsaid."""

    def success(result: EpisodeResult) -> bool | None:
        return None if environment is None and result.success is None else bool(result.success)

    return {
        "environment": environment,
        "split": split,
        "policy_version": max(result.policy_version for result in results),
        "episodes": [
            {"task_id": r.task_id, "sample": r.sample, "success": success(r), "reward": r.reward}
            | ({"facts": dict(r.facts)} if r.facts else {})
            | ({"tokens": r.tokens} if r.tokens is not None else {})
            | ({"failed": r.failed[:MOST_REASON]} if r.failed else {})
            for r in results
        ],
        **({"transcripts": list(kept)} if kept else {}),
    }


def format_message(message: Message, most: int | None = None) -> str:
    """Return what a message says as a person reads it: its text, then each tool it calls, as `name(arguments)`. Of
    `most` characters at most."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = (f"{call['name']}({call.get('arguments') or ''})" for call in calls)
    shown = "\n".join([*([text] if text or not calls else []), *written])
    return shown if most is None or len(shown) <= most else f"{shown[: most - 1]}…"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write what other readers of JSON take too: of halves of characters, which a play may have, question marks."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # on a full disk it takes the last room
        raise


OnPlay = Callable[[Task, list[Message]], None]
"""Called with the conversation of each play that came to its end."""
_KEPT = ("role", "content", "tool_calls", "reasoning_content")
"""What of a policy's message goes back to it."""


async def play(
    game: Game, episode: Episode[Any], prompt: Callable[..., Any] | None = None, most: int = 0
) -> tuple[list[Message], Outcome]:
    """Play a game with the episode's policy; return its conversation and worth. What may block runs in a thread.
    `prompt` gives what the policy reads first for the game's own messages; 0 is no bound on the answers."""
    answers = 0
    plain = isinstance(game, PlainGame)
    messages = chat_messages(await _call_method(plain, game.opening), "opening")
    if prompt is not None:
        messages = chat_messages(await call_slot("prompt", prompt, messages), "prompt")
    if not messages:
        raise TypeError("expected a message or more of opening(), found none")
    tools: dict[str, Any] = {"tools": list(game.tools)} if game.tools else {}
    while True:
        try:
            reply = await episode.chat(messages, **tools)
        except ContextExceeded:
            if messages[-1:] and any(message["role"] == "assistant" for message in messages):
                return messages, await _call_method(plain, game.outcome)
            raise
        said = reply.raw["choices"][0]["message"]
        messages.append({name: said[name] for name in _KEPT if name == "content" or said.get(name)})
        following = chat_messages(await _call_method(plain, game.answer, dict(messages[-1])) or [], "answer")
        answers += 1
        if not following or answers == most:
            return messages, await _call_method(plain, game.outcome)
        messages += following


def chat_messages(found: Any, method: str) -> list[Message]:
    """Return a copy of the chat messages that a game's method gave; raises TypeError for what are none."""
    values = found if isinstance(found, list | tuple) else [None]
    if not all(isinstance(value, dict) and isinstance(value.get("role"), str) for value in values):
        raise TypeError(f"expected a list of chat messages of {method}(), found {found!r:.80}")
    return list(found)


def agent_of(
    environment: Environment, reward: Reward | None = None, on_play: OnPlay | None = None,
    prompt: Callable[..., Any] | None = None, player: Callable[..., Any] | None = None,
) -> Agent:  # fmt: skip
    """Return the agent of an environment, or one that carries its games' messages; `on_play` hears of games only.
    `player` plays a game in place of `play`, and returns its messages."""
    if environment.has("agent"):
        if reward or prompt or player:
            raise InvalidRequest(
                f"expected no reward, prompt or agent for {environment.name}, which plays and judges by itself"
            )

        async def own(episode: Episode[Any]) -> Outcome:
            return judge_outcome(environment, await environment.agent(episode))

        return own

    async def agent(episode: Episode[Any]) -> Outcome:
        game = await _call_method(isinstance(environment, PlainEnvironment), environment.game, episode.task)
        if player is None:
            episode.bundled = True  # it is given up where a call is cancelled
            messages, found = await play(game, episode, prompt, environment.knob("max_turns"))
        else:
            messages = chat_messages(await call(player, episode, game) or [], "agent")
            found = await _call_method(isinstance(game, PlainGame), game.outcome)
        outcome = judge_outcome(environment, found)
        if on_play is not None:
            on_play(episode.task, messages)
        return outcome if reward is None else await reward(episode.task, messages, outcome)

    return agent


def judge_outcome(environment: Environment, outcome: Outcome) -> Outcome:
    """Return an outcome with its success said, after checking it; raises RewardFailed for what cannot be one."""
    if not isinstance(outcome, Outcome):
        raise RewardFailed(f"expected an Outcome of a play, found {type(outcome).__name__}: {outcome!r:.80}")
    reward, (low, high) = _finite(outcome.reward, "reward"), environment.reward_range
    if not low <= reward <= high:
        raise RewardFailed(
            f"expected a reward within reward_range, {low:g} to {high:g}, found {reward:g}; mend it, or say the range"
        )
    given, success = outcome.facts, outcome.success
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise RewardFailed(f'expected facts as {{"name": number}}, found {given!r:.80}')
    facts = {name: _finite(value, f"fact {name!r}") for name, value in given.items()}
    if isinstance(success, str):  # "no" would be a success
        raise RewardFailed(f"expected success as True or False, found {success!r:.80}")
    if success is None:
        if environment.solved_at is None:
            raise RewardFailed("expected an outcome that says success, or an environment with solved_at; found neither")
        success = reward >= environment.solved_at
    return replace(outcome, reward=reward, success=bool(success), facts=facts)


def _finite(value: Any, what: str) -> float:
    if (number := user_code.finite(value)) is None:
        raise RewardFailed(f"expected a finite number as the {what} of a play, found {value!r:.80}")
    return number


async def _call_method(plain: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments) if plain else await call(function, *arguments)


async def try_slot(slot: str, place: str, name: str) -> None:
    """Call the code of a slot as a training in a plain environment does, with one scripted play; raise as it does. Of
    an agent, which needs a policy, the file alone is loaded."""
    environment = get_environment(name)
    if not isinstance(environment, PlainEnvironment):
        raise InvalidRequest(f"expected a plain environment to try code in; found {name}")
    tasks = environment.tasks("train")
    game, messages = environment.game(tasks[0]), environment.imitate(tasks[0], random.Random(0))
    opening = game.opening()
    for message in messages:
        if message["role"] == "assistant":
            game.answer(message)
    if slot == "reward":
        await Reward.load(place)(tasks[0], messages, judge_outcome(environment, game.outcome()))
    elif slot == "advantage":
        await Advantage.load(place)([0.0, 1.0, 0.5, 0.5], [0, 0, 1, 1])
    elif slot == "task_weights":
        await TaskWeights(place, tasks, 0)([])
    else:
        function = load(place, slot, takes=SLOTS[slot])
        if slot == "prompt":
            chat_messages(await call_slot(slot, function, opening), slot)


MOST_RECORDED: Final = 256
MOST_TRIED: Final = 32
TRIAL_S: Final = 20.0
"""Recorded plays that code is tried on, of these those of a reward or a prompt, and seconds after which no other is."""


async def try_recorded(slot: str, place: str, plays: Sequence[Mapping[str, Any]]) -> list[float]:
    """Call the code of a slot on recorded plays, the newest first: episodes with `data` of the task, and `messages`
    where they were kept (Python takes whole ones without tools). Return on how many, and the least and greatest number
    that it gave (of a prompt: messages), or nothing; raise RewardFailed with the play's number."""
    until, tried, given, seen = time.monotonic() + TRIAL_S, 0, list[float](), dict[str, list[float]]()
    for play in reversed(plays):
        seen.setdefault(play["task_id"], []).append(play["reward"])
    try:
        if slot == "advantage" and (groups := [own for own in seen.values() if len(own) > 1]):
            size = min(map(len, groups))  # those of a batch are equal
            rewards = [reward for own in groups for reward in own[-size:]]
            tried = len(rewards)
            given = await Advantage.load(place)(rewards, [at // size for at in range(tried)])
        elif slot == "task_weights" and (tried := len(plays)):
            data = {play["task_id"]: play["data"] for play in plays}
            given = await TaskWeights(place, [Task(task, data[task]) for task in seen], 0).weigh(seen)
        elif slot in ("reward", "prompt"):
            code = Reward.load(place) if slot == "reward" else load(place, slot, takes=SLOTS[slot])
            spoken = [play for play in plays if 0 < len(words := play["messages"]) < MOST_MESSAGES and (
                place[0] == "=" or all(m["role"] != "tool" and len(m["content"]) < MOST_CHARACTERS for m in words)
            )]  # fmt: skip
            timely = takewhile(lambda _: time.monotonic() < until, spoken[:MOST_TRIED])
            for tried, play in enumerate(timely, start=1):  # noqa: B007
                words = play["messages"]
                if isinstance(code, Reward):
                    outcome = Outcome(play["reward"], play["success"], play.get("facts", {}))
                    given.append((await code(Task(play["task_id"], play["data"]), words, outcome)).reward)
                else:
                    opening = list(takewhile(lambda message: message["role"] != "assistant", words))
                    given.append(len(chat_messages(await call_slot(slot, code, opening) or None, slot)))
    except (RewardFailed, TypeError) as error:
        where = f"play {tried}" if slot in ("reward", "prompt") else f"plays 1 to {tried}"
        raise RewardFailed(f"on recorded {where}: {' '.join(str(error).split())[:300]}") from error
    return [tried, min(given), max(given)] if given else []
