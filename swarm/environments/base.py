"""What an environment is: tasks, splits, and games over chat messages with tools.

A game opens, takes the policy's answers, and says what the play was worth: the built-in agent only carries messages.
Splits are disjoint: `train` for clients, `search` for exploration, `hidden` for the evaluator of studies. A hash of a
problem's key decides its split, the same on every machine: whatever must be unseen at evaluation is the key.

    tools = (tool("price", "The price of an item, in cents.", item="string"),)
    for call in calls_of(message):
        answers.append(tool_result(call, str(prices[call.arguments["item"]])))
"""

import copy
import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

from swarm.errors import InvalidRequest
from swarm.job import KNOB

Split = Literal["train", "search", "hidden"]
Message = dict[str, Any]
"""A chat message as OpenAI's chat completions have it."""
Tool = Mapping[str, Any]
"""A tool as OpenAI's chat completions have it; `tool` in `swarm.environments.base` writes one."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `id` is unique in its environment; `data` (JSON) is what a game needs to pose and judge it."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    """Which kind of task it is, where kinds differ in difficulty; empty where there is one kind."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one play was worth."""

    reward: float
    """What is trained on, within the environment's `reward_range`."""
    success: bool | None = None
    """Whether the task was solved; None leaves it to the environment's `solved_at`."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers about the play, to be shown beside the result: `{"guesses": 3}`."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One whole play to imitate, as the policy would see it: its messages, and the tools that it may call."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


KnobValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of games that a job may choose: `Knob(4, (3, 4, 6), "guesses in a play", (1, 12))`."""

    default: KnobValue
    values: tuple[KnobValue, ...]
    """Values worth trying: numbers from low to high; of words (like names) all, the plainest first; False and True."""
    does: str
    """What it changes, in one line."""
    range: tuple[float, float] | None = None
    """Of a number, its least and largest value; None: the first and the last of `values`."""
    synonyms: tuple[str, ...] = ()
    """How people name it in a topic (lower case)."""

    def describe(self) -> str:
        """Return which values it takes, in words."""
        if isinstance(self.default, bool | str):
            return " or ".join(str(value).lower() for value in self.values)
        low, high = map(float, self.range or (self.values[0], self.values[-1]))
        return f"{'a whole number' if isinstance(self.default, int) else 'a number'} from {low:g} to {high:g}"

    def take(self, value: object) -> KnobValue | None:
        """Return a value as games read it (6.0 is 6); None for one that the knob does not take."""
        if isinstance(self.default, bool | str) or isinstance(value, bool) or not isinstance(value, int | float):
            return value if type(value) is type(self.default) and value in self.values else None
        low, high = self.range or (self.values[0], self.values[-1])
        taken = type(self.default)(value) if low <= value <= high else None  # type: ignore[operator]
        return taken if taken == value else None


MAX_TURNS: Final = "max_turns"
PLAYER_TURNS: Final = Knob(
    0, (0, 2, 4, 8),
    "Answers of the policy after which a play is over, worth what it is worth so far; 0: as many as the game takes.",
    (0, 1000),
    ("max turns", "more turns", "fewer turns", "maximum turns", "maximum number of turns", "turn cap", "cap on turns",
     "turn limit", "max steps of the agent", "agent's max steps", "max steps"),
)  # fmt: skip
"""The knob that any environment of games has, as the built-in player sees to it."""


class Game:
    """One play of one task. Its methods may be plain or `async`; one play calls them one after the other."""

    tools: Sequence[Tool] = ()
    """What the policy may call."""

    def opening(self) -> list[Message] | Awaitable[list[Message]]:
        """Return the messages before the policy's first answer."""
        raise NotImplementedError

    def answer(self, message: Message) -> list[Message] | Awaitable[list[Message]]:
        """Take the policy's answer; return the messages that follow it, none when the play is over. A message that
        calls tools is followed by one of role `tool` for each call (`tool_result`)."""
        raise NotImplementedError

    def outcome(self) -> Outcome | Awaitable[Outcome]:
        """Return what the play was worth so far: it is asked once, when the play is over or its context is full."""
        raise NotImplementedError


class Environment(ABC):
    """Tasks and games under one name."""

    name: ClassVar[str]
    """Name in jobs and on the command line: lower-case letters, digits, `-`, `_` and `.`."""
    title: ClassVar[str]
    """What a person reads: a few words."""
    synonyms: ClassVar[tuple[str, ...]] = ()
    """How people name it in a topic (lower case)."""
    measures: ClassVar[str]
    """What success means, in one clause: `the number is found within 5 guesses`."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The least and the largest reward of a play; another one is refused."""
    solved_at: ClassVar[float | None] = None
    """The reward from which on a task is solved, where outcomes do not say it; None: they all do."""
    facts: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Facts of outcomes that a study may be judged by (`--metric fact:NAME`): each from its worst to its best value.
    Every outcome says each of them."""
    sizes: ClassVar[Mapping[Split, int]] = {"train": 1024, "search": 256, "hidden": 512}
    """How many tasks of each split `generate` is asked for."""

    pretrained: ClassVar[Mapping[str, Any]] = {}
    """Fields of a study's job where it says no others and its model is a folder's; a tiny model is offered no
    environment that has some, and plays it where that is named."""
    knobs: ClassVar[Mapping[str, Knob]] = {}
    """What a job may set of its games, by name (up to 24 of a-z, 0-9 and _); tasks are the same at any value."""
    _knob_values: Mapping[str, KnobValue] = {}

    def list_knobs(self) -> Mapping[str, Knob]:
        """Return its knobs, those of the built-in player among them where that plays it."""
        return dict(self.knobs) if self.has("agent") else {MAX_TURNS: PLAYER_TURNS, **self.knobs}

    def knob(self, name: str) -> Any:
        """Return what one of its knobs is set to."""
        return self._knob_values[name] if name in self._knob_values else self.list_knobs()[name].default

    def with_knobs(self, values: Mapping[str, object]) -> Self:
        """Return this environment with knobs set; raise InvalidRequest for one that it has not, or a value of none."""
        known, taken = self.list_knobs(), dict[str, Any]()
        for name, value in values.items():
            if name not in known:
                raise InvalidRequest(
                    f"expected a knob of {self.name} ({', '.join(known) or 'none'}); found {name!r:.60}"
                )
            taken[name] = known[name].take(value)
            if taken[name] is None:
                expected = f"{KNOB}{name}: expected {known[name].describe()} in {self.name}"
                raise InvalidRequest(f"{expected}; found {value!r:.60}", param=name)
        other = copy.copy(self)
        other._knob_values = {**self._knob_values, **taken}
        return other if taken else self

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return all tasks of a split, in a fixed order."""
        raise NotImplementedError

    def records(self) -> Sequence[Task]:
        """Return all tasks as one list, to be split: tasks that say the same, in whatever order, stay together."""
        raise NotImplementedError

    def generate(self, seed: int) -> Task:
        """Return the task of a seed (63 bits): the same seed gives the same task."""
        raise NotImplementedError

    def game(self, task: Task) -> Game:
        """Return a fresh play of a task."""
        raise NotImplementedError

    async def agent(self, episode: Any) -> Outcome:
        """Play an episode (`swarm.client.Episode`) in a way of its own, in place of games."""
        raise NotImplementedError

    def oracle(self, task: Task, messages: Sequence[Message]) -> Message | str:
        """Return the best answer to a conversation so far."""
        raise NotImplementedError

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return one whole play by a mediocre player, for the warm start by imitation, which tiny models need."""
        raise NotImplementedError

    def demonstrate(self, task: Task, rng: random.Random) -> Demonstration:
        """Return one whole play by the player of `imitate`, with the tools of the task's game."""
        tools = self.game(task).tools if self.has("game") else ()
        return Demonstration(self.imitate(task, rng), tuple(tools))

    def has(self, part: str) -> bool:
        """Return whether the environment has a part of its own: `tasks`, `generate`, `agent`, `oracle`, `imitate`."""
        return getattr(type(self), part) is not getattr(Environment, part)


class PlainGame(Game):
    """A game whose methods are plain functions of what was said and return at once, as all built-in ones do. They are
    called where they stand, and answers that were recorded can be played again."""

    @abstractmethod
    def opening(self) -> list[Message]:
        """Return the messages before the policy's first answer."""

    @abstractmethod
    def answer(self, message: Message) -> list[Message]:
        """Take the policy's answer; return the messages that follow it, none when the play is over."""

    @abstractmethod
    def outcome(self) -> Outcome:
        """Return what the play was worth so far."""


class PlainEnvironment(Environment):
    """An environment of plain games, whose problems are split by their keys."""

    @abstractmethod
    def problems(self) -> Iterable[tuple[str, Task]]:
        """Return all problems, in a fixed order, each with the key whose hash is its split."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return all tasks of a split, in the order of the problems."""
        return self._splits[split]

    @cached_property
    def _splits(self) -> Mapping[Split, Sequence[Task]]:
        splits: dict[Split, list[Task]] = {"train": [], "search": [], "hidden": []}
        for key, task in self.problems():
            splits[split_of(key)].append(task)
        return {split: tuple(own) for split, own in splits.items()}

    @abstractmethod
    def game(self, task: Task) -> PlainGame:
        """Return a fresh play of a task."""


def said(text: str) -> Message:
    """Return the message of a policy that says `text`."""
    return {"role": "assistant", "content": text}


def text_of(message: Message) -> str:
    """Return the text of a message, whether one or a list of parts; the empty text where it only calls tools."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def split_of(key: str) -> Split:
    """Return the split of `key`: about 60 % train, 15 % search, 25 % hidden over many keys."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    if place < 0.60:
        return "train"
    return "search" if place < 0.75 else "hidden"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call in a policy's message."""

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What it is called with; empty where the policy wrote no JSON object."""
    error: str = ""
    """What is wrong with what the policy wrote; empty for a well-formed call."""


def tool(name: str, description: str, **parameters: str | Mapping[str, Any]) -> Tool:
    """Return a tool; each parameter is a JSON type (`"string"`) or a JSON schema, and all of them are required."""
    properties = {key: {"type": kind} if isinstance(kind, str) else dict(kind) for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def calls_of(message: Message) -> list[ToolUse]:
    """Return the calls in a policy's message, in its order."""
    found: list[ToolUse] = []
    for entry in message.get("tool_calls") or ():
        function, arguments, error = entry["function"], entry["function"].get("arguments"), ""
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError) as failure:
            arguments, error = None, f"the arguments are no JSON: {failure}"
        if not isinstance(arguments, dict):
            arguments, error = {}, error or "the arguments are no JSON object"
        found.append(ToolUse(entry["id"], function["name"], arguments, error))
    return found


def tool_result(call: ToolUse, text: str) -> Message:
    """Return the message that answers a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def calling(name: str, call_id: str = "call-1", /, **arguments: Any) -> Message:
    """Return the message of a policy that calls a tool; for oracles and demonstrations."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }  # fmt: skip
