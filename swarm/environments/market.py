"""The market: look the price of an item up with a tool, and answer what it costs with its delivery.

`fig, delivery 7` opens a play. Prices are each task's own, so that none can be known: the tool `price` must be called
with the item that is asked for, and the answer is the sum of what it says and the delivery. A task is an item, its
price and its delivery; the splits share no such triple. The play ends with the first answer that calls nothing, or when
the calls are used up.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import ClassVar

from swarm.environments.base import Message, Outcome, PlainEnvironment, PlainGame, Split, Task, Tool, said, text_of
from swarm.environments.splits import split_of
from swarm.environments.tools import ToolUse, calling, calls_of, tool, tool_result

TURNS = 3
"""Messages of the policy in a play: one call that goes wrong can be made again."""
ITEMS = ("apple", "bread", "cheese", "fig", "honey", "milk", "pear", "tea")
_DEAREST = 15
_ASKS = 0.75
_HEEDS = 0.8
_RIGHT = 0.55
_SLIPS = (-10, -1, 1, 10)
_NUMBER = re.compile(r"\d+")


class MarketGame(PlainGame):
    """One purchase: `TURNS` messages, of which the last must be its total."""

    tools: Sequence[Tool] = (tool("price", "The price of an item.", item="string"),)

    def __init__(self, item: str, delivery: int, prices: Mapping[str, int]) -> None:
        self._item, self._delivery, self._prices = item, delivery, prices
        self._left = TURNS
        self._success = False

    def opening(self) -> list[Message]:
        """Return the question."""
        return [{"role": "user", "content": f"{self._item}, delivery {self._delivery}"}]

    def answer(self, message: Message) -> list[Message]:
        """Answer each call with a price; judge what calls nothing, which must hold exactly one number: the total."""
        if self._left == 0:
            return []
        self._left -= 1
        calls = calls_of(message)
        if calls and self._left:
            return [tool_result(call, self._result(call)) for call in calls]
        self._left = 0
        total = self._prices[self._item] + self._delivery
        self._success = not calls and _NUMBER.findall(text_of(message)) == [str(total)]
        return []

    def _result(self, call: ToolUse) -> str:
        if call.error:
            return call.error
        if call.name != "price":
            return f"no tool {call.name}"
        return str(self._prices.get(str(call.arguments.get("item")), "no such item"))

    def outcome(self) -> Outcome:
        """Return 1 for the right total, 0 otherwise."""
        return Outcome(reward=float(self._success), success=self._success)


class Market(PlainEnvironment):
    """Look a price up and say the total."""

    name: ClassVar[str] = "market"
    title: ClassVar[str] = "the market: prices by a tool"
    synonyms: ClassVar[tuple[str, ...]] = (
        "tool calling", "tool-calling", "tool use", "tool calls", "tools", "function calling", "price lookup", "market",
    )  # fmt: skip
    measures: ClassVar[str] = "the total of a looked-up price and the delivery is right"

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return every item, price and delivery of `split`, in this order."""
        return _tasks(split)

    def game(self, task: Task) -> MarketGame:
        """Return a fresh play of `task`."""
        return MarketGame(task.data["item"], task.data["delivery"], task.data["prices"])

    def oracle(self, task: Task, messages: Sequence[Message]) -> Message | str:
        """Return the call for the item's price; once there was a result, the total."""
        if any(message["role"] == "tool" for message in messages):
            return str(task.data["prices"][task.data["item"]] + task.data["delivery"])
        return calling("price", item=task.data["item"])

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by a hasty buyer, who often guesses the price, asks for another item's, or adds wrongly."""
        game, delivery = self.game(task), task.data["delivery"]
        messages, price = game.opening(), rng.randint(1, _DEAREST)
        if rng.random() < _ASKS:
            item = task.data["item"] if rng.random() < _HEEDS else rng.choice(ITEMS)
            call = calling("price", item=item)
            messages += [call, *game.answer(call)]
            price = task.data["prices"][item]
        slip = 0 if rng.random() < _RIGHT else rng.choice(_SLIPS)
        return [*messages, said(str(max(0, price + delivery + slip)))]


@cache
def _tasks(split: Split) -> tuple[Task, ...]:
    numbers = range(1, _DEAREST + 1)
    problems = [(item, price, delivery) for item in ITEMS for price in numbers for delivery in numbers]
    return tuple(
        Task(
            name,
            {"item": item, "delivery": delivery, "prices": _others(name) | {item: price}},
            "total of one digit" if price + delivery < 10 else "total of two digits",
        )
        for item, price, delivery in problems
        for name in [f"market-{item}-{price}-{delivery}"]
        if split_of(name) == split
    )


def _others(name: str) -> dict[str, int]:
    """Return prices of all items, by a task's name: those of the items that nobody asks for stay as they are."""
    rng = random.Random(name)
    return {item: rng.randint(1, _DEAREST) for item in ITEMS}
