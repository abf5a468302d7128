"""A brought environment: a folder with all it consists of, named by the hash of it.

    manifest.json          names, ranges, where its code came from, how many tasks, the hashes of the parts
    tasks/SPLIT.json       its tasks by split, drawn once: a JSON list of {"id", "data"}, maybe with "kind"
    demonstrations.json    plays to imitate, if it has any
    code/                  its code as it was then; requirements.txt: the packages it needs

The folder is whole or absent, and never changes; foreign code is run by whoever plays alone. Tasks that say the same
are near-duplicates: of prose the words and numbers count, not order or marks; of a drawing each row as it stands.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from swarm.environments.base import Demonstration, Environment, Knob, Message, Split, Task
from swarm.errors import InvalidRequest

_WORDS = re.compile(r"\w+")
_MARKS: Final = 4
"""Characters for each letter or digit, from which on a text is a drawing as a whole."""
_LEAST: Final = 3
"""Rows of a drawing within a text, and cells of each."""
_REPEATED: Final = 2
"""Cells for each mark that such a drawing has at least: lines of an exercise repeat less."""


def problem(task: Task) -> str:
    try:
        return json.dumps(task.data or task.id, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"expected JSON as the data of the task {task.id!r:.80}; found what is none: {error}"
        ) from error


def words(task: Task) -> str:
    """Return what a task says, whatever the order and the marks between: its words, numbers and rows of drawings."""
    return " ".join(sorted(_words_in(json.loads(problem(task)))))


def _words_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _words_in(name)
            yield from _words_in(item)
    elif isinstance(value, list):
        if rows := _board(value):
            yield from rows
        else:
            for item in value:
                yield from _words_in(item)
    else:
        yield from _words_of((value if isinstance(value, str) else json.dumps(value)).casefold())


def _words_of(text: str) -> Iterator[str]:
    """Yield the words of a text and the rows of drawings in it; one that is mostly marks is one word."""
    found = _WORDS.findall(text)
    drawn = "".join(text.split())
    if len(drawn) > _MARKS * sum(map(len, found)):
        yield drawn
        return
    block: list[str] = []
    for line in [*text.splitlines(), ""]:  # an empty one ends the last block
        if _cells(line):
            block.append(line.rstrip())
            continue
        yield from block if _is_drawing([*map(_cells, block)]) else _WORDS.findall("\n".join(block))
        yield from _WORDS.findall(line)
        block = []


def _board(rows: Sequence[Any]) -> list[str]:
    """Return the rows of a list that is a drawing, of texts or of lists of cells; nothing for any other."""
    if all(isinstance(row, str) for row in rows):
        return [row.casefold() for row in rows] if _is_drawing([_cells(row.casefold()) for row in rows]) else []
    if all(isinstance(row, list) and not any(isinstance(cell, dict | list) for cell in row) for row in rows):
        return [*map(json.dumps, rows)] if _is_drawing(rows) else []
    return []


def _is_drawing(rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether rows of cells are a drawing: some of them, of several cells each, with few different marks."""
    cells = [cell for row in rows for cell in row]
    enough = len(rows) >= _LEAST and all(len(row) >= _LEAST for row in rows)
    return enough and len(cells) >= _REPEATED * len(set(cells))


def _cells(line: str) -> str:
    """Return the cells of a line that may be a row: characters that stand apart, or one run that is half marks."""
    parts = line.split()
    if all(len(part) == 1 for part in parts):
        return "".join(parts)
    run = parts[0] if len(parts) == 1 else ""
    return run if len(run) >= 2 * sum(map(len, _WORDS.findall(run))) else ""


LONGEST_ID = 512
"""Characters, as `swarm.wire.TaskId` has it."""
_EXPECTED = 'a JSON list of tasks like {"id": "sum-1", "data": {"left": 1, "right": 2}}'


def to_json(tasks: Iterable[Task]) -> str:
    return json.dumps(
        [{"id": task.id, "data": dict(task.data)} | ({"kind": task.kind} if task.kind else {}) for task in tasks]
    )


def from_json(text: bytes | str) -> tuple[Task, ...]:
    return tuple(Task(value["id"], value["data"], value.get("kind", "")) for value in json.loads(text))


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Return the tasks in a file; raise InvalidRequest, which names the first that is none."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"expected a file of tasks, could not read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"expected {_EXPECTED} in {path}; found no JSON: {error}") from error
    if not isinstance(values, list) or not values:
        raise InvalidRequest(f"expected {_EXPECTED} in {path}; found {json.dumps(values):.80}")
    tasks: dict[str, Task] = {}
    for place, value in enumerate(values, start=1):
        known = value if isinstance(value, dict) and value.keys() <= {"id", "data", "kind"} else {}
        name, data, kind = known.get("id", ""), known.get("data", {}), known.get("kind", "")
        sound = isinstance(name, str) and name != "" and isinstance(kind, str) and isinstance(data, dict)
        if not sound or len(name) > LONGEST_ID or not is_whole(name):
            wanted = f"ids of at most {LONGEST_ID} whole characters" if sound else _EXPECTED
            raise InvalidRequest(f"expected {wanted} in {path}; task {place} is {json.dumps(value):.80}")
        if name in tasks:
            times = sum(isinstance(each, dict) and each.get("id") == name for each in values)
            raise InvalidRequest(f"expected each task once in {path}; found the id {name!r} {times} times")
        tasks[name] = Task(name, data, kind)
    return tuple(tasks.values())


def check_tasks(tasks: tuple[Task, ...], environment: Environment) -> tuple[Task, ...]:
    """Return the tasks if an environment can pose each; raises InvalidRequest, which names the first that it cannot."""
    for task in tasks:
        try:
            environment.game(task).opening()
        except Exception as error:  # whatever foreign data does to a game
            said = f"{type(error).__name__}: {error}"
            raise InvalidRequest(
                f"expected tasks of the environment {environment.name}; it cannot pose {task.id!r} ({said})"
            ) from error
    return tasks


def is_whole(text: str) -> bool:
    """Say whether a text has no half of a character, which JSON may escape and no server can be sent."""
    return text.encode(errors="ignore").decode() == text


MANIFEST, DEMONSTRATIONS, REQUIREMENTS, CODE = "manifest.json", "demonstrations.json", "requirements.txt", "code"
MARK = "@"
DIGITS = 12
"""Of the hash, in a name."""
_FULL_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,63}}{MARK}[0-9a-f]{{{DIGITS}}}")
MOST_GIVEN_BYTES: Final = 60 << 20
"""Of code and tasks of one split together, which is what one that plays is given: a container's input holds as much."""
Kind = Literal["folder", "module", "reward", "judge", "adapter"]


class CodeSource(BaseModel):
    """Where its code is, within `code/`: an object of a file or module, a reward function, or one of our own."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind
    place: str
    """`environment.py`, `package.module`, a judge's name, or an adapter's address."""
    item: str = ""
    """The name of the class, instance or function in it, or a judge's options; empty where there is none to say."""


class Manifest(BaseModel):
    """What a brought environment is, as data."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: Literal[1] = 1
    name: str
    """As its author named it, without the hash."""
    title: str
    synonyms: tuple[str, ...] = ()
    measures: str
    reward_range: tuple[float, float]
    solved_at: float | None = None
    facts: Mapping[str, tuple[float, float]] = Field(default_factory=dict)
    """What a study may judge it by besides: each from its worst to its best value."""
    knobs: Mapping[str, Knob] = Field(default_factory=dict)
    """What a job may set of its games."""
    reference: str
    """What the user typed to bring it."""
    source: CodeSource
    splits: Mapping[Split, int]
    """How many tasks each split has."""
    drawn_by: Literal["splits", "records", "seeds"]
    """How its tasks were given."""
    hidden_apart: bool
    """Whether the code neither makes the hidden tasks by itself nor holds them: a client that has the code has none."""
    left: str = ""
    """What of a data set was left out, in words."""
    demonstrations: int = 0
    own_agent: bool = False
    oracle: bool = False
    hashes: Mapping[str, str] = Field(default_factory=dict)
    """sha256 of its parts: `code`, `data`, `requirements` (empty text for a part that it has not)."""

    def digest(self) -> str:
        unsaid = [name for name in ("facts", "knobs") if not getattr(self, name)]  # of which older ones have no word
        known = self.model_dump(mode="json", exclude={"reference", "left", *unsaid})
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    @property
    def full_name(self) -> str:
        return f"{self.name}{MARK}{self.digest()[:DIGITS]}"


class CustomEnvironment(Environment):
    """The words and tasks of a brought environment; it cannot be played, as its code stays where it is."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        for name in ("title", "measures", "reward_range", "solved_at", "facts", "knobs"):
            setattr(self, name, getattr(manifest, name))
        self.name = manifest.full_name  # type: ignore[misc]  # of each one its own
        self.synonyms = (*manifest.synonyms, manifest.name)  # type: ignore[misc]
        self._tasks: dict[Split, tuple[Task, ...]] = {}
        self._remedy = _describe_remedy(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the folder of one; raise InvalidRequest where it is not what its name says."""
        remedy = _describe_remedy(folder)
        try:
            manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else f"{MANIFEST} is not as it was written"
            raise InvalidRequest(
                f"expected a brought environment in {folder}; could not read it ({said}); {remedy}"
            ) from error
        if manifest.full_name != folder.name:
            raise InvalidRequest(
                f"expected the environment {folder.name} in its folder; found {manifest.full_name}; {remedy}"
            )
        return cls(folder, manifest)

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return all tasks of a split, as they were written down; raise InvalidRequest for files that were changed."""
        if split not in self._tasks:
            self._check_data()
            self._tasks[split] = from_json((self.folder / "tasks" / f"{split}.json").read_bytes())
        return self._tasks[split]

    def code(self) -> Mapping[str, bytes]:
        """Return the files of its code by path; raise InvalidRequest where they are not what was brought."""
        folder = self.folder / CODE
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        if files_hash(files) != self.manifest.hashes["code"]:
            raise InvalidRequest(
                f"expected the code of {self.name} as it was brought; found another in {folder}; {self._remedy}"
            )
        return files

    def has(self, part: str) -> bool:
        return self.manifest.own_agent if part == "agent" else super().has(part)

    def require_unchanged(self) -> None:
        """Raise InvalidRequest where its tasks or its code are not there as they were brought."""
        self._check_data()
        self.code()

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        return list(self.demonstrate(task, rng).messages)

    def demonstrate(self, task: Task, rng: random.Random) -> Demonstration:
        return rng.choice(self._demonstrations)

    @cached_property
    def _demonstrations(self) -> Sequence[Demonstration]:
        if not self.manifest.demonstrations:
            raise InvalidRequest(
                f"expected demonstrations of {self.name}, which a model imitates before it is trained; it has none; "
                "give the environment `imitate`, or train a model of your own without a warm start: --model DIR"
            )
        return demonstrations_from_json((self.folder / DEMONSTRATIONS).read_bytes())

    def _check_data(self) -> None:
        try:
            changed = data_hash(self.folder) != self.manifest.hashes["data"]
            found = f"found others in {self.folder}"
        except OSError as error:
            changed, found = True, f"could not read them in {self.folder} ({error.strerror})"
        if changed:
            raise InvalidRequest(f"expected the tasks of {self.name} as they were brought; {found}; {self._remedy}")


def _describe_remedy(folder: Path) -> str:
    return f"remove {folder}, and bring it again"  # while its folder is there, to bring it finds that one


def demonstrations_to_json(plays: Sequence[Demonstration]) -> str:
    return json.dumps(
        [{"messages": list(p.messages), "tools": list(p.tools)} if p.tools else list(p.messages) for p in plays]
    )


def demonstrations_from_json(content: bytes) -> tuple[Demonstration, ...]:
    plays = json.loads(content)
    return tuple(Demonstration(**play) if isinstance(play, dict) else Demonstration(play) for play in plays)


def is_custom(name: str) -> bool:
    return _FULL_NAME.fullmatch(name) is not None


def data_hash(folder: Path) -> str:
    files = [folder / "tasks" / f"{split}.json" for split in ("train", "search", "hidden")]
    if (folder / DEMONSTRATIONS).is_file():
        files.append(folder / DEMONSTRATIONS)
    return files_hash({path.name: path.read_bytes() for path in files})


def files_hash(files: Mapping[str, bytes]) -> str:
    """Return the sha256 over files: their paths and the sha256 of each; the empty text for none."""
    if not files:
        return ""
    each = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    return hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()
