"""A user's agents and reward functions, loaded from files, and the hash of their code.

    load("agent.py:play", "agent")                 the function `play`; without a name the function `agent`
    async def agent(episode): ...                  or plain, in a thread of its own; returns what the play was worth
    reward(task, messages, outcome) -> float       once after each training play, with copies

Nothing is isolated: loaded code can do whatever its process can. A file is imported as a script would be, its folder
first on the path; what is wrong is an InvalidRequest that says where. A reward that is no finite number, or takes
longer than `MOST_S`, is a failed play; whether the task was solved remains the game's decision. First failures go to
stderr, all are counted.

The hash covers Python files and prompts (`.py`, `.md`, `.jinja`, `.j2`, `.toml`, `.yaml`, `.yml`) in and below the
folder, not dot files, `__pycache__`, links or data, which agents write while they play; beyond MOST_FILES only the
folder's own.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import importlib.util
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from swarm.client import Agent, Episode, Result, plain_agent
from swarm.client.episode import UnusableReward, parse_reward
from swarm.client.rollout import find_retry_after_s
from swarm.client.threads import run_in_thread
from swarm.environments.base import Message, Outcome, Task
from swarm.errors import InvalidRequest, SwarmError

_folders: set[Path] = set()
"""Of the files that were loaded."""
HOW_TO_ADD_A_PACKAGE = "name it in a requirements file (`ajet client run --requirements FILE`)"


def load(place: str, default: str, *, takes: str, add_package: str = HOW_TO_ADD_A_PACKAGE) -> Callable[..., Any]:
    """Return the function at `FILE.py[:NAME]`, called `default` if no name is given.

    `takes` names the positional arguments it is called with, for instance "episode"; `add_package` says how its user
    has a package that is missing.
    """
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


MOST_S = 10.0
"""Seconds that one call may take; a play as a whole may take far longer, as a policy does."""


class RewardFailed(Exception):
    """A reward function raised, took too long, or returned what cannot be trained on."""


class RewardNotFinite(RewardFailed, UnusableReward):
    """A reward function returned what is no finite number."""


class Reward:
    """A reward function from a file."""

    def __init__(self, function: Callable[..., Any], most_s: float = MOST_S) -> None:
        self._function = function
        self._most_s = most_s

    @classmethod
    def load(cls, place: str) -> Reward:
        return cls(load(place, "reward", takes="task, messages, outcome"))

    async def __call__(self, task: Task, messages: list[Message], outcome: Outcome) -> Outcome:
        """Return what the play is worth by the function, and whether it was solved by the game."""
        shown = (
            {"id": task.id, "data": dict(task.data)},
            messages,
            {"reward": outcome.reward, "success": outcome.success},
        )
        try:
            async with asyncio.timeout(self._most_s) as limit:
                worth = await call(self._function, *copy.deepcopy(shown))
        except Exception as error:
            if limit.expired():
                raise RewardFailed(f"the reward function did not return within {self._most_s:g} s") from error
            said = f"{type(error).__name__}: {error}{describe_place(error)}"
            raise RewardFailed(f"the reward function raised {said}") from error
        if (number := finite(worth)) is None:
            raise RewardNotFinite(f"expected the reward function to return a finite number, found {worth!r:.80}")
        return Outcome(reward=number, success=outcome.success)


def finite(value: Any) -> float | None:
    """Return a real number as a float; None for what is none, or is not finite."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


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
                said = " ".join(
                    (str(error) if isinstance(error, RewardFailed) else what + describe_place(error)).split()
                )
                last = "" if left else "; further ones are counted only"
                sys.stderr.write(f"a play of {episode.task.id} failed: {said}{last}\n")
            if isinstance(error, SystemExit):  # it ends its play, not the process
                raise RuntimeError(f"it raised SystemExit({error})") from error
            raise

    return play
