"""What of a topic cannot be studied here: unsupported names, requests, words left over.

Closed lists of models, environments and measures that people name are refused, with the way to them, for every planner
alike.

No word passes silently: each names a field, value, environment, direction or effect, or stands in the closed lists
`ASKING` and `GRAMMAR`. Any other is refused or shown as not tested, by its place alone: beside a compared value, after
a preposition that sets a condition, or elsewhere.

Requests to the harness (another seed, a stage left out, a result reported) are found by phrases and said as not tested:
seeds, tests, thresholds and stages are code's. One that is not recognised is read as a part of the question, which can
set none of these either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from research.planners.history import sanitize_line
from research.planners.lexicon import BEATING, BETTER, DOWN, OFF, UP, WORSE, Item, stem, stems
from research.text import did_you_mean

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _Kind:
    noun: str
    pattern: str
    way: str
    secondary: bool = False
    """Whether it may be named beside success, which is then all that is compared."""


_MODEL_NAMES = (
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
_ENVIRONMENT_NAMES = (
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
_ABSENT_KINDS = (
    _Kind(
        "model", _MODEL_NAMES,
        "a study trains the tiny model that is made on the spot; leave the model out, train one of your own with "
        "--model-path DIR, or compare two with --vary model=DIR1,DIR2",
    ),
    _Kind(
        "part of the model or its optimiser", _SHAPE,
        "all arms have the same model and optimiser; name a field of the job (`ajet study plan --help`)",
    ),
    _Kind(
        "part of a critic", _CRITIC,
        "no study varies one; give all arms one by a job with verl.advantage_estimator gae, --job FILE "
        "(docs/cluster.md), and ask about another field",
    ),
    _Kind(
        "beginning", _START, "all arms begin with the same weights, as a head start would be taken for the effect",
    ),
    _Kind(
        "environment", _ENVIRONMENT_NAMES,
        "name one that is here, {environments}, or bring yours: --env FOLDER (docs/environments.md)",
    ),
    _Kind(
        "agent", r"\b(?:my|our)(?: own)? (?:[\w-]+ ){0,2}(?:agents?|bots?|assistants?|harness|scaffold|workflow)\b",
        "a study plays with the environment's own agent; train yours against `ajet swarm start` (docs/agents.md)",
    ),
    _Kind(MEASURE, _MEASURE, f"{_METRIC}; ask what raises or lowers that", secondary=True),
    _Kind(
        MEASURE, _ASKED_MEASURE, f"{_METRIC}, of every run and its last policy; ask what raises or lowers that"
    ),
    _Kind(MEASURE, _COST, f"no claim can be about it; {_METRIC}; ask what raises or lowers that",
                 secondary=True),
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
    secondary: bool


def find_unknown_names(topic: str) -> tuple[UnknownName, ...]:
    """Return what a topic names that is not here, in the order of the topic; nothing is found twice."""
    found: list[UnknownName] = []
    for kind in _ABSENT_KINDS:
        for match in re.finditer(kind.pattern, topic, re.IGNORECASE):
            if not any(known.at[0] < match.end() and match.start() < known.at[1] for known in found):
                found.append(UnknownName(match.group(0).strip(), match.span(), kind.noun, kind.way, kind.secondary))
    return tuple(sorted(found, key=lambda entry: entry.at))


def explain_unavailable(topic: str, environments: Sequence[str]) -> str | None:
    missing = [entry for entry in find_unknown_names(topic) if entry.noun != MEASURE]
    return _explain_refusal(missing, environments) if missing else None


def refusal(topic: str, environments: Sequence[str], *, judged: bool = False) -> str | None:
    """Return in one line why no study can answer a topic, and the way to one that can, or None. A measure named beside
    success, or beside the metric that runs are `judged` by, is no reason: it is not tested.
    """
    letters = [char for char in topic if char.isalpha()]
    if letters and sum(ord(char) > 0x3FF for char in letters) >= _SCRIPTS * len(letters):
        return refuse_language("a topic in another language")
    if (share := next((text for text in _BEYOND.findall(topic) if float(text) > 100), None)) is not None:
        return (
            f"expected a question about the share of hidden tasks solved, which lies between 0 and 100 %; found "
            f"{share} %; ask whether something raises or lowers it"
        )
    judged = judged or _MEASURED.search(topic) is not None
    missing = [entry for entry in find_unknown_names(topic) if not (entry.secondary and judged)]
    return _explain_refusal(missing, environments) if missing else None


def secondary_metrics(topic: str, *, judged: bool = False) -> tuple[UnknownName, ...]:
    """Return the measures that a topic names beside success, or the metric: nothing of them is tested."""
    judged = judged or _MEASURED.search(topic) is not None
    return tuple(entry for entry in find_unknown_names(topic) if entry.secondary and judged)


def remove_secondary_metrics(topic: str, *, judged: bool = False) -> str:
    for entry in secondary_metrics(topic, judged=judged):
        start, end = entry.at
        topic = topic[:start] + " " * (end - start) + topic[end:]
    return topic


def refuse_language(found: str) -> str:
    """Return the refusal of a topic that is not English; flags need no reading."""
    return (
        f"expected a topic in English, the only language that the rules read; found {found}; ask in English, by "
        "flags, such as --vary group_size=4,16 --env guess, or a language model with --planner llm"
    )


def _explain_refusal(missing: Sequence[UnknownName], environments: Sequence[str]) -> str:
    ways = dict.fromkeys(entry.way.format(environments=" or ".join(environments)) for entry in missing)
    named: dict[str, UnknownName] = {}
    for entry in missing:
        named.setdefault(entry.text.lower(), entry)
    texts = [f"{'an' if entry.noun[0] in 'aeiou' else 'a'} {entry.noun}, {_shorten(entry.text)},"
             for entry in named.values()]  # fmt: skip
    verb = "which is" if len(texts) == 1 else "which are"
    found = f"{' and '.join(texts)} {verb}"
    return f"expected a question about what can be trained and measured here; found {found} not here; {'; '.join(ways)}"


def _shorten(text: str) -> str:
    flat = sanitize_line(text)
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"


Role = Literal["near", "unvaried", "number", "arm", "condition", "else"]
_LEAST_LETTERS = 4
"""Letters of a word that may be a known one misspelt."""
_WORDS_ALIKE = 0.88
"""How alike a word is to a part of a name that it may be meant for: one letter of eight is missing."""


GRAMMAR = stems(
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
ASKING = stems(
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
CONDITIONS = stems(
    "with without using under when while if in on at after before during via through given where until unless for"
)
"""Words after which something is set, or stated to hold."""
_BESIDE = stems("vs v versus against than or and instead between compared over") | BEATING | {","}
"""Words with an arm on either side."""
_CROSSING = stems("interact interacts interacting interaction interactions interplay")
DEPENDING = stems("depend depends depending") | _CROSSING
"""Words that ask whether the effect of one field depends on another."""
_NEEDING = stems("need needs require requires allow allows permit permits")
_EXCLUDING = stems("not except excluding besides unlike")
_ANY = stems("anything everything all nothing")


@dataclass(frozen=True, slots=True)
class UnparsedSpan:
    """A run of words that the plan does not hold, as written."""

    text: str
    role: Role
    meant: str = ""
    """`; did you mean NAME?` where one is near."""


def find_unparsed(
    topic: str, items: Sequence[Item], bound: AbstractSet[int], known: Sequence[str]
) -> tuple[UnparsedSpan, ...]:
    """Return the runs of items that are not `bound`, in order; `known` are names that may have been meant."""
    return tuple(_unparsed_spans(topic, items, [_is_unparsed(at, item, bound) for at, item in enumerate(items)], known))


def asks_interaction(items: Sequence[Item]) -> bool:
    named = [at for at, item in enumerate(items) if item.kind in ("field", "value")]
    asking = DEPENDING if any(item.kind == "number" for item in items) else DEPENDING | _NEEDING
    words = [at for at, item in enumerate(items) if item.kind == "word" and item.name in asking]
    if len({items[at].name for at in named}) > 1 and any(items[at].name in _CROSSING for at in words):
        return True  # `interaction between A and B`
    return any(any(place < at for place in named) and any(place > at for place in named) for at in words)


def find_excluded(topic: str, items: Sequence[Item]) -> tuple[UnparsedSpan, ...]:
    found = []
    for at, item in enumerate(items):
        if item.kind == "field" and _is_left_out(items, at):
            found.append(UnparsedSpan(topic[items[at - 1].at[0] : item.at[1]], "condition"))
        if item.kind == "environment":
            lead = _skip(items, at - 1, -1)
            lead -= lead >= 0 and items[lead].name in ("on", "in", "for")
            if lead >= 0 and items[lead].name in _EXCLUDING and (lead == 0 or items[lead - 1].name != "or"):
                found.append(UnparsedSpan(topic[items[lead].at[0] : item.at[1]], "condition"))
    return tuple(found)


def _is_left_out(items: Sequence[Item], at: int) -> bool:
    """Return whether a field is what is not to be varied: `anything but the learning rate`."""
    before = [item.name for item in items[max(0, at - 2) : at]]
    return before[-1:] in (["except"], ["excluding"], ["besides"]) or (before[-1:] == ["but"] and before[0] in _ANY)


def is_english(items: Sequence[Item]) -> bool:
    words = (GRAMMAR - _ELSEWHERE) | UP | DOWN | OFF | BETTER | WORSE
    return any(item.kind == "word" and item.name in words for item in items)


_ELSEWHERE = stems("a s t d m re in so an am on do no me was will")
"""Words of the list that other languages have as well."""


def _is_unparsed(at: int, item: Item, bound: AbstractSet[int]) -> bool:
    if at in bound or item.settled or item.kind == "comma":
        return False
    return item.kind in ("number", "unvaried") or (item.kind == "word" and item.name not in GRAMMAR | ASKING)


def _unparsed_spans(
    topic: str, items: Sequence[Item], left: Sequence[bool], known: Sequence[str]
) -> Iterator[UnparsedSpan]:
    at = 0
    while at < len(items):
        end = at
        while end < len(items) and left[end] and items[end].kind == items[at].kind:
            end += 1
        if end > at:
            yield _make_span(topic, items, at, end, known)
        at = max(end, at + 1)


def _make_span(topic: str, items: Sequence[Item], start: int, end: int, known: Sequence[str]) -> UnparsedSpan:
    text = topic[items[start].at[0] : items[end - 1].at[1]]
    meant = _suggest_name([topic[slice(*item.at)] for item in items[start:end] if item.kind == "word"], known)
    return UnparsedSpan(text, "near" if meant else _find_role(items, start, end), meant)


def _suggest_name(words: Sequence[str], known: Sequence[str]) -> str:
    texts = ["_".join(words), *words] if len(words) > 1 else words
    parts = {part for name in known for part in name.split() if len(part) >= _LEAST_LETTERS}
    spelt = {stem(part) for part in parts}
    long = [text for text in texts if len(text) >= _LEAST_LETTERS and stem(text.lower()) not in spelt]
    near = (did_you_mean(text, known) or did_you_mean(text, parts, _WORDS_ALIKE) for text in long)
    return next(filter(None, near), "")


def _find_role(items: Sequence[Item], start: int, end: int) -> Role:
    kind = items[start].kind
    if kind == "unvaried" or kind == "number":
        return kind
    if any(char.isdigit() for item in items[start:end] for char in item.name):
        return "number"
    if _is_beside(items, start, end):
        return "arm"
    return "condition" if _leading_word(items, start) in CONDITIONS or _is_in_clause(items, start) else "else"


def _is_in_clause(items: Sequence[Item], start: int) -> bool:
    for item in reversed(items[:start]):
        if item.kind == "comma":
            return False
        if item.name in _CLAUSES:
            return True
    return False


_CLAUSES = stems("when while if given where unless under provided assuming once whenever")


def _leading_word(items: Sequence[Item], start: int) -> str:
    named = start > 0 and items[start - 1].name in _NAMED_KINDS and not items[start].name.endswith("ly")
    for item in reversed(items[: start - 1] if named else items[:start]):
        if item.name not in _LEADING:
            return item.name
    return ""


_LEADING = stems("a an the this that these those its their my our your some any such very quite more most much many")

_NAMED_KINDS = stems("environment env game model")
"""What a name may follow, as in `the environment shop`."""


def _is_beside(items: Sequence[Item], start: int, end: int) -> bool:
    before, after = _skip(items, start - 1, -1), _skip(items, end, 1)
    return (_is_connector(items, before) and _is_name(items, _skip(items, before - 1, -1))) or (
        _is_connector(items, after) and _is_name(items, _skip(items, after + 1, 1))
    )


def _skip(items: Sequence[Item], at: int, step: int) -> int:
    while 0 <= at < len(items) and items[at].kind == "word" and items[at].name in _LEADING:
        at += step
    return at


def _is_connector(items: Sequence[Item], at: int) -> bool:
    return 0 <= at < len(items) and items[at].kind in ("word", "comma") and items[at].name in _BESIDE


def _is_name(items: Sequence[Item], at: int) -> bool:
    return 0 <= at < len(items) and items[at].kind in ("field", "value", "number", "unvaried")


_VERBS = r"(?:use|using|with|set|fix|take|from|and|at|only)"
_STAGES = (
    r"(?:confirmations?|confirming|confirmatory|verification|replications?|hidden evaluations?|evaluations?|a/a|"
    r"control arm|control group|statistics|statistical tests?|significance tests?|corrections?)"
)
_REQUESTS = (
    (
        r"\b(?:ignore|disregard|forget|override|overrule)\b[^.?!;]*\b(?:instructions?|rules?|design|lock|protocol|"
        r"safeguards?)\b",
        "a topic is a question and no instruction to the harness",
    ),
    (
        rf"\b(?:skip|omit|drop|without|no|avoid|leave out|leaving out|skipping|don'?t do|do not do|not do)\s+"
        rf"(?:the\s+|any\s+|a\s+)?{_STAGES}(?:\s+(?:runs?|stages?|phases?|steps?|arms?))?",
        "the stages of a study are the harness's",
    ),
    (
        rf"(?:\b{_VERBS}\s+)?(?:\bthe\s+)?(?:\brandom\s+)?\bseeds?\s*(?:=|:|of|to|is)?\s*\d+(?:\s*(?:,|and|to|-)\s*\d+)*",
        "seeds are drawn by the harness",
    ),
    (
        rf"(?:\b{_VERBS}\s+)?\b(?:\d+|one|two|three|four|five|ten|a single|only one)\s+(?:random\s+)?seeds?\b",
        "how many seeds there are follows from the promised power",
    ),
    (
        r"\b(?:report|claim|say|state|conclude|publish|announce|declare|write)\b(?:(?!\b(?:whether|if)\b)[^.?!;])*?"
        r"\d+(?:\.\d+)?\s*(?:%|percent\b|per cent\b)(?:\s*(?:success|accuracy|confidence))?",
        "what is reported is what is measured",
    ),
    (
        r"\b(?:declare|mark|call|report|judge|conclude)\s+(?:it|this|that|h\d+|(?:the|this|that|every|each) "
        r"(?:hypothesis|claim|treatment|result))\s+(?:as\s+|to be\s+|is\s+)?"
        r"(?:supported|refuted|significant|a success|successful|true|proven|confirmed|equivalent)\b",
        "verdicts are computed",
    ),
    (
        r"(?:\b(?:use|with|at|set)\s+)?(?:\ban?\s+|\bthe\s+)?"
        r"(?:\b(?:alpha|significance level|p|p-value|confidence level)\s*(?:=|<|of|:|to|at)?\s*(?:0?\.\d+|\d+\s*%)"
        r"|\d+(?:\.\d+)?\s*%\s*(?:confidence|significance|level|power))\b",
        "levels and thresholds are the design's",
    ),
    (
        r"\b(?:use|using|with|by)\s+(?:an?\s+|the\s+)?(?:welch'?s?\s+|one-sided\s+|two-sided\s+|student'?s?\s+)?"
        r"(?:t[- ]tests?|z[- ]tests?|bootstrap|mann[- ]whitney|wilcoxon|anova|one-sided tests?|permutation tests?)\b",
        "the test is the design's",
    ),
)  # fmt: skip
"""Requests of the harness, and why each changes nothing."""
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
    rest, without = topic, []
    for pattern, answer in _REQUESTS:
        found = [match.group(0) for match in re.finditer(pattern, rest, re.IGNORECASE)]
        if found:
            rest = re.sub(pattern, _blank, rest, flags=re.IGNORECASE)
            quoted = " and ".join(f"'{_shorten(text)}'" for text in dict.fromkeys(found))
            without.append(f"{quoted} changes nothing: {answer}.")
    same = [(match.group(0), _SETTLED_AT.get(match["what"].lower())) for match in _MATCHED.finditer(rest)]
    return SplitTopic(
        _MATCHED.sub(_blank, rest), tuple(without),
        "episodes" if any(what == "episodes" for _, what in same) else "steps",
        next((text.strip() for text, what in same if what is None), None),
    )  # fmt: skip


def seeks_equivalence(topic: str) -> bool:
    return _NO_EFFECT.search(topic) is not None


def asks_trend(topic: str) -> bool:
    return _TREND.search(topic) is not None


def remove_trend(topic: str) -> str:
    return _TREND.sub(lambda found: " " * len(found.group(0)), topic)


def asks_for_power(topic: str) -> bool:
    """Return whether a topic asks how many runs a comparison needs: no run answers that, a plan does."""
    return _POWER.search(topic) is not None


def _blank(found: re.Match[str]) -> str:
    """Return blanks around a full stop, as many characters as were found: what is read keeps its place in the topic."""
    return " .".ljust(len(found.group(0)))
