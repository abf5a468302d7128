"""What is left of a topic when everything that a plan holds is taken out: nothing of it passes without a word.

Each word of a topic names a field, a value or an environment, gives one of them a direction, says which effect is asked
about, or stands in a closed list of words that ask for nothing (`ASKING`, `GRAMMAR`). Whatever else there is names an
arm, a value or a condition that the plan does not have, and is refused, or it is shown as not tested. Which of the two
follows from its place alone: beside a value that is compared, after a preposition that sets a condition, or elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from research.spelling import did_you_mean
from research.topic.lexicon import BEATING, BETTER, DOWN, OFF, UP, WORSE, Item, stem

Role = Literal["near", "unvaried", "number", "arm", "condition", "else"]
_LEAST_LETTERS = 4
"""Letters of a word that may be a known one misspelt."""
_WORDS_ALIKE = 0.88
"""How alike a word is to a part of a name that it may be meant for: one letter of eight is missing."""


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in text.split())


GRAMMAR = _stems(
    "a an the this that these those it its they them their i we you my our your me us one ones each every all both any "
    "some such same other another own more most much many lot bit of at is are was were be been being am as to set "
    "equal equals from between around like so too very quite rather just only also even still yet already really "
    "actually ever always never again not no nor don doesn isn aren won can cannot could will would shall should may "
    "might must do does did doing done has have had having get gets got make makes making made let lets give gives "
    "given take takes go goes come comes keep keeps put and or vs v versus against than instead compared compare "
    "compares comparing comparison over with without for in on by via into out up down off under above below when "
    "while if then else because since although though but however after before until during through per about among "
    "across within along who whom what which how why where whether there here now s t re ve ll d m"
)
"""Words that hold a sentence together."""
ASKING = _stems(
    "effect effects affect affects affecting influence influences impact impacts matter matters difference "
    "differences differ change changes changing cause causes lead leads leading mean means help question questions "
    "study studies studying test tests testing tested investigate examine explore find finds know see sees tell ask "
    "show shows prove demonstrate explain check determine measure measures evaluate evaluation try want wants need "
    "needs wonder wondering curious think believe claim claims hypothesis please thank thanks hello hi interested say "
    "says said hear heard understand learn learns learned learner learning train trains trained trainer training rl "
    "reinforcement agentic agent agents policy policies model models llm llms run runs running experiment experiments "
    "task tasks game games play plays playing environment environments env hidden held final finally last end overall "
    "result results outcome outcomes score scores success successes successful reward rewards return returns accuracy "
    "performance rate rates quality solved solve solves solving win wins value values setting settings option options "
    "choice choices hyperparameter hyperparameters parameter parameters level levels amount amounts size sizes number "
    "numbers use using used uses apply applied default defaults plain vanilla ordinary regular standard usual normal "
    "typical good ok okay fine right reasonable sensible enough worth suitable appropriate choose choosing chosen "
    "pick select recommend recommended best optimal optimum ideal tune tuning tuned sweep search optimise optimize "
    "well possible likely true false significant significantly statistically evidence depend depends depending too "
    "time times episode episodes step steps token tokens seed seeds match matches matching judged"
)
"""Words that ask, and the nouns of what every study does."""
CONDITIONS = _stems(
    "with without using under when while if in on at after before during via through given where until unless for"
)
"""Words after which something is set, or stated to hold."""
_BESIDE = _stems("vs v versus against than or and instead between compared over") | BEATING | {","}
"""Words with an arm on either side."""
_CROSSING = _stems("interact interacts interacting interaction interactions interplay")
DEPENDING = _stems("depend depends depending") | _CROSSING
"""Words that ask whether the effect of one field depends on another."""
_NEEDING = _stems("need needs require requires allow allows permit permits")
_EXCLUDING = _stems("not except excluding besides unlike")
_ANY = _stems("anything everything all nothing")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A run of words that the plan does not hold, as written."""

    text: str
    role: Role
    meant: str = ""
    """`; did you mean NAME?` where one is near."""


def left_over(topic: str, items: Sequence[Item], bound: AbstractSet[int], known: Sequence[str]) -> tuple[Leftover, ...]:
    """Return the runs of items that are not `bound`, in order; `known` are names that may have been meant."""
    return tuple(_runs(topic, items, [_is_left(at, item, bound) for at, item in enumerate(items)], known))


def asks_interaction(items: Sequence[Item]) -> bool:
    """Return whether a topic asks if the effect of one field depends on another."""
    named = [at for at, item in enumerate(items) if item.kind in ("field", "value")]
    asking = DEPENDING if any(item.kind == "number" for item in items) else DEPENDING | _NEEDING
    words = [at for at, item in enumerate(items) if item.kind == "word" and item.name in asking]
    if len({items[at].name for at in named}) > 1 and any(items[at].name in _CROSSING for at in words):
        return True  # `interaction between A and B`
    return any(any(place < at for place in named) and any(place > at for place in named) for at in words)


def excluded(topic: str, items: Sequence[Item]) -> tuple[Leftover, ...]:
    """Return the environments and fields that a topic rules out: `not on guess`, `anything but the learning rate`."""
    found = []
    for at, item in enumerate(items):
        if item.kind == "field" and _is_left_out(items, at):
            found.append(Leftover(topic[items[at - 1].at[0] : item.at[1]], "condition"))
        if item.kind == "environment":
            lead = _skip(items, at - 1, -1)
            lead -= lead >= 0 and items[lead].name in ("on", "in", "for")
            if lead >= 0 and items[lead].name in _EXCLUDING and (lead == 0 or items[lead - 1].name != "or"):
                found.append(Leftover(topic[items[lead].at[0] : item.at[1]], "condition"))
    return tuple(found)


def _is_left_out(items: Sequence[Item], at: int) -> bool:
    """Return whether a field is what is not to be varied: `anything but the learning rate`."""
    before = [item.name for item in items[max(0, at - 2) : at]]
    return before[-1:] in (["except"], ["excluding"], ["besides"]) or (before[-1:] == ["but"] and before[0] in _ANY)


def is_english(items: Sequence[Item]) -> bool:
    """Return whether any word holds a sentence of English together, or gives a direction in it."""
    words = (GRAMMAR - _ELSEWHERE) | UP | DOWN | OFF | BETTER | WORSE
    return any(item.kind == "word" and item.name in words for item in items)


_ELSEWHERE = _stems("a s t d m re in so an am on do no me was will")
"""Words of the list that other languages have as well."""


def _is_left(at: int, item: Item, bound: AbstractSet[int]) -> bool:
    if at in bound or item.settled or item.kind == "comma":
        return False
    return item.kind in ("number", "unvaried") or (item.kind == "word" and item.name not in GRAMMAR | ASKING)


def _runs(topic: str, items: Sequence[Item], left: Sequence[bool], known: Sequence[str]) -> Iterator[Leftover]:
    at = 0
    while at < len(items):
        end = at
        while end < len(items) and left[end] and items[end].kind == items[at].kind:
            end += 1
        if end > at:
            yield _left(topic, items, at, end, known)
        at = max(end, at + 1)


def _left(topic: str, items: Sequence[Item], start: int, end: int, known: Sequence[str]) -> Leftover:
    text = topic[items[start].at[0] : items[end - 1].at[1]]
    meant = _meant([topic[slice(*item.at)] for item in items[start:end] if item.kind == "word"], known)
    return Leftover(text, "near" if meant else _role(items, start, end), meant)


def _meant(words: Sequence[str], known: Sequence[str]) -> str:
    """Return what known name a run, or a word of it, is spelt like."""
    texts = ["_".join(words), *words] if len(words) > 1 else words
    parts = {part for name in known for part in name.split() if len(part) >= _LEAST_LETTERS}
    spelt = {stem(part) for part in parts}
    long = [text for text in texts if len(text) >= _LEAST_LETTERS and stem(text.lower()) not in spelt]
    near = (did_you_mean(text, known) or did_you_mean(text, parts, _WORDS_ALIKE) for text in long)
    return next(filter(None, near), "")


def _role(items: Sequence[Item], start: int, end: int) -> Role:
    kind = items[start].kind
    if kind == "unvaried" or kind == "number":
        return kind
    if any(char.isdigit() for item in items[start:end] for char in item.name):
        return "number"
    if _is_beside(items, start, end):
        return "arm"
    return "condition" if _governing(items, start) in CONDITIONS or _in_clause(items, start) else "else"


def _in_clause(items: Sequence[Item], start: int) -> bool:
    """Return whether a run stands in a clause that begins with a word such as `when`, up to the next comma."""
    for item in reversed(items[:start]):
        if item.kind == "comma":
            return False
        if item.name in _CLAUSES:
            return True
    return False


_CLAUSES = _stems("when while if given where unless under provided assuming once whenever")


def _governing(items: Sequence[Item], start: int) -> str:
    """Return the word that leads to a run, articles and the like left out, and `environment` before its name."""
    named = start > 0 and items[start - 1].name in _KINDS and not items[start].name.endswith("ly")
    for item in reversed(items[: start - 1] if named else items[:start]):
        if item.name not in _LEADING:
            return item.name
    return ""


_LEADING = _stems("a an the this that these those its their my our your some any such very quite more most much many")

_KINDS = _stems("environment env game model")
"""What a name may follow, as in `the environment shop`."""


def _is_beside(items: Sequence[Item], start: int, end: int) -> bool:
    """Return whether a run stands where an arm does: joined to a field or a value by a word of comparison."""
    before, after = _skip(items, start - 1, -1), _skip(items, end, 1)
    return (_joins(items, before) and _names(items, _skip(items, before - 1, -1))) or (
        _joins(items, after) and _names(items, _skip(items, after + 1, 1))
    )


def _skip(items: Sequence[Item], at: int, step: int) -> int:
    while 0 <= at < len(items) and items[at].kind == "word" and items[at].name in _LEADING:
        at += step
    return at


def _joins(items: Sequence[Item], at: int) -> bool:
    return 0 <= at < len(items) and items[at].kind in ("word", "comma") and items[at].name in _BESIDE


def _names(items: Sequence[Item], at: int) -> bool:
    return 0 <= at < len(items) and items[at].kind in ("field", "value", "number", "unvaried")
