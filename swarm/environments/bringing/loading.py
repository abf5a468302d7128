"""Loads the code of a brought environment: from a file, a module, a reward function, or by one of our adapters.

Whatever is wrong with it is an InvalidRequest that says where and what to do. Nothing is isolated here: what is loaded
can do whatever its process can.
"""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from swarm.environments.adapters import adapted
from swarm.environments.base import Environment, Game, Message, Split, Task
from swarm.environments.bringing.judged_tasks import ADD_PACKAGE, JudgedTasks
from swarm.environments.brought import CODE, BroughtEnvironment, CodeSource
from swarm.environments.playing.code import imported, why_not
from swarm.environments.registry import get_environment
from swarm.errors import InvalidRequest

_INSTALL = "install it beside ajet"


class PlayableEnvironment(Environment):
    """A brought environment with its code: tasks and words as they were written down, plays by the code."""

    def __init__(self, brought: BroughtEnvironment, code: Environment) -> None:
        self._brought, self._code = brought, code
        for name in ("name", "title", "synonyms", "measures", "reward_range", "solved_at", "facts"):
            setattr(self, name, getattr(brought, name))

    @property
    def code(self) -> Environment:
        """Its code: it makes demonstrations of a given task, where what was written down is of whatever task."""
        return self._code

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split that were written down."""
        return self._brought.tasks(split)

    def game(self, task: Task) -> Game:
        """Return a fresh play by the code."""
        return self._code.game(task)

    async def agent(self, episode: Any) -> Any:
        """Play by the code's own agent."""
        return await self._code.agent(episode)

    def oracle(self, task: Task, messages: Sequence[Message]) -> Message | str:
        """Return the code's best answer."""
        return self._code.oracle(task, messages)

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return one of the demonstrations that were written down."""
        return self._brought.imitate(task, rng)

    def has(self, part: str) -> bool:
        """Return whether the code has a part of its own."""
        return self._code.has(part)


def playable(name: str) -> Environment:
    """Return an environment that can be played: a built-in one, or a brought one with its code loaded."""
    environment = get_environment(name)
    if not isinstance(environment, BroughtEnvironment):
        return environment
    environment.code()  # is still what was brought
    return PlayableEnvironment(environment, load_source(environment.manifest.source, environment.folder / CODE))


def load_source(source: CodeSource, code: Path) -> Environment:
    """Return the environment that a source names within the folder of its code; raises InvalidRequest."""
    if source.kind == "adapter":
        return adapted(source.place)
    if source.kind == "reward":
        return JudgedTasks(code / source.place if source.place else None, source.item)
    module = imported(code / source.place, ADD_PACKAGE) if source.kind == "folder" else _module(source.place, code)
    return _environment(module, source, code)


def _module(name: str, code: Path) -> ModuleType:
    sys.path.insert(0, str(code))
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever foreign code raises when it is imported
        raise InvalidRequest(why_not(Path(name), error, _INSTALL)) from error
    if not Path(module.__file__ or "").is_relative_to(code):
        raise InvalidRequest(
            f"expected the module {name} in the files of the environment; Python has another of that name "
            f"({module.__file__ or 'built in'}); give yours another name"
        )
    return module


def _environment(module: ModuleType, source: CodeSource, code: Path) -> Environment:
    where = source.place
    if source.item:
        found = getattr(module, source.item, None)
    else:
        own = [
            value for value in vars(module).values() if _is_environment(value) and value.__module__ == module.__name__
        ]
        if len(own) != 1:
            names = ", ".join(value.__name__ for value in own) or "none"
            raise InvalidRequest(
                f"expected one subclass of Environment in {where}; found {names}; write one, or name it: FOLDER:NAME"
            )
        found = own[0]
    try:
        environment = (
            found() if inspect.isclass(found) or (callable(found) and not isinstance(found, Environment)) else found
        )
    except Exception as error:
        raise InvalidRequest(why_not(code / source.place, error, ADD_PACKAGE)) from error
    if not isinstance(environment, Environment):
        raise InvalidRequest(
            f"expected {source.item} in {where} to be an Environment; found {_found(environment)}; name its class"
        )
    return environment


def _found(value: Any) -> str:
    return "nothing of that name" if value is None else type(value).__name__


def _is_environment(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Environment) and value is not Environment
