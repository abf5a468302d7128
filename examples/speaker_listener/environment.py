"""Two models that must understand each other: one sees which animal is meant and says a word; the other points at it.

The speaker reads `fox`, and may say one token. The listener reads that token and four animals, `red:owl,fox,cat,bee`,
and answers with one of them. Both are worth 1 if it is the one that was meant. The demonstrations from which the tiny
models begin are of players who do not understand each other: the speaker mumbles (every other time it says any colour,
else one of its own for that animal), and the listener points at any of the four, whatever was said.
"""

import itertools
import random

from swarm.environments import Environment, Game, Outcome, Task, said, text_of

ANIMALS = ("ant", "bee", "cat", "dog", "fox", "hen", "owl", "pig")
COLOURS = ("blue", "brown", "gold", "green", "grey", "pink", "red", "white")
SHOWN = 4
MUMBLES = 0.5


def speaker_reads(task):
    """Return what the speaker is shown."""
    return [{"role": "user", "content": task.data["meant"]}]


def listener_reads(task, hint):
    """Return what the listener is shown, with what the speaker said."""
    return [{"role": "user", "content": f"{hint}:{','.join(task.data['shown'])}"}]


def solved(task, answer):
    """Return whether the listener pointed at what was meant."""
    return answer.strip() == task.data["meant"]


class Alone(Game):
    """One model says both parts; it has seen the answer, so this shows the words of the game and no more."""

    def __init__(self, task):
        self.task, self.turns, self.right = task, 0, False

    def opening(self):
        return speaker_reads(self.task)

    def answer(self, message):
        self.turns += 1
        if self.turns == 1:
            return listener_reads(self.task, text_of(message))
        self.right = solved(self.task, text_of(message))
        return []

    def outcome(self):
        return Outcome(float(self.right), self.right)


class SpeakerListener(Environment):
    name, title = "speaker-listener", "a speaker's hint and a listener's choice"
    measures = "the listener points at what the speaker saw"

    def tasks(self, split):
        """Return four animals in some order, of which one is meant; the splits share no four."""
        fours = list(itertools.combinations(ANIMALS, SHOWN))
        random.Random("fours").shuffle(fours)
        parts = {"train": fours[:50], "search": fours[50:56], "hidden": fours[56:]}
        return tuple(Task(f"{meant}-in-{'-'.join(four)}", {"meant": meant, "shown": _ordered(four, meant)})
                     for four in parts[split] for meant in four)  # fmt: skip

    def game(self, task):
        return Alone(task)

    def imitate(self, task, rng):
        """Return one part of a play: a speaker who mumbles, or a listener who does not listen."""
        colour = rng.choice(COLOURS)
        if rng.random() < 0.5:
            return [*listener_reads(task, colour), said(rng.choice(task.data["shown"]))]
        meant = COLOURS[ANIMALS.index(task.data["meant"])]
        return [*speaker_reads(task), said(colour if rng.random() < MUMBLES else meant)]


def _ordered(four, meant):
    """Return the four in an order that does not tell which is meant."""
    shown = list(four)
    random.Random(f"{meant} {four}").shuffle(shown)
    return shown
