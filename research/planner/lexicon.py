"""The words the rule planner knows, and how a topic is cut into items. English only; it parses no grammar.

Spelling is forgiven where it carries no meaning: case, plural, hyphen, underscore, `=`; `groupsize` is `group size`.
Numbers with a unit or a letter glued to them (`10x`, `7b`, `50%`) are words, not values.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

Kind = Literal["word", "comma", "number", "field", "value", "environment", "phrase"]
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


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in text.split())


UP = _stems(
    "larger large bigger big higher high more increase increases increasing increased raise raising raised greater "
    "longer stronger wider double doubling extra hotter warmer"
)
DOWN = _stems(
    "smaller small lower low fewer less decrease decreasing decreased reduce reducing reduced lowering shrink "
    "shrinking shorter weaker narrower halve halving colder cooler"
)
ON = _stems("with enable enabling enabled use using add adding")
OFF = _stems("without disable disabling disabled no remove removing removed drop dropping off omit omitting")
AFTER: dict[str, Sense] = {
    "increased": "up", "raised": "up", "larger": "up", "higher": "up", "bigger": "up", "doubled": "up",
    "decreased": "down", "reduced": "down", "lowered": "down", "smaller": "down", "lower": "down", "halved": "down",
    "enabled": "on", "on": "on", "disabled": "off", "removed": "off", "off": "off",
}  # fmt: skip
"""Words that give a direction to the name before them: `with group size increased`."""
COPULAS = _stems("is are was were be being been gets get turned switched set made")

BETTER = _stems(
    "faster fast better improve improves improved improving improvement help helps helping helped boost boosts speed "
    "speeds accelerate accelerates benefit benefits gain gains stable stabilise stabilize stabilises stabilizes "
    "outperform outperforms beat beats quicker quickly efficient efficiency best"
)
WORSE = _stems(
    "hurt hurts hurting slow slows slower slowing worse worsen worsens collapse collapses collapsing degrade degrades "
    "harm harms harmful hinder hinders impair impairs destabilise destabilize destabilises destabilizes unstable "
    "damage damages diverge diverges break breaks fail fails failure worst"
)
PREVENTING = _stems("prevent prevents preventing avoid avoids avoiding stop stops")
NEGATIONS = _stems("not doesn don never cannot isn without")
RAISING = _stems("increase raise higher more improve lift greater")
LOWERING = _stems("decrease reduce lower less fewer cut")
OUTCOMES = _stems("success reward return accuracy performance score result rate quality solved wins")

STRONG_LINKS = _stems("vs v versus against than rather instead compared")
"""Words that set two values against each other even with a verb between them."""
LINKS = _stems("and or vs v versus against to than rather instead of compared over with")
REVERSING = _stems("than rather instead compared over against")
FILLERS = _stems("of at is to set value equal equals from between around like such as being a an the size for among")
BREAKERS = _stems(
    "with by from via in for make makes making does do did is are than to lead leads cause causes affect affects on "
    "change changes matter matters that which when if while after before"
) | BETTER | WORSE | OUTCOMES  # fmt: skip
"""Words a direction does not reach across."""
FREE = _stems("in on for when with at if does do is and while the to")
"""Words that may stand around a loose list of values, so that it belongs to the only field named."""
REPLICATING = _stems("replicate replicates replicated replicating replication repeat repeated again")
"""Words that lead to an environment to replicate in."""
TRUTH = {"true": True, "on": True, "yes": True, "enabled": True, "false": False, "off": False, "disabled": False}

_IDIOMS: tuple[tuple[str, str], ...] = (
    ("group relative policy optimization", ""), ("group relative policy optimisation", ""), ("group relative", ""),
    ("entropy collapse", "worse"), ("kl blow up", "worse"), ("kl divergence", ""), ("policy entropy", ""),
    ("in fewer training steps", "faster"), ("in fewer steps", "faster"), ("with fewer steps", "faster"),
    ("in less steps", "faster"), ("per step", ""), ("per batch", ""), ("step by step", ""),
    ("multi step", ""), ("each step", ""), ("every step", ""),
    ("increase in", "increase"), ("rise in", "increase"), ("decrease in", "decrease"), ("drop in", "decrease"),
    ("reduction in", "decrease"), ("reduction of", "decrease"), ("turning on", "enabling"), ("turn on", "enabling"),
    ("switching on", "enabling"), ("switch on", "enabling"), ("turning up", "raising"), ("turning down", "reducing"),
    *((name, "") for name in (
        "learning rate warmup", "learning rate warm up", "lr warmup", "lr warm up", "linear warmup", "linear warm up",
        "cosine warmup", "cosine warm up", "warmup steps", "warm up steps", "final learning rate",
        "learning rate final", "dual clip", "dual clipping", "gradient clip", "gradient clipping",
        "gradient norm clipping", "lora alpha", "lora dropout", "micro batch size", "micro batch",
        "gradient accumulation steps", "off policy correction cap", "importance sampling cap",
        "importance weights cap",
    )),  # what no study varies, though a part of its name is a field's
)  # fmt: skip
"""Phrases whose words would be misread one by one; the second word, if any, stands in for their meaning."""

_MEANT = frozenset(means for _, means in _IDIOMS)
"""Words that may come into a topic in an idiom's place."""
_GLUE = ((r"\bdr\.", "dr "), (r"\breinforce\s*\+\+", "reinforce plus plus "), (r"(?<=\d)_(?=\d)", ""),
         (r"(?<=\d)\s*/\s*(?=\d)", " , "), (r"(?<=\d)-(?=\d)", " to "), (r"[→]|->", " to "),
         (r"_|(?<=\w)-(?=[a-z])", " "))  # fmt: skip
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e-(\d+)(?!\w)")
_TOKEN = re.compile(
    r"(?P<number>(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?![\w%]|\.\d))"
    r"|(?P<word>[^\W_]+(?:'[a-z]+)?)|(?P<comma>[,;])"
)
_LONGEST_INTEGER = 15


def phrases(names: Iterable[tuple[str, Item]]) -> tuple[Phrase, ...]:
    """Return the phrases that stand for `names`, longest first; `group size` also stands as `groupsize`."""
    idioms = [(text, Item("word" if means else "phrase", means or text)) for text, means in _IDIOMS]
    known: dict[tuple[str, ...], Item] = {}
    for text, item in [*names, *idioms]:
        words = _words(text)
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
            items[start : start + width] = [phrase.item, *[None] * (width - 1)]


@cache
def _words(text: str) -> tuple[str, ...]:
    """Return the stems of a phrase that is known beforehand."""
    return tuple(entry.name for entry in _cut(text))


def _cut(text: str) -> list[Item]:
    plain = unicodedata.normalize("NFKC", text).lower()
    plain = _EXPONENT.sub(lambda found: f"{found[1]}e~{found[2]}", plain)
    for pattern, glue in _GLUE:
        plain = re.sub(pattern, glue, plain)
    plain = plain.replace("e~", "e-")
    return [_item(found) for found in _TOKEN.finditer(plain)]


def _item(found: re.Match[str]) -> Item:
    if found["number"]:
        return Item("number", found["number"], number=_number(found["number"]))
    if found["comma"]:
        return Item("comma", ",")
    return Item("word", stem(found["word"].partition("'")[0]))


def _number(text: str) -> float | int:
    digits = text.lstrip("+-")
    return int(text) if digits.isdecimal() and len(digits) <= _LONGEST_INTEGER else float(text)
