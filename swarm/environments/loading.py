"""Loads a user's environment: a file, a module, an adapter, or tasks with a reward function.

    {"id": "q1", "prompt": "What is 2+3? Reply with the number.", "answer": "5"}      a line of tasks.jsonl

    def reward(task, messages):                                                        rewards.py
        return float(messages[-1]["content"].strip() == task["data"]["answer"])

A line has `prompt` or `messages`, and may have `id`, `kind` and `split`; all else is the task's data. The function
returns a reward from 0 to 1, or (reward, solved). Nothing is isolated: loaded code can do whatever its process can.
"""

import copy
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, Self

from swarm.environments.adapters import adapt
from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task
from swarm.environments.custom import CODE, CodeSource, CustomEnvironment, Manifest
from swarm.environments.judges import Judge
from swarm.environments.registry import get_environment
from swarm.environments.user_code import call, explain_import_error, import_file, load
from swarm.errors import InvalidRequest

PROMPT: Final = "messages"
ADD_PACKAGE: Final = "name it in a requirements.txt beside that file"
"""How the user of an environment's code has a package that is missing."""
_OWN = ("id", "kind", "split")
_EXPECTED = 'a line like {"prompt": "What is 2+3?", "answer": "5"}'


class RewardGame(Game):
    """One question and one answer, judged by the user's function."""

    def __init__(self, task: Task, reward: Callable[..., Any]) -> None:
        self._task, self._reward = task, reward
        self._messages: list[Message] = list(copy.deepcopy(task.data[PROMPT]))

    def opening(self) -> list[Message]:
        return list(self._messages)

    def answer(self, message: Message) -> list[Message]:
        self._messages.append(message)
        return []

    async def outcome(self) -> Outcome:
        data = {name: value for name, value in self._task.data.items() if name != PROMPT}
        found = await call(self._reward, {"id": self._task.id, "data": copy.deepcopy(data)}, list(self._messages))
        if isinstance(found, Outcome):
            return found
        if isinstance(found, tuple) and len(found) == 2:
            solved: Any = found[1] if isinstance(found[1], str) else bool(found[1])  # a text is refused with the rest
            return Outcome(found[0], solved)
        return Outcome(float(found) if isinstance(found, bool) else found)


class RewardTasks(Environment):
    """Tasks of a file, judged by a function, or by one of `swarm.environments.judges`."""

    solved_at: ClassVar[float] = 1.0
    measures: ClassVar[str] = "its reward function gives 1"

    def __init__(self, reward: Path, function: str = "") -> None:
        place = f"{reward}:{function}" if function else str(reward)
        own, takes = reward.suffix != ".py", {"takes": "task, messages", "add_package": ADD_PACKAGE}
        self._reward: Callable[..., Any] = Judge(reward.name, function) if own else load(place, "reward", **takes)

    def game(self, task: Task) -> Game:
        return RewardGame(task, self._reward)


def read_lines(path: Path) -> tuple[tuple[Task, Split | None], ...]:
    """Return the tasks of a file of JSON lines, each with the split that it names; raises InvalidRequest."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidRequest(f"expected a file of tasks, could not read {path}: {error.strerror}") from error
    found, places = list[tuple[Task, Split | None]](), dict[str, list[int]]()
    for place, line in enumerate(lines, start=1):
        if line.strip():
            found.append(_read_line(line, f"{path.name}, line {place}"))
            places.setdefault(found[-1][0].id, []).append(place)
    if not found:
        raise InvalidRequest(f"expected {_EXPECTED} for each task in {path}; found an empty file")
    name = max(places, key=lambda name: len(places[name]))
    if (times := len(places[name])) > 1:
        one, other, *more = places[name]
        raise InvalidRequest(
            f"expected each task once in {path}; found the id {name!r:.80} {times} times, in lines {one} and {other}"
            f"{' and others' if more else ''}"
        )
    return tuple(found)


def _read_line(line: bytes, where: str) -> tuple[Task, Split | None]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"expected {_EXPECTED} in {where}; found no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected {_EXPECTED} in {where}; found {type(value).__name__}")
    return to_task(value, line, where)


def to_task(value: Mapping[str, Any], line: bytes, where: str) -> tuple[Task, Split | None]:
    """Return the task that a line or a row says, with its split; raise InvalidRequest where it says none."""
    split = value.get("split")
    if split not in (None, "train", "search", "hidden"):
        raise InvalidRequest(f"expected the split train, search or hidden in {where}; found {split!r}")
    prompt, messages = value.get("prompt"), value.get(PROMPT)
    if isinstance(prompt, str) and messages is None:
        messages = [{"role": "user", "content": prompt}]
    elif (
        prompt is not None
        or not isinstance(messages, list)
        or not messages
        or not all(isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one for one in messages)
    ):
        raise InvalidRequest(f"expected a text as `prompt`, or a list of chat messages as `messages`, in {where}")
    if messages[-1]["role"] == "assistant":
        raise InvalidRequest(
            f"expected consent to read what was recorded in {where}; found none; say ?consent=FIELD, which is true in "
            "the rows that may be read, or consent=all",
            param="consent",
        )
    data = {name: item for name, item in value.items() if name not in (*_OWN, "prompt")} | {PROMPT: messages}
    key = value.get("id", "task-" + hashlib.sha256(line).hexdigest()[:12])
    return Task(str(key), data, str(value.get("kind") or "")), split


def names_splits(lines: Sequence[tuple[Task, Split | None]]) -> bool:
    """Return whether all lines name their split; raise InvalidRequest where only some do."""
    named = sum(split is not None for _, split in lines)
    if named not in (0, len(lines)):
        raise InvalidRequest(f"expected a split in each line, or in none; found it in {named} of {len(lines)}")
    return named > 0


class PlayableEnvironment(CustomEnvironment):
    """A brought environment with its code: tasks and words as they were written down, plays by the code."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.code()  # is still what was brought
        self.played = load_source(manifest.source, folder / CODE)
        """Makes demonstrations of a given task, where what was written down is of whatever task."""

    def game(self, task: Task) -> Game:
        return self.played.game(task)

    def with_knobs(self, values: Mapping[str, object]) -> Self:
        other = super().with_knobs(values)
        other.played = self.played.with_knobs(values)
        return other

    async def agent(self, episode: Any) -> Any:
        return await self.played.agent(episode)

    def oracle(self, task: Task, messages: Sequence[Message]) -> Message | str:
        return self.played.oracle(task, messages)

    def has(self, part: str) -> bool:
        return self.played.has(part)


def load_playable(name: str) -> Environment:
    environment = get_environment(name)
    if not isinstance(environment, CustomEnvironment):
        return environment
    return PlayableEnvironment(environment.folder, environment.manifest)


def load_source(source: CodeSource, code: Path) -> Environment:
    """Return the environment that a source names within the folder of its code; raises InvalidRequest."""
    if source.kind == "adapter":
        return adapt(source.place)
    if source.kind in ("reward", "judge"):
        return RewardTasks(code / source.place, source.item)
    where = source.place
    module = import_file(code / where, ADD_PACKAGE) if source.kind == "folder" else _import_module(where, code)
    if source.item:
        found: Any = getattr(module, source.item, None)
    else:
        classes = [kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, Environment)]
        own = [kind for kind in classes if kind.__module__ == module.__name__]
        if len(own) != 1:
            names = ", ".join(value.__name__ for value in own) or "none"
            raise InvalidRequest(
                f"expected one subclass of Environment in {where}; found {names}; write one, or name it: FOLDER:NAME"
            )
        found = own[0]
    try:
        makes = inspect.isclass(found) or (callable(found) and not isinstance(found, Environment))
        environment = found() if makes else found
    except Exception as error:
        raise InvalidRequest(explain_import_error(code / where, error, ADD_PACKAGE)) from error
    if not isinstance(environment, Environment):
        raise InvalidRequest(
            f"expected {source.item} in {where} to be an Environment; "
            f"found {'nothing of that name' if environment is None else type(environment).__name__}; name its class"
        )
    return environment


def _import_module(name: str, code: Path) -> ModuleType:
    sys.path.insert(0, str(code))
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever foreign code raises when it is imported
        raise InvalidRequest(explain_import_error(Path(name), error, "install it beside ajet")) from error
    if not Path(module.__file__ or "").is_relative_to(code):
        raise InvalidRequest(
            f"expected the module {name} in the files of the environment; Python has another of that name "
            f"({module.__file__ or 'built in'}); give yours another name"
        )
    return module
