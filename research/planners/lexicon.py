"""The words of a topic as items: fields, values, numbers.

The words the rule planner knows, and how a topic is cut into items. English only; it parses no grammar.

Each item knows which characters of the topic it was cut from, so that what a plan leaves out can be shown as written.

Spelling is forgiven where it carries no meaning: case, plural, hyphen, underscore, `=`; `groupsize` is `group size`.
Numbers with a unit or a letter glued to them (`10x`, `7b`, `50%`) are words, not values.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from research.proposals.arms import Scalar
from swarm.environments.custom import DIGITS

Kind = Literal["word", "comma", "number", "field", "value", "environment", "phrase", "unvaried"]
Sense = Literal["up", "down", "on", "off"]
Claim = Literal["increase", "decrease"]


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a topic. `name` is the stem of a word, or the field (also of a value) or environment it names."""

    kind: Kind
    name: str
    number: float | int | None = None
    sense: Sense | None = None
    """The direction that is part of a name: `longer training`."""
    value: str | None = None
    """The value that is named, of a field whose values are words."""
    owner: str | None = None
    """The field that a number belongs to by its name: `full finetuning` is a LoRA rank of 0."""
    at: tuple[int, int] = field(default=(0, 0), compare=False)
    """Its characters in the topic: the first, and the one after the last."""
    settled: bool = field(default=False, compare=False)
    """Whether it asks for nothing beyond what every study is: `GRPO`, `per step`."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A run of words that means one thing."""

    stems: tuple[str, ...]
    item: Item


def stem(word: str) -> str:
    """Return a word without its plural: `batches` -> `batch`, `penalties` -> `penalty`; `bonus` and `less` stay."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    if len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in text.split())


UP = stems(
    "larger large bigger big higher high more increase increases increasing increased raise raising raised greater "
    "longer stronger wider double doubling extra hotter warmer"
)
DOWN = stems(
    "smaller small lower low fewer less decrease decreasing decreased reduce reducing reduced lowering shrink "
    "shrinking shorter weaker narrower halve halving colder cooler"
)
FACTORS: dict[str, float] = {
    "double": 2, "doubling": 2, "doubled": 2, "twice": 2, "triple": 3, "tripling": 3, "quadruple": 4, "halve": 0.5,
    "halving": 0.5, "half": 0.5,
}  # fmt: skip
"""Words for how many times the default something is; `10x` is one, too."""
SAME = stems("same equal fixed constant identical unchanged")
"""Words before a field that all arms share at its default."""
CHANGING = stems("change changing changed touch touching vary varying alter altering")
"""Verbs that say so of a field after a `not` or `without`."""
ON = stems("with enable enabling enabled use using add adding")
OFF = stems("without disable disabling disabled no remove removing removed drop dropping off omit omitting")
SLIGHT = stems("small low little")
"""Words for something that is there, and not for less of it: a small penalty is none that is switched off."""
AFTER: dict[str, Sense] = {
    "increased": "up", "raised": "up", "larger": "up", "higher": "up", "bigger": "up", "doubled": "up",
    "decreased": "down", "reduced": "down", "lowered": "down", "smaller": "down", "lower": "down", "halved": "down",
    "enabled": "on", "on": "on", "disabled": "off", "removed": "off", "off": "off",
}  # fmt: skip
"""Words that give a direction to the name before them: `with group size increased`."""
COPULAS = stems("is are was were be being been gets get turned switched set made")

FAST = stems("faster fast speed speeds accelerate accelerates quicker quickly efficient efficiency sooner earlier")
SLOW = stems("slow slows slower slowing slowly later")
BEATING = stems("beat beats outperform outperforms exceed exceeds surpass surpasses")
"""Verbs between what is tried and what it is compared with."""
BETTER = FAST | BEATING | stems(
    "better improve improves improved improving improvement help helps helping helped helpful boost boosts benefit "
    "benefits gain gains best worthwhile"
)  # fmt: skip
WORSE = SLOW | stems(
    "hurt hurts hurting worse worsen worsens degrade degrades harm harms harmful hinder hinders impair impairs damage "
    "damages worst"
)  # fmt: skip
PREVENTING = stems("prevent prevents preventing avoid avoids avoiding stop stops")
NEGATIONS = stems("not doesn don never cannot isn without")
RAISING = stems("increase raise higher more improve lift greater")
LOWERING = stems("decrease reduce lower less fewer cut")
OUTCOMES = stems("success reward return accuracy performance score result rate quality solved wins")

STRONG_LINKS = stems("vs v versus against than rather instead compared") | BEATING
"""Words that set two values against each other even with a verb between them."""
LINKS = stems("and or vs v versus against to than rather instead of compared over with")
REVERSING = stems("than rather instead compared over against") | BEATING
FILLERS = stems("of at is be to set value equal equals from between around like such as being a an the size for among")
BREAKERS = stems(
    "with by from via in for make makes making does do did is are than to lead leads cause causes affect affects on "
    "change changes matter matters that which when if while after before"
) | BETTER | WORSE | OUTCOMES  # fmt: skip
"""Words a direction does not reach across."""
FREE = stems("in on for when with at if does do is and while the to")
"""Words that may stand around a loose list of values, so that it belongs to the only field named."""
REPLICATING = stems("replicate replicates replicated replicating replication repeat repeated again")
"""Words that lead to an environment to replicate in."""
TRUTH = {"true": True, "on": True, "yes": True, "enabled": True, "false": False, "off": False, "disabled": False}

_SETTLED = (
    "group relative policy optimization", "group relative policy optimisation", "group relative", "per step",
    "per batch", "step by step", "multi step", "each step", "every step", "in the long run", "at the end",
    "in the end", "last step", "final step", "after training", "during training", "before training", "at all",
    "in general", "in practice", "on average", "reinforcement learning", "hidden task", "held out task",
    "everything else equal", "all else equal", "language model", "training run",
)  # fmt: skip
"""Phrases that ask for nothing beyond what every study does."""
_UNVARIED = (
    "learning rate warmup", "learning rate warm up", "lr warmup", "lr warm up", "linear warmup", "linear warm up",
    "cosine warmup", "cosine warm up", "warmup steps", "warm up steps", "final learning rate", "learning rate final",
    "dual clip", "dual clipping", "gradient clip", "gradient clipping", "gradient norm clipping", "lora alpha",
    "lora dropout", "micro batch size", "micro batch", "gradient accumulation steps", "gradient accumulation",
    "off policy correction cap", "importance sampling cap", "importance weights cap", "weight decay", "max tokens",
    "context length", "context size", "context window", "number of seeds",
)  # fmt: skip
"""What no study varies, though a part of its name may be a field's."""
_MEANINGS: tuple[tuple[str, str], ...] = (
    ("in fewer training steps", "faster"), ("in fewer steps", "faster"), ("with fewer steps", "faster"),
    ("in less steps", "faster"), ("increase in", "increase"), ("rise in", "increase"), ("decrease in", "decrease"),
    ("drop in", "decrease"), ("reduction in", "decrease"), ("reduction of", "decrease"), ("turning on", "enabling"),
    ("turn on", "enabling"), ("switching on", "enabling"), ("switch on", "enabling"), ("turning up", "raising"),
    ("turning down", "reducing"), ("as good as", "versus"), ("match", "versus"), ("matches", "versus"),
)  # fmt: skip
"""Phrases whose words would be misread one by one, and the word that stands in for their meaning."""

_MEANT = frozenset(means for _, means in _MEANINGS)
"""Words that may come into a topic in an idiom's place."""
_MINUS = "~"
"""Stands for the minus of an exponent while hyphens become blanks."""
_GLUE = tuple(
    (re.compile(pattern), glue)
    for pattern, glue in (
        (r"(?<![\w.])(\d+(?:\.\d+)?)e-(\d+)(?!\w)", rf"\1e{_MINUS}\2"), (r"\bdr\.", "dr "),
        (r"\breinforce\s*\+\+", "reinforce plus plus "), (r"(?<=\d)_(?=\d)", ""),
        (r"(?<=\d)\s*/\s*(?=\d)", " , "), (r"(?<=\d)-(?=\d)", " to "), (r"[→]|->", " to "),
        (r"_|(?<=\w)-(?=[a-z])", " "), (r"&", " and "), (r"(?<=\d)\.\.+(?=\d)", " to "),
        (r"(?<=\d)\s*>\s*(?=\d)", " beats "),
    )
)  # fmt: skip
_TOKEN = re.compile(
    rf"(?P<hash>(?<=@)[0-9a-f]{{{DIGITS}}}(?!\w))|(?P<number>(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+{_MINUS}]?\d+)?(?![\w%]|\.\d))"
    r"|(?P<word>[^\W_]+(?:'[a-z]+)?)|(?P<comma>[,;])"
)
_LONGEST_INTEGER = 15


def phrases(names: Iterable[tuple[str, Item]]) -> tuple[Phrase, ...]:
    """Return the phrases that stand for `names`, longest first; `group size` also stands as `groupsize`."""
    idioms = [
        *((text, Item("word", stem(means))) for text, means in _MEANINGS),
        *((text, Item("phrase", text, settled=True)) for text in _SETTLED),
        *((text, Item("unvaried", text)) for text in _UNVARIED),
    ]
    known: dict[tuple[str, ...], Item] = {}
    for text, item in [*names, *idioms]:
        words = _phrase_stems(text)
        known.setdefault(words, item)
        known.setdefault((stem("".join(words)),), item)
    return tuple(Phrase(stems, known[stems]) for stems in sorted(known, key=len, reverse=True))


def itemise(topic: str, known: Sequence[Phrase]) -> list[Item]:
    """Return the topic as items; the longest phrases are found first, and no word belongs to two."""
    items: list[Item | None] = list(_cut(topic))
    present = {item.name for item in items if item} | _MEANT
    for phrase in known:
        if present.issuperset(phrase.stems):
            _replace(items, phrase)
    return [item for item in items if item is not None]


def _replace(items: list[Item | None], phrase: Phrase) -> None:
    width = len(phrase.stems)
    for start in range(len(items) - width + 1):
        window = items[start : start + width]
        if all(item and item.kind == "word" and item.name == want for item, want in zip(window, phrase.stems)):  # noqa: B905
            at = window[0].at[0], window[-1].at[1]  # type: ignore[union-attr]  # all of them are items
            items[start : start + width] = [replace(phrase.item, at=at), *[None] * (width - 1)]


@cache
def _phrase_stems(text: str) -> tuple[str, ...]:
    return tuple(entry.name for entry in _cut(text))


def _cut(text: str) -> list[Item]:
    plain = _AlignedText.of(text)
    for pattern, glue in _GLUE:
        plain = plain.sub(pattern, glue)
    return [_make_item(found, plain.span(*found.span())) for found in _TOKEN.finditer(plain.text)]


@dataclass(frozen=True, slots=True)
class _AlignedText:
    """A text in which things were replaced, and where each of its characters came from."""

    text: str
    origins: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str) -> _AlignedText:
        forms = [unicodedata.normalize("NFKC", char).lower() for char in text]
        return cls("".join(forms), tuple((at, at + 1) for at, form in enumerate(forms) for _ in form))

    def sub(self, pattern: re.Pattern[str], glue: str) -> _AlignedText:
        texts: list[str] = []
        origins: list[tuple[int, int]] = []
        last = 0
        for found in pattern.finditer(self.text):
            new = found.expand(glue)
            texts += [self.text[last : found.start()], new]
            origins += [*self.origins[last : found.start()], *[self.span(*found.span())] * len(new)]
            last = found.end()
        return _AlignedText("".join([*texts, self.text[last:]]), (*origins, *self.origins[last:]))

    def span(self, start: int, end: int) -> tuple[int, int]:
        return (self.origins[start][0], self.origins[end - 1][1]) if start < end else (0, 0)


def _make_item(found: re.Match[str], at: tuple[int, int]) -> Item:
    if found["number"]:
        text = found["number"].replace(_MINUS, "-")
        return Item("number", text, number=_parse_number(text), at=at)
    if found["hash"]:  # of a brought environment's name: a word, be it of digits alone
        return Item("word", found["hash"], at=at)
    if found["comma"]:
        return Item("comma", ",", at=at)
    return Item("word", stem(found["word"].partition("'")[0]), at=at)


def _parse_number(text: str) -> float | int:
    digits = text.lstrip("+-")
    return int(text) if digits.isdecimal() and len(digits) <= _LONGEST_INTEGER else float(text)


GOOD = frozenset({"good", "ok", "okay", "fine", "right", "reasonable", "sensible", "enough", "appropriate"})
"""Words by which a value is judged."""
_REACH_OF_LINKS = 5
"""Items between two numbers that a word such as `than` still sets against each other."""
_NUMBER_WORDS = {
    "zero": 0, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
"""Numbers as words, before a field; `one` is more often a pronoun."""


def parse_number_words(items: Sequence[Item]) -> list[Item]:
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
        runs = self._find_lists()
        for index, run in enumerate(runs):
            self._assign(run, {other.start for other in runs[index + 1 :]})

    def values(self, name: str) -> tuple[Scalar, ...]:
        """Return the values of a field in the order written, the control first: in `16 rather than 4` it is 4."""
        places = [at for at, owner in self._owner.items() if owner == name]
        values = [number for at in places if (number := self._items[at].number) is not None]
        if len(values) == 2 and any(item.name in REVERSING for item in self._items[places[0] : places[1]]):
            values.reverse()
        return tuple(values)

    def values_by_place(self, name: str) -> dict[int, Scalar]:
        places = sorted(at for at, owner in self._owner.items() if owner == name)
        return {at: number for at in places if (number := self._items[at].number) is not None}

    def is_reversed(self, name: str) -> bool:
        """Return whether the first of several values is what is tried, as in `does 8 beat 4 or 16?`."""
        places = [at for at, owner in self._owner.items() if owner == name]
        return len(places) > 2 and any(item.name in REVERSING for item in self._items[places[0] : places[1]])

    def owner(self, at: int) -> str | None:
        return self._owner.get(at)

    def places(self) -> set[int]:
        return set(self._owner)

    def _find_lists(self) -> list[_NumberList]:
        runs: list[_NumberList] = []
        for at, item in enumerate(self._items):
            if item.kind != "number":
                continue
            if runs and self._is_linked(runs[-1].end + 1, at):
                runs[-1].end = at
                runs[-1].places.append(at)
            else:
                runs.append(_NumberList(at, at, [at]))
        return runs

    def _is_linked(self, start: int, end: int) -> bool:
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
        before, after = named or self._field_before(run.start, FILLERS), self._field_after(run.end)
        if before and after and before != after and len(run.places) > 1 and not self._number_follows(run.end, later):
            self._owner[run.places.pop()] = after
        loose = None if before or after else self._find_loose_owner(run)
        owner = before or after or loose
        if owner:
            self._owner |= dict.fromkeys(run.places, owner)

    def _field_before(self, start: int, skip: frozenset[str]) -> str | None:
        for item in reversed(self._items[:start]):
            if item.kind == "field":
                return item.name
            if item.name not in skip:
                return None
        return None

    def _field_after(self, end: int) -> str | None:
        for item in self._items[end + 1 :]:
            if item.kind == "field":
                return item.name
            if item.name not in FILLERS | GOOD:
                return None
        return None

    def _number_follows(self, end: int, later: set[int]) -> bool:
        place = end + 1
        while place < len(self._items) and (self._items[place].kind == "field" or self._items[place].name in FILLERS):
            place += 1
        return place in later

    def _find_loose_owner(self, run: _NumberList) -> str | None:
        """Return the field of values that stand apart, as in `does group size matter: 4 vs 16?`; a number before a word
        that is not known counts something else, as in `larger groups, 5 guesses`.
        """
        if not self._is_free(run.end + 1):
            return None
        joined = self._field_before(run.start, FILLERS | LINKS | BETTER | WORSE | {","})
        after_place = run.start > 0 and self._items[run.start - 1].kind == "environment"
        alone = len(self._names) == 1 and len(run.places) > 1 and (after_place or self._is_free(run.start - 1))
        return joined or (self._names[0] if alone else None)

    def _is_free(self, at: int) -> bool:
        if not 0 <= at < len(self._items):
            return True
        item = self._items[at]
        return item.kind == "comma" or item.name in FREE | BETTER | WORSE | BREAKERS
