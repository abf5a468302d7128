"""The environments there are, by name: built in, or brought to this installation.

To build one in, put an instance of it in `BUILT_IN`. One that is brought (`swarm.environments.building`) is known by
its name and the hash of what it consists of, `shop@1f2e3d4c5b6a`, and found in any of the folders that a process names
(`add_folder`): as the hash is over all that an environment is, it does not matter in which.

- Arith: add two numbers, in one turn. Splits are disjoint by the unordered pair, so 7+12 is not learned from 12+7.
- Guess: find a secret in a window. `above 4 below 15` opens a play, and a wrong guess is answered with what is still
  possible, so each hint sums up all before it. Splits share no pair of window and secret. An answer that does not hold
  exactly one number ends the play.
- Market: `fig, delivery 7`; the tool `price` must be called, since prices are each task's own, and the answer is price
  plus delivery. Splits share no triple. The first answer without a call, or the last call allowed, ends the play.
- Words: the last of three words, or a sum of two digits, behind six examples as turns of the chat, which teach a
  pretrained model the form. The answer must be all that is said. Splits share no pair of digits and no three words.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Final, Self

from swarm.environments import base
from swarm.environments.base import MAX_TURNS, PLAYER_TURNS, Environment, Knob, Message, Outcome, Task, said, text_of
from swarm.environments.custom import CustomEnvironment, is_custom
from swarm.errors import InvalidRequest

_LARGEST = 40
_SLIPS = (-10, -1, 1, 10)
_NUMBER = re.compile(r"\d+")


class _SolvedGame(base.PlainGame):
    """A play that is worth 1 where it is solved, and 0 else."""

    _success = False

    def outcome(self) -> Outcome:
        return Outcome(reward=float(self._success), success=self._success)


class ArithGame(_SolvedGame):
    """One sum, asked once."""

    def __init__(self, left: int, right: int) -> None:
        self._left, self._right = left, right

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"{self._left}+{self._right}"}]

    def answer(self, message: Message) -> list[Message]:
        numbers = _NUMBER.findall(text_of(message))
        self._success = len(numbers) == 1 and int(numbers[0]) == self._left + self._right
        return []


class Arith(base.PlainEnvironment):
    """Add two numbers."""

    name = "arith"
    title = "sums of two numbers"
    synonyms = (
        "arithmetic", "addition", "sums", "adding numbers", "math", "maths", "arith", "single-turn",
    )  # fmt: skip
    measures = "the sum is right"

    def problems(self) -> Iterator[tuple[str, Task]]:
        for left, right in product(range(1, _LARGEST + 1), repeat=2):
            kind = "with a carry" if left % 10 + right % 10 > 9 else "without a carry"
            task = Task(f"arith-{left}-{right}", {"left": left, "right": right}, kind)
            yield f"arith-{min(left, right)}-{max(left, right)}", task

    def game(self, task: Task) -> ArithGame:
        return ArithGame(task.data["left"], task.data["right"])

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return str(task.data["left"] + task.data["right"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by a hasty adder: right two times in five, otherwise off by one or by a carry."""
        total = task.data["left"] + task.data["right"]
        answer = total if rng.random() < 0.4 else max(0, total + rng.choice(_SLIPS))
        return [*self.game(task).opening(), said(str(answer))]


GUESSES = 4
_HIGHEST = 20
_WIDTHS = range(10, 19)
_GIVES_UP = 0.2
_ATTENTIVE = 0.7
_JITTER = 1


class GuessGame(base.PlainGame):
    """One play: so many guesses at a secret in [low, high]; a hint sums up all of them, or is of the last one alone."""

    def __init__(self, low: int, high: int, secret: int, guesses: int = GUESSES, hint: str = "bounds") -> None:
        self._low, self._high, self._secret = low, high, secret
        self._width = high - low + 1
        self._left = guesses
        self._hint = hint
        self._found = False

    @property
    def possible(self) -> tuple[int, int]:
        return self._low, self._high

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"above {self._low - 1} below {self._high + 1}"}]

    def answer(self, message: Message) -> list[Message]:
        """Judge a guess: nothing follows one that is right, the last one, or no single number; else the hint does."""
        numbers = _NUMBER.findall(text_of(message))
        if self._found or self._left == 0 or len(numbers) != 1:
            self._left = 0
            return []
        self._left -= 1
        guess = int(numbers[0])
        self._found = guess == self._secret
        if guess < self._secret:
            self._low = max(self._low, guess + 1)
        elif guess > self._secret:
            self._high = min(self._high, guess - 1)
        if self._found or self._left == 0:
            return []
        side = "above" if guess < self._secret else "below"
        return self.opening() if self._hint == "bounds" else [{"role": "user", "content": f"{side} {guess}"}]

    def outcome(self) -> Outcome:
        """Return 1 for the number found, else 0.5 times the share of the window's bits that the hints gave away."""
        if self._found:
            return Outcome(reward=1.0, success=True)
        missing = math.log(self._high - self._low + 1) / math.log(self._width)
        return Outcome(reward=0.5 * (1.0 - missing), success=False)


class Guess(base.PlainEnvironment):
    """Find a number with higher/lower feedback."""

    name = "guess"
    title = "the guessing game"
    synonyms = (
        "guessing game", "number guessing", "guess the number", "higher lower", "higher/lower", "guess", "multi-turn",
    )  # fmt: skip
    measures = f"the number is found within {GUESSES} guesses"
    knobs: ClassVar = {
        MAX_TURNS: replace(PLAYER_TURNS, default=GUESSES, values=(3, 4, 6), does="Guesses of a play.", range=(1, 12)),
        "hint": Knob(
            "bounds", ("bounds", "side"), "What answers a wrong guess: all that is still possible, or its side alone.",
        ),
    }  # fmt: skip

    def with_knobs(self, values: Mapping[str, object]) -> Self:
        other = super().with_knobs(values)
        if MAX_TURNS in values:
            other.measures = f"the number is found within {other.knob(MAX_TURNS)} guesses"  # type: ignore[misc]
        return other

    def problems(self) -> Iterator[tuple[str, Task]]:
        for width in _WIDTHS:
            kind = "narrow windows" if width <= fmean(_WIDTHS) else "wide windows"
            for low in range(1, _HIGHEST - width + 2):
                high = low + width - 1
                for secret in range(low, high + 1):
                    name = f"guess-{low}-{high}-{secret}"
                    yield name, Task(name, {"low": low, "high": high, "secret": secret}, kind)

    def game(self, task: Task) -> GuessGame:
        data = task.data
        return GuessGame(data["low"], data["high"], data["secret"], self.knob(MAX_TURNS), self.knob("hint"))

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return str(task.data["secret"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by someone who roughly halves what is left, but often forgets the hints and often gives up."""
        game = self.game(task)
        window = game.possible
        messages = game.opening()
        hint = messages[-1:]
        while hint:
            low, high = game.possible
            if rng.random() < _GIVES_UP:
                guess = said("pass")
            elif rng.random() < _ATTENTIVE:
                guess = said(str(min(high, max(low, (low + high) // 2 + rng.randint(-_JITTER, _JITTER)))))
            else:
                guess = said(str(rng.randint(*window)))
            hint = game.answer(guess)
            messages += [guess, *hint]
        return messages


TURNS = 3
"""Messages of the policy in a play: one call that goes wrong can be made again."""
ITEMS = ("apple", "bread", "cheese", "fig", "honey", "milk", "pear", "tea")
_DEAREST = 15
_ASKS = 0.75
_HEEDS = 0.8
_MARKET_RIGHT = 0.55


_OFFERED = tuple(
    base.tool(name, f"The {name} of an item.", item="string") for name in ("price", "stock", "weight", "origin")
)
"""The first is of use."""


class MarketGame(_SolvedGame):
    """One purchase: so many messages, of which the last must be its total."""

    def __init__(self, item: str, delivery: int, prices: Mapping[str, int], turns: int = TURNS, tools: int = 1) -> None:
        self._item, self._delivery, self._prices = item, delivery, prices
        self._left = turns
        self.tools: Sequence[base.Tool] = _OFFERED[:tools]

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"{self._item}, delivery {self._delivery}"}]

    def answer(self, message: Message) -> list[Message]:
        if self._left == 0:
            return []
        self._left -= 1
        calls = base.calls_of(message)
        if calls and self._left:
            return [base.tool_result(call, self._result(call)) for call in calls]
        self._left = 0
        total = self._prices[self._item] + self._delivery
        self._success = not calls and _NUMBER.findall(text_of(message)) == [str(total)]
        return []

    def _result(self, call: base.ToolUse) -> str:
        if call.error:
            return call.error
        if call.name != "price":
            offered = (known["function"]["name"] for known in self.tools)
            return "not known" if call.name in offered else f"no tool {call.name}"
        return str(self._prices.get(str(call.arguments.get("item")), "no such item"))


class Market(base.PlainEnvironment):
    """Look a price up and say the total."""

    name = "market"
    title = "the market: prices by a tool"
    synonyms = (
        "tool calling", "tool-calling", "tool use", "tool calls", "tools", "function calling", "price lookup", "market",
    )  # fmt: skip
    measures = "the total of a looked-up price and the delivery is right"
    knobs: ClassVar = {
        MAX_TURNS: replace(PLAYER_TURNS, default=TURNS, values=(2, 3, 5), does="Answers of a play.", range=(1, 12)),
        "tools": Knob(1, (1, 2, 4), "Tools offered, of which one is of use.", synonyms=("number of tools",)),
    }  # fmt: skip

    def problems(self) -> Iterator[tuple[str, Task]]:
        numbers = range(1, _DEAREST + 1)
        for item, price, delivery in product(ITEMS, numbers, numbers):
            name = f"market-{item}-{price}-{delivery}"
            rng = random.Random(name)  # prices of items that nobody asks for are a name's own, and stay as they are
            prices = {**{one: rng.randint(1, _DEAREST) for one in ITEMS}, item: price}
            data = {"item": item, "delivery": delivery, "prices": prices}
            yield name, Task(name, data, "total of one digit" if price + delivery < 10 else "total of two digits")

    def game(self, task: Task) -> MarketGame:
        data = task.data
        return MarketGame(data["item"], data["delivery"], data["prices"], self.knob(MAX_TURNS), self.knob("tools"))

    def oracle(self, task: Task, messages: Sequence[Message]) -> Message | str:
        if any(message["role"] == "tool" for message in messages):
            return str(task.data["prices"][task.data["item"]] + task.data["delivery"])
        return base.calling("price", item=task.data["item"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by a hasty buyer, who often guesses the price, asks for another item's, or adds wrongly."""
        game, delivery = self.game(task), task.data["delivery"]
        messages, price = game.opening(), rng.randint(1, _DEAREST)
        if rng.random() < _ASKS:
            item = task.data["item"] if rng.random() < _HEEDS else rng.choice(ITEMS)
            call = base.calling("price", item=item)
            messages += [call, *game.answer(call)]
            price = task.data["prices"][item]
        slip = 0 if rng.random() < _MARKET_RIGHT else rng.choice(_SLIPS)
        return [*messages, said(str(max(0, price + delivery + slip)))]


_WORDS = (
    "apple bridge candle desert engine forest garden hammer island jacket kitchen ladder market needle orange pencil "
    "quarry ribbon saddle table uncle valley window yellow zebra anchor basket copper doctor eagle"
)
_EXAMPLES = {
    "sum": ("2 + 3 = 5", "7 + 1 = 8", "4 + 4 = 8", "9 + 2 = 11", "6 + 8 = 14", "0 + 5 = 5"),
    "last word": ("red wolf song", "ink tea lamp", "cow hat sun", "road cup tree", "salt day owl", "pan ship rope"),
}


class WordsGame(_SolvedGame):
    """One question behind its examples, answered once."""

    def __init__(self, kind: str, question: str, answer: str) -> None:
        self._kind, self._question, self._answer = kind, question, answer

    def opening(self) -> list[Message]:
        turns: list[Message] = []
        for example in _EXAMPLES[self._kind]:
            shown = example.rpartition(" ")[0] if self._kind == "sum" else f"Last word of: {example}"
            turns += [{"role": "user", "content": shown}, said(example.split()[-1])]
        return [*turns, {"role": "user", "content": self._question}]

    def answer(self, message: Message) -> list[Message]:
        self._success = text_of(message).strip() == self._answer
        return []


class WordsAndSums(base.PlainEnvironment):
    """Say the last of three words, or the sum of two digits."""

    name = "words"
    title = "last words and one-digit sums"
    synonyms = ("last words", "last word", "sums and words", "words and sums")
    measures = "the answer is right, and nothing stands beside it"
    pretrained: ClassVar = {
        "lora_rank": 16, "steps": 6, "episodes_per_step": 64, "group_size": 8, "max_tokens": 8, "max_context": 320,
        "lease_ttl_s": 120.0,
    }  # fmt: skip

    def problems(self) -> Iterator[tuple[str, Task]]:
        for left, right in product(range(10), repeat=2):
            data = {"question": f"{left} + {right} =", "answer": str(left + right)}
            yield f"sum-{min(left, right)}-{max(left, right)}", Task(f"sum-{left}-{right}", data, "sum")
        for words in random.Random("words").sample([*permutations(_WORDS.split(), 3)], 800):
            data = {"question": f"Last word of: {' '.join(words)}", "answer": words[-1]}
            yield f"last-{'-'.join(sorted(words))}", Task(f"last-{'-'.join(words)}", data, "last word")

    def game(self, task: Task) -> WordsGame:
        return WordsGame(task.kind, task.data["question"], task.data["answer"])

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return str(task.data["answer"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by someone who is right three times in ten, and else says any word, or sum, that there is."""
        others = _WORDS.split() if task.kind == "last word" else [*map(str, range(19))]
        answer = task.data["answer"] if rng.random() < 0.3 else rng.choice(others)
        return [*self.game(task).opening(), said(answer)]


BUILT_IN: Final[Mapping[str, base.PlainEnvironment]] = {
    each.name: each for each in (Guess(), Arith(), WordsAndSums(), Market())
}


class _Catalogue(Mapping[str, Environment]):
    """The built-in environments and the brought ones that were admitted; any other brought one can be looked up, also
    by who is going through these meanwhile."""

    def __init__(self) -> None:
        self.known: dict[str, Environment] = dict(BUILT_IN)
        self.folders: dict[Path, None] = {}

    def __getitem__(self, name: str) -> Environment:
        if isinstance(name, str) and name not in self.known and is_custom(name):  # `in` asks for any object
            for folder in self.folders:  # such a name leads out of none
                if (folder / name).is_dir():
                    self.known[name] = CustomEnvironment.open(folder / name)
                    break
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.known))

    def __len__(self) -> int:
        return len(self.known)


_CATALOGUE = _Catalogue()


def environments() -> Mapping[str, Environment]:
    return _CATALOGUE


def add_folder(folder: Path) -> None:
    _CATALOGUE.folders[folder] = None


def admit(environment: Environment) -> None:
    _CATALOGUE.known[environment.name] = environment


def get_environment(name: str) -> Environment:
    """Return the environment called `name`; raise InvalidRequest, which lists the names, if there is none."""
    try:
        return _CATALOGUE[name]
    except KeyError:
        message = (
            f"expected the environment {name} among those that were brought here; found none; bring it again "
            f"(`ajet env list` shows what is here)"
            if is_custom(name)
            else f"expected an environment among {', '.join(sorted(_CATALOGUE))}; found {name!r}; choose one of them"
        )
        raise InvalidRequest(message, param="environment") from None
