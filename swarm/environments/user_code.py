"""A user's agents and reward functions, loaded from files or as numeric expressions, and the hash of their code.

    load("agent.py:play", "agent")                 the function `play`; without a name the function `agent`
    async def agent(episode): ...                  or plain, in a thread of its own; returns what the play was worth
    reward(task, messages, outcome) -> float       once after each training play, with copies
    advantage(rewards, groups) -> list[float]      once for each batch that training waits with
    task_weights(history) -> list[float]           before each group: how likely each task is to be played next
    prompt(messages) -> list[dict]                 once a play: what the policy reads first, in place of the game's
    async def agent(episode, game): ...            plays a game, and returns its messages; the game judges

Nothing is isolated: loaded code can do whatever its process can. A file is imported as a script would be, its folder
first on the path. The hash covers Python files and prompts (`SUFFIXES`), not data, which agents write while they play.

reward and advantage may also be an expression, `= reward - 0.01 * turns if success else 0`, which needs no container.
All is floats, and what overflows, divides by zero or is not finite is refused, so that no value grows without bounds.
"""

import ast
import asyncio
import copy
import hashlib
import importlib.util
import inspect
import math
import os
import random
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Real
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any, ClassVar, Final, Self

from swarm.client import Agent, AsyncSwarmClient, Episode, EpisodeResult, Result, plain_agent
from swarm.client.episode import UnusableReward, parse_reward
from swarm.client.rollout import find_retry_after_s
from swarm.client.threads import run_in_thread
from swarm.environments.base import Message, Outcome, Task
from swarm.errors import EngineUnavailable, InvalidRequest, SwarmError, Unreachable
from swarm.wire import GivenAdvantages

MOST_CHARACTERS: Final = 1000
_CALLS: Final[Mapping[str, Any]] = {"__builtins__": {}, "min()": min, "max()": max, "abs()": abs, "float()": float}
"""What is called, by names that no expression can spell: `min` and `max` are also names of numbers."""
_PARTS: Final = (
    ast.Expression, ast.BinOp, ast.BoolOp, ast.IfExp, ast.Name, ast.Load, ast.boolop, ast.unaryop, ast.UnaryOp,
    ast.Compare, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip


class _InFloats(ast.NodeTransformer):
    """Makes every number a float, as whole ones may grow for ever; ValueError for a part that no expression has."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _PARTS) or isinstance(node, ast.Invert):
            raise ValueError(f"{type(node).__name__} at column {getattr(node, 'col_offset', 0)} is not among them")
        node = super().generic_visit(node)
        if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            return ast.Call(ast.Name("float()", ast.Load()), [node], [])  # it was bool, which counts as a whole number
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, bool | int | float):
            raise ValueError(f"{node.value!r:.40} is no number")
        return ast.Constant(float(node.value))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name, count = node.func.id if isinstance(node.func, ast.Name) else "", len(node.args)
        if name not in ("min", "max", "abs") or node.keywords or count < 1 or (name == "abs") != (count == 1):
            raise ValueError("what is called is not among them, or not so")
        return ast.Call(ast.Name(f"{name}()", ast.Load()), [self.visit(part) for part in node.args], [])


class Expression:
    """One expression, read once; raises InvalidRequest for what is none."""

    def __init__(self, text: str) -> None:
        self.text = text.strip().removeprefix("=").strip()
        if not self.text or len(self.text) > MOST_CHARACTERS:
            raise InvalidRequest(f"expected an expression of 1 to {MOST_CHARACTERS} characters; found {len(self.text)}")
        if not self.text.isprintable():  # a comment may hold anything
            raise InvalidRequest(f"expected visible characters on one line; found {self.text[:80]!r}")
        try:
            body = _InFloats().visit(ast.parse(self.text, mode="eval"))
            self.names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)} - _CALLS.keys()
            self._code = compile(ast.fix_missing_locations(body), "expression", "eval")
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise InvalidRequest(
                "expected arithmetic, comparisons, if/else, min, max and abs over numbers and names; found "
                f"{self.text[:80]!r}: {error}"
            ) from error

    def require_names(self, known: Collection[str]) -> None:
        if unknown := sorted(self.names.difference(known)):
            raise InvalidRequest(
                f"expected names among {', '.join(sorted(known))}; found {unknown[0]} in {self.text!r}"
            )

    def __call__(self, values: Mapping[str, float]) -> float:
        """Return its value; raises ValueError for one that is no finite number, or a name without a value."""
        try:
            value = float(eval(self._code, dict(_CALLS), {name: float(known) for name, known in values.items()}))
        except (ArithmeticError, TypeError, NameError, RecursionError) as error:
            raise ValueError(f"{self.text!r} has no value: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise ValueError(f"{self.text!r} is {value}, and no finite number")
        return value


_folders: set[Path] = set()
"""Of the files that were loaded."""
HOW_TO_ADD_A_PACKAGE = "name it in a requirements file (`ajet client run --requirements FILE`)"


def load(place: str, default: str, *, takes: str, add_package: str = HOW_TO_ADD_A_PACKAGE) -> Callable[..., Any]:
    """Return the function at `FILE.py[:NAME]`, called `default` if no name is given. `takes` names the positional
    arguments it is called with, as "episode"; `add_package` says how its user has a package that is missing."""
    file, colon, named = place.partition(":")
    path, name = Path(file), named or default
    if path.suffix != ".py" or not path.is_file():
        what = "a folder" if path.is_dir() else "no such file" if path.suffix == ".py" else "another file"
        raise InvalidRequest(f"expected a Python file as FILE.py or FILE.py:NAME, found {place!r}: {what}")
    if colon and not named.isidentifier():
        raise InvalidRequest(f"expected the name of a function after the colon, found {place!r}")
    path = path.absolute()
    module = import_file(path, add_package)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        own = [
            known
            for known, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not known.startswith("_")
        ]
        found = ", ".join(own[:10]) or "none"
        raise InvalidRequest(
            f"expected a function `{name}` in {path}; found {found}; write one, or name it: {path}:NAME"
        )
    with suppress(ValueError):  # of a function written in C: the first call shows
        signature = inspect.signature(function)
        try:
            signature.bind(*takes.split(","))
        except TypeError:
            raise InvalidRequest(
                f"expected {name}({takes}) in {path}; found {name}{signature}; change its arguments"
            ) from None
    return function


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call foreign code, async or plain (in a thread of its own), and return what it gives."""
    try:
        result = function(*arguments) if is_async(function) else await run_in_thread(function, *arguments)
        return await result if inspect.isawaitable(result) else result
    except SystemExit as error:  # it ends its play, not the process
        raise RuntimeError(f"it raised SystemExit({error})") from error


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def import_file(path: Path, add_package: str = HOW_TO_ADD_A_PACKAGE) -> ModuleType:
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"file_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _folders.add(path.parent)
    sys.modules[name] = module  # dataclasses and pickle look there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InvalidRequest(explain_import_error(path, error, add_package)) from error
    return module


def explain_import_error(path: Path, error: BaseException, add_package: str = HOW_TO_ADD_A_PACKAGE) -> str:
    if isinstance(error, SyntaxError):
        where = f"{Path(error.filename or path).name}, line {error.lineno}"
        return f"cannot read {path}: {where}: {error.msg}: {(error.text or '').strip()!r}; mend the line"
    said, place = f"{type(error).__name__}: {error}", describe_place(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        return f"cannot import {path}: it needs the package {missing!r}, which is not there{place}; {add_package}"
    return f"cannot import {path}: {said}{place}; mend it so that importing the file does nothing but define"


def describe_place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _folders.isdisjoint(Path(frame.filename).parents)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


SUFFIXES: Final = frozenset({".py", ".md", ".jinja", ".j2", ".toml", ".yaml", ".yml"})
MOST_FILES: Final = 500


def code_files(folder: Path) -> list[Path]:
    """Return the files that count, in order: those below the folder too, unless there are more than MOST_FILES."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        found += filter(_is_code_file, (Path(place, name) for name in names))
        if len(found) > MOST_FILES:
            return sorted(filter(_is_code_file, folder.iterdir()))[:MOST_FILES]
    return sorted(found)


def code_hash(folder: Path) -> str:
    """Return the sha256, in hex, of the paths within the folder and the contents of the files that count."""
    digest = hashlib.sha256()
    for path in code_files(folder):
        with suppress(OSError):  # it went away while it was being saved
            content = path.read_bytes()
            name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
            digest.update(b"%d:%s%d:%s" % (len(name), name, len(content), content))
    return digest.hexdigest()


def _is_code_file(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file() and not path.is_symlink()


SLOTS: Final = {
    "reward": "task, messages, outcome", "advantage": "rewards, groups", "task_weights": "history",
    "prompt": "messages", "agent": "episode, game",
}  # fmt: skip
"""The places in a training client for code, by the name of its function: what that takes."""
_REMEMBERED: Final = 64
"""Rewards of each task that weights are computed from."""
_LARGEST: Final = 1e9
"""As rewards on the wire: what is larger is no number that a sum in fp32 can hold."""
_LOOK_S: Final = 0.1
"""Seconds between two looks for a batch that waits for its advantages."""
MOST_S = 10.0
"""Seconds that one call may take; a play as a whole may take far longer, as a policy does."""


class RewardFailed(Exception):
    """A reward function raised, took too long, or returned what cannot be trained on."""


class RewardNotFinite(RewardFailed, UnusableReward):
    """A reward function returned what is no finite number."""


async def call_slot(slot: str, function: Callable[..., Any], *shown: Any, most_s: float = MOST_S) -> Any:
    """Return what code gives for copies of what it is shown; raise RewardFailed where it raises or takes too long."""
    try:
        async with asyncio.timeout(most_s) as limit:
            return await call(function, *copy.deepcopy(shown))
    except Exception as error:
        if limit.expired():
            raise RewardFailed(f"the {slot} function did not return within {most_s:g} s") from error
        said = f"{type(error).__name__}: {error}{describe_place(error)}"
        raise RewardFailed(f"the {slot} function raised {said}") from error


PLAY_NUMBERS: Final = ("reward", "success", "turns", "characters")


def play_numbers(messages: Sequence[Message], outcome: Mapping[str, Any]) -> dict[str, float]:
    """Return what an expression for a reward may name: a play's facts and outcome, and how long its answers were."""
    answers = [message for message in messages if message["role"] == "assistant"]
    characters = sum(len(str(answer.get("content") or "")) for answer in answers)
    own = {"reward": outcome["reward"], "success": float(outcome["success"])}
    return {"turns": float(len(answers)), "characters": float(characters), **outcome["facts"], **own}


class _SlotCode:
    """The code of a slot that takes and gives numbers: a function from a file, or an expression."""

    slot: ClassVar[str]

    def __init__(self, function: Callable[..., Any], most_s: float = MOST_S) -> None:
        self._call = partial(call_slot, self.slot, function, most_s=most_s)

    @classmethod
    def load(cls, place: str) -> Self:
        if place.startswith("="):
            return cls(cls.read(Expression(place)))
        return cls(load(place, cls.slot, takes=SLOTS[cls.slot]))

    @classmethod
    def read(cls, expression: Expression) -> Callable[..., Any]:
        raise NotImplementedError


class Reward(_SlotCode):
    """A reward function, or an expression over `play_numbers`."""

    slot = "reward"

    @classmethod
    def read(cls, expression: Expression) -> Callable[..., Any]:
        return lambda task, messages, outcome: expression(play_numbers(messages, outcome))

    async def __call__(self, task: Task, messages: list[Message], outcome: Outcome) -> Outcome:
        """Return what the play is worth by the function, and whether it was solved by the game."""
        judged = {"reward": outcome.reward, "success": outcome.success, "facts": dict(outcome.facts)}
        worth = await self._call({"id": task.id, "data": dict(task.data)}, messages, judged)
        if (number := finite(worth)) is None:
            raise RewardNotFinite(f"expected the reward function to return a finite number, found {worth!r:.80}")
        return Outcome(reward=number, success=outcome.success)


class Advantage(_SlotCode):
    """An advantage function, called with the rewards of a batch's episodes and the numbers of their groups, or an
    expression over a reward and its group's numbers (std is the sample's)."""

    slot = "advantage"
    NAMES: Final = ("reward", "mean", "std", "n", "min", "max")

    @classmethod
    def read(cls, expression: Expression) -> Callable[..., Any]:
        expression.require_names(cls.NAMES)

        def evaluate(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
            members: defaultdict[int, list[float]] = defaultdict(list)
            for reward, group in zip(rewards, groups, strict=True):
                members[group].append(reward)
            known = {
                group: (fmean(own), stdev(own) if len(own) > 1 else 0.0, len(own), min(own), max(own))
                for group, own in members.items()
            }
            values = ((reward, *known[group]) for reward, group in zip(rewards, groups, strict=True))
            return [expression(dict(zip(cls.NAMES, each, strict=True))) for each in values]

        return evaluate

    async def __call__(self, rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
        return finite_numbers(self.slot, await self._call(list(rewards), list(groups)), len(rewards))

    async def serve(self, client: AsyncSwarmClient) -> None:
        while True:
            with suppress(Unreachable, EngineUnavailable):  # whoever plays gives a server up that stays away
                if (batch := await client.advantages()).rewards:
                    numbers = await self(batch.rewards, batch.groups)
                    await client.advantages(GivenAdvantages(batch=batch.batch, advantages=tuple(numbers)))
            await asyncio.sleep(_LOOK_S)


class TaskWeights:
    """Chooses training tasks by weights that a function gives from what was seen of each since this process began. Each
    is played as often as its weights make due, to within one or two plays: equal weights make passes over all tasks.
    Its `history` has {"id", "data", "rewards"} of each task, the latest rewards last; it returns as many numbers."""

    def __init__(self, place: str, tasks: Sequence[Task], seed: int) -> None:
        self._function = load(place, "task_weights", takes=SLOTS["task_weights"])
        self._tasks, self._rng, self._due = tasks, random.Random(seed), [0.0] * len(tasks)
        self._places = [self._rng.random() for _ in tasks]  # of those that are due alike

    async def __call__(self, results: Sequence[EpisodeResult]) -> Task:
        seen: dict[str, list[float]] = {task.id: [] for task in self._tasks}
        for result in results:
            seen[result.task_id].append(result.reward)
        weights = await self.weigh(seen)
        total = sum(weights)
        self._due = [due + weight / total for due, weight in zip(self._due, weights, strict=True)]
        allowed = (number for number, weight in enumerate(weights) if weight)
        chosen = max(allowed, key=lambda number: self._due[number] + self._places[number])
        self._due[chosen] -= 1
        self._places[chosen] = self._rng.random()
        return self._tasks[chosen]

    async def weigh(self, seen: Mapping[str, Sequence[float]]) -> list[float]:
        history = [{"id": task.id, "data": task.data, "rewards": seen[task.id][-_REMEMBERED:]} for task in self._tasks]
        given = await call_slot("task_weights", self._function, history)
        weights = finite_numbers("task_weights", given, len(history))
        if min(weights) < 0 or not any(weights):
            raise RewardFailed("expected the task_weights function to return weights of 0 and more, one above 0")
        return weights


def finite_numbers(slot: str, given: Any, count: int) -> list[float]:
    numbers = [finite(value) for value in given] if isinstance(given, list | tuple) else []
    wrong = [at for at, number in enumerate(numbers) if number is None or abs(number) > _LARGEST]
    if len(numbers) != count or wrong:
        found = f"{given[wrong[0]]!r:.80} as number {wrong[0] + 1} of {len(numbers)}" if wrong else f"{given!r:.80}"
        raise RewardFailed(f"expected the {slot} function to return {count} finite numbers, found {found}")
    return [number for number in numbers if number is not None]


def finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def load_agent(place: str) -> Agent:
    """Load the agent at `FILE.py[:NAME]`, called `agent` if no name is given; raises InvalidRequest."""
    function = load(place, "agent", takes="episode")
    return function if is_async(function) else plain_agent(function)


def report_failures(agent: Agent) -> Agent:
    """Return the agent with its first failures written to stderr; those of the server are reported by the rollout."""
    left = 5
    limited = False

    async def play(episode: Episode[Any]) -> Result:
        nonlocal left, limited
        try:
            result = await agent(episode)
            reward, _ = parse_reward(result)
            if not math.isfinite(reward):
                raise UnusableReward(f"expected the agent to return a finite reward, found {reward!r}")
            return result
        except SwarmError:
            raise
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}"
            if find_retry_after_s(error) is not None:
                if not limited:
                    said = " ".join(what.split())[:200]
                    sys.stderr.write(f"rate-limited: {said}; such plays are played again after a pause, and counted\n")
                limited = True
                raise
            if left > 0:
                left -= 1
                what = str(error) if isinstance(error, RewardFailed) else what + describe_place(error)
                said = " ".join(what.split())
                last = "" if left else "; further ones are counted only"
                sys.stderr.write(f"a play of {episode.task.id} failed: {said}{last}\n")
            if isinstance(error, SystemExit):  # it ends its play, not the process
                raise RuntimeError(f"it raised SystemExit({error})") from error
            raise

    return play
