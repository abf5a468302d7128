"""What is asked in an inquiry and what is true of it: truths that are planted, and planners that choose on the past.

A question is about one value of one knob; asked again it is the same question, on fresh runs of control and treatment.
Effects are in units of the margin of equivalence, which is the effect that the seeds of a round see at a level of 5 %.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["drawn", "sure", "hopeless"]
"""Whether chance decides about its effect, or the planner knows that it has a large one, or none."""


@dataclass(frozen=True, slots=True)
class Question:
    """One value of a knob against the control."""

    number: int
    kind: Kind = "drawn"


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of the questions of an inquiry."""

    share: float = 0.0
    """Share of the drawn questions that have an effect, which is the margin with either sign."""
    power: float = 0.8
    """Power at a level of 5 % for an effect as large as the margin."""
    sure: float = 4.0
    """Effect of a sure question, in margins."""
    hopeless: float = 0.0
    """Effect of a hopeless one."""

    def effect(self, question: Question, inquiry: str) -> float:
        """Return the effect of a question of one inquiry, in margins."""
        if question.kind != "drawn":
            return self.sure if question.kind == "sure" else self.hopeless
        source = random.Random(f"{inquiry} truth of {question.number}")
        return source.choice((-1.0, 1.0)) if source.random() < self.share else 0.0


EQUIVALENCES = 0.96
"""Power with which the margin is seen where the truths ask for equivalences: at less hardly any is claimed."""
TRUTHS: Mapping[str, Truth] = {
    "nothing": Truth(),
    "20 % true": Truth(0.2),
    "50 % true": Truth(0.5),
    "half 0, half at the margin": Truth(0.5, EQUIVALENCES),
    "all at the margin": Truth(1.0, EQUIVALENCES),
    "sure effects, then nothing": Truth(),
    "sure equivalences, then the margin": Truth(0.0, EQUIVALENCES, sure=0.0, hopeless=1.0),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question in one round."""

    question: Question
    estimate: float | None
    claimed: bool
    """Whether a difference or an equivalence was claimed."""


class AsksOn(Protocol):
    """Chooses the questions of the next round on all that came before."""

    def __call__(self, past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
        """Return up to `wanted` questions, or more where it wants more."""
        ...


def plain(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask something new in every round."""
    return _fresh(past, wanted)


def largest(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask again the question with the largest estimate that nothing was claimed of, and new ones beside it."""
    again = _by_size(past)[:1]
    return (*again, *_fresh(past, wanted - len(again)))


def repeat(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask the same again until something is claimed of it."""
    still = [answer.question for answer in past[-1] if not answer.claimed][:wanted] if past else []
    return (*still, *_fresh(past, wanted - len(still)))


def farm(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask what is sure in every second round, to earn level, and what is hopeless in the others."""
    kind: Kind = "hopeless" if len(past) % 2 else "sure"
    return tuple(Question(question.number, kind) for question in _fresh(past, wanted))


def lie(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask for as much as a round holds, whatever looked best so far first; that all is proven already is its claim."""
    again = _by_size(past)[:MOST_CLAIMS]
    return (*again, *_fresh(past, MOST_CLAIMS - len(again)))


MOST_CLAIMS = 3
"""Of a round."""
PLANNERS: Mapping[str, AsksOn] = {"plain": plain, "largest": largest, "repeat": repeat, "farm": farm, "liar": lie}


def _fresh(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Return questions that nobody asked before."""
    first = 1 + max((answer.question.number for asked in past for answer in asked), default=0)
    return tuple(Question(number) for number in range(first, first + wanted))


def _by_size(past: Sequence[Sequence[Answer]]) -> list[Question]:
    """Return what nothing was claimed of, by the newest estimate's size, the largest first."""
    sizes: dict[Question, float] = {}
    for asked in past:
        for answer in asked:
            sizes.pop(answer.question, None)
            if not answer.claimed and answer.estimate is not None:
                sizes[answer.question] = abs(answer.estimate)
    return sorted(sizes, key=sizes.__getitem__, reverse=True)
