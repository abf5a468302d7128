"""Reading a topic: fields, values, directions and effect, by names and a few words.

It recognises, it does not understand: what it cannot attach to a field it reports (`left`) instead of guessing. Values
in words have no order, so the wording decides: in `RLOO beats GRPO` the first is the treatment and the second the
control; in a plain list the default is the control. The plainest value of a field named alone is no question.

`my environment` and the like mean what was given by a flag; what bears a name of its own is found by it, or refused
(`research.planners.unsupported`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from research.planners import unsupported
from research.planners.context import EnvironmentSpec, FieldSpec, PlannerContext
from research.planners.lexicon import (
    AFTER,
    BETTER,
    BREAKERS,
    CHANGING,
    COPULAS,
    DOWN,
    FACTORS,
    FAST,
    FILLERS,
    GOOD,
    LINKS,
    LOWERING,
    NEGATIONS,
    OFF,
    ON,
    OUTCOMES,
    PREVENTING,
    RAISING,
    REPLICATING,
    REVERSING,
    SAME,
    SLIGHT,
    SLOW,
    STRONG_LINKS,
    TRUTH,
    UP,
    WORSE,
    Claim,
    Item,
    Numbers,
    Sense,
    itemise,
    parse_number_words,
    phrases,
)
from research.planners.unsupported import (
    DEPENDING,
    UnparsedSpan,
    asks_interaction,
    find_excluded,
    find_unparsed,
    is_english,
)
from research.proposals.arms import Scalar
from studies.records.design import MODEL
from studies.records.statements import model_name
from swarm.environments.custom import MARK

ALGORITHM = "algorithm"
_FOREIGN = frozenset({
    "reinforce", "ppo", "dapo", "dpo", "ipo", "kto", "orpo", "simpo", "trpo", "cispo", "sapo", "gmpo", "vapo", "srpo",
    "opo", "ppg", "sac", "ddpg", "td3", "dqn", "a2c", "a3c", "remax", "raft", "impala", "awr", "vpg", "gpg", "prime",
    "sft",
})  # fmt: skip
"""Algorithms that people name and no job has."""
_SWITCH_WORDS = frozenset({"off", "none"})
"""Values that are directions in a topic, and so no names."""


def choice_names(fields: Iterable[FieldSpec]) -> list[tuple[str, Item]]:
    return [
        (
            text,
            Item("value", facts.name, value=value)
            if facts.is_categorical
            else Item("number", text, number=int(value), owner=facts.name),
        )
        for facts in fields
        for value, texts in facts.values.items()
        for text in texts
    ]


def bare_names(fields: Iterable[FieldSpec], items: Sequence[Item]) -> list[tuple[str, Item]]:
    named = {item.name for item in items if item.kind in ("field", "value")}
    return [
        (str(value), Item("value", facts.name, value=str(value)))
        for facts in fields
        if facts.is_categorical and facts.name in named
        for value in facts.ladder
        if value not in _SWITCH_WORDS
    ]


def remove_plain_default(items: Sequence[Item], facts: FieldSpec) -> list[Item]:
    """Return the items with a plainest default that is named alone turned into a word that asks nothing."""
    own = [item for item in items if item.name == facts.name and item.kind in ("field", "value")]
    if facts.default != facts.ladder[0] or any(item.value != facts.default for item in own):
        return list(items)
    return [replace(item, kind="word", name=str(item.value), settled=True) if item in own else item for item in items]


def choice_values(items: Sequence[Item], facts: FieldSpec) -> tuple[tuple[str, ...], bool]:
    """Return the values named of a field, the control first, and whether the claim is about the control, as in `RLOO
    beats GRPO and GSPO`: all hypotheses of a study share one control.
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


def find_unknown_algorithm(topic: str, items: Sequence[Item], known: FieldSpec) -> str | None:
    stated = re.search(rf"\b{ALGORITHM}\s*=\s*(\w+)", topic, re.IGNORECASE)
    texts = [*map(str, known.ladder), *(text for named in known.values.values() for text in named)]
    if stated and not any(stated[1].lower() in text for text in texts):
        return stated[1]
    return next((item.name for item in items if item.kind == "word" and item.name in _FOREIGN), None)


_WHOSE = r"(?<![\w-])(?:my|our|this|these)(?: own| new| custom)*"
_UNNAMED = r"(?![\w-])(?! (?:named|called)\b| ['\"`(])"
"""Where no name follows that could be another's."""
_PLAYED = rf"(?:environment|env|tasks?|games?|data ?set|benchmark|problems?|domain|simulator){_UNNAMED}"
"""One that is played, or what it is made of; several environments are not the one that was given."""
_ENVIRONMENT = re.compile(rf"(?:{_WHOSE}|(?<![\w-])(?:the|a) custom) {_PLAYED}", re.IGNORECASE)
_THIS = "this environment"
_ADJECTIVES = r"(?: pre-?trained| small| large| real| chat| instruct| language)*"
_MODEL = re.compile(rf"{_WHOSE}{_ADJECTIVES} (?:model|llm|checkpoint){_UNNAMED}", re.IGNORECASE)
_MODELS = re.compile(
    rf"{_WHOSE}(?: two| three| four)?{_ADJECTIVES} (?:models|llms|checkpoints){_UNNAMED}", re.IGNORECASE
)
_JOB = re.compile(rf"(?:{_WHOSE}|(?<![\w-])the)(?: base)? job(?: file)?(?![\w-])|(?<![\w-])base job(?![\w-])", re.I)


def normalize_topic(context: PlannerContext) -> str:
    """Return the topic for whoever reads it by names: what the user brought in words that every study has."""
    topic = context.wanted.models.replace_paths(context.topic)
    if context.wanted.environment is not None or context.wanted.custom_environments:
        names = dict(_environment_names(context))
        topic = _ENVIRONMENT.sub(_THIS, _replace_partial_names(_drop_possessives(topic, names), names))
    if MODEL in context.fixed:
        topic = _replace_model_name(topic, model_name(context.fixed[MODEL]))
        topic = _MODEL.sub("this policy", topic)
    if context.wanted.models.by_name:
        topic = _MODELS.sub("these policies", topic)
    if context.fixed.keys() - {MODEL}:
        topic = _JOB.sub("these settings", topic)
    return topic


def _environment_names(context: PlannerContext) -> Iterable[tuple[str, str]]:
    """Yield all that an environment is called by, and what to say for it: only that of `--env`, which is last as it
    goes first, is `this environment`; any other keeps its name, or another would be studied.
    """
    given = {context.wanted.environment, *context.wanted.custom_environments}
    known = [facts for facts in context.environments if facts.name in given]
    for facts in sorted(known, key=lambda facts: facts.name == context.wanted.environment):
        said = _THIS if facts.name == context.wanted.environment else facts.name
        yield from ((name, said) for name in (facts.name, *facts.synonyms))


def _drop_possessives(topic: str, names: Iterable[str]) -> str:
    """Return a topic that says names without whose they are: `my stock environment` is `stock`."""
    for name in sorted(set(names), key=len, reverse=True):
        topic = re.sub(rf"{_WHOSE} ({re.escape(name)})(?: {_PLAYED})?(?![\w-])", r"\1", topic, flags=re.IGNORECASE)
    return topic


def _replace_partial_names(topic: str, names: Mapping[str, str]) -> str:
    parts = {part: said for name, said in names.items() for part in _name_parts(name)}
    for entry in reversed(unsupported.find_unknown_names(topic)):
        start, end = entry.at
        end += len(_VERSION.match(topic[end:])[0])  # type: ignore[index]  # it matches nothing, too
        called = "".join(_plain_words(_WHOSE_IT_IS.sub("", topic[start:end])))
        if entry.noun == "environment" and called in parts:
            topic = f"{topic[:start]}{parts[called]}{topic[end:]}"
    return topic


def _name_parts(name: str) -> Iterable[str]:
    """Yield all runs of a name's words: `gymnasium-frozenlake-v1` is called `frozenlake` or `frozenlake-v1`, too."""
    words = _plain_words(name.partition(MARK)[0])
    return ("".join(words[start:end]) for end in range(1, len(words) + 1) for start in range(end))


def _plain_words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


_VERSION = re.compile(r"(?:-v\d+)?(?: (?:environment|env|task|game)s?\b)?", re.IGNORECASE)
_WHOSE_IT_IS = re.compile(rf"^{_WHOSE} | (?:environment|env|task|game)s?$", re.IGNORECASE)


def _replace_model_name(topic: str, name: str) -> str:
    """Return a topic with the model's own name as a general word, if no other word could be meant by the name."""
    if [entry.text.lower() for entry in unsupported.find_unknown_names(name)] != [name.lower()]:
        return topic
    return re.sub(rf"(?:{_WHOSE} )?(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", "this policy", topic, flags=re.I)


_CONDITIONAL = frozenset({"with", "without", "for", "at", "under", "when", "given", "if"})
TOO = frozenset({"high", "low", "large", "small", "big", "long", "short", "much", "many", "few", "little"})
"""Words after `too`."""
_REACH_OF_AGAIN = 4
"""Items before an environment in which a word of replication is looked for."""


def is_condition(items: Sequence[Item], at: int) -> bool:
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


def find_replication(items: Sequence[Item]) -> str | None:
    for at, item in enumerate(items):
        before = items[max(0, at - _REACH_OF_AGAIN) : at]
        if item.kind == "environment" and any(word.name in REPLICATING for word in before):
            return item.name
    return None


def compared_fields(items: Sequence[Item]) -> tuple[tuple[str, str], ...]:
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


def values_by_arm(items: Sequence[Item], numbers: Numbers, names: Sequence[str]) -> dict[str, tuple[Scalar, ...]]:
    """Return the values of fields that take turns, arm by arm, the control's first: of two arms the second where the
    wording tries the first, as in `A rather than B`.
    """
    written = {name: _values_by_place(items, numbers, name) for name in names}
    ends = [(min(places, default=0), max(places, default=0)) for places in written.values()]
    between = items[min(start for start, _ in ends) : max(end for _, end in ends)] if ends else []
    found = {name: tuple(dict.fromkeys(places.values())) for name, places in written.items()}
    turned = any(item.name in REVERSING | BETTER | WORSE for item in between)
    if turned and all(len(values) == 2 for values in found.values()):
        return {name: values[::-1] for name, values in found.items()}
    return found


def _values_by_place(items: Sequence[Item], numbers: Numbers, name: str) -> dict[int, Scalar]:
    words = {at: item.value for at, item in enumerate(items) if item.kind == "value" and item.name == name}
    return numbers.values_by_place(name) or {at: value for at, value in words.items() if value is not None}


def joint_fields(items: Sequence[Item], numbers: Numbers) -> tuple[str, ...]:
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


_NEAR_SUCCESS = (
    (FAST | SLOW, "success after the same number of steps is compared, not how long it takes"),
    (frozenset({"reward", "return"}), "the share of hidden tasks solved is compared, not the reward"),
)
_TIMES = re.compile(r"\d+(?:\.\d+)?x")
_REACH = 5
"""Items before a name in which its direction is looked for."""


@dataclass(frozen=True, slots=True)
class ParsedField:
    """What a topic says about one field."""

    field: str
    values: tuple[Scalar, ...] = ()
    """Explicit values, the control first where the wording tells."""
    sense: Sense | None = None
    claim: Claim | None = None
    """The effect asked about, on the success rate; None when the topic asks only whether there is one."""
    factor: float | None = None
    """How many times the default is asked about, as in `double the batch size`."""
    held: bool = False
    """Whether all arms share it, as in `with a KL penalty`, where something else is compared."""
    judged: bool = False
    """Whether its one value is to be judged, as in `is a learning rate of 1e-3 too high?`."""
    assumed: bool = False
    """Whether its values are the reader's, for a word that says how much: a `small` penalty."""


@dataclass(frozen=True, slots=True)
class ParsedTopic:
    """A topic as far as it was read."""

    asked: tuple[ParsedField, ...]
    environments: tuple[str, ...]
    left: tuple[UnparsedSpan, ...]
    """What of the topic is in none of the others."""
    unknown: str | None = None
    """What is named as an algorithm and is none that can be trained."""
    alone: str | None = None
    """The plainest value of a choice of words, where it is named and nothing beside it."""
    again: str | None = None
    """The environment to replicate in; it is none of `environments`."""
    read_as: tuple[tuple[str, str], ...] = ()
    """Words of the topic that are read as hidden success, and how they differ from it."""
    interaction: bool = False
    """Whether it asks if the effect of one field depends on another."""
    compared_fields: tuple[tuple[str, str], ...] = ()
    """Fields that are set against each other: `larger groups or a higher learning rate`."""
    joint_fields: tuple[str, ...] = ()
    """Fields whose values take turns, so that arms differ in all of them: `16 and 1e-3 against 4 and 3e-3`. The first
    of each are then the control's."""
    english: bool = True
    """Whether a word of English holds it together, or nothing is left that could be another language's."""


def parse_topic(topic: str, fields: Sequence[FieldSpec], environments: Sequence[EnvironmentSpec]) -> ParsedTopic:
    named = [
        (text, Item("field", f.name, sense=_find_direction(text))) for f in fields for text in (f.name, *f.synonyms)
    ]
    played = [(text, Item("environment", e.name)) for e in environments for text in (e.name, *e.synonyms)]
    names = named + choice_names(fields) + played
    items = itemise(topic, phrases(names))
    bare = bare_names(fields, items)
    if bare:
        items = itemise(topic, phrases([*names, *bare]))
    alone: str | None = None
    items = parse_number_words(items)
    for facts in fields:
        if facts.is_categorical:
            kept = remove_plain_default(items, facts)
            alone = alone or (str(facts.default) if kept != items else None)
            items = kept
    known = [name for name, item in names if item.kind in ("field", "environment")]
    return replace(_TopicParser(topic, items, fields).parse(known), alone=alone)


def _find_direction(synonym: str) -> Sense | None:
    words = synonym.split()
    return "up" if UP & set(words) else "down" if DOWN & set(words) else None


class _TopicParser:
    """One pass over the items of a topic."""

    def __init__(self, topic: str, items: list[Item], fields: Sequence[FieldSpec]) -> None:
        self._topic = topic
        self._items = items
        self._facts = {facts.name: facts for facts in fields}
        self._spent: set[int] = set()
        """Words that gave a field its direction: they say nothing about the effect."""
        self._effects_named: set[int] = set()
        """Words that say which effect is asked about."""

    def parse(self, known: Sequence[str]) -> ParsedTopic:
        """Return what the topic says; `known` are the names of fields and environments."""
        fields = (item.owner or item.name for item in self._items if item.owner or item.kind in ("field", "value"))
        names = list(dict.fromkeys(fields))
        numbers = Numbers(self._items, [name for name in names if not self._facts[name].is_categorical])
        senses = {name: self._find_sense(name) for name in names}
        shared = [name for name in names if all(map(self._is_shared, self._places(name)))]
        found = [self._parse_field(name, senses[name], numbers) for name in names if name not in shared]
        asked = _clear_judged(self._mark_conditions(tuple(found)))
        environments = dict.fromkeys(item.name for item in self._items if item.kind == "environment")
        crossed = joint_fields(self._items, numbers)
        if crossed:
            arms = values_by_arm(self._items, numbers, crossed)
            asked = tuple(replace(entry, values=arms.get(entry.field) or entry.values) for entry in asked)
        unknown = find_unknown_algorithm(self._topic, self._items, self._facts[ALGORITHM])
        again = find_replication(self._items)
        played = tuple(name for name in environments if name != again)
        bound = self._spent | self._effects_named | numbers.places() | self._name_places()
        crossing = asks_interaction(self._items)
        if crossing:
            bound |= {at for at, item in enumerate(self._items) if item.kind == "word" and item.name in DEPENDING}
        left = (*find_unparsed(self._topic, self._items, bound, known), *find_excluded(self._topic, self._items))
        return ParsedTopic(
            asked, played, left, unknown, again=again, read_as=self._find_approximations(),
            compared_fields=compared_fields(self._items), interaction=crossing,
            joint_fields=crossed,
            english=is_english(self._items) or not any(entry.role != "number" for entry in left),
        )  # fmt: skip

    def _mark_conditions(self, asked: tuple[ParsedField, ...]) -> tuple[ParsedField, ...]:
        under = {
            entry.field for entry in asked if all(is_condition(self._items, at) for at in self._places(entry.field))
        }
        if len(under) == len(asked):
            return asked
        return tuple(replace(entry, held=entry.field in under) for entry in asked)

    def _name_places(self) -> set[int]:
        return {
            at
            for at, item in enumerate(self._items)
            if item.kind in ("field", "value", "environment") or item.name in OUTCOMES | REPLICATING | TRUTH.keys()
        }

    def _find_approximations(self) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        for item, after in pairwise(self._items):
            if item.name == "between" and after.kind == "number":
                found["between"] = "the ends are compared, and no value between them"
        for item in self._items:
            for words, difference in _NEAR_SUCCESS:
                if item.kind == "word" and item.name in words:
                    found[self._topic[item.at[0] : item.at[1]]] = difference
        return tuple(found.items())

    def _parse_field(self, name: str, sense: Sense | None, numbers: Numbers) -> ParsedField:
        facts, claim = self._facts[name], self._find_claim(name)
        if facts.is_categorical:
            words, about_control = choice_values(self._items, facts)
            return ParsedField(name, words, sense, _reverse_claim(claim) if about_control else claim)
        values = self._boolean_values(name) or numbers.values(name)
        if not values and (slight := self._slight_values(name, sense)):
            return ParsedField(name, slight, None, claim, assumed=True)
        if numbers.is_reversed(name):
            claim = _reverse_claim(claim)
        judged = len(values) == 1 and self._is_judged()
        factor = None if values else self._find_factor(name)
        return ParsedField(name, values, None if judged else sense, claim, factor, judged=judged)

    def _find_factor(self, name: str) -> float | None:
        for at in self._places(name):
            for place in range(at - 1, max(-1, at - 1 - _REACH), -1):
                word = self._items[place].name
                if self._items[place].kind != "word" or word in BREAKERS:
                    break
                times = float(word[:-1]) if _TIMES.fullmatch(word) else FACTORS.get(word)
                if times:
                    self._spent.add(place)
                    down = times > 1 and any(item.name in DOWN for item in self._items[place + 1 : at])
                    return 1 / times if down else times
            after = self._items[at + 1].name if at + 1 < len(self._items) else ""
            if _TIMES.fullmatch(after):
                self._spent.add(at + 1)
                return float(after[:-1])
        return None

    def _is_shared(self, at: int) -> bool:
        """Return whether a mention says only that all arms share its field: `at the same temperature`."""
        before = [item.name for item in self._items[max(0, at - 4) : at]]
        if set(before[-2:]) & SAME:
            return True
        verbs = [place for place, word in enumerate(before) if word in CHANGING]
        if not verbs or not set(before[: verbs[-1]]) & (NEGATIONS | {"without"}):
            return False
        self._spent |= {at - len(before) + place for place in range(len(before))}
        return True

    def _slight_values(self, name: str, sense: Sense | None) -> tuple[Scalar, ...]:
        """Return a `small` amount of what is off by default, beside none; nothing where no such word is said."""
        facts = self._facts[name]
        said = {self._items[at].name for place in self._places(name) for at in range(max(0, place - _REACH), place + 4)
                if at in self._spent}  # fmt: skip
        is_off = not facts.ladder[0] and facts.default == facts.ladder[0] and not facts.apart
        return (facts.default, facts.ladder[1]) if sense == "down" and said & SLIGHT and is_off else ()

    def _is_judged(self) -> bool:
        for at, item in enumerate(self._items[:-1]):
            if item.name == "too" and self._items[at + 1].name in UP | DOWN | TOO:
                self._spent.add(at + 1)
                return True
        return any(item.kind == "word" and item.name in GOOD for item in self._items)

    def _places(self, name: str) -> list[int]:
        return [
            at
            for at, item in enumerate(self._items)
            if name == item.owner or (item.kind in ("field", "value") and item.name == name)
        ]

    def _find_sense(self, name: str) -> Sense | None:
        for at in self._places(name):
            stated = self._sense_before(at, name) or self._sense_after(at) or self._inherit_sense(at)
            implied = self._items[at].sense
            if stated or implied:
                return stated or implied
        return None

    def _sense_before(self, at: int, name: str) -> Sense | None:
        found: Sense | None = None
        for place in range(at - 1, max(-1, at - 1 - _REACH), -1):
            item = self._items[place]
            sense = self._direction(item, name)
            if sense is not None:
                found = sense
                self._spent.add(place)
            elif item.kind not in ("word", "value") or item.name in BREAKERS:
                break
        return found

    def _direction(self, item: Item, name: str) -> Sense | None:
        if item.kind != "word":
            return None
        if item.name in UP | DOWN:
            return "up" if item.name in UP else "down"
        if item.name in OFF:
            return "off"
        return "on" if item.name in ON and (not self._facts[name].ladder[0]) else None

    def _sense_after(self, at: int) -> Sense | None:
        place = at + 1
        while place < len(self._items) and self._items[place].name in COPULAS:
            place += 1
        if place < len(self._items) and self._items[place].kind == "word" and self._items[place].name in AFTER:
            if self._leads_to_outcome(place) or self._is_where(place):
                return None
            self._spent.add(place)
            return AFTER[self._items[place].name]
        return None

    def _is_where(self, at: int) -> bool:
        """Return whether a word is the `on` of `4 epochs on sums`."""
        return self._items[at].name == "on" and any(item.kind == "environment" for item in self._items[at + 1 : at + 3])

    def _inherit_sense(self, at: int) -> Sense | None:
        """`larger group size and learning rate`: the direction of the name joined before."""
        if at < 2 or self._items[at - 1].name not in ("and", "or", ","):
            return None
        previous = self._items[at - 2]
        return self._sense_before(at - 2, previous.name) if previous.kind == "field" else None

    def _boolean_values(self, name: str) -> tuple[Scalar, ...]:
        """Return the explicit states of a boolean field: `true vs false`; a single one is a direction, not a pair."""
        if not isinstance(self._facts[name].default, bool):
            return ()
        for at in self._places(name):
            states: list[Scalar] = []
            for item in self._items[at + 1 :]:
                if item.name in TRUTH:
                    states.append(TRUTH[item.name])
                elif item.kind not in ("word", "comma") or item.name not in LINKS | FILLERS | {","}:
                    break
            if len(states) > 1:
                return tuple(states)
        return ()

    def _find_claim(self, name: str) -> Claim | None:
        """Return the effect named between this field and the next, else anywhere in the topic."""
        last = self._places(name)[-1]
        later = [at for at in range(last + 1, len(self._items)) if self._items[at].kind in ("field", "value")]
        here = self._find_effects(last + 1, later[0] if later else len(self._items))
        claims = here or self._find_effects(0, len(self._items))
        kinds = set(claims)
        if len(kinds) == 2:
            return None if any(item.name == "or" for item in self._items) else "decrease"
        return claims[0] if claims else None

    def _find_effects(self, start: int, end: int) -> list[Claim]:
        found = {at: claim for at in range(start, end) if at not in self._spent and (claim := self._find_effect(at))}
        return list(found.values())

    def _find_effect(self, at: int) -> Claim | None:
        item = self._items[at]
        if item.kind != "word":
            return None
        before = {word.name for word in self._items[max(0, at - 3) : at]}
        if item.name in BETTER | WORSE:
            turning = PREVENTING | NEGATIONS
            self._effects_named |= {at, *(p for p in range(max(0, at - 3), at) if self._items[p].name in turning)}
        if item.name in BETTER | WORSE and not before & NEGATIONS:
            return "increase" if item.name in BETTER or before & PREVENTING else "decrease"
        if self._leads_to_outcome(at) and item.name in RAISING | LOWERING:
            self._effects_named.add(at)
            return "increase" if item.name in RAISING else "decrease"
        return None

    def _leads_to_outcome(self, at: int) -> bool:
        return any(item.name in OUTCOMES for item in self._items[at + 1 : at + 4])


def _clear_judged(asked: Sequence[ParsedField]) -> tuple[ParsedField, ...]:
    """Return what is asked with a value judged only where nothing else is compared: else it is what all arms have."""
    compared = any(entry.sense is not None or len(entry.values) > 1 for entry in asked)
    return tuple(replace(entry, judged=entry.judged and not compared) for entry in asked)


def _reverse_claim(claim: Claim | None) -> Claim | None:
    return {"increase": "decrease", "decrease": "increase", None: None}[claim]
