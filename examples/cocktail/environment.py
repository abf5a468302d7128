"""A mix of three environments: what one model must have seen before separate clients train it on each of them.

`arith` asks one question, `guess` takes several turns, `market` has a tool. A tiny model is made for one environment:
its words and its warm start are those of the plays it is shown. So the job names this mix, which shows plays of all
three, a third each, by the mediocre players that these environments bring. The clients play the three themselves.
"""

import random
from collections.abc import Sequence
from typing import Any

from swarm.environments import Environment, Game, Message, Split, Task, get_environment

PARTS = ("arith", "guess", "market")


class Cocktail(Environment):
    name = "cocktail"
    title = "sums, guesses and a market with a tool"
    measures = "the sum is right, the number is found, or the total is right"

    def tasks(self, split: Split) -> list[Task]:
        """As many of each, taken evenly from all there are."""
        whole = {part: get_environment(part).tasks(split) for part in PARTS}
        count = min(map(len, whole.values()))
        return [
            Task(task.id, task.data, part)
            for part, tasks in whole.items()
            for task in (tasks[number * len(tasks) // count] for number in range(count))
        ]

    def game(self, task: Task) -> Game:
        return get_environment(task.kind).game(task)

    def oracle(self, task: Task, messages: Sequence[Message]) -> Any:
        return get_environment(task.kind).oracle(task, messages)

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        return get_environment(task.kind).imitate(task, rng)
