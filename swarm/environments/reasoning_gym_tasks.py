"""reasoning-gym's problems: `reasoning-gym:chain_sum?max_terms=3`.

Several generators make one environment in which a task's kind is its generator, and options say whose they are:
`reasoning-gym:chain_sum+leg_counting?chain_sum.max_terms=3`. A task is its question; whoever judges makes the entry
again from the generator and the seed in the task's id.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar, Final

from swarm.environments.adapters import require_same, seed_of, unknown_error, value_of
from swarm.environments.base import Environment, Game, Message, Outcome, Task, said, text_of
from swarm.errors import InvalidRequest

UNSTEADY: Final = frozenset({"isomorphic_strings", "polynomial_multiplication", "ransom_note"})
"""What they pose depends on how the process hashes texts: no other process could judge it."""


class ReasoningGame(Game):
    """One question, one answer between `<answer>` tags; an answer without them is none."""

    def __init__(self, question: str, entry: Mapping[str, Any], generator: Any) -> None:
        self._question, self._entry, self._generator = question, entry, generator
        self._said = ""

    def opening(self) -> list[Message]:
        from reasoning_gym.utils import SYSTEM_PROMPTS

        return [{"role": "system", "content": SYSTEM_PROMPTS["default"]}, {"role": "user", "content": self._question}]

    def answer(self, message: Message) -> list[Message]:
        self._said = text_of(message)
        return []

    def outcome(self) -> Outcome:
        from reasoning_gym.utils import extract_answer

        found = extract_answer(self._said)
        if found is None:  # some judges take no answer for a right one
            return Outcome(0.0)
        try:
            return Outcome(float(self._generator.score_answer(answer=found, entry=self._entry)))
        except Exception:  # noqa: BLE001  # some judges raise for what they cannot read
            return Outcome(0.0)


class ReasoningTasks(Environment):
    """The problems of one generator or more."""

    measures: ClassVar[str] = "reasoning-gym's own judge gives the answer 1"
    solved_at: ClassVar[float] = 1.0

    def __init__(self, generators: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]) -> None:
        self._generators, self._configs = generators, configs
        self.title = f"reasoning-gym's {' and '.join(generators)}"  # type: ignore[misc]  # of each one its own
        self._heard: list[str] = []
        self.entry = lru_cache(maxsize=8192)(self._make_entry)

    def generate(self, seed: int) -> Task:
        names = tuple(self._generators)
        name = names[seed % len(names)]
        question = self.entry(name, seed // len(names))["question"]
        return Task(f"{name}-{seed // len(names)}", {"question": question}, name if len(names) > 1 else "")

    def game(self, task: Task) -> ReasoningGame:
        name, entry = self._find_entry(task)
        require_same(task, "question", entry["question"], "reasoning-gym")
        return ReasoningGame(entry["question"], entry, self._generators[name])

    def _find_entry(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        name, _, seed = task.id.rpartition("-")
        return name, self.entry(name, int(seed))

    def _make_entry(self, name: str, seed: int) -> Mapping[str, Any]:
        try:
            return dict(self._generators[name][seed_of(seed)])
        except IndexError:  # few make as many entries as they are told when they begin: these are begun for each
            return dict(_generator(name, seed_of(seed), self._configs[name])[0])


class AnsweredTasks(ReasoningTasks):
    """The problems of generators that all give an answer with the question."""

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return f"<answer>{self._find_entry(task)[1]['answer']}</answer>"

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by someone who is right half of the time, and else says what was right somewhere."""
        right = self.oracle(task, ())
        self._heard.append(right)
        return [*self.game(task).opening(), said(right if rng.random() < 0.5 else rng.choice(self._heard))]


def make(name: str, options: Mapping[str, Any]) -> Environment:
    from reasoning_gym.factory import DATASETS

    names = tuple(dict.fromkeys(name.split("+")))
    for own in names:
        if own in UNSTEADY:
            raise InvalidRequest(f"expected a generator that poses the same in every process; {own} does not")
        if own not in DATASETS or own == "composite":
            raise unknown_error("generators of reasoning-gym", own, DATASETS.keys() - UNSTEADY - {"composite"})
    defaults, configs = {own: DATASETS[own][1]() for own in names}, {own: dict[str, Any]() for own in names}
    for key, value in options.items():
        owner, dot, option = key.rpartition(".")
        own = owner if dot or len(names) > 1 else names[0]
        if own not in defaults:
            raise unknown_error("GENERATOR.OPTION of a generator", key, (f"{name}.{option}" for name in names))
        known = {each.name for each in fields(defaults[own])} - {"seed", "size"}
        if option not in known:
            raise unknown_error(f"an option of reasoning-gym's {own}", option, known)
        default = getattr(defaults[own], option)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise InvalidRequest(f"expected {key}=true or {key}=false; found {value!r:.40}")
        is_list = isinstance(default, list | tuple)  # which is written with commas
        configs[own][option] = type(default)(map(value_of, str(value).split(","))) if is_list else value
    generators = {own: _generator(own, 0, configs[own]) for own in names}
    answered = all(generator[0]["answer"] is not None for generator in generators.values())
    return (AnsweredTasks if answered else ReasoningTasks)(generators, configs)


def _generator(name: str, seed: int, config: Mapping[str, Any]) -> Any:
    from reasoning_gym import create_dataset

    try:
        return create_dataset(name, seed=seed, size=1, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidRequest(f"expected options that reasoning-gym's {name} can do with; it says: {error}") from error
