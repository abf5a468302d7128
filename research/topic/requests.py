"""What a topic asks of the harness: found, said as not tested, and of no effect.

Seeds, tests, thresholds and stages are code's. A topic that asks for another seed, for a stage to be left out, or for a
result to be reported is read without these words, and it is said. It knows phrases, not meanings: what it does not
recognise is read as a part of the question, which can set none of these either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from research.planner.quoted import plain

_VERBS = r"(?:use|using|with|set|fix|take|from|and|at|only)"
_STAGES = (
    r"(?:confirmations?|confirming|confirmatory|verification|replications?|hidden evaluations?|evaluations?|a/a|"
    r"control arm|control group|statistics|statistical tests?|significance tests?|corrections?)"
)
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _RequestKind:
    pattern: re.Pattern[str]
    answer: str


def _kind(pattern: str, answer: str) -> _RequestKind:
    return _RequestKind(re.compile(pattern, re.IGNORECASE), answer)


_KINDS = (
    _kind(
        r"\b(?:ignore|disregard|forget|override|overrule)\b[^.?!;]*\b(?:instructions?|rules?|design|lock|protocol|"
        r"safeguards?)\b",
        "a topic is a question and no instruction to the harness",
    ),
    _kind(
        rf"\b(?:skip|omit|drop|without|no|avoid|leave out|leaving out|skipping|don'?t do|do not do|not do)\s+"
        rf"(?:the\s+|any\s+|a\s+)?{_STAGES}(?:\s+(?:runs?|stages?|phases?|steps?|arms?))?",
        "the stages of a study are the harness's",
    ),
    _kind(
        rf"(?:\b{_VERBS}\s+)?(?:\bthe\s+)?(?:\brandom\s+)?\bseeds?\s*(?:=|:|of|to|is)?\s*\d+(?:\s*(?:,|and|to|-)\s*\d+)*",
        "seeds are drawn by the harness",
    ),
    _kind(
        rf"(?:\b{_VERBS}\s+)?\b(?:\d+|one|two|three|four|five|ten|a single|only one)\s+(?:random\s+)?seeds?\b",
        "how many seeds there are follows from the promised power",
    ),
    _kind(
        r"\b(?:report|claim|say|state|conclude|publish|announce|declare|write)\b(?:(?!\b(?:whether|if)\b)[^.?!;])*?"
        r"\d+(?:\.\d+)?\s*(?:%|percent\b|per cent\b)(?:\s*(?:success|accuracy|confidence))?",
        "what is reported is what is measured",
    ),
    _kind(
        r"\b(?:declare|mark|call|report|judge|conclude)\s+(?:it|this|that|h\d+|(?:the|this|that|every|each) "
        r"(?:hypothesis|claim|treatment|result))\s+(?:as\s+|to be\s+|is\s+)?"
        r"(?:supported|refuted|significant|a success|successful|true|proven|confirmed|equivalent)\b",
        "verdicts are computed",
    ),
    _kind(
        r"(?:\b(?:use|with|at|set)\s+)?(?:\ban?\s+|\bthe\s+)?"
        r"(?:\b(?:alpha|significance level|p|p-value|confidence level)\s*(?:=|<|of|:|to|at)?\s*(?:0?\.\d+|\d+\s*%)"
        r"|\d+(?:\.\d+)?\s*%\s*(?:confidence|significance|level|power))\b",
        "levels and thresholds are the design's",
    ),
    _kind(
        r"\b(?:use|using|with|by)\s+(?:an?\s+|the\s+)?(?:welch'?s?\s+|one-sided\s+|two-sided\s+|student'?s?\s+)?"
        r"(?:t[- ]tests?|z[- ]tests?|bootstrap|mann[- ]whitney|wilcoxon|anova|one-sided tests?|permutation tests?)\b",
        "the test is the design's",
    ),
)  # fmt: skip
_SAME = r"(?:same|equal|fixed|constant|matched|identical|equivalent)"
_OF_TRAINING = (
    r"(?P<what>episodes|rollouts|samples|steps|updates|tokens|compute|flops|time|seconds|wall[- ]?clock|data|"
    r"experience|gradient steps)"
)
_MATCHED = re.compile(
    rf"(?:\b(?:at|with|for|under|given|using|on|and|keeping|holding)\s+)?(?:\b(?:the|an?)\s+)?\b{_SAME}[- ]"
    rf"(?:total |overall |training )*(?:(?:numbers?|amounts?|budgets?|counts?)\s+(?:of|in)\s+)?(?:total |training )*"
    rf"{_OF_TRAINING}\b(?:[- ](?:budgets?|counts?))?(?:\s+(?:in (?:total|all|both(?: arms)?)|overall))?",
    re.IGNORECASE,
)
_SETTLED_AT = {"steps": "steps", "gradient steps": "steps", "episodes": "episodes", "rollouts": "episodes",
               "samples": "episodes"}  # fmt: skip
_OURS = r"(?:the|my|our|any) (?!results?|success|score|performance|outcome|accuracy|reward)"
_NO_EFFECT = re.compile(
    r"\b(?:(?:does|do|did|will|would|is|are|makes?|has|have|show|prove)(?:n'?t| not| no)|doesnt|dont|isnt|never|"
    rf"no longer|not)\s+(?:really |actually |just )?(?:help|hurt|matter|change(?! {_OURS})|affect|improve|"
    r"make (?:a|any|much) difference|better|worse|different|needed|necessary|difference|effect|influence|impact|"
    r"benefit|gain)"
    r"|\b(?:n't|not|never|no longer)\s+(?:(?:makes?|learns?|learning|trains?|training|it|gets?|becomes?|be|perform\w*|"
    r"leads? to|any|reach\w*)\s+){1,4}(?:better|worse)\b"
    r"|\bno (?:better|worse|different)\b|\bmatch(?:es)?\b"
    r"|\bmakes? no (?:real |practical )?difference\b|\bno (?:difference|effect|influence|impact|benefit|gain)\b"
    r"|\b(?:as good as|as well as|match(?:es)?|equally good|equivalent to|makes? no odds|irrelevant|useless|"
    r"unnecessary|redundant)\b",
    re.IGNORECASE,
)
_TREND = re.compile(
    r"\b(?:is there )?(?:an? |any |the )?(?:(?:linear |monotone |monotonic |steady )?trend|dose[- ]response(?: curve)?)"
    r"(?: of| in| over)?\b|\b(?:(?:rise|fall|grow|climb|drop)s? )?(?:monotonic(?:ally)?|steadily)\b",
    re.IGNORECASE,
)
_POWER = re.compile(r"\bhow many (?:random )?(?:seeds|runs|repeats|repetitions|replicates)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SplitTopic:
    """A topic, divided into its question and what it asks of the harness."""

    question: str
    """The rest, which is read: as long as the topic, blank where something was taken out."""
    without_effect: tuple[str, ...]
    """What changes nothing, and why, in sentences."""
    matched: Literal["steps", "episodes"] = "steps"
    """What of training the arms are to have equal."""
    unmatched: str | None = None
    """What they are to have equal and cannot, as written."""


def split_requests(topic: str) -> SplitTopic:
    """Divide a topic into its question and its requests of the harness."""
    rest, without = topic, []
    for kind in _KINDS:
        found = [match.group(0) for match in kind.pattern.finditer(rest)]
        if found:
            rest = kind.pattern.sub(_blank, rest)
            without.append(f"{_listed(found)} changes nothing: {kind.answer}.")
    same = [(match.group(0), _SETTLED_AT.get(match["what"].lower())) for match in _MATCHED.finditer(rest)]
    return SplitTopic(
        _MATCHED.sub(_blank, rest), tuple(without),
        "episodes" if any(what == "episodes" for _, what in same) else "steps",
        next((text.strip() for text, what in same if what is None), None),
    )  # fmt: skip


def seeks_equivalence(topic: str) -> bool:
    """Return whether a topic asks to see shown that something makes no difference."""
    return _NO_EFFECT.search(topic) is not None


def asks_trend(topic: str) -> bool:
    """Return whether a topic asks how something moves over several values of a field."""
    return _TREND.search(topic) is not None


def without_trend(topic: str) -> str:
    """Return a topic without the words that ask for a trend, as long as it was."""
    return _TREND.sub(lambda found: " " * len(found.group(0)), topic)


def asks_for_power(topic: str) -> bool:
    """Return whether a topic asks how many runs a comparison needs: no run answers that, a plan does."""
    return _POWER.search(topic) is not None


def _blank(found: re.Match[str]) -> str:
    """Return blanks around a full stop, as many characters as were found: what is read keeps its place in the topic."""
    return " .".ljust(len(found.group(0)))


def _listed(texts: list[str]) -> str:
    return " and ".join(f"'{_short(text)}'" for text in dict.fromkeys(texts))


def _short(text: str) -> str:
    flat = plain(text)
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"
