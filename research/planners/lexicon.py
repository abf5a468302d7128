"""The words of topics: how they are cut, and which of them name a field, a value, a place, an effect, or nothing.

Spelling is forgiven where it carries no meaning: case, plural, hyphen, underscore, `=`; `groupsize` is `group size`. A
number with a unit or a letter glued to it (`10x`, `7b`) is a word. What stands in no table is left by the grammar.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from research.files import load_table
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


_TABLES: Mapping[str, Any] = load_table(__package__, "lexicon.toml")
_SETS = {name: stems(text) for name, text in _TABLES["words"].items()}
UP, DOWN, HOLDING, ARTICLES = _SETS["up"], _SETS["down"], _SETS["holding"], _SETS["articles"]
SENSES: Mapping[Sense, frozenset[str]] = {"up": UP, "down": DOWN, "on": _SETS["on"], "off": _SETS["off"]}
BEATING, REPLICATING, REACHING = _SETS["beating"], _SETS["replicating"], _SETS["reaching"]
REVERSING = BEATING | _SETS["reversing"]
SEPARATORS = REVERSING | _SETS["separators"]
ASSIGNING = _SETS["assigning"]
FILLERS, FRAME = ASSIGNING | _SETS["fillers"], ARTICLES | _SETS["frame"]
OUTCOMES: Mapping[str, str] = _TABLES["outcomes"]
CHANGES: Mapping[Claim, str] = _TABLES["changes"]
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
    for phrase in _TABLES["phrases"]:
        add(phrase["are"].split(";"), TopicWord(**{name: value for name, value in phrase.items() if name != "are"}))
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
