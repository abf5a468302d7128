"""What a topic takes for granted or asks of the harness: heard, said in the note, and of no effect.

Seeds, tests, thresholds, stages and the metric are code's. A topic that asks for another seed, for a stage to be left
out, or for a result to be reported is read without these words, and the note says so. A topic that presumes its claim
(`why does ... always ...`) is read as the claim. It knows phrases, not meanings: what it does not recognise is read as
a part of the question, which can set none of these either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from research.planner.quoted import plain

_VERBS = r"(?:use|using|with|set|fix|take|from|and|at|only)"
_STAGES = (
    r"(?:confirmations?|confirming|confirmatory|verification|replications?|hidden evaluations?|evaluations?|a/a|"
    r"control arm|control group|statistics|statistical tests?|significance tests?|corrections?)"
)
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _Kind:
    pattern: re.Pattern[str]
    answer: str


def _kind(pattern: str, answer: str) -> _Kind:
    return _Kind(re.compile(pattern, re.IGNORECASE), answer)


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
    _kind(
        r"\b(?:measure|measuring|judge|score|evaluate)\s+(?:it\s+|them\s+|this\s+|only\s+)?(?:by\s+|with\s+|in\s+|using\s+)?"
        r"(?:the\s+|its\s+|an?\s+)(?!(?:hidden\s+)?success)(?:[\w-]+\s+){0,3}"
        r"(?:ratio|gain|checkpoint|peak|maximum|median|auc|area|curve|loss|metric|measure|index)\b",
        "the metric is the harness's: the success on hidden tasks after the last step",
    ),
    _kind(
        r"\b(?:report|take|use|compare|keep)\s+(?:only\s+)?(?:the\s+)?(?:best|peak|maximum|highest)\s+"
        r"(?:checkpoints?|step|seeds?|runs?)\b",
        "every run counts, with its last policy",
    ),
)  # fmt: skip
_PREMISE = re.compile(
    r"^\W*(?:(?:please\s+)?(?:explain|show|tell (?:me|us))\s+(?:me\s+|us\s+)?why|why|how come|what makes|prove|"
    r"demonstrate|show that|given that|since|because|as everyone knows|it is (?:well )?known that)\b",
    re.IGNORECASE,
)
_UNIVERSAL = re.compile(r"\b(always|never|in all cases|in every case|without exception|guaranteed?)\b", re.IGNORECASE)
_UNMEASURED = re.compile(
    r"\b(latency|throughput|tokens? (?:per|a) second|(?:gpu|vram|peak|video|device) memory|memory (?:use|usage|"
    r"footprint|consumption)|vram|wall[- ]clock(?: time)?|training time|run ?time|inference speed|energy|electricity|"
    r"power consumption|carbon|emissions?|cost|price|dollars?|perplexity|bleu|rouge|f1|flops|(?:training|validation|"
    r"test|eval(?:uation)?) loss|gradient norm|response length|human preference|user satisfaction)\b",
    re.IGNORECASE,
)
_MEASURED = re.compile(r"\b(success|accuracy|rewards?|solved?|solves|wins?|hidden tasks?)\b", re.IGNORECASE)
_ELSEWHERE = re.compile(
    r"\b(aime(?:[- ]?20\d\d)?|gsm[- ]?8k|math[- ]?500|minerva|olympiad ?bench|gpqa|mmlu(?:[- ]pro)?|human ?eval|mbpp|"
    r"livecodebench|swe[- ]?bench|appworld|alfworld|webshop|webarena|gaia|hotpotqa|countdown|frozen ?lake|cart ?pole|"
    r"atari|mujoco|procgen|minecraft|mle[- ]?bench)\b",
    re.IGNORECASE,
)
"""What people train and measure on, and this installation does not have."""
_BEYOND = re.compile(
    r"\b(?:above|over|beyond|to|exceed(?:s|ing)?|reach(?:es|ing)?|than|past|at least|hits?)\s+(\d+(?:\.\d+)?)\s*"
    r"(?:%|percent\b|per cent\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Heard:
    """A topic without what it asked of the harness."""

    question: str
    """The rest, which is read."""
    notes: tuple[str, ...]
    """What had no effect and what is put to the test, in sentences."""


def hear(topic: str) -> Heard:
    """Return the question in a topic, and what is said about the rest of it."""
    rest, notes = topic, []
    for kind in _KINDS:
        found = [match.group(0) for match in kind.pattern.finditer(rest)]
        if found:
            rest = kind.pattern.sub(" . ", rest)
            notes.append(f"{_listed(found)} changes nothing: {kind.answer}.")
    return Heard(rest, (*notes, *_premises(topic), *_beside(topic)))


def impossible(question: str) -> str | None:
    """Return why no study can answer a question about such an outcome, in one line; None where one may."""
    share = next((text for text in _BEYOND.findall(question) if float(text) > 100), None)
    if share is not None:
        return (
            f"expected a question about the share of hidden tasks solved, which lies between 0 and 100 %; found "
            f"{share} %; ask whether something raises or lowers it"
        )
    other = _UNMEASURED.search(question)
    if other is not None and not _MEASURED.search(question):
        return (
            f"expected a question about the success on hidden tasks, the one metric that claims are made of; found "
            f"{other.group(0).lower()}, which no claim can be about; ask what raises or lowers success"
        )
    return None


def elsewhere(question: str) -> str | None:
    """Return what a question names to train or measure on that is not here; None where it names nothing known."""
    found = _ELSEWHERE.search(question)
    return found.group(0) if found else None


def _premises(topic: str) -> list[str]:
    notes = []
    if _PREMISE.search(topic):
        notes.append("The topic takes its claim for granted; the claim itself is put to the test and can be refuted.")
    if found := _UNIVERSAL.search(topic):
        notes.append(f"One comparison is made: what it shows holds for its setting, not '{found.group(0).lower()}'.")
    return notes


def _beside(topic: str) -> list[str]:
    other = _UNMEASURED.search(topic)
    if other is None or not _MEASURED.search(topic):
        return []
    return [f"No claim is made about {other.group(0).lower()}: the success on hidden tasks is compared."]


def _listed(texts: list[str]) -> str:
    return " and ".join(f"'{_short(text)}'" for text in dict.fromkeys(texts))


def _short(text: str) -> str:
    flat = plain(text)
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"
