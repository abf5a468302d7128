"""What a topic names that no study of this installation has: models, environments, measures.

By closed lists of what people name. What is found is refused with the way to it, for every planner alike, as no plan
could be about it; what neither these lists nor the reading of a topic knows is for `research.topic.leftover`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from research.planner.quoted import plain

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _Kind:
    noun: str
    pattern: re.Pattern[str]
    way: str
    beside: bool = False
    """Whether it may be named beside success, which is then all that is compared."""


def _kind(noun: str, pattern: str, way: str, *, beside: bool = False) -> _Kind:
    return _Kind(noun, re.compile(pattern, re.IGNORECASE), way, beside)


_MODEL = (
    r"\b(?:meta[-/ ]?)?(?:qwen|llama|mistral|mixtral|gemma|phi|deepseek|smollm|olmo|pythia|gpt|claude|"
    r"gemini|tinyllama|internlm|kimi|glm|nemotron)(?:[- ]?(?:v?\d[\w.]*|coder|math|instruct|chat|base|mini|"
    r"nano|oss|distill|r\d))*(?:[- /]?\d+(?:\.\d+)?[bm]\b)?(?:[- ](?:instruct|chat|base|it|coder|math))*"
    r"|\b\d+(?:\.\d+)?\s?(?:b|bn|m|billion|million)[- ](?:param\w*|models?)\b|\b\d+(?:\.\d+)?[bB]\b"
    r"|\b(?:pre-?trained|foundation|instruct|chat|frontier|real|larger|bigger|smaller|small|large|big|stronger|weaker|"
    r"different|another|other|my(?: own)?|our(?: own)?)[- ](?:language )?(?:models?|llms?|checkpoints?)\b"
    r"|\bmodel (?:size|scale)s?\b"
)
_SHAPE = (
    r"\b(?:hidden|embedding|vocabulary|vocab)[- ](?:size|dimension|dim|width)s?\b|\bhidden[_ ]size\b"
    r"|\b(?:number of|more|fewer|\d+|two|three|four)[- ](?:attention )?(?:layers|heads|parameters)\b"
    r"|\b(?:deeper|wider|shallower) (?:models?|networks?|polic(?:y|ies)|transformers?)\b|\bmodel (?:depth|width)\b"
    r"|\b(?:dropout|optimi[sz]ers?|adamw?|sgd|muon|lion|adafactor|weight decay|gradient clipping)\b"
)
_CRITIC = (
    r"\b(?:value (?:function|head)s?|critics?|gae|generali[sz]ed advantage estimation|gamma|discount(?: factor)?)\b"
)
_START = (
    r"\bwarm[- ]?start\w*(?: steps?)?\b|\b(?:initial|starting) (?:policy|weights|checkpoint)\b|\bsft steps?\b"
    r"|\bpre-?training(?: steps?)?\b"
)
_ENVIRONMENT = (
    r"\b(?:aime(?:[- ]?20\d\d)?|gsm[- ]?8k|math[- ]?500|minerva|olympiad ?bench|gpqa|mmlu(?:[- ]pro)?|human ?eval|mbpp|"
    r"livecodebench|swe[- ]?bench|appworld|alfworld|webshop|webarena|gaia|hotpot ?qa|countdown|frozen ?lake|cart ?pole|"
    r"atari|mujoco|procgen|minecraft|mle[- ]?bench|tau[- ]?bench|bfcl|chess|sudoku|wordle|sokoban|blackjack|gymnasium|"
    r"openai gym|reasoning[- _]?gym|text ?arena|verifiers|open ?env|crafter|nethack|babyai)(?::[\w./-]+)?\b"
    r"|(?:(?<=\s)|^)(?:~|\.{1,2})?/[\w.~/-]+|\b[\w-]+\.(?:py|jsonl?|csv|parquet|ya?ml|toml)\b"
    r"|\b(?:my|our)(?: own)? (?:[\w-]+ ){0,2}(?:environments?|envs?|tasks?|games?|data ?sets?|benchmarks?|"
    r"problems?|domains?|simulators?)\b|\b(?:custom|another|different|new|other|real|harder|easier) "
    r"(?:environments?|envs?|tasks?|games?|benchmarks?|data ?sets?)\b"
)
_ENDS = r"(?:to|until|till|before|needed|required|it takes|necessary)"
_LENGTHS = r"(?:episodes|steps|samples|tokens|updates|rollouts|interactions)"
_MEASURE = (
    r"\b(?:area under (?:the |its |their )?(?:[\w-]+ )?curves?|auc|"
    rf"(?:fewest|least|fewer|less|number of|how many|amount of) (?:training )?{_LENGTHS} {_ENDS}|"
    rf"time to (?:reach|solve)|{_LENGTHS} to (?:reach|solve|get)|(?:fewest|least) (?:training )?{_LENGTHS}|"
    r"sample[- ]efficien\w+|sample complexity|data[- ]efficien\w+|"
    r"(?:reward |entropy |mode |policy |training )?collaps\w+|catastrophic\w*|forget\w*|(?:in)?stabilit(?:y|ies)|"
    r"(?:un)?stable|(?:de)?stabili[sz]\w+|diverg(?:e|es|ed|ing)|blow(?:s|ing)?[- ]?ups?|explod\w+|explosions?|"
    r"kl[- ]divergence|policy[- ]entropy|entropy (?:higher|lower|larger|smaller)|"
    r"entropy (?:at the end|after|during|of the policy|stays?|drops?|falls?|rises?|"
    r"decay)|exploration|diversity|(?:reward )?hack\w*|overfit\w*|generali[sz]\w+|out[- ]of[- ]distribution|ood|"
    r"transfer\w*|robust\w*|reproducib\w+|calibration|variance (?:between|across|over|of)|seed[- ]to[- ]seed|"
    r"plateau\w*|worst[- ]case|best[- ]of[- ]\w+|pass@\w+|majority[- ]vot\w+|"
    r"(?:response|answer|output|completion) lengths?|(?:longer|shorter) (?:responses|answers|outputs|completions)|"
    r"gradient norms?|(?:training|validation|test|eval(?:uation)?) loss)(?!\w)"
)
_ASKED_MEASURE = (
    r"\b(?:measure|measuring|judge|score|evaluate)\s+(?:it\s+|them\s+|this\s+|only\s+)?(?:by\s+|with\s+|in\s+|using\s+)?"
    r"(?:the\s+|its\s+|an?\s+)(?!(?:hidden\s+)?success)(?:[\w-]+\s+){0,3}"
    r"(?:ratio|gain|checkpoint|peak|maximum|median|auc|area|curve|loss|metric|measure|index)\b"
    r"|\b(?:report|take|use|compare|keep)\s+(?:only\s+)?(?:the\s+)?(?:best|peak|maximum|highest)\s+"
    r"(?:checkpoints?|step|seeds?|runs?)\b"
)
_COST = (
    r"\bhow (?:long|much time)\b[\w ]{0,40}\b(?:take|takes|last|lasts)\b|"
    r"\b(?:latency|throughput|tokens? (?:per|a) second|(?:gpu|vram|peak|video|device) memory|memory (?:use|usage|"
    r"footprint|consumption)|vram|wall[- ]?clock(?: time)?|training time|run ?time|inference speed|energy|"
    r"electricity|cheap(?:er|est)|costl(?:y|ier|iest)|(?:more|less|most) expensive|"
    r"power consumption|carbon|emissions?|cost|price|dollars?|perplexity|"
    r"bleu|rouge|f1|flops|human preference|user satisfaction)\b"
)
MEASURE = "measure"
"""What of training or of its end a number is of."""
_METRIC = (
    "a study compares the share of hidden tasks solved after the last step, or another metric (`ajet metric list`)"
)
_KINDS = (
    _kind(
        "model", _MODEL,
        "a study trains the tiny model that is made on the spot; leave the model out, train one of your own with "
        "--model-path DIR, or compare two with --vary model=DIR1,DIR2",
    ),
    _kind(
        "part of the model or its optimiser", _SHAPE,
        "all arms have the same model and optimiser; name a field of the job (`ajet study plan --help`)",
    ),
    _kind(
        "part of a critic", _CRITIC,
        "no study varies one; give all arms one by a job with verl.advantage_estimator gae, --job FILE "
        "(docs/cluster.md), and ask about another field",
    ),
    _kind(
        "beginning", _START, "all arms begin with the same weights, as a head start would be taken for the effect",
    ),
    _kind(
        "environment", _ENVIRONMENT,
        "name one that is here, {environments}, or bring yours: --env FOLDER (docs/environments.md)",
    ),
    _kind(
        "agent", r"\b(?:my|our)(?: own)? (?:[\w-]+ ){0,2}(?:agents?|bots?|assistants?|harness|scaffold|workflow)\b",
        "a study plays with the environment's own agent; train yours against `ajet swarm start` (docs/agents.md)",
    ),
    _kind(MEASURE, _MEASURE, f"{_METRIC}; ask what raises or lowers that", beside=True),
    _kind(MEASURE, _ASKED_MEASURE, f"{_METRIC}, of every run and its last policy; ask what raises or lowers that"),
    _kind(MEASURE, _COST, f"no claim can be about it; {_METRIC}; ask what raises or lowers that", beside=True),
)  # fmt: skip
_MEASURED = re.compile(r"\b(?:success|accuracy|solved?|solves|wins?|hidden tasks?)\b", re.IGNORECASE)
_BEYOND = re.compile(
    r"\b(?:above|over|beyond|to|exceed(?:s|ing)?|reach(?:es|ing)?|than|past|at least|hits?)\s+(\d+(?:\.\d+)?)\s*"
    r"(?:%|percent\b|per cent\b)",
    re.IGNORECASE,
)
_SCRIPTS = 0.3
"""Share of letters that are not Latin or Greek from which a topic is in another language."""


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name in a topic that no study has."""

    text: str
    at: tuple[int, int]
    noun: str
    way: str
    beside: bool


def named(topic: str) -> tuple[UnknownName, ...]:
    """Return what a topic names that is not here, in the order of the topic; nothing is found twice."""
    found: list[UnknownName] = []
    for kind in _KINDS:
        for match in kind.pattern.finditer(topic):
            if not any(known.at[0] < match.end() and match.start() < known.at[1] for known in found):
                found.append(UnknownName(match.group(0).strip(), match.span(), kind.noun, kind.way, kind.beside))
    return tuple(sorted(found, key=lambda entry: entry.at))


def unavailable(topic: str, environments: Sequence[str]) -> str | None:
    """Return why no planner can study what a topic names, in one line, or None."""
    missing = [entry for entry in named(topic) if entry.noun != MEASURE]
    return _refused(missing, environments) if missing else None


def refusal(topic: str, environments: Sequence[str], *, judged: bool = False) -> str | None:
    """Return why no study can answer a topic, in one line that names what is missing and the way to it, or None.

    A measure that is named beside success, or beside the metric that runs are `judged` by, is no reason: that is
    compared, and the rest is not tested.
    """
    if (other := another_language(topic)) is not None:
        return other
    if (share := next((text for text in _BEYOND.findall(topic) if float(text) > 100), None)) is not None:
        return (
            f"expected a question about the share of hidden tasks solved, which lies between 0 and 100 %; found "
            f"{share} %; ask whether something raises or lowers it"
        )
    judged = judged or _MEASURED.search(topic) is not None
    missing = [entry for entry in named(topic) if not (entry.beside and judged)]
    return _refused(missing, environments) if missing else None


def beside(topic: str, *, judged: bool = False) -> tuple[UnknownName, ...]:
    """Return the measures that a topic names beside success, or the metric: nothing of them is tested."""
    judged = judged or _MEASURED.search(topic) is not None
    return tuple(entry for entry in named(topic) if entry.beside and judged)


def without_beside(topic: str, *, judged: bool = False) -> str:
    """Return a topic with the measures beside what is compared blanked, as long as it was."""
    for entry in beside(topic, judged=judged):
        start, end = entry.at
        topic = topic[:start] + " " * (end - start) + topic[end:]
    return topic


def another_language(topic: str) -> str | None:
    """Return the line for a topic in another script, or None."""
    letters = [char for char in topic if char.isalpha()]
    foreign = [char for char in letters if ord(char) > 0x3FF]
    if not letters or len(foreign) < _SCRIPTS * len(letters):
        return None
    return only_english("a topic in another language")


def only_english(found: str) -> str:
    """Return the refusal of a topic that is not English; flags need no reading."""
    return (
        f"expected a topic in English, the only language that the rules read; found {found}; ask in English, by "
        "flags, such as --vary group_size=4,16 --env guess, or a language model with --planner llm"
    )


def _refused(missing: Sequence[UnknownName], environments: Sequence[str]) -> str:
    ways = dict.fromkeys(entry.way.format(environments=" or ".join(environments)) for entry in missing)
    found = _listed([f"{_article(entry.noun)} {entry.noun}, {_short(entry.text)}," for entry in _once(missing)])
    return f"expected a question about what can be trained and measured here; found {found} not here; {'; '.join(ways)}"


def _once(missing: Sequence[UnknownName]) -> Iterator[UnknownName]:
    seen: set[str] = set()
    for entry in missing:
        if entry.text.lower() not in seen:
            seen.add(entry.text.lower())
            yield entry


def _listed(texts: Sequence[str]) -> str:
    verb = "which is" if len(texts) == 1 else "which are"
    return f"{' and '.join(texts)} {verb}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _short(text: str) -> str:
    flat = plain(text)
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"
