"""The numbers of a topic: which are listed together, and to which field each belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from research.proposals.arms import Scalar
from research.topic.lexicon import (
    BETTER,
    BREAKERS,
    FILLERS,
    FREE,
    LINKS,
    REVERSING,
    STRONG_LINKS,
    WORSE,
    Item,
)

GOOD = frozenset({"good", "ok", "okay", "fine", "right", "reasonable", "sensible", "enough", "appropriate"})
"""Words by which a value is judged."""
_REACH_OF_LINKS = 5
"""Items between two numbers that a word such as `than` still sets against each other."""
_NUMBER_WORDS = {
    "zero": 0, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
"""Numbers as words, before a field; `one` is more often a pronoun."""


def with_number_words(items: Sequence[Item]) -> list[Item]:
    """Return the items with `two epochs` and the `none` of `0.1 vs none` as numbers."""
    found = list(items)
    for at, item in enumerate(items):
        beside, after = (items[at + 1].kind, items[at + 1].name) if at + 1 < len(items) else ("", "")
        against = bool({word.name for word in items[max(0, at - 2) : at]} & (STRONG_LINKS | {"or", "to"}))
        if item.kind == "word" and item.name in ("none", "nothing", "zero") and against:
            found[at] = replace(item, kind="number", number=0)
        elif after == "time" and (times := item.number or _NUMBER_WORDS.get(item.name)):
            found[at] = replace(item, kind="word", name=f"{times:g}x", number=None)
        elif item.kind == "word" and item.name in _NUMBER_WORDS and beside == "field":
            found[at] = replace(item, kind="number", number=_NUMBER_WORDS[item.name])
    return found


@dataclass(slots=True)
class _NumberList:
    """Numbers that are listed together: `4, 8 and 16`."""

    start: int
    end: int
    places: list[int]


class Numbers:
    """Which numbers belong to which field."""

    def __init__(self, items: list[Item], names: Sequence[str]) -> None:
        self._items = items
        self._names = names
        self._owner: dict[int, str] = {}
        runs = self._runs()
        for index, run in enumerate(runs):
            self._assign(run, {other.start for other in runs[index + 1 :]})

    def values(self, name: str) -> tuple[Scalar, ...]:
        """Return the values of a field in the order written, the control first: in `16 rather than 4` it is 4."""
        places = [at for at, owner in self._owner.items() if owner == name]
        values = [number for at in places if (number := self._items[at].number) is not None]
        if len(values) == 2 and any(item.name in REVERSING for item in self._items[places[0] : places[1]]):
            values.reverse()
        return tuple(values)

    def written(self, name: str) -> dict[int, Scalar]:
        """Return the values of a field by their places, in the order written."""
        places = sorted(at for at, owner in self._owner.items() if owner == name)
        return {at: number for at in places if (number := self._items[at].number) is not None}

    def is_reversed(self, name: str) -> bool:
        """Return whether the first of several values is what is tried, as in `does 8 beat 4 or 16?`."""
        places = [at for at, owner in self._owner.items() if owner == name]
        return len(places) > 2 and any(item.name in REVERSING for item in self._items[places[0] : places[1]])

    def owner(self, at: int) -> str | None:
        """Return the field that the number at a place belongs to."""
        return self._owner.get(at)

    def owned(self) -> set[int]:
        """Return the places of the numbers that belong to a field."""
        return set(self._owner)

    def _runs(self) -> list[_NumberList]:
        runs: list[_NumberList] = []
        for at, item in enumerate(self._items):
            if item.kind != "number":
                continue
            if runs and self._linked(runs[-1].end + 1, at):
                runs[-1].end = at
                runs[-1].places.append(at)
            else:
                runs.append(_NumberList(at, at, [at]))
        return runs

    def _linked(self, start: int, end: int) -> bool:
        between = self._items[start:end]
        if not between:
            return True
        linked = any(item.name in STRONG_LINKS for item in between) and len(between) <= _REACH_OF_LINKS
        if any(item.kind not in ("word", "comma", *(("environment",) if linked else ())) for item in between):
            return False
        if any(item.name in STRONG_LINKS for item in between):
            return linked
        names = {item.name for item in between}
        if "with" in names and "compared" not in names:
            return False
        return names <= LINKS | {","}

    def _assign(self, run: _NumberList, later: set[int]) -> None:
        named = next((item.owner for at in run.places if (item := self._items[at]).owner), None)
        before, after = named or self._backwards(run.start, FILLERS), self._forwards(run.end)
        if before and after and before != after and len(run.places) > 1 and not self._number_follows(run.end, later):
            self._owner[run.places.pop()] = after
        loose = None if before or after else self._loose(run)
        owner = before or after or loose
        if owner:
            self._owner |= dict.fromkeys(run.places, owner)

    def _backwards(self, start: int, skip: frozenset[str]) -> str | None:
        for item in reversed(self._items[:start]):
            if item.kind == "field":
                return item.name
            if item.name not in skip:
                return None
        return None

    def _forwards(self, end: int) -> str | None:
        for item in self._items[end + 1 :]:
            if item.kind == "field":
                return item.name
            if item.name not in FILLERS | GOOD:
                return None
        return None

    def _number_follows(self, end: int, later: set[int]) -> bool:
        """Return whether the field after a run has a number of its own."""
        place = end + 1
        while place < len(self._items) and (self._items[place].kind == "field" or self._items[place].name in FILLERS):
            place += 1
        return place in later

    def _loose(self, run: _NumberList) -> str | None:
        """Return the field of values that stand apart: `16 rollouts rather than 4`, `does group size matter: 4 vs 16?`.

        A number before a word that is not known counts something else: `larger groups, 5 guesses`.
        """
        if not self._is_free(run.end + 1):
            return None
        joined = self._backwards(run.start, FILLERS | LINKS | BETTER | WORSE | {","})
        after_place = run.start > 0 and self._items[run.start - 1].kind == "environment"
        alone = len(self._names) == 1 and len(run.places) > 1 and (after_place or self._is_free(run.start - 1))
        return joined or (self._names[0] if alone else None)

    def _is_free(self, at: int) -> bool:
        if not 0 <= at < len(self._items):
            return True
        item = self._items[at]
        return item.kind == "comma" or item.name in FREE | BETTER | WORSE | BREAKERS
