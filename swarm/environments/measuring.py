"""Plays an environment without a model, to see what its rewards are worth and cost.

Four players that learned nothing: the oracle, the demonstrations, an empty answer, and random ones. Tasks are of
training and search, never hidden. Findings are JSON lines as they come, so that a process ended early has said what it
knew; a play that takes longer than its bound ends the process, with all stacks on standard error (`faulthandler`).
"""

import faulthandler
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from swarm.environments.base import Environment, Game, Message, Outcome, Task, calling, said, text_of
from swarm.environments.play import chat_messages, judge_outcome
from swarm.environments.user_code import RewardFailed, call, describe_place

MOST_BYTES: Final = 12 << 30
"""Of address space: packages map far more than they use."""
MOST_FILE_BYTES: Final = 1 << 30
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def bound_resource(kind: int, most: int) -> None:
    """Bound this process from now on, unless it is already: RLIMIT_AS its memory, RLIMIT_FSIZE each file's size."""
    soft, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(kind, (most, hard))


def peak_memory() -> int:
    """Return this process's peak of memory in bytes: on Linux the program's, as the process's counts its parent's."""
    status = Path("/proc/self/status")
    if status.is_file() and (found := _PEAK.search(status.read_text())) is not None:
        return int(found[1]) << 10
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


Tell = Callable[[dict[str, Any]], None]
"""Takes what was found, as a JSON value."""
Answers = Callable[[Task, Sequence[Message], Game, random.Random], "Message | str | None"]
"""The next answer of a player; None where it has no more to say."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is played, and what a play may take."""

    plays: int
    seconds: float
    """For one play."""
    answers: int
    """In one play. Plays of a study are bounded by the model's context and the episode's timeout instead."""


class UntrainedPlays:
    """Plays by players that learn nothing: `code` is what the environment is, `tasks` what is played of it."""

    def __init__(self, environment: Environment, code: Environment, tasks: Sequence[Task], bounds: Bounds) -> None:
        self._environment, self._code, self._tasks, self._bounds = environment, code, list(tasks), bounds
        self._told: set[str] = set()
        self._shown = False

    async def run(self, tell: Tell) -> None:
        """Let all players play; tell what they found. An environment with an agent of its own needs a model to play."""
        if self._environment.has("agent"):
            return
        players: dict[str, Answers] = {}
        if self._code.has("oracle"):
            players["oracle"] = lambda task, messages, *_: self._code.oracle(task, messages)
        if self._code.has("imitate"):
            left, whose = list[Message](), list[Game]()

            def replay(task: Task, messages: Sequence[Message], game: Game, rng: random.Random) -> Message | None:
                if not whose or whose[0] is not game:  # it begins: what its opening shows as said is no answer
                    whose[:], shown = [game], sum(message["role"] == "assistant" for message in messages)
                    plays = [message for message in self._code.imitate(task, rng) if message["role"] == "assistant"]
                    left[:] = plays[shown:]
                return dict(left.pop(0)) if left else None

            players["demonstrations"] = replay
        players |= {"empty answers": lambda *_: said(""), "random answers": _answer_at_random}
        for player, answers in players.items():
            await self._let_play(player, answers, tell)

    async def _let_play(self, player: str, answers: Answers, tell: Tell) -> None:
        played: list[dict[str, float]] = []
        tasks = random.Random(0).sample(self._tasks, min(self._bounds.plays, len(self._tasks)))
        random.Random(player).shuffle(tasks)
        for index, task in enumerate(tasks):
            tell({"playing": {"player": player, "task": task.id}})
            faulthandler.dump_traceback_later(self._bounds.seconds, exit=True)
            try:
                example = await self._play(answers, task, played, random.Random(f"{player} {index}"))
            except Exception as error:  # noqa: BLE001  # whatever foreign code does, and what its outcome cannot be
                fault = f"{type(error).__name__}{f': {error}' if str(error) else ''}{describe_place(error)}"
                if fault not in self._told:
                    self._told.add(fault)
                    tell({"fault": f"{player}, task {task.id!r:.80}: {' '.join(fault.split())}"})
                break
            finally:
                faulthandler.cancel_dump_traceback_later()
            if not self._shown:
                self._shown = True
                tell({"example": {"player": player, **example}})
        if played:
            means = {name: fmean(play[name] for play in played) for name in played[0]}
            tell({"player": player, "plays": len(played), **means})

    async def _play(
        self, answers: Answers, task: Task, played: list[dict[str, float]], rng: random.Random
    ) -> dict[str, Any]:
        count, seconds = 0, 0.0

        async def timed(function: Callable[..., Any], *arguments: Any) -> Any:
            nonlocal seconds
            began = time.perf_counter()
            try:
                return await call(function, *arguments)
            finally:
                seconds += time.perf_counter() - began

        game = await timed(self._environment.game, task)
        messages = chat_messages(await timed(game.opening), "opening")
        while (answer := answers(task, messages, game, rng)) is not None:
            if count == self._bounds.answers:
                raise RuntimeError(f"the play goes on after {count} answers; let a game end by itself")
            count += 1
            messages.append(said(answer) if isinstance(answer, str) else answer)
            following = await timed(game.answer, dict(messages[-1]))
            if not following:
                break
            messages += chat_messages(following, "answer")
        outcome: Outcome = judge_outcome(self._environment, await timed(game.outcome))
        require_declared(self._environment.facts, outcome.facts)
        characters = sum(len(text_of(message)) for message in messages)
        played.append({
            "reward": outcome.reward, "success": bool(outcome.success), "calls": count, "characters": characters,
            "seconds": seconds,
        })  # fmt: skip
        return {
            "task": task.id, "messages": messages, "tools": list(game.tools), "reward": outcome.reward,
            "success": outcome.success, "facts": dict(outcome.facts),
        }  # fmt: skip


def _answer_at_random(_: Task, messages: Sequence[Message], game: Game, rng: random.Random) -> Message:
    words = [word for message in messages for word in _WORD.findall(text_of(message))] or ["yes"]

    def value(schema: Any) -> Any:
        match schema.get("type") if isinstance(schema, dict) else None:
            case "integer" | "number":
                return rng.randint(0, 100)
            case "boolean":
                return rng.random() < 0.5
            case _:
                return rng.choice(words)

    if game.tools and rng.random() < 0.5:
        function = rng.choice(list(game.tools))["function"]
        wanted = function.get("parameters", {}).get("properties", {})
        return calling(function["name"], **{name: value(schema) for name, schema in wanted.items()})
    return said(rng.choice(words))


def require_declared(declared: Mapping[str, tuple[float, float]], said: Mapping[str, float]) -> None:
    """Raise RewardFailed where a play lacks a fact that a study may be judged by, or has one beyond its range."""
    for name, (worst, best) in declared.items():
        if name not in said:
            raise RewardFailed(f"expected the declared fact {name!r} of every play, found none; say it of every play")
        if not min(worst, best) <= said[name] <= max(worst, best):
            raise RewardFailed(
                f"expected the fact {name!r} within its declared range, {worst:g} to {best:g}, found {said[name]:g}; "
                "widen the range"
            )
