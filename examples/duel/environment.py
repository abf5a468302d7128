"""Nim for two: take one to three stones in turn; who takes the last one wins.

A player reads `stones 13` and answers with a number; what is no move takes one stone. Whoever leaves a multiple of four
wins against any play, which no beginner knows: the demonstrations, from which the tiny models begin, take any number of
stones that may be taken.
"""

import random

from swarm.environments import Environment, Game, Outcome, Task, said, text_of

MOST = 3
PILES = range(5, 25)


def reads(stones):
    """Return what a player is shown."""
    return [{"role": "user", "content": f"stones {stones}"}]


def move_of(text, stones):
    """Return how many stones an answer takes: one where it is no move."""
    taken = int(text) if text.strip().isdecimal() else 0
    return taken if 1 <= taken <= min(MOST, stones) else 1


def best(stones):
    """Return the winning move, or None where there is none."""
    return stones % (MOST + 1) or None


class Alone(Game):
    """One player against one who moves at random: the words of the game, for a look at it."""

    def __init__(self, task):
        self.stones, self.rng, self.won = task.data["stones"], random.Random(task.id), False

    def opening(self):
        return reads(self.stones)

    def answer(self, message):
        self.stones -= move_of(text_of(message), self.stones)
        self.won = self.stones == 0
        if self.stones:
            self.stones -= self.rng.randint(1, min(MOST, self.stones))
        return reads(self.stones) if self.stones else []

    def outcome(self):
        return Outcome(float(self.won), self.won)


class Nim(Environment):
    name, title, measures = "nim-duel", "nim for two", "the last stone is taken"

    def tasks(self, split):
        """Return a pile and who begins; where a pile is of two splits it is begun by different players."""
        tasks = [Task(f"nim-{stones}-{first}", {"stones": stones, "first": first})
                 for stones in PILES for first in ("red", "blue")]  # fmt: skip
        random.Random("nim").shuffle(tasks)
        return tuple({"train": tasks[:28], "search": tasks[28:30], "hidden": tasks[30:]}[split])

    def game(self, task):
        return Alone(task)

    def imitate(self, task, rng):
        """Return a move by someone who knows the rules and no more."""
        stones = rng.randint(1, max(PILES))
        return [*reads(stones), said(str(rng.randint(1, min(MOST, stones))))]
