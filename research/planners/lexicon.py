"""The words of topics: how they are cut, and which of them name a field, a value, a place, an effect, or nothing.

Spelling is forgiven where it carries no meaning: case, plural, hyphen, underscore, `=`; `groupsize` is `group size`. A
number with a unit or a letter glued to it (`10x`, `7b`) is a word. What stands in no table is left by the grammar.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from research.planners.context import FieldSpec, known_environments
from research.planners.values import Sense
from research.proposals.arms import Scalar
from research.proposals.flags import Claim, RequestedComparison
from studies.metrics import kinds
from swarm.environments.base import Environment
from swarm.environments.custom import MARK
from swarm.job import Job, TinyModel

DEFAULT_ENVIRONMENT = "guess"
"""What is played where nobody names one."""
Kind = Literal["word", "mark", "number", "share", "field", "value", "environment", "effect", "outcome", "idiom"]


@dataclass(frozen=True, slots=True)
class TopicWord:
    """A word, a number, or several words that mean one thing."""

    kind: Kind
    name: str
    """The word's stem, or what is named: a field (also by its value), an environment, the kind of a metric."""
    at: tuple[int, int] = (0, 0)
    """Its characters in the topic."""
    value: Scalar | None = None
    sense: Sense | None = None
    """The direction that is part of a name: `longer training`."""
    claim: Claim | None = None
    best: int = 0
    """How many of the best are asked for."""


def stem(word: str) -> str:
    """Return a word without its plural: `batches` -> `batch`, `penalties` -> `penalty`; `bonus` and `less` stay."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, text.split()))


UP = stems(
    "larger large bigger big higher high more increase increases increasing increased raise raising raised greater "
    "longer stronger wider extra hotter warmer"
)
DOWN = stems(
    "smaller lower fewer less decrease decreasing decreased reduce reducing reduced lowering shrink shrinking shorter "
    "weaker narrower colder cooler"
)
SENSES: Mapping[Sense, frozenset[str]] = {
    "up": UP,
    "down": DOWN,
    "on": stems("enable enabling use using add adding"),
    "off": stems("without disable disabling no remove removing removed drop dropping omit omitting"),
}
BEATING = stems("beat beats outperform outperforms exceed exceeds surpass surpasses")
REVERSING = BEATING | stems("than over against rather instead compared")
"""Words between what is tried and what it is compared with."""
SEPARATORS = REVERSING | stems("vs v versus or to and")
ASSIGNING = stems("of at is be being to from set a an the value among")
"""Words that may stand between a field and its value."""
FILLERS = ASSIGNING | stems("as with for using")
"""Words that may stand between values that are listed."""
HOLDING = stems("with without at under using for")
"""Words before a condition of a comparison."""
ARTICLES = stems("a an the number of both")
REPLICATING = stems("replicate replicates replicated replicating replication repeat repeated again")
REACHING = stems("to reach reaches reaching hit hits until get gets at solve solves")
FRAME = ARTICLES | stems(
    "does do did doing is are was be been can could will would should shall may might must has have had get gets make "
    "makes making give gives let lets it its this that these those there i we you in on to for and or how "
    "what which why whether where much study test compare comparing comparison try find show tell see know explain "
    "examine investigate check please effect influence impact affect affects limit limits change changes choice "
    "choose pick matter difference train trains trained training learn learns learned learning agent agents policy rl "
    "reinforcement task tasks game games environment play playing run end work works value values setting use "
    "want need really actually"
)
"""Words that hold a sentence together, and ask for nothing."""
PHRASES: tuple[tuple[str, TopicWord], ...] = (
    ("better;lift;lifts;improve;improves;improvement;help;helps;helpful;boost;boosts;benefit;benefits;solve more;"
     "solve more of;solves more;solves more of;learn more;more success", TopicWord("effect", "", claim="increase")),
    ("worse;worsen;hurt;hurts;harm;harms;harmful;hinder;hinders;impair;impairs;degrade;degrades;damage;solve fewer;"
     "solve less", TopicWord("effect", "", claim="decrease")),
    ("faster;quicker;sooner;faster learning;learn faster;speed up;speeds up;sample efficient;more sample efficient;"
     "fewer episodes;in fewer episodes;in fewer steps;need fewer episodes;more quickly",
     TopicWord("effect", "episodes", claim="increase")),
    ("slower;slow down;slows down;more slowly;less sample efficient;more episodes;need more episodes",
     TopicWord("effect", "episodes", claim="decrease")),
    ("faster in wall clock time;faster in seconds;less wall clock time",
     TopicWord("effect", "seconds", claim="increase")),
    ("wall clock;wall clock time;in wall clock time", TopicWord("effect", "seconds")),
    ("area under the curve;area under the learning curve;auc", TopicWord("effect", "area")),
    ("cheaper;fewer tokens;token efficient;more token efficient", TopicWord("effect", "tokens", claim="increase")),
    ("more expensive;costlier;more tokens", TopicWord("effect", "tokens", claim="decrease")),
    ("more stable;less likely to collapse;prevent collapse", TopicWord("effect", "collapse", claim="increase")),
    ("less stable;unstable;more likely to collapse;collapse more", TopicWord("effect", "collapse", claim="decrease")),
    ("generalise better;generalize better;transfer better", TopicWord("effect", "transfer", claim="increase")),
    ("generalise;generalize;transfer", TopicWord("effect", "transfer")),
    ("best;optimal;optimum;ideal;tune;tuning;sweep;optimise;optimize;work best;works best;learn best;which value;"
     "what value;should i use;should we use;should i choose", TopicWord("effect", "", best=1)),
    ("two best;best two;2 best;best 2", TopicWord("effect", "", best=2)),
    ("three best;best three;3 best;best 3", TopicWord("effect", "", best=3)),
    ("fastest;learn fastest;fewest episodes;need the fewest episodes;needs the fewest episodes",
     TopicWord("effect", "episodes", best=1)),
    ("cheapest;fewest tokens", TopicWord("effect", "tokens", best=1)),
    ("most stable", TopicWord("effect", "collapse", best=1)),
    ("no difference;make no difference;makes no difference;not make a difference;not matter;as good as;as well as;"
     "no effect;have no effect;has no effect", TopicWord("idiom", "equivalent")),
    ("at the same number of episodes;with the same number of episodes;at equal episodes;for a fixed number of episodes",
     TopicWord("idiom", "episodes")),
    ("group relative policy optimization;reinforcement learning;hidden task;held out task;language model;in general;"
     "at all;at the end;at the end of training;after training;after the last step;on average;how come;how many;"
     "how large;how big;how high;how low;how much;how long;how many seeds;how many runs;how many seeds do i need;"
     "how many runs do i need", TopicWord("idiom", "")),
)  # fmt: skip
"""Words that say by what runs are judged and whether the treatment does better by it, or nothing beyond every study."""
OUTCOMES: Mapping[str, str] = {
    "success": "success;success rate;hidden success;final success;accuracy;final accuracy;performance;"
    "final performance;score;final score;quality;result",
    "reward": "reward;mean reward;average reward;final reward;hidden reward",
}
CHANGES: Mapping[Claim, str] = {"increase": "raise;increase;improve;higher", "decrease": "lower;reduce;decrease"}
"""Words before an outcome with which they are a claim: raise the final success."""
_OURS = tuple(
    f"{whose} {what}" for whose in ("my", "our", "this", "these", "my own")
    for what in ("game", "environment", "env", "task", "benchmark", "data set", "dataset", "problem")
)  # fmt: skip
"""What the environment of `--env` is called."""
_ORDINARY = {"words"}
"""Names of environments that a topic may hold without meaning them: `in other words`."""
_AROUND = (
    ("in ", ""), ("on ", ""), ("for ", ""), ("at ", ""), ("with ", ""), ("play ", ""), ("plays ", ""),
    ("environment ", ""), ("", " game"), ("", " environment"), ("", " task"), ("", " benchmark"),
)  # fmt: skip
_PLACED = {False: (("", ""),), True: _AROUND}
"""What stands around the name of an environment that is meant."""
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
_TOKEN = re.compile(
    rf"(?P<share>{_NUMBER}\s*(?:%|percent\b|per cent\b))|(?P<number>(?<![\w.])(?:(?<!\d)[-+])?{_NUMBER}(?![\w,]*\w))"
    rf"|(?P<word>\d+(?:,\d+)+|[^\W_]+(?:@[0-9a-f]+)?(?:\+\+)?(?:['’][a-z]+)?|[<>~])|(?P<mark>[^\w\s])"
)
_LISTED = re.compile(r"(?<=\d),(?=\d)(?!\d{3}(?!\d))")


def cut(text: str) -> list[TopicWord]:
    """Return a text's words (as stems), numbers and marks; places are those of the text."""
    plain = "".join(form if len(form := unicodedata.normalize("NFKC", char).lower()) == 1 else char for char in text)
    plain = re.sub(r"_|(?<=[^\W_])-(?=[a-z])|(?<=\bdr)\.|[()\[\]]", " ", _LISTED.sub("/", plain))
    tokens = []
    for match in _TOKEN.finditer(plain):
        text, at = match[0], match.span()
        if match["share"]:
            tokens.append(TopicWord("share", text, at, float(text.rstrip("%percnt \t")) / 100))
        elif match["number"]:
            whole = text.lstrip("+-").isdecimal() and len(text) <= 15
            tokens.append(TopicWord("number", text, at, int(text) if whole else float(text)))
        elif match["mark"]:
            tokens.append(TopicWord("mark", text, at))
        else:
            word = text.replace("’", "'")
            tokens.append(TopicWord("word", "not" if word.endswith("n't") else stem(word.partition("'")[0]), at))
    return tokens


Vocabulary = dict[tuple[str, ...], TopicWord]


def build_vocabulary(
    fields: Sequence[FieldSpec], environments: Sequence[Environment], wanted: RequestedComparison, model: str
) -> Vocabulary:
    """Return what phrases mean; of two meanings the first counts."""
    known: Vocabulary = {}

    def add(texts: Iterable[str], token: TopicWord) -> None:
        for text in texts:
            words = _words(text)
            for key in (words, ("".join(words),) if token.kind == "field" else words):
                known.setdefault(key, token)

    for facts in fields:
        for text in (facts.name, *facts.synonyms):
            own = stems(text)
            add([text], TopicWord("field", facts.name, sense="up" if own & UP else "down" if own & DOWN else None))
        for value, texts in facts.values.items():
            add(texts, TopicWord("value", facts.name, value=value if facts.is_categorical else int(value)))
        for rung in facts.ladder:
            if isinstance(rung, str) and "_" in rung:
                add([rung], TopicWord("value", facts.name, value=rung))
    for entry in environments:
        add([f"{before}{entry.name}{after}" for before, after in _PLACED[entry.name in _ORDINARY]] + [*entry.synonyms],
            TopicWord("environment", entry.name))  # fmt: skip
    if wanted.environment is not None:
        add(_OURS, TopicWord("environment", wanted.environment))
        words = re.findall(r"[a-z0-9]+", wanted.environment.partition(MARK)[0].lower())
        parts = (" ".join(words[start:end]) for end in range(1, len(words) + 1) for start in range(end))
        add((part for part in parts if stem(part) not in FRAME), TopicWord("environment", wanted.environment))
    for phrases, token in PHRASES:
        add(phrases.split(";"), token)
    for kind_name, outcomes in OUTCOMES.items():
        add(outcomes.split(";"), TopicWord("outcome", kind_name))
        for claim, verbs in CHANGES.items():
            pairs = [(verb, outcome) for verb in verbs.split(";") for outcome in outcomes.split(";")]
            token = TopicWord("effect", kind_name, claim=claim)
            add([f"{verb} {the}{outcome}" for verb, outcome in pairs for the in ("", "the ")], token)
    for name, kind in kinds().items():
        add(kind.words, TopicWord("effect", name))
    add([model, "my model", "our model", "this model"] if model else [], TopicWord("idiom", ""))
    return known


@lru_cache(maxsize=4096)
def _words(phrase: str) -> tuple[str, ...]:
    return tuple(word.name for word in cut(phrase))


def recognise(tokens: list[TopicWord], known: Vocabulary, fields: Sequence[FieldSpec]) -> list[TopicWord]:
    """Return the tokens with phrases in the place of words, the longest first, and of one length names first."""
    for width in range(max(map(len, known)), 0, -1):
        for names in (True, False):
            at = 0
            while at + width <= len(tokens):
                window = tokens[at : at + width]
                found = known.get(tuple(token.name for token in window))
                plain = all(token.kind in ("word", "mark", "number") for token in window)
                if found is not None and plain and (found.kind in ("field", "environment")) == names:
                    tokens[at : at + width] = [replace(found, at=(window[0].at[0], window[-1].at[1]))]
                at += 1
    named = {token.name for token in tokens if token.kind in ("field", "value")}
    bare: dict[str, tuple[str, Scalar]] = {}
    for facts in fields:
        if facts.name in named:
            switch = {"true": True, "false": False} if isinstance(facts.default, bool) else {}
            words = {str(value): value for value in facts.ladder} if facts.is_categorical else switch
            bare |= {stem(word): (facts.name, value) for word, value in words.items()}
    return [
        TopicWord("value", bare[token.name][0], token.at, bare[token.name][1])
        if token.kind == "word" and token.name in bare
        else token
        for token in tokens
    ]


def offered_environments(job: Job) -> tuple[Environment, ...]:
    """Return the environments that a planner may choose from: what is made for pretrained models, for those alone."""
    tiny = isinstance(job.model, TinyModel)
    return tuple(e for e in known_environments() if not (tiny and e.pretrained) or e.name == job.environment)


def find_environment(topic: str, wanted: RequestedComparison) -> str:
    """Return the environment that flags name, else the topic's first, else the default."""
    return wanted.environment or next(iter(name_environments(topic)), DEFAULT_ENVIRONMENT)


def name_environments(topic: str) -> tuple[str, ...]:
    tokens = recognise(cut(topic), build_vocabulary((), known_environments(), RequestedComparison(), ""), ())
    return tuple(dict.fromkeys(token.name for token in tokens if token.kind == "environment"))
