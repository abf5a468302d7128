"""The words the rule planner knows, and how a topic is cut into items. English only; it parses no grammar.

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

from swarm.environments.brought import DIGITS

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
FACTORS: dict[str, float] = {
    "double": 2, "doubling": 2, "doubled": 2, "twice": 2, "triple": 3, "tripling": 3, "quadruple": 4, "halve": 0.5,
    "halving": 0.5, "half": 0.5,
}  # fmt: skip
"""Words for how many times the default something is; `10x` is one, too."""
SAME = _stems("same equal fixed constant identical unchanged")
"""Words before a field that all arms share at its default."""
CHANGING = _stems("change changing changed touch touching vary varying alter altering")
"""Verbs that say so of a field after a `not` or `without`."""
ON = _stems("with enable enabling enabled use using add adding")
OFF = _stems("without disable disabling disabled no remove removing removed drop dropping off omit omitting")
SLIGHT = _stems("small low little")
"""Words for something that is there, and not for less of it: a small penalty is none that is switched off."""
AFTER: dict[str, Sense] = {
    "increased": "up", "raised": "up", "larger": "up", "higher": "up", "bigger": "up", "doubled": "up",
    "decreased": "down", "reduced": "down", "lowered": "down", "smaller": "down", "lower": "down", "halved": "down",
    "enabled": "on", "on": "on", "disabled": "off", "removed": "off", "off": "off",
}  # fmt: skip
"""Words that give a direction to the name before them: `with group size increased`."""
COPULAS = _stems("is are was were be being been gets get turned switched set made")

FAST = _stems("faster fast speed speeds accelerate accelerates quicker quickly efficient efficiency sooner earlier")
SLOW = _stems("slow slows slower slowing slowly later")
BEATING = _stems("beat beats outperform outperforms exceed exceeds surpass surpasses")
"""Verbs between what is tried and what it is compared with."""
BETTER = FAST | BEATING | _stems(
    "better improve improves improved improving improvement help helps helping helped helpful boost boosts benefit "
    "benefits gain gains best worthwhile"
)  # fmt: skip
WORSE = SLOW | _stems(
    "hurt hurts hurting worse worsen worsens degrade degrades harm harms harmful hinder hinders impair impairs damage "
    "damages worst"
)  # fmt: skip
PREVENTING = _stems("prevent prevents preventing avoid avoids avoiding stop stops")
NEGATIONS = _stems("not doesn don never cannot isn without")
RAISING = _stems("increase raise higher more improve lift greater")
LOWERING = _stems("decrease reduce lower less fewer cut")
OUTCOMES = _stems("success reward return accuracy performance score result rate quality solved wins")

STRONG_LINKS = _stems("vs v versus against than rather instead compared") | BEATING
"""Words that set two values against each other even with a verb between them."""
LINKS = _stems("and or vs v versus against to than rather instead of compared over with")
REVERSING = _stems("than rather instead compared over against") | BEATING
FILLERS = _stems("of at is be to set value equal equals from between around like such as being a an the size for among")
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
            at = window[0].at[0], window[-1].at[1]  # type: ignore[union-attr]  # all of them are items
            items[start : start + width] = [replace(phrase.item, at=at), *[None] * (width - 1)]


@cache
def _words(text: str) -> tuple[str, ...]:
    """Return the stems of a phrase that is known beforehand."""
    return tuple(entry.name for entry in _cut(text))


def _cut(text: str) -> list[Item]:
    plain = _Traced.of(text)
    for pattern, glue in _GLUE:
        plain = plain.sub(pattern, glue)
    return [_item(found, plain.span(*found.span())) for found in _TOKEN.finditer(plain.text)]


@dataclass(frozen=True, slots=True)
class _Traced:
    """A text in which things were replaced, and where each of its characters came from."""

    text: str
    origins: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str) -> _Traced:
        """Return a text in lower case, in the plain forms of its characters (NFKC)."""
        forms = [unicodedata.normalize("NFKC", char).lower() for char in text]
        return cls("".join(forms), tuple((at, at + 1) for at, form in enumerate(forms) for _ in form))

    def sub(self, pattern: re.Pattern[str], glue: str) -> _Traced:
        """Replace each match of a pattern."""
        texts: list[str] = []
        origins: list[tuple[int, int]] = []
        last = 0
        for found in pattern.finditer(self.text):
            new = found.expand(glue)
            texts += [self.text[last : found.start()], new]
            origins += [*self.origins[last : found.start()], *[self.span(*found.span())] * len(new)]
            last = found.end()
        return _Traced("".join([*texts, self.text[last:]]), (*origins, *self.origins[last:]))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return which characters of the text as given those between two places came from."""
        return (self.origins[start][0], self.origins[end - 1][1]) if start < end else (0, 0)


def _item(found: re.Match[str], at: tuple[int, int]) -> Item:
    if found["number"]:
        text = found["number"].replace(_MINUS, "-")
        return Item("number", text, number=_number(text), at=at)
    if found["hash"]:  # of a brought environment's name: a word, be it of digits alone
        return Item("word", found["hash"], at=at)
    if found["comma"]:
        return Item("comma", ",", at=at)
    return Item("word", stem(found["word"].partition("'")[0]), at=at)


def _number(text: str) -> float | int:
    digits = text.lstrip("+-")
    return int(text) if digits.isdecimal() and len(digits) <= _LONGEST_INTEGER else float(text)
