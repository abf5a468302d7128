"""The grammar of topics: `FIELD A vs B [on ENV] [with FIELD=V]`, directions, `faster`, `best FIELD and FIELD`.

    topic  := frame* change [effect] [ENV] [held] frame*
    change := FIELD value (SEP value)* | (UP | DOWN | ON | OFF) FIELD | FIELD | BEST FIELD (and FIELD)*
    effect := better | worse | faster | METRIC ...     held := WITH FIELD [value]     ENV := [on | in] ENVIRONMENT

A topic is parsed once, for the rule planner alone, into a value that stands in `study.created`. Words that no rule took
are `left`: a second field, a number, `only`, `if`, `after`, a word that is not known. Then somebody has to say that the
rest is what they mean, by a yes or by the flags that the refusal prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from research.errors import BadTopic
from research.planners.context import FieldSpec, field_specs, known_environments
from research.planners.lexicon import (
    AGAINST,
    ARTICLES,
    BEATING,
    DEFAULT_ENVIRONMENT,
    DOWN,
    FACTORS,
    FILLERS,
    FRAME,
    HOLDING,
    LOWERING,
    NEAR,
    NUMBER_WORDS,
    OF_TASKS,
    OFF,
    ON,
    POSING,
    RAISING,
    REACHING,
    REPLICATING,
    REVERSING,
    SEPARATORS,
    SLIGHT,
    UP,
    Kind,
    Token,
    build_vocabulary,
    cut,
    recognise,
)
from research.planners.values import Sense, choose_values
from research.proposals.actions import MOST_CONFIRMED, MOST_HYPOTHESES
from research.proposals.arms import EXAMPLE as MODELS_EXAMPLE
from research.proposals.arms import Scalar
from research.proposals.flags import Claim, ParsedTopic, RequestedComparison
from research.proposals.metric_choice import SPEED, RequestedMetric, default_threshold
from research.text import did_you_mean, suggest_from_text
from studies.metrics import kinds
from studies.records.design import MODEL
from swarm.environments.base import Environment

LONGEST_TOPIC = 2000
ALGORITHM, STEPS = "algorithm", "steps"
_SHOWN = 80


def parse_topic(
    topic: str,
    fields: Sequence[FieldSpec] | None = None,
    environments: Sequence[Environment] | None = None,
    wanted: RequestedComparison | None = None,
    model: str = "",
) -> ParsedTopic:
    """Return what a topic asks; `wanted` is what flags say beside it, `model` the name of the model under all arms.

    Raises BadTopic for a topic in which nothing to vary is understood, and for values that cannot be compared.
    """
    wanted = wanted or RequestedComparison()
    fields = field_specs(models=wanted.models) if fields is None else fields
    environments = known_environments() if environments is None else environments
    if not topic.strip():
        raise BadTopic(f"expected a topic; found an empty one; {_describe_options(topic, fields, environments)}")
    if len(topic) > LONGEST_TOPIC:
        raise BadTopic(f"expected a topic of at most {LONGEST_TOPIC} characters; found {len(topic)}; shorten it")
    topic = wanted.models.replace_paths(topic)
    tokens = recognise(cut(topic), build_vocabulary(fields, environments, wanted, model), fields)
    parsed = _Parser(topic, tokens, {facts.name: facts for facts in fields}, wanted).parse()
    if parsed is None:
        near = suggest_from_text(topic, [facts.name for facts in fields])
        raise BadTopic(
            f"expected a topic that names something to vary; found {_quote(topic)}{near}; "
            f"{_describe_options(topic, fields, environments)}"
        )
    return parsed


def refuse_left(parsed: ParsedTopic, command: str, fields: Sequence[FieldSpec]) -> BadTopic:
    """Return the refusal of a topic with words that were not understood; `command` asks for the rest, to be pasted."""
    names = {part for facts in fields for text in (facts.name, *facts.synonyms) for part in (text, *text.split())}
    near = next(filter(None, (did_you_mean(word, names, 0.8) for text in parsed.left for word in text.split())), "")
    rest = "the rest, asked openly for either direction," if parsed.claim or parsed.equivalence else "the rest"
    return BadTopic(
        f"expected a topic of which the rules understand every word; found {describe_left(parsed)}{near}; if {rest} "
        f"is what you mean, run: {command}; else put it otherwise, or {CONFIGURE_LLM}"
    )


def judge_by(parsed: ParsedTopic, metric: RequestedMetric | None) -> ParsedTopic:
    """Return a topic for runs that are judged by `metric`: words that ask for another one are left."""
    asked = parsed.metric
    if asked is None:
        return parsed
    if metric is not None and metric.kind == asked.kind and asked.of in ("", metric.of):
        threshold = default_threshold(metric.kind) if metric.threshold is None else metric.threshold
        if not asked.stated or asked.threshold == threshold:
            return parsed.model_copy(update={"metric": metric})
    return parsed.model_copy(update={"metric": None, "left": (*parsed.left, asked.words)})


def describe_left(parsed: ParsedTopic) -> str:
    return ", ".join(_quote(text) for text in parsed.left)


CONFIGURE_LLM = "set OPENAI_BASE_URL and OPENAI_API_KEY and pass --planner llm --planner-model NAME"


def _quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _describe_options(topic: str, fields: Sequence[FieldSpec], environments: Sequence[Environment]) -> str:
    titles = []
    for facts in fields:
        plain = facts.name.replace("_", " ")
        more = next((text for text in facts.synonyms if plain not in text.replace("-", " ")), None)
        titles.append(facts.name if more is None or plain in facts.synonyms else f"{facts.name} ({more})")
    played = " or ".join(entry.name for entry in environments)
    models = f"compare models by their folders, {MODELS_EXAMPLE}; " if "models" in topic.lower() else ""
    return f"{models}name one of {', '.join(titles)}, on {played}; or {CONFIGURE_LLM}"


@dataclass(slots=True)
class _Mention:
    """Where a topic speaks of one field."""

    field: str
    places: list[int]
    values: tuple[Scalar, ...]
    """As written; each once."""
    held: bool
    """Whether all of it stands where a condition does."""
    sense: Sense | None = None
    factor: float | None = None
    slight: bool = False


class _Parser:
    """Takes from the tokens of a topic, rule by rule, what each rule understands."""

    def __init__(
        self, topic: str, tokens: list[Token], facts: Mapping[str, FieldSpec], wanted: RequestedComparison
    ) -> None:
        self._topic, self._tokens, self._facts, self._wanted = topic, tokens, facts, wanted
        self._used = [
            token.kind == "mark"
            or (token.kind == "word" and token.name in FRAME)
            or (token.kind, token.name) == ("idiom", "")
            for token in tokens
        ]
        for at in self._every("idiom"):  # with my model
            lead = self._before(at, ARTICLES)
            self._used[lead] = self._used[lead] or (not tokens[at].name and self._word(lead) in HOLDING)
        self._owners = self._own_values()

    def parse(self) -> ParsedTopic | None:
        """Return what the topic asks; None where it names nothing to vary."""
        metric, claim, best = self._read_effects()
        count = self._count_best() if best else 0
        environment, again = self._read_environments()
        mentions = [self._mention(name) for name in self._facts if any(self._is_of(at, name) for at in self._every())]
        mentions.sort(key=lambda mention: mention.places[0])
        mentions = [mention for mention in mentions if not self._is_plain_default(mention)]
        asked = [mention for mention in mentions if not mention.held]
        if best and asked and not (len(asked) == 1 and len(asked[0].values) == 2):
            vary, claim = {knob.field: knob.values or self._facts[knob.field].ladder for knob in asked}, None
        else:
            chosen = _choose_compared(mentions)
            if chosen is None:
                return None
            values, turned = self._order_values(chosen)
            asked, vary, count = [chosen], {chosen.field: values}, int(len(values) > MOST_HYPOTHESES + 1)
            if turned and claim is not None:
                claim = "decrease" if claim == "increase" else "increase"
            claim = None if best or count or (len(chosen.values) > 1 and self._asks_which()) else claim
            self._leave_vague(chosen, claim)
        for mention in asked:
            self._take(mention)
        claim = self._leave_inverted(asked[0], claim) if len(asked) == 1 else claim
        held = self._read_held([mention for mention in mentions if mention not in asked], asked)
        idioms = {token.name for token in self._tokens if token.kind == "idiom"}
        matched = "episodes" in idioms and not count and set(vary) == {"episodes_per_step"}
        for at in self._every("idiom"):
            self._used[at] = self._used[at] or self._tokens[at].name == "equivalent" or matched
        return ParsedTopic(
            vary=vary, held=held, environment=environment, again=again, claim=claim, metric=metric,
            confirm=min(count, MOST_CONFIRMED), equivalence="equivalent" in idioms,
            matched="episodes" if matched else "steps", left=tuple(self._left()),
        )  # fmt: skip

    def _leave_vague(self, mention: _Mention, claim: Claim | None) -> None:
        """Leave what is said to come of a field that is always there: does clipping help, against which?"""
        facts = self._facts[mention.field]
        named_alone = not (mention.values or mention.sense or mention.factor)
        if claim is not None and named_alone and facts.ladder[0] and not facts.is_categorical:
            self._leave([at for at in self._every() if self._read_effect(at)[0] is not None])

    def _leave(self, places: Iterable[int]) -> None:
        for at in places:
            self._used[at] = False

    def _use(self, places: Iterable[int]) -> None:
        for at in places:
            self._used[at] = True

    def _every(self, kind: Kind | None = None) -> list[int]:
        return [at for at, token in enumerate(self._tokens) if kind in (None, token.kind)]

    def _is_of(self, at: int, field: str) -> bool:
        token = self._tokens[at]
        return self._owners.get(at) == field or (token.kind == "field" and token.name == field)

    def _word(self, at: int) -> str:
        return self._tokens[at].name if 0 <= at < len(self._tokens) and self._tokens[at].kind == "word" else ""

    def _before(self, at: int, skip: frozenset[str]) -> int:
        """Return the last place before `at` whose word is not to be skipped; -1 for none."""
        at -= 1
        while at >= 0 and self._word(at) in skip:
            at -= 1
        return at

    # -- values and their fields

    def _own_values(self) -> dict[int, str]:
        """Return the field of each value: named beside it, or that of a value it is listed with."""
        self._read_number_words()
        counts = {at for best in self._every("effect") if self._tokens[best].best for at in (best - 1, best + 1)}
        numbers = [at for at in self._every("number") if at not in counts or self._tokens[at].value not in (2, 3)]
        atoms = sorted([*numbers, *self._every("value")])
        owners = {at: self._adjacent_field(at) for at in atoms}
        atoms = [at for at in atoms if owners[at] or not self._is_target(at)]
        pairs: list[tuple[int, int]] = []
        for first, second in pairwise(atoms):
            ranges = "to" in map(self._word, range(first, second)) and any(first == at for _, at in pairs)
            if not ranges and self._is_listed(first, second):  # 1e-3 vs 3e-3 to 0.7: that is where they are to get
                pairs.append((first, second))
        for first, second in [*pairs, *[(second, first) for first, second in reversed(pairs)]]:
            if owners[first] and not owners[second] and not self._facts[owners[first]].is_categorical:
                owners[second] = owners[first]
        named = dict.fromkeys(token.name for token in self._tokens if token.kind == "field")
        numeric = [name for name in named if not self._facts[name].is_categorical]
        loose = {at for pair in pairs for at in pair if not owners[at]}
        if len(numeric) == 1 and loose and numeric[0] not in owners.values():  # does a larger group help, 8 or 16?
            owners |= dict.fromkeys(loose, numeric[0])
        return {at: owner for at, owner in owners.items() if owner}

    def _read_number_words(self) -> None:
        for at in self._every("word"):
            number = NUMBER_WORDS.get(self._word(at))
            after = at + 1 < len(self._tokens) and self._tokens[at + 1].kind == "field"
            if number is not None and (after if number else self._word(at - 1) in SEPARATORS):
                self._tokens[at] = Token("number", self._word(at), self._tokens[at].at, number)

    def _is_target(self, at: int) -> bool:
        """Return whether a number is the success that is to be reached."""
        lead = self._before(at, ARTICLES)
        if at + 1 < len(self._tokens) and self._tokens[at + 1].kind == "outcome":
            return True
        if self._word(lead) in NEAR:
            lead -= 1
            return lead >= 0 and (self._word(lead) in REACHING or self._tokens[lead].name in SPEED)
        return self._word(lead) in REACHING

    def _adjacent_field(self, at: int) -> str:
        if self._tokens[at].kind == "value":
            return self._tokens[at].name
        before = at - 1
        while before >= 0 and (self._word(before) in FILLERS or self._tokens[before].name in ("=", ":")):
            before -= 1
        for place in (before, at + 1):
            if 0 <= place < len(self._tokens) and self._tokens[place].kind == "field":
                valued = place + 1 < len(self._tokens) and self._tokens[place + 1].kind == "number"
                if place == before or not (valued and self._is_second(at)):  # group size 4 vs 16 temperature 0.7
                    return self._tokens[place].name
        return ""

    def _is_second(self, at: int) -> bool:
        """Return whether a number is listed with one that has its field before it."""
        first = next((place for place in range(at - 1, -1, -1) if self._tokens[place].kind == "number"), -1)
        field = self._before(first, FILLERS) if first > 0 else -1
        return field >= 0 and self._tokens[field].kind == "field" and self._is_listed(first, at)

    def _is_listed(self, first: int, second: int) -> bool:
        """Return whether two values are listed together, or set against one another."""
        apart, joined = False, True
        for at in range(first + 1, second):
            token = self._tokens[at]
            if token.kind == "effect" and not any(self._word(place) in REVERSING for place in range(at + 1, second)):
                return False  # does a penalty of 0.1 help, or 0.01?
            compared = token.name == "with" and "compare" in map(self._word, range(first))
            if (token.kind, token.name) == ("idiom", "equivalent") or compared or self._word(at) in SEPARATORS:
                apart = True
            elif token.kind == "mark":
                apart = apart or token.name in ",/–—→"
            elif token.kind == "field":
                joined = joined and all(self._tokens[side].name == token.name or self._tokens[side].kind == "number"
                                        for side in (first, second))  # fmt: skip
            else:
                joined = joined and (
                    token.kind in ("environment", "effect", "outcome") or token.name in FILLERS | FRAME
                )
        return joined and (apart or second == first + 1)

    # -- fields

    def _mention(self, field: str) -> _Mention:
        places = [at for at in self._every() if self._is_of(at, field)]
        values = [token.value for at in places if (token := self._tokens[at]).value is not None]
        values = list(dict.fromkeys(values)) if len(set(values)) > 1 else values
        found = _Mention(field, places, tuple(values), self._is_condition(places[0]))
        for at in places:
            if self._tokens[at].kind == "field":
                found.sense = found.sense or self._tokens[at].sense
                self._read_direction(found, at)
        self._leave_factor(found)
        return found

    def _is_condition(self, first: int) -> bool:
        at = self._before(first, ARTICLES | UP | DOWN)
        if self._word(at) == "and" and at:  # with a KL penalty and 40 steps
            back = at - 1
            while back > 0 and (
                self._tokens[back].kind in ("field", "number", "value") or self._word(back) in ARTICLES | {"of"}
            ):
                back -= 1
            return self._word(back) in HOLDING and back < at - 1
        return self._word(at) in HOLDING

    def _read_direction(self, mention: _Mention, at: int) -> None:
        place = self._before(at, ARTICLES | {"of"})
        word, facts = self._word(place), self._facts[mention.field]
        senses: dict[Sense, frozenset[str]] = {"up": UP, "down": DOWN, "off": OFF, "on": ON}
        sense = next((sense for sense, words in senses.items() if word in words), None)
        if sense is None and word not in FACTORS:
            return
        self._used[place] = True
        mention.places = sorted({*mention.places, place})
        mention.sense, mention.factor = mention.sense or sense, mention.factor or FACTORS.get(word)
        is_off = not facts.ladder[0] and facts.default == facts.ladder[0] and not facts.apart
        mention.slight = word in SLIGHT and is_off

    def _leave_factor(self, mention: _Mention) -> None:
        """Leave `doubling` where it is not what the values say: doubling the group size to 32, of a default of 8."""
        facts, values = self._facts[mention.field], mention.values
        if mention.factor is None or not values:
            return
        numeric = not facts.is_categorical and not isinstance(facts.default, bool)
        first, last = (facts.default, values[0]) if len(values) == 1 else (values[0], values[-1])
        if not numeric or len(values) > 2 or not math.isclose(float(first) * mention.factor, float(last)):
            named = [at for at in mention.places if self._word(at) in FACTORS]
            mention.places, mention.factor = [at for at in mention.places if at not in named], None
            self._leave(named)

    def _is_plain_default(self, mention: _Mention) -> bool:
        """Return whether only what all arms have anyway is named, such as GRPO: no part of the question."""
        facts, named = self._facts[mention.field], any(self._tokens[at].kind == "field" for at in mention.places)
        plain = facts.is_categorical and not named and set(mention.values) == {facts.default} == {facts.ladder[0]}
        if plain:
            self._take(mention)
        return plain

    def _order_values(self, mention: _Mention) -> tuple[tuple[Scalar, ...], bool]:
        """Return the values that are compared, the control first, and whether the claim is about the control."""
        facts, values = self._facts[mention.field], mention.values
        atoms = [at for at in mention.places if at in self._owners]
        first = values[0] if values else None
        other = next((at for at in atoms if self._tokens[at].value != first), None)
        between = range(atoms[0] + 1, other) if other is not None else range(0)
        turned = any(self._word(at) in REVERSING for at in between)
        if len(values) == 2 and turned:
            values = values[::-1]
        elif len(values) > 1 and not turned and (facts.is_categorical or facts.values):
            before = self._before(atoms[0], FILLERS)
            named = before >= 0 and self._tokens[before].kind == "field"
            if self._word(atoms[0] - 1) != "from" and not named:
                values = tuple(sorted(values, key=lambda value: value != facts.default))
        chosen = choose_values(facts, values, mention.sense, mention.factor, slight=mention.slight)
        return chosen, turned and len(values) > 2

    def _asks_which(self) -> bool:
        return re.search(r"\b(?:which|what|how)\b", self._topic, re.IGNORECASE) is not None

    def _take(self, mention: _Mention) -> None:
        """Mark what a mention consists of as understood: its names and values, and the words that join them."""
        self._use(mention.places)
        leads = (self._before(at, ARTICLES) for at in mention.places)
        self._use(lead for lead in leads if self._word(lead) in (HOLDING | FILLERS | BEATING) - {"without"})
        atoms = [at for at in mention.places if at in self._owners]
        joined = sorted({*atoms, *(at for at in mention.places if at < min(atoms, default=0))})
        between = (at for first, second in pairwise(joined) for at in range(first + 1, second))
        self._use(at for at in between if self._word(at) in SEPARATORS | FILLERS)

    def _leave_inverted(self, mention: _Mention, claim: Claim | None) -> Claim | None:
        """Leave what is claimed of values in an order that no control heads: 4 and 8 better than 16, 16 vs 4 worse."""
        atoms = [at for at in mention.places if at in self._owners]
        if claim is None or len(mention.values) < 2:
            return claim
        second = next(at for at in atoms if self._tokens[at].value != mention.values[0])
        later = [self._word(at) in REVERSING for at in range(second + 1, atoms[-1])]
        against = any(self._word(at) in AGAINST for at in range(atoms[0], second))
        effects = [at for at in self._every() if self._read_effect(at)[0] is not None]
        posed = self._word(0) in POSING
        worse = against and any(posed or self._read_effect(at)[0] == "decrease" for at in effects if at > second)
        if not worse and not (len(mention.values) > 2 and any(later)):
            return claim
        self._leave(effects)
        return None

    def _is_grid(self, mention: _Mention, asked: Sequence[_Mention]) -> bool:
        """Return whether `steps` are those between values: from 4 to 16 in steps of 4, sweep it in 5 steps."""
        places = [at for at in mention.places if self._tokens[at].kind == "field"]
        if mention.field != STEPS or not places:
            return False
        spans = [[at for at in entry.places if at in self._owners] for entry in asked]
        pairs = [pair for span in spans for pair in pairwise(span)]
        ranged = any("to" in map(self._word, range(first, second)) for first, second in pairs)
        swept = re.search(r"\bsweep", self._topic, re.IGNORECASE) is not None
        led = self._word(self._before(mention.places[0], ARTICLES)) == "in"
        return any(self._word(at + 1) == "of" for at in places) or (led and (ranged or swept))

    def _is_of_one_arm(self, mention: _Mention, asked: Sequence[_Mention]) -> bool:
        """Return whether a condition stands between values that are compared: group size 16 for 10 steps vs 4."""
        spans = [[at for at in entry.places if at in self._owners] for entry in asked]
        return any(span and min(span) < at < max(span) for span in spans for at in mention.places)

    def _read_held(self, others: Sequence[_Mention], asked: Sequence[_Mention]) -> dict[str, Scalar]:
        held: dict[str, Scalar] = {}
        for mention in others:
            if mention.factor is not None or self._is_of_one_arm(mention, asked) or self._is_grid(mention, asked):
                continue
            facts, whole = self._facts[mention.field], mention.held or mention.field == ALGORITHM
            switched = not mention.values and mention.sense in (None, "on", "off") and not facts.ladder[0]
            valued = len(mention.values) == 1 and mention.sense is None
            if not whole or not (switched or valued) or facts.name == MODEL:
                continue
            first = self._before(mention.places[0] + 1, ARTICLES | {""})
            without = mention.sense == "off" or self._word(self._before(mention.places[0], ARTICLES)) == "without"
            if not (mention.values and without and first >= 0):
                held[mention.field] = mention.values[0] if mention.values else facts.ladder[0 if without else -1]
                self._take(mention)
        return held

    # -- what runs are judged by, and where

    def _read_effects(self) -> tuple[RequestedMetric | None, Claim | None, bool]:
        """Return the metric, the claim and whether the best is looked for; what contradicts the first stays unread."""
        threshold, reaching = self._read_threshold()
        kind, of, words, best = "", "", list[str](), False
        claim: Claim | None = None
        for at in self._every():
            said, places, named = self._read_effect(at)
            either = "or" in (self._word(at - 1), self._word(at - 2))
            opposite = said is not None and claim is not None and said != claim
            fields = any(token.kind == "field" for token in self._tokens[at:])
            vague = self._tokens[at].best and not fields and not self._asks_which()  # does a larger group learn best?
            if vague or not places or (named and kind and named != kind) or (opposite and not either):
                continue
            claim, best = None if opposite else claim or said, best or self._tokens[at].best
            kind = kind or named
            if named not in ("", "success"):
                words.append(self._text(places))
                of = of or (self._read_other(places[-1]) if "of" in kinds()[named].takes else "")
            self._use(places)
        if kind in ("", "success"):
            return None, claim, best
        told = ", ".join(dict.fromkeys([*words, *([reaching] if reaching else [])]))
        metric = RequestedMetric(kind, threshold or default_threshold(kind), of, told, stated=threshold is not None)
        return metric, claim, best

    def _read_effect(self, at: int) -> tuple[Claim | None, list[int], str]:
        """Return what is claimed by the words that begin here, their places, and the metric that they name."""
        token, word = self._tokens[at], self._word(at)
        if token.kind == "effect":
            return token.claim, [at], token.name
        if word in BEATING:
            return "increase", [at], ""
        if word in RAISING | LOWERING:  # raise the final success
            outcome = next(
                (place for place in range(at + 1, len(self._tokens)) if self._word(place) not in ARTICLES), 0
            )
            if outcome and self._tokens[outcome].kind == "outcome":
                claim: Claim = "increase" if word in RAISING else "decrease"
                return claim, [*range(at, outcome + 1)], self._tokens[outcome].name
        return None, [at] if token.kind == "outcome" and not self._used[at] else [], token.name

    def _read_other(self, last: int) -> str:
        """Return the environment that something is to be measured on besides the one that is trained on."""
        for at in range(last + 1, min(last + 4, len(self._tokens))):
            if self._tokens[at].kind == "environment":
                self._tokens[at] = replace(self._tokens[at], kind="idiom")
                self._used[at] = True
                return self._tokens[at].name
        return ""

    def _read_threshold(self) -> tuple[float | None, str]:
        """Return the share of hidden tasks to which speed is measured, where a word asks for speed, and its words."""
        if not any(token.kind == "effect" and token.name in SPEED for token in self._tokens):
            return None, ""
        for at, token in enumerate(self._tokens):
            lead, end = self._before(at, ARTICLES), at + 1
            plain = token.kind == "number" and at not in self._owners and 0 < float(token.value or 0) < 1
            if self._word(lead) in REACHING and (token.kind == "share" or plain):
                while end < len(self._tokens) and (self._tokens[end].kind == "outcome" or self._word(end) in OF_TASKS):
                    end += 1
                self._use(range(lead, end))
                return float(token.value), self._text(range(lead, end))  # type: ignore[arg-type]  # number or share
        return None, ""

    def _count_best(self) -> int:
        for at in self._every("effect"):
            for place in (at - 1, at + 1):
                near = self._tokens[place] if 0 <= place < len(self._tokens) else Token("mark", "")
                number = NUMBER_WORDS.get(self._word(place)) or (near.value if near.kind == "number" else None)
                if self._tokens[at].best and number in (2, 3) and place not in self._owners:
                    self._used[place] = True
                    return int(number)
        return 1

    def _read_environments(self) -> tuple[str | None, str | None]:
        named: str | None = self._wanted.environment
        again: str | None = None
        for at in self._every("environment"):
            name = self._tokens[at].name
            words = [place for place in range(max(0, at - 4), at) if self._word(place) in REPLICATING]
            if words and again is None and name != named:
                again = name
                self._used[words[-1]] = True
            elif self._wanted.environment not in (None, name):
                raise BadTopic(
                    f"expected one environment; found --env or a job with {self._wanted.environment} and a topic that "
                    f"names {name}; leave one of them out"
                )
            elif named not in (None, name):
                continue
            else:
                named = name
            self._used[at] = True
            if self._word(at - 1) in ("my", "our"):
                self._used[at - 1] = True
        if again == (named or DEFAULT_ENVIRONMENT) and named is None:
            named = next(entry.name for entry in known_environments() if entry.name != again)
        return named, again

    # -- what is left

    def _text(self, places: Sequence[int]) -> str:
        return " ".join(self._topic[self._tokens[places[0]].at[0] : self._tokens[places[-1]].at[1]].split())

    def _left(self) -> Iterable[str]:
        """Yield the runs of what no rule took; a mark inside a word, as in `Qwen2.5-7B`, is part of it."""
        tokens, at = self._tokens, 0

        def is_glue(place: int) -> bool:
            if tokens[place].kind != "mark" or place + 1 >= len(tokens) or self._used[place + 1]:
                return False
            before, mark, after = (token.at for token in tokens[place - 1 : place + 2])
            return before[1] == mark[0] and mark[1] == after[0]

        while at < len(tokens):
            end = at
            while end < len(tokens) and (not self._used[end] or (end > at and is_glue(end))):
                end += 1
            if end > at:
                yield self._text(range(at, end))
            at = max(end, at + 1)


def _choose_compared(mentions: Sequence[_Mention]) -> _Mention | None:
    """Return what a topic is about: what it lists values of, else what it gives a direction, a value or only a name."""
    ranks = (
        lambda entry: len(entry.values) > 1,
        lambda entry: not entry.held and (entry.sense or entry.factor),
        lambda entry: not entry.held and entry.values,
        lambda entry: not entry.held,
        lambda entry: len(mentions) == 1,
    )
    return next((entry for holds in ranks for entry in mentions if holds(entry)), None)
