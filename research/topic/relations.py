"""How what a topic names stands to the rest of it: set against it, taking turns with it, a condition, a replication."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from research.proposals.arms import Scalar
from research.topic.lexicon import BETTER, DOWN, FILLERS, OFF, ON, REPLICATING, REVERSING, STRONG_LINKS, UP, WORSE, Item
from research.topic.numbers import Numbers

_CONDITIONAL = frozenset({"with", "without", "for", "at", "under", "when", "given", "if"})
TOO = frozenset({"high", "low", "large", "small", "big", "long", "short", "much", "many", "few", "little"})
"""Words after `too`."""
_REACH_OF_AGAIN = 4
"""Items before an environment in which a word of replication is looked for."""


def is_led(items: Sequence[Item], at: int) -> bool:
    """Return whether a word such as `with` leads to a mention of a field."""
    leading = (FILLERS | UP | DOWN | TOO | {"both", "all", "each", "any", "and", "or", ","}) - _CONDITIONAL
    place, joined = at - 1, False
    while place >= 0:
        item = items[place]
        if item.name in leading or item.kind == "number":
            joined = joined or item.name in ("and", "or", ",")
        elif joined and item.kind in ("field", "value"):
            joined = False
        else:
            return item.name in _CONDITIONAL
        place -= 1
    return False


def replicated_in(items: Sequence[Item]) -> str | None:
    """Return the environment that a word of replication leads to."""
    for at, item in enumerate(items):
        before = items[max(0, at - _REACH_OF_AGAIN) : at]
        if item.kind == "environment" and any(word.name in REPLICATING for word in before):
            return item.name
    return None


def rivals(items: Sequence[Item]) -> tuple[tuple[str, str], ...]:
    """Return neighbouring fields between which a word of comparison stands, and no value."""
    found: list[tuple[str, str]] = []
    places = [at for at, item in enumerate(items) if item.kind == "field"]
    for first, second in pairwise(places):
        names = items[first].name, items[second].name
        at = second - 1
        while at > first and items[at].name in FILLERS | UP | DOWN | ON | OFF | {"that"}:
            at -= 1
        if names[0] != names[1] and at > first and items[at].name in STRONG_LINKS | {"or"}:
            found.append(names)
    return tuple(found)


def in_arms(items: Sequence[Item], numbers: Numbers, names: Sequence[str]) -> dict[str, tuple[Scalar, ...]]:
    """Return the values of fields that take turns, arm by arm: the first written of each are those of one arm.

    The control's come first: of two arms it is the second where the wording tries the first, as in `A rather than B`.
    """
    written = {name: _written(items, numbers, name) for name in names}
    ends = [(min(places, default=0), max(places, default=0)) for places in written.values()]
    between = items[min(start for start, _ in ends) : max(end for _, end in ends)] if ends else []
    found = {name: tuple(dict.fromkeys(places.values())) for name, places in written.items()}
    turned = any(item.name in REVERSING | BETTER | WORSE for item in between)
    if turned and all(len(values) == 2 for values in found.values()):
        return {name: values[::-1] for name, values in found.items()}
    return found


def _written(items: Sequence[Item], numbers: Numbers, name: str) -> dict[int, Scalar]:
    """Return the values of a field by their places: its numbers, or its words."""
    words = {at: item.value for at, item in enumerate(items) if item.kind == "value" and item.name == name}
    return numbers.written(name) or {at: value for at, value in words.items() if value is not None}


def together(items: Sequence[Item], numbers: Numbers) -> tuple[str, ...]:
    """Return the fields whose mentions take turns around a word of comparison: arms differ in all of them."""
    places: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        name = numbers.owner(at) or (item.name if item.kind in ("field", "value") else None)
        if name is not None:
            places.setdefault(name, []).append(at)
    links = [at for at, item in enumerate(items) if item.name in STRONG_LINKS]
    spans = sorted((found[0], found[-1], name) for name, found in places.items() if len(found) > 1)
    crossed = [(a, b) for a, b in combinations(spans, 2) if any(b[0] < at < a[1] for at in links)]
    return tuple(dict.fromkeys(span[2] for pair in crossed for span in pair))
