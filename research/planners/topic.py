"""The grammar of topics: `FIELD A vs B [on ENV] [with FIELD=V]`, directions, `faster`, `best FIELD and FIELD`.

    topic  := frame* change [effect] [ENV] [held] frame*
    change := FIELD value (SEP value)* | (UP | DOWN | ON | OFF) FIELD | FIELD | BEST FIELD (and FIELD)*
    effect := better | worse | faster | METRIC ...     held := WITH FIELD [value]     ENV := [on | in] ENVIRONMENT

Words that no rule took are `left`: then somebody has to say that the rest is what they mean, by a yes or by the flags
that the refusal prints.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from research.errors import BadTopic
from research.planners import lexicon as words
from research.planners.context import FieldSpec, PlannerContext, field_specs, known_environments
from research.planners.lexicon import DEFAULT_ENVIRONMENT, Kind, TopicWord, build_vocabulary, cut, recognise
from research.planners.values import Sense, choose_values
from research.proposals.actions import MOST_CONFIRMED, MOST_HYPOTHESES, ProposeDesign
from research.proposals.arms import EXAMPLE as MODELS_EXAMPLE
from research.proposals.arms import Scalar
from research.proposals.flags import Claim, ParsedTopic, RequestedComparison
from research.proposals.metric_choice import SPEED, RequestedMetric, default_threshold
from research.proposals.slots import SLOTS
from research.text import did_you_mean, suggest_from_text
from studies.metrics import kinds
from studies.records.design import CONFIGURATION
from swarm.environments.base import Environment

LONGEST_TOPIC = 2000
_SHOWN = 80
_EDGES = re.compile(r"^[^\w<>~]+|[^\w<>~%]+$")
"""What is not shown of words that were not understood; `<>~` are words."""
CONFIGURE_LLM = "set OPENAI_BASE_URL and OPENAI_API_KEY and pass --planner llm --planner-model NAME"


def parse_topic(
    topic: str, fields: Sequence[FieldSpec] | None = None, environments: Sequence[Environment] | None = None,
    wanted: RequestedComparison | None = None, model: str = "",
) -> ParsedTopic:  # fmt: skip
    """Return what a topic asks beside flags (`wanted`); raise BadTopic where nothing to vary is named."""
    wanted = wanted or RequestedComparison()
    fields = field_specs() if fields is None else fields
    environments = known_environments() if environments is None else environments
    if not topic.strip():
        raise BadTopic(f"expected a topic; found an empty one; {_describe_options(topic, fields, environments)}")
    if len(topic) > LONGEST_TOPIC:
        raise BadTopic(f"expected a topic of at most {LONGEST_TOPIC} characters; found {len(topic)}; shorten it")
    topic = " ".join(topic.split())
    tokens = recognise(cut(topic), build_vocabulary(fields, environments, wanted, model), fields)
    parsed = _Parser(topic, tokens, {facts.name: facts for facts in fields}, wanted).parse()
    if parsed is None:
        near = suggest_from_text(topic, [facts.name for facts in fields])
        raise BadTopic(
            f"expected a topic that names something to vary; found {_quote(topic)}{near}; "
            f"{_describe_options(topic, fields, environments)}"
        )
    return parsed


def find_uncovered(context: PlannerContext, action: ProposeDesign) -> tuple[str, ...]:
    """Return the words of a topic that no field, value, place or measure of a design covers, however it was read."""
    topic, claims, fields = " ".join(context.topic.split()), context.hypotheses, context.fields
    sides = [side if c.variable == CONFIGURATION else {c.variable: side} for c in claims for side in c.settings]
    sides += [{c.variable: rung} for c in claims for rung in c.ladder]
    sides += [{entry.field: entry.value} for entry in action.constants]
    sides += [{knob.field: value} for knob in (action.screen.knobs if action.screen else ()) for value in knob.values]
    values = [value for side in sides for value in side.values() if not isinstance(value, Mapping)]
    values += [action.steps, context.metric.threshold, *(c.smallest_effect for c in claims)]
    names = {name for side in sides for name in side}
    texts = [*names, *map(str, values), *context.wanted.models.by_name]
    texts += [SLOTS[name].does for name in names & {*SLOTS}]
    known = {"", "success", "come", "steps", action.environment, context.metric.kind, context.metric.of}
    known |= names | {word.name for text in texts for word in cut(text)}
    known |= {action.replication.environment} if action.replication else set()
    known |= {"equivalent"} if any(c.sought != "difference" for c in claims) else set()
    known |= words.FRAME | words.FILLERS | words.SEPARATORS | words.HOLDING | words.UP | words.DOWN | words.REPLICATING
    tokens = recognise(cut(topic), build_vocabulary(fields, context.environments, context.wanted, ""), fields)
    reader = _Parser(topic, tokens, {}, context.wanted)
    reader._used = [t.kind == "mark" or t.name in known or (t.value is not None and t.value in values) for t in tokens]
    return tuple(reader._left())


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
    return ", ".join(map(_quote, parsed.left))


def _quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _describe_options(topic: str, fields: Sequence[FieldSpec], environments: Sequence[Environment]) -> str:
    titles = []
    for facts in fields:
        plain = facts.name.replace("_", " ")
        more = next((text for text in facts.synonyms if plain not in text.replace("-", " ")), None)
        titles.append(facts.name if more is None or plain in facts.synonyms else f"{facts.name} ({more})")
    played = " or ".join(entry.name for entry in environments)
    models = f"compare models by their folders, {MODELS_EXAMPLE}; " if "model" in topic.lower() or "/" in topic else ""
    return f"{models}name one of {', '.join(titles)}, on {played}; or {CONFIGURE_LLM}"


_VALUE = r"(?:v|n(?!F(?!n)))f?"
"""A value; a number before the name of another field is that one's, unless it has a number of its own behind it."""
_GAP = r"(?:|[akf:.]*[sr,{to}][akf:.srt,]*|[akf:.srt,e]*e[akf:.st,]*r[akf:.srt,]*)"
"""What stands between values that are listed; past an effect only `than` goes on: a penalty of 0.1 helps, or 0.01?"""
_SEVERAL = f"{_VALUE}{_GAP.format(to='t')}{_VALUE}(?:{_GAP.format(to='')}{_VALUE})*"
_MENTION = re.compile(rf"f[atf:]*(?:{_SEVERAL}|{_VALUE})|f[akfst:.,e]*[:.,]{_SEVERAL}|{_SEVERAL}|{_VALUE}|f+")
"""One field with its values, over the letters of `_Parser._spell`: f its name, F another's; v its value, n a number;
a `of`, s `or`, r `than`, t `to`, k what says nothing, e an effect, x anything else; marks are `,`, `:` or `.`."""
_NAMED = re.compile(r"f[at:]*[nv]")


@dataclass(slots=True)
class _Mention:
    """Where a topic speaks of one field: `a larger group size`, `lr 1e-3 vs 3e-3`, `with 40 training steps`."""

    field: str
    places: list[int]
    """Of its names and values, and of the words that join and lead them."""
    values: tuple[Scalar, ...]
    """As written; each once."""
    atoms: list[int]
    """Places of the values."""
    joints: list[str]
    """What stands between each value and the next: `than`, `to` or `or`."""
    named: bool
    """Whether the field itself is named, and not only a value of it."""
    sense: Sense | None = None
    held: bool = False
    """Whether it stands where a condition does."""


class _Parser:
    """Takes from the tokens of a topic, rule by rule, what each rule understands."""

    def __init__(
        self, topic: str, tokens: list[TopicWord], facts: Mapping[str, FieldSpec], wanted: RequestedComparison
    ) -> None:
        self._topic, self._tokens, self._facts, self._wanted = topic, tokens, facts, wanted
        self._which = re.search(r"\b(?:which|what|how)\b", topic, re.IGNORECASE) is not None
        self._used = [
            token.kind == "mark"
            or (token.kind == "word" and token.name in words.FRAME)
            or (token.kind, token.name) == ("idiom", "")
            for token in tokens
        ]
        for at in self._every("idiom"):  # with my model
            lead = self._before(at, words.ARTICLES)
            self._used[lead] = self._used[lead] or (not tokens[at].name and self._word(lead) in words.HOLDING)

    def parse(self) -> ParsedTopic | None:
        """Return what the topic asks; None where it names nothing to vary."""
        mentions = self._read_mentions()
        metric, claim, count = self._read_effects({at for mention in mentions for at in mention.atoms})
        environment, again = self._read_environments()
        asked = [mention for mention in mentions if not mention.held and len(mention.values) != 1]
        if count and asked and not (len(asked) == 1 and len(asked[0].values) == 2):
            asked = [knob for at, knob in enumerate(asked) if knob.field not in [other.field for other in asked[:at]]]
            vary, claim = {knob.field: knob.values or self._facts[knob.field].ladder for knob in asked}, None
        else:
            ranks: tuple[Callable[[_Mention], object], ...] = (  # with values, else a direction, a value, or only named
                lambda entry: len(entry.values) > 1,
                lambda entry: not entry.held and entry.sense,
                lambda entry: not entry.held and entry.values,
                lambda entry: not entry.held,
                lambda entry: len(mentions) == 1,
            )
            chosen = next((entry for holds in ranks for entry in mentions if holds(entry)), None)
            if chosen is None:
                return None
            if count and len(chosen.values) != 2:  # is it best, and of which values
                self._used = [used and not token.best for token, used in zip(self._tokens, self._used, strict=True)]
            claim = None if count else self._direct_claim(chosen, claim)
            asked, vary = [chosen], {chosen.field: self._order_values(chosen)}
            count = int(len(chosen.values) > MOST_HYPOTHESES + 1)
            claim = None if count else claim
        for mention in asked:
            self._use(mention.places)
        held = self._read_held([mention for mention in mentions if mention not in asked], vary.keys())
        idioms = {token.name for token in self._tokens if token.kind == "idiom"}
        matched = "episodes" in idioms and not count and set(vary) == {"episodes_per_step"}
        for at in self._every("idiom"):
            self._used[at] = self._used[at] or self._tokens[at].name == "equivalent" or matched
        return ParsedTopic(
            vary=vary, held=held, environment=environment, again=again, claim=claim, metric=metric,
            confirm=min(count, MOST_CONFIRMED), equivalence="equivalent" in idioms,
            matched="episodes" if matched else "steps", left=tuple(self._left()),
        )  # fmt: skip

    def _use(self, places: Iterable[int]) -> None:
        for at in places:
            self._used[at] = True

    def _every(self, kind: Kind) -> list[int]:
        return [at for at, token in enumerate(self._tokens) if token.kind == kind]

    def _word(self, at: int) -> str:
        return self._tokens[at].name if 0 <= at < len(self._tokens) and self._tokens[at].kind == "word" else ""

    def _field(self, at: int) -> str:
        return self._tokens[at].name if 0 <= at < len(self._tokens) and self._tokens[at].kind == "field" else ""

    def _before(self, at: int, skip: frozenset[str]) -> int:
        """Return the last place before `at` whose word is not to be skipped; -1 for none."""
        at -= 1
        while at >= 0 and self._word(at) in skip:
            at -= 1
        return at

    def _read_mentions(self) -> list[_Mention]:
        """Return what is mentioned but for what all arms have anyway, such as GRPO: it is no part of the question."""
        mentions, at, after_condition = list[_Mention](), 0, -1
        while at < len(self._tokens):
            mention = self._read_mention(at)
            if mention is None:
                at += 1
                continue
            lead = self._before(mention.places[0], words.ARTICLES)
            chained = self._word(lead) == "and" and lead == after_condition  # with a KL penalty and 40 steps
            mention.held = mention.held or chained
            mentions.append(mention)
            at = mention.places[-1] + 1
            after_condition = at if mention.held else -1
        plain, asked = list[_Mention](), list[_Mention]()
        for mention in mentions:
            facts = self._facts[mention.field]
            usual = facts.is_categorical and set(mention.values) == {facts.default} == {facts.ladder[0]}
            (plain if usual and not mention.named else asked).append(mention)
        varied = {mention.field for mention in asked}
        for mention in plain:
            if mention.field not in varied:
                self._use(mention.places)
        return [mention for mention in mentions if mention in asked or mention.field in varied]

    def _read_mention(self, at: int) -> _Mention | None:
        token = self._tokens[at]
        behind = (self._field(place) for place in range(at, len(self._tokens))) if token.kind == "number" else ()
        field = token.name if token.kind in ("field", "value") else next(filter(None, behind), "")
        letters = self._spell(field)
        match = _MENTION.match(letters, at) if field else None
        if match is None or not {"f", "v"} & {*match[0]}:
            return None
        if token.kind == "number" and match[0][1:2] != "f" and _NAMED.search(match[0]):
            return None  # 1, 2 or 4 and clip ratio 0.1: the values of another one
        span = range(at, match.end())
        atoms = [place for place in span if letters[place] in "nv"]
        gaps = [letters[first + 1 : second] for first, second in pairwise(atoms)]
        joining = words.SEPARATORS | words.FILLERS
        places = [place for place in span if letters[place] in "fnv" or self._word(place) in joining]
        values = [value for place in atoms if (value := self._tokens[place].value) is not None]
        mention = _Mention(
            field, places, tuple(dict.fromkeys(values) if len(set(values)) > 1 else values), atoms,
            ["than" if "r" in gap else "to" if "t" in gap else "or" for gap in gaps],
            named=any(self._field(place) for place in places),
            sense=next((sense for place in places if (sense := self._tokens[place].sense)), None),
        )  # fmt: skip
        lead = self._before(at, words.ARTICLES)
        sense = next((name for name, leads in words.SENSES.items() if self._word(lead) in leads), None)
        if sense is not None and field in (self._field(at), self._field(at + 1)):
            mention.held = self._word(lead) == "without"
            mention.sense = sense  # a direction that is said goes before that of a name: decreasing the longer training
            mention.places.insert(0, lead)
            lead = self._before(lead, words.ARTICLES)
        if self._word(lead) in (words.HOLDING | words.FILLERS) - {"without"}:
            mention.held = mention.held or self._word(lead) in words.HOLDING
            mention.places.insert(0, lead)
        return mention

    def _spell(self, field: str) -> str:
        """Return a letter for each token, as `_MENTION` reads them where it looks for a mention of `field`."""
        numeric = field in self._facts and not self._facts[field].is_categorical
        comparing, letters = False, ""
        for token in self._tokens:
            own, name = token.name == field, token.name
            comparing = comparing or (token.kind, name) == ("word", "compare")
            match token.kind:
                case "field":
                    letters += "f" if own else "F"
                case "value" | "number":
                    letters += "n" if token.kind == "number" and numeric else "v" if own else "x"
                case "mark":
                    letters += "," if name in ",/–—→" else ":" if name in "=:" else "."
                case "effect":
                    letters += "e"
                case "word" if name in words.REVERSING:
                    letters += "r"
                case "word" if name in words.SEPARATORS:
                    letters += "t" if name == "to" else "s"
                case "word" if name in words.ASSIGNING:
                    letters += "a"
                case "word" if name in words.FILLERS | words.FRAME | words.REACHING:
                    letters += "s" if name == "with" and comparing else "k"
                case "environment" | "outcome" | "share":
                    letters += "k"
                case _:
                    letters += "s" if name == "equivalent" else "x"
        return letters

    def _order_values(self, mention: _Mention) -> tuple[Scalar, ...]:
        facts, values = self._facts[mention.field], mention.values
        turned = mention.joints[:1] == ["than"]
        if len(values) == 2 and turned:
            values = values[::-1]
        elif len(values) > 1 and not turned and facts.values:
            lead = self._word(mention.atoms[0] - 1)
            if lead != "from" and not self._field(self._before(mention.atoms[0], words.FILLERS)):
                values = tuple(sorted(values, key=lambda value: value != facts.default))
        return choose_values(facts, values, mention.sense)

    def _direct_claim(self, mention: _Mention, claim: Claim | None) -> Claim | None:
        """Return the claim on the treatment; leave its words where it is not clear what is said of which value."""
        facts, count = self._facts[mention.field], len(mention.values)
        vague = not mention.values and mention.sense is None and facts.ladder[0] and not facts.is_categorical
        if count > 1:
            alone = count == 2 and mention.joints[0] == "or" and self._tokens[0].kind == "field"
            if self._which or (alone and claim != "decrease"):  # `FIELD A vs B faster` asks which one is
                return None
            vague = mention.joints[0] == "or" and mention.sense is None
            vague = vague or (count > 2 and "than" in mention.joints[1:])
        if claim is not None and vague:
            for at in range(len(self._tokens)):
                if self._claim(at) is not None:
                    self._used[at] = False
            return None
        if claim is not None and count > 2 and mention.joints[0] == "than":  # 8 beats 4 and 16: of the control
            return "decrease" if claim == "increase" else "increase"
        return claim

    def _read_held(self, others: Sequence[_Mention], varied: Collection[str]) -> dict[str, Scalar]:
        held: dict[str, Scalar] = {}
        for mention in others:
            facts, condition = self._facts[mention.field], mention.held or mention.field == "algorithm"
            without = mention.sense == "off"
            switched = not mention.values and mention.sense in (None, "on", "off") and not facts.ladder[0]
            valued = len(mention.values) == 1 and mention.sense is None
            once = mention.field not in varied and mention.field not in held
            if condition and once and (switched or valued):
                held[mention.field] = mention.values[0] if mention.values else facts.ladder[0 if without else -1]
                self._use(mention.places)
        return held

    def _read_effects(self, atoms: Collection[int]) -> tuple[RequestedMetric | None, Claim | None, int]:
        threshold, reaching = self._read_threshold(atoms)
        kind, of, texts, best, claim = "", "", list[str](), 0, None
        for at, token in enumerate(self._tokens):
            made, names = self._claim(at), token.name if token.kind in ("effect", "outcome") else ""
            if self._used[at] or (made is None and token.kind not in ("effect", "outcome")):
                continue
            either = "or" in (self._word(at - 1), self._word(at - 2))
            opposite = made is not None and claim is not None and made != claim
            learns_best = token.best and not self._which and not any(map(self._field, range(at, len(self._tokens))))
            if learns_best or (kind and names not in ("", kind)) or (opposite and not either):
                continue
            claim, best = None if opposite else claim or made, best or token.best
            self._used[at], kind = True, kind or names
            if names not in ("", "success"):
                texts.append(self._text([at]))
                for place in range(at + 1, min(at + 4, len(self._tokens))) if "of" in kinds()[kind].takes else ():
                    if self._tokens[place].kind == "environment" and not of:  # where it is measured besides
                        self._tokens[place] = replace(self._tokens[place], kind="idiom")
                        self._used[place], of = True, self._tokens[place].name
        if kind in ("", "success"):
            return None, claim, best
        told = ", ".join(dict.fromkeys([*texts, *filter(None, [reaching])]))
        metric = RequestedMetric(kind, threshold or default_threshold(kind), of, told, stated=threshold is not None)
        return metric, claim, best

    def _claim(self, at: int) -> Claim | None:
        return "increase" if self._word(at) in words.BEATING else self._tokens[at].claim

    def _read_threshold(self, atoms: Collection[int]) -> tuple[float | None, str]:
        if not any(token.kind == "effect" and token.name in SPEED for token in self._tokens):
            return None, ""
        for at, token in enumerate(self._tokens):
            lead, end = self._before(at, words.ARTICLES), at + 1
            plain = token.kind == "number" and at not in atoms and 0 < float(token.value or 0) < 1
            if self._word(lead) in words.REACHING and (token.kind == "share" or plain):
                while end < len(self._tokens) and (
                    self._tokens[end].kind == "outcome" or self._word(end) in ("of", "the", "task")
                ):
                    end += 1
                self._use(range(lead, end))
                return float(token.value), self._text(range(lead, end))  # type: ignore[arg-type]  # number or share
        return None, ""

    def _read_environments(self) -> tuple[str | None, str | None]:
        named: str | None = self._wanted.environment
        again: str | None = None
        for at in self._every("environment"):
            name = self._tokens[at].name
            leads = [place for place in range(max(0, at - 4), at) if self._word(place) in words.REPLICATING]
            if leads and again is None and name != (named or DEFAULT_ENVIRONMENT):
                again = name
                self._used[leads[-1]] = True
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
        return named, again

    def _text(self, places: Sequence[int]) -> str:
        return " ".join(self._topic[self._tokens[places[0]].at[0] : self._tokens[places[-1]].at[1]].split())

    def _left(self) -> Iterable[str]:
        """Yield the runs of what no rule took, with the marks inside."""
        characters = list(self._topic)
        for token, used in zip(self._tokens, self._used, strict=True):
            if used and token.kind != "mark":
                characters[slice(*token.at)] = "\n" * (token.at[1] - token.at[0])
        for run in "".join(characters).split("\n"):
            if bare := _EDGES.sub("", run):
                yield bare
