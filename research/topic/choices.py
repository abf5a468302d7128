"""Words that a topic names as values of a field (`RLOO`, `cosine decay`): which, which is the control, which unknown.

A choice of words has no order, so the wording decides: in `RLOO beats GRPO` and `RLOO rather than GRPO` the first is
what is tried and the second what it is compared with; in a plain list the default, where it is named, is the control.
The plainest value of a field, named alone, is no question: most topics say `GRPO` and ask something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from research.planner.digest import FieldFacts
from research.topic.lexicon import BETTER, REVERSING, WORSE, Item

ALGORITHM = "algorithm"
_FOREIGN = frozenset({
    "reinforce", "ppo", "dapo", "dpo", "ipo", "kto", "orpo", "simpo", "trpo", "cispo", "sapo", "gmpo", "vapo", "srpo",
    "opo", "ppg", "sac", "ddpg", "td3", "dqn", "a2c", "a3c", "remax", "raft", "impala", "awr", "vpg", "gpg", "prime",
    "sft",
})  # fmt: skip
"""Algorithms that people name and no job has."""
_SWITCH_WORDS = frozenset({"off", "none"})
"""Values that are directions in a topic, and so no names."""


def names(fields: Iterable[FieldFacts]) -> list[tuple[str, Item]]:
    """Return the texts that mean a value by themselves: a word, or a number of the field that they belong to."""
    return [
        (text, Item("value", facts.name, value=value) if facts.of_words else _number(text, facts.name, value))
        for facts in fields
        for value, texts in facts.values.items()
        for text in texts
    ]


def _number(text: str, field: str, value: str) -> Item:
    return Item("number", text, number=int(value), owner=field)


def bare_names(fields: Iterable[FieldFacts], items: Sequence[Item]) -> list[tuple[str, Item]]:
    """Return the plain words that mean a value where its field is named: `cosine` beside `learning rate schedule`."""
    named = {item.name for item in items if item.kind in ("field", "value")}
    return [
        (str(value), Item("value", facts.name, value=str(value)))
        for facts in fields
        if facts.of_words and facts.name in named
        for value in facts.ladder
        if value not in _SWITCH_WORDS
    ]


def without_plainest(items: Sequence[Item], facts: FieldFacts) -> list[Item]:
    """Return the items with a plainest default that is named alone turned into a word that asks nothing."""
    own = [item for item in items if item.name == facts.name and item.kind in ("field", "value")]
    if facts.default != facts.ladder[0] or any(item.value != facts.default for item in own):
        return list(items)
    return [replace(item, kind="word", name=str(item.value), settled=True) if item in own else item for item in items]


def values(items: Sequence[Item], facts: FieldFacts) -> tuple[tuple[str, ...], bool]:
    """Return the values named of a field, the control first, and whether the claim is about the control.

    It is in `RLOO beats GRPO and GSPO`: all hypotheses of a study share one control.
    """
    first: dict[str, int] = {}
    for at, item in enumerate(items):
        if item.kind == "value" and item.name == facts.name and item.value is not None:
            first.setdefault(item.value, at)
    found = tuple(first)
    if len(found) < 2:
        return found, False
    start, end = first[found[0]], first[found[1]]
    if any(item.name in REVERSING | BETTER | WORSE for item in items[start + 1 : end]):
        return (found, True) if len(found) > 2 else (found[::-1], False)
    if items[start - 1 : start] and items[start - 1].name == "from":
        return found, False
    return tuple(sorted(found, key=lambda value: value != facts.default)), False


def unknown_algorithm(topic: str, items: Sequence[Item], known: FieldFacts) -> str | None:
    """Return what the topic names as an algorithm and no job has."""
    stated = re.search(rf"\b{ALGORITHM}\s*=\s*(\w+)", topic, re.IGNORECASE)
    texts = [*map(str, known.ladder), *(text for named in known.values.values() for text in named)]
    if stated and not any(stated[1].lower() in text for text in texts):
        return stated[1]
    return next((item.name for item in items if item.kind == "word" and item.name in _FOREIGN), None)
