"""Which metric a study is judged by: by flag, or by the words of its topic.

`episodes:0.7` are the training episodes to 0.7 hidden success, `fact:guesses` a fact of the environment. One table of
words, which a plan prints and a flag overrides, also says whether more is better, so that `fewer episodes` and `less
sample-efficient` are told apart; `faster` means 0.6 unless another threshold is named. Kinds of packages bring their
own words.

Judged is the first metric named, or the one behind `by`; of the others there is no verdict. Words of better and worse
stay in the topic, so that the question is still one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self

from research.errors import BadMetric, DesignRefused
from research.text import did_you_mean
from studies.metrics import Asked, MetricKind, Refused, kind_named, kind_of, kinds
from studies.metrics.builtin import Gain, Success
from studies.metrics.registry import define_metric, faults
from studies.records.design import Metric
from swarm.environments.registry import environments
from swarm.job import Job

_KEY = "metric"
_EXAMPLES: Final = {"tokens": "200", "transfer": "arith"}


@dataclass(frozen=True, slots=True)
class RequestedMetric:
    """A kind of metric with its parameters."""

    kind: str
    threshold: float | None = None
    of: str = ""
    """The fact, or the other environment."""
    words: str = ""
    """The words of a topic that chose it; empty where it was named."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the metric that a flag names, `NAME`, `NAME:THRESHOLD` or `NAME:OF`; raise BadMetric."""
        name, colon, rest = text.strip().partition(":")
        takes = find_kind(name).takes
        if colon and not takes:
            raise BadMetric(f"expected {name} alone, which takes nothing more; found {text!r}; leave :{rest} out")
        if colon and not rest.strip():
            raise BadMetric(
                f"expected {_describe_syntax(name, takes)}; found {text!r}; write what belongs behind the colon"
            )
        if "of" in takes:
            of, threshold = _split_threshold(rest) if "threshold" in takes else (rest.strip(), None)
            return cls(name, threshold, of)
        return cls(name, _parse_threshold(rest, _describe_syntax(name, takes)) if colon else None)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self | None:
        """Return the metric that a study's settings hold; None where nobody asked for one."""
        held = settings.get(_KEY)
        if held is None:
            return None
        return cls(held["kind"], held.get("threshold"), held.get("of", ""), held.get("words", ""))

    def settings(self) -> dict[str, Any]:
        held = {"kind": self.kind, "threshold": self.threshold, "of": self.of, "words": self.words}
        return {_KEY: {name: value for name, value in held.items() if value not in (None, "")}}

    @property
    def text(self) -> str:
        """What `--metric` takes: `episodes:0.7`."""
        parts = (self.kind, self.of, "" if self.threshold is None else f"{self.threshold:g}")
        return ":".join(filter(None, parts))


def find_kind(name: str) -> MetricKind:
    """Return the kind of a name; raise BadMetric for a name that there is not, or that of a broken package."""
    known = kinds()
    if name not in known and name not in faults():
        near = did_you_mean(name, known) or f"; they are {', '.join(known)}"
        raise BadMetric(f"expected a metric; found {name!r}{near} (`ajet metric list` says what each is)")
    try:
        return kind_named(name)
    except Refused as error:
        raise BadMetric(str(error)) from error


def flag_syntax(kind: MetricKind) -> str:
    return f"{kind.name}{':NAME' if 'of' in kind.takes else ''}{':THRESHOLD' if 'threshold' in kind.takes else ''}"


def _describe_syntax(name: str, takes: frozenset[str]) -> str:
    example = _EXAMPLES.get(name, "calls" if "of" in takes else "0.7")
    return f"{name}:{'NAME' if 'of' in takes else 'THRESHOLD'}, such as {name}:{example}"


def _split_threshold(rest: str) -> tuple[str, float | None]:
    of, colon, last = rest.rpartition(":")
    if not colon:
        return rest.strip(), None
    return of.strip(), _parse_threshold(last, "a name and a threshold, such as NAME:0.7")


def _parse_threshold(text: str, form: str) -> float:
    plain = text.strip()
    try:
        return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError as error:
        raise BadMetric(f"expected {form}; found the threshold {text!r}; write a number") from error


_SLACK = 2.0
"""A time is cut at so many times what the longest training is priced at."""
_ROUND = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
"""Seconds are cut at one of these, times a power of ten, so that a price that moves a little moves no horizon."""


@dataclass(frozen=True, slots=True)
class MetricChoice:
    """Says what runs are judged by."""

    asked: RequestedMetric | None
    """None where nobody asked for one: success, or its gain where models are compared."""
    training_s: Callable[[Job], float]
    """Seconds that the training of a job is taken to last."""
    measured_by: Metric | None = None
    """What runs of this study are judged by already: seconds are cut where theirs are."""

    def metric(self, jobs: Sequence[Job], episodes: int, *, models: bool = False) -> Metric:
        """Return the metric of a comparison of jobs, or of `models`; raise DesignRefused where it cannot be had."""
        asked = self.asked or RequestedMetric(Gain.name if models else Success.name)
        environment = environments()[jobs[0].environment]
        _require_another(asked, environment.name)
        try:
            return define_metric(
                find_kind(asked.kind),
                Asked(
                    measures=environment.measures,
                    episodes=episodes,
                    horizon=max(job.steps * job.episodes_per_step for job in jobs),
                    horizon_s=self._horizon_s(jobs),
                    threshold=asked.threshold,
                    rewards=environment.reward_range,
                    tokens=max(job.max_context for job in jobs),
                    facts=environment.facts,
                    of=asked.of,
                ),
            )
        except Refused as error:
            raise DesignRefused(str(error)) from error

    def _horizon_s(self, jobs: Sequence[Job]) -> float:
        if self.measured_by is not None and self.measured_by.unit == "seconds" and self.measured_by.horizon is not None:
            return self.measured_by.horizon
        seconds = _SLACK * max(map(self.training_s, jobs))
        whole = 10.0 ** math.floor(math.log10(max(seconds, 1.0)))
        return next(part * whole for part in _ROUND if part * whole >= seconds or part == _ROUND[-1])


def _require_another(asked: RequestedMetric, trained: str) -> None:
    known = sorted(set(environments()) - {trained})
    if find_kind(asked.kind).of_environment and asked.of not in known:
        raise DesignRefused(
            f"expected another environment than {trained}, of {', '.join(known)}; found {asked.of or 'no name'}; "
            f"name one (--metric {asked.kind}:{known[0]})"
        )


def add_evaluations(job: Job, metric: Metric) -> Job:
    if metric.schedule is None:
        return job
    steps = metric.schedule.steps(job.model_dump(mode="json", include={"steps", "episodes_per_step"}))
    return job.model_copy(update={"evaluate_after": steps, "evaluation_episodes": metric.schedule.episodes})


def remove_evaluations(job: Job) -> Job:
    usual = {name: Job.model_fields[name].default for name in ("evaluate_after", "evaluation_episodes")}
    return job.model_copy(update=usual)


def metric_range(metric: Metric) -> float:
    return abs(metric.best - metric.worst)


def default_effect(metric: Metric) -> float:
    """Return the smallest difference that matters where nobody says another one, in the metric's unit."""
    return float(f"{kind_of(metric).effect * metric_range(metric):.6g}")


def format_amount(metric: Metric, value: float, digits: int = 3) -> str:
    """Return a value or difference of a metric with its unit; a share with so many decimals."""
    if not metric.unit:
        return f"{value:.{digits}f}"
    return f"{format_value(metric, value)} {metric.unit}"


def format_value(metric: Metric, value: float) -> str:
    """Return a value without its unit, as short as it may be; whole where the range is of hundreds."""
    return f"{value:g}" if not metric.unit or metric_range(metric) < 100 else f"{value:,.0f}"


def format_difference(metric: Metric, value: float) -> str:
    """Return a difference as it was given, with its unit: `0.1`, or `512 episodes`."""
    return f"{value:g} {metric.unit}".strip()


THRESHOLD: Final = 0.6
"""Hidden success that is to be reached where a topic names no other: all A/A runs of `guess` and `arith` reach it on
the way (`research/noise`), where those of `arith` mostly end before 0.7."""
GOAL: Final = "\u2316"
"""Stands in a topic for the threshold that it names: `episodes to ⌖`."""
SPEED: Final = ("area", "episodes", "seconds")
"""Kinds that are of speed: a share that a topic names is their threshold."""
LENGTHS: Final = r"(?:episodes|steps|samples|updates|rollouts|interactions)"
_ENDS = rf"(?:\s+(?:to|until|till|before|needed|required|it\s+takes|necessary|reach|solve|get|learn|{GOAL}))+"
_END = f"(?:{_ENDS})?"
_MORE = r"increas\w+|rais\w+|lengthen\w*|larger|higher|longer|more|greater|bigger|doubl\w+|extend\w*|prolong\w*"
_LESS = (
    r"reduc\w+|lower\w*|decreas\w+|cut(?:s|ting)?|shorten\w*|shrink\w*|minimi[sz]\w+|sav(?:e|es|ing)|smaller|shorter|"
    r"less|fewer|lessen\w*|halv\w+"
)
_MOST = r"most|highest|largest|longest|greatest"
_LEAST = r"fewest|least|lowest|smallest|shortest"
_EITHER = rf"(?:{_MORE})\s+or\s+(?:{_LESS})|(?:{_LESS})\s+or\s+(?:{_MORE})"
_LEAD = rf"(?P<lead>{_EITHER}|{_MORE}|{_LESS}|{_MOST}|{_LEAST})"
_NEEDS = r"(?:needs?|takes?|requires?|uses?|spends?|costs?)"
_GETS = r"(?:reach(?:es|ing)?|gets?|gives?|has|have|achieves?|leads?\s+to|results?\s+in)"
_OFTEN = r"(?:\s+(?:often|frequently|frequent|easily|likely))?"
_TRAIL = (
    rf"(?:\s+(?:is\s+|are\s+|be\s+)?(?P<trail>lower|higher|shorter|longer|smaller|larger|fewer|less{_OFTEN}|"
    rf"more{_OFTEN}|rarely|rarer|likelier|more\s+rarely|seldom|often)(?=\s*(?:[?.,;)]|$|(?:with|for|when|than|at|in|on|if|under)\b)))?"
)
Rank = Literal["named", "speed", "usual"]
Means = Literal["good", "bad", "better", "worse"]


@dataclass(frozen=True, slots=True)
class MetricWords:
    """A row of the table: words, and the metric that they ask for."""

    kind: str
    pattern: re.Pattern[str]
    means: Means
    """Whether a noun's more is good or bad, or which of better and worse the words say themselves."""
    threshold: float | None = None
    """Where a topic names none."""
    rank: Rank = "named"
    """`speed` may say which way another metric of speed is to go; `usual` is what a study compares anyhow."""
    of_goal: bool = False
    """Whether it asks for a metric only where the topic names a threshold."""
    bare: str = "score"
    """What a noun says where nothing says more or less of it."""

    def describe_direction(self, found: re.Match[str]) -> str:
        """Return the word that says of what was found what it says of better and worse; `score` for neither."""
        said = " ".join((found.groupdict().get("lead") or found.groupdict().get("trail") or "").lower().split())
        if self.means in ("better", "worse"):
            if said == "as":
                return "as good"
            good = (self.means == "better") == (said not in ("less", "least", "not as", "not so"))
            return _degree(good, said in ("most", "least") or found[0].lower().endswith("est"))
        if not said or re.fullmatch(_EITHER, said):
            return self.bare
        more = re.fullmatch(rf"(?:{_MORE}|{_MOST}|often|likelier|better|best|well){_OFTEN}", said) is not None
        return _degree(more == (self.means == "good"), re.fullmatch(rf"{_MOST}|{_LEAST}|best|worst", said) is not None)


def _degree(good: bool, most: bool) -> str:
    return ("best" if most else "better") if good else ("worst" if most else "worse")


def _row(
    kind: str,
    means: Means,
    words: str,
    threshold: float | None = None,
    *,
    lead: str = "",
    trail: str = "",
    rank: Rank = "named",
    of_goal: bool = False,
    bare: str = "score",
) -> MetricWords:
    pattern = re.compile(rf"(?<![\w-]){lead}(?:{words}){trail}(?![\w-])", re.IGNORECASE)
    return MetricWords(kind, pattern, means, threshold, rank, of_goal, bare)


_noun_row = partial(
    _row,
    lead=rf"(?:(?:(?:{_NEEDS}|{_GETS})\s+(?:an?\s+|the\s+)?)?{_LEAD}\s+(?:in\s+)?(?:(?:the|its|their|an?)\s+)?)?",
    trail=_TRAIL,
)
"""Makes the row of what there may be more or less of: `the time to ⌖ is shorter`, `reduces the time to ⌖`."""
_comparative_row = partial(_row, lead=r"(?:(?P<lead>less|more|most|least|not\s+as|not\s+so|as)\s+)?")
"""Makes the row of words that say better or worse by themselves, unless `less` stands before them."""
_NO_REWARD = "".join(
    f"(?<!{word} )"
    for word in (
        "format", "bonus", "shaped", "dense", "sparse", "my", "our", "own", "custom", "partial", "code", "process",
        "length", "step", "of", "of the", "generated", "another", "different", "new", "other",
    )
)  # fmt: skip
_REWARD = (
    rf"{_NO_REWARD}rewards?(?!\s+(?:functions?|hack\w*|models?|model?ling|shap\w*|signals?|code|scal\w*|normali\w*|"
    r"clip\w*|design\w*|collaps\w*|for|that|which|with|based|term|terms|weights?|bonus))"
)
_COUNTED = rf"(?:training\s+)?{LENGTHS}"
_PER_TASK = r"(?:per|for\s+(?:each|every|a)|of\s+(?:each|every|a))\s+(?:solved\s+)?(?:hidden\s+)?(?:task|solution)s?"
_ACHIEVED = r"(?:success|score|accuracy|performance)"
_OF_THE_END = rf"success\s+rate|hidden\s+success|{_ACHIEVED}\s+at\s+the\s+end|accuracy"

TABLE: Final = (
    _noun_row(
        "area", "good",
        r"(?:whole\s+)?areas?\s+under\s+(?:the\s+|its\s+|their\s+)?(?:[\w-]+\s+){0,2}curves?|auc|"
        r"learning\s+curves?'\s+areas?",
    ),
    _noun_row(
        "seconds", "bad",
        rf"wall[- ]?clock(?:\s+time)?{_END}|(?:number\s+of\s+)?seconds{_ENDS}|"
        rf"(?:training\s+)?time\s+to\s+(?:reach|solve|learn|converge|{GOAL})",
        THRESHOLD,
    ),
    _row("seconds", "bad", rf"(?:{_NEEDS}|in)\s+(?:an?\s+|the\s+)?{_LEAD}\s+(?:training\s+)?time{_END}",
              THRESHOLD),
    _row("seconds", "bad", rf"takes?\s+(?P<lead>longer|longest){_END}", THRESHOLD),
    _noun_row("tokens", "bad", rf"tokens\s+{_PER_TASK}|costs?\s+{_PER_TASK}"),
    _row("tokens", "bad", rf"(?:{_NEEDS}\s+)?(?P<lead>fewest|fewer|less|least)\s+tokens"),
    _comparative_row("tokens", "better", r"cheap(?:er|est|ly)?|token[- ]efficient(?:ly)?"),
    _comparative_row("tokens", "worse", r"costl(?:y|ier|iest)|expensive"),
    _noun_row("tokens", "good", r"token[- ]efficiency"),
    _row("collapse", "bad", r"(?P<lead>less|more|least|most)\s+(?:likely|prone)\s+to\s+collapse"),
    _comparative_row("collapse", "better", r"stable|stead(?:y|ier|iest)|stabili[sz](?:e|es|ed|ing)"),
    _comparative_row("collapse", "worse", r"unstable|destabili[sz](?:e|es|ed|ing)"),
    _noun_row("collapse", "good", r"stability|stabilities"),
    _noun_row("collapse", "bad", r"instabilit(?:y|ies)", bare="worse"),
    _noun_row(
        "collapse", "bad",
        r"(?:rate|share|risk|probability|chance|likelihood|number|frequency)s?\s+of\s+(?:training\s+)?collaps\w+|"
        r"collapse\s+rates?",
    ),
    _noun_row("collapse", "bad", r"(?:training\s+)?collaps\w+", bare="worse"),
    _noun_row("reward", "good",
              rf"(?:mean|average|final|hidden)\s+(?:hidden\s+)?rewards?|rewards?\s+reached|{_REWARD}"),
    _noun_row("episodes", "bad", rf"(?:number\s+of\s+)?{_COUNTED}{_ENDS}|sample\s+complexity", THRESHOLD),
    _row("episodes", "bad", rf"(?:{_NEEDS}|in|within)\s+(?P<lead>fewer|less|more)\s+{_COUNTED}{_END}", THRESHOLD),
    _row("episodes", "bad", rf"(?:{_NEEDS}\s+(?:the\s+)?)?(?P<lead>fewest|least)\s+{_COUNTED}{_END}", THRESHOLD),
    _row("episodes", "bad", rf"(?:with\s+)?(?P<lead>fewer|less|more)\s+{_COUNTED}", THRESHOLD, of_goal=True),
    _noun_row("episodes", "bad", rf"how\s+many\s+{_COUNTED}", THRESHOLD, of_goal=True),
    _comparative_row("episodes", "better", r"first", THRESHOLD, of_goal=True),
    _comparative_row("episodes", "better", r"(?:sample|data)[- ]efficient(?:ly)?", THRESHOLD),
    _comparative_row("episodes", "worse", r"(?:sample|data)[- ]inefficient(?:ly)?", THRESHOLD),
    _noun_row("episodes", "good", r"(?:sample|data)[- ]efficiency", THRESHOLD),
    _noun_row("episodes", "bad", r"(?:sample|data)[- ]inefficiency", THRESHOLD, bare="worse"),
    _noun_row("success", "good", rf"final\s+(?:hidden\s+)?{_ACHIEVED}(?:\s+rate)?|{_OF_THE_END}"),
    _row("success", "good", r"ends?\s+(?:up\s+)?(?P<lead>higher|lower)"),
    _row("success", "good", rf"{_LEAD}\s+(?:(?:the|its)\s+)?(?:hidden\s+)?{_ACHIEVED}", rank="usual"),
    _row("success", "good", r"solves?\s+(?P<lead>more|fewer)(?:\s+(?:of|the|hidden|tasks))*", rank="usual"),
    _comparative_row(
        "episodes", "better",
        r"(?:converg\w+\s+)?(?:faste(?:r|st)|quicke(?:r|st)|quickly|fast|rapid(?:ly)?|soone(?:r|st)|earlie(?:r|st)|"
        r"efficient(?:ly)?)(?:\s+convergence)?|speeds(?:\s+up)?|speed(?:ing)?\s+up|sped\s+up|speeding|accelerat\w+",
        THRESHOLD, rank="speed",
    ),
    _comparative_row(
        "episodes", "worse",
        r"(?:converg\w+\s+)?(?:slow(?:er|est|s|ing|ly|ed)?|later|latest)(?:\s+(?:down|convergence))?|decelerat\w+|"
        r"inefficient(?:ly)?",
        THRESHOLD, rank="speed",
    ),
    _noun_row(
        "episodes", "good",
        r"(?:(?:learning|training|convergence)\s+)?(?:speed|efficiency)(?:\s+of\s+(?:learning|training|convergence))?",
        THRESHOLD, rank="speed",
    ),
)  # fmt: skip
"""Words, and the metric that they ask for."""


def rows() -> Iterator[MetricWords]:
    """Yield the rows of the kinds that there are, and of packages' kinds by their own words."""
    called = "|".join(re.escape(name) for name in sorted(_environment_names(), key=len, reverse=True))
    where = rf"(?:\s+(?:to|on|onto)\s+(?:the\s+)?(?P<of>{called}))?"
    how = r"(?:\s+(?P<lead>better|worse|well|more|less|best|worst))?"
    verb = rf"(?:generali[sz](?:e|es|ed|ing)|transfer(?:s|red|ring)?){how}{where}"
    noun = rf"(?:generali[sz]ation|transfer){where}"
    elsewhere = (_row("transfer", "good", verb, bare="better"), _noun_row("transfer", "good", noun))
    known, listed = kinds(), (*elsewhere, *TABLE)
    yield from (row for row in listed if row.kind in known)
    told = {row.kind for row in listed}
    for name, kind in known.items():
        if name not in told and kind.words:
            words = "|".join(map(re.escape, kind.words))
            yield _row(name, "better", words, THRESHOLD if "threshold" in kind.takes else None)


def default_threshold(kind: str) -> float | None:
    return next((row.threshold for row in TABLE if row.kind == kind), None)


def resolve_environment(text: str) -> str:
    return {said.lower(): name for said, name in _environment_names().items()}[text.lower()]


def _environment_names() -> Mapping[str, str]:
    return {text: name for name, known in environments().items() for text in (name, *known.synonyms)}


_NUMBER = r"\d+(?:\.\d+)?\s*(?:%|percent\b|per cent\b)|0?\.\d+(?![\d%])"
_VERBS = (
    r"reach(?:es|ing)?|get(?:s|ting)?\s+to|hit(?:s|ting)?|achiev(?:e|es|ing)|attain(?:s|ing)?|pass(?:es|ing)?|"
    r"solv(?:e|es|ing)"
)
_BETWEEN = (
    rf"(?:(?:to|until|till|before|needed|required|it\s+takes|necessary|{_VERBS}|at|of|an?|the|threshold|hidden|success|"
    r"accuracy|score|rate)\s+)*"
)
_SOLVED = (
    r"(?:\s+(?:of\s+)?(?:(?:the|its|all)\s+)?(?:hidden\s+)?(?:success|accuracy|score|solved|tasks|games)"
    r"(?:\s+rate)?)*"
)
_TO = re.compile(
    rf"\s*\b(?:to|until|till|before|at|{_VERBS})\s+{_BETWEEN}(?P<share>{_NUMBER})"
    rf"(?P<more>(?:\s*(?:,|and|or|/|then)\s*(?:{_NUMBER}))*){_SOLVED}",
    re.IGNORECASE,
)
"""A threshold and what leads to it."""
_BELOW = re.compile(
    rf"\s*\b(?:below|under|up\s+to|cut(?:\s+off)?\s+at)\s+{_BETWEEN}(?P<share>{_NUMBER})(?P<more>){_SOLVED}", re.I
)
_AREA = re.compile(r"\b(?:areas?|auc|curves?)\b[^.?:;]{0,30}$", re.IGNORECASE)
"""What stands before `below 0.7`, where that bounds an area."""
_LED = re.compile(
    rf"(?:\b(?:to|until|before|needed|required|takes|{LENGTHS}|time|clock|seconds)|fast\w*|quick\w*|sooner|slow\w*|"
    r"\b(?:than|vs\.?|versus|or|and|against|beats?)\s+[\d.e+-]+)\s*$",
    re.IGNORECASE,
)
"""What stands before `to 0.7`, where that is a threshold; `faster than 3e-3 to 0.7` ends what is listed."""


@dataclass(frozen=True, slots=True)
class TopicThreshold:
    """A threshold that a topic names."""

    share: float
    said: str
    rest: str
    """The topic with `to` and a mark in its place."""
    reached: bool
    """Whether a verb says that it is to be reached."""


def find_threshold(topic: str) -> TopicThreshold | None:
    """Return the threshold that a topic names; None where it names none. Raises BadMetric for several."""
    bounds = (match for match in _BELOW.finditer(topic) if _AREA.search(topic[: match.start()]))
    found = next(bounds, None) or _TO.search(topic)
    if found is None:
        return None
    reached = re.search(_VERBS, found[0], re.IGNORECASE) is not None
    is_percent = not found["share"].startswith((".", "0.")) or found["share"][-1] in "%t"
    if not is_percent and not (reached or found.re is _BELOW or _LED.search(topic[: found.start()])):
        return None  # a value of a field, such as a temperature from 0.7 to 0.9
    if found["more"]:
        several = f"{found['share'].strip()}{found['more']}"
        raise BadMetric(f"expected one threshold; found {several!r}; ask for each by itself")
    share = float(re.sub(r"[^\d.]", "", found["share"])) / (100 if is_percent else 1)
    rest = f"{topic[: found.start()]} to {GOAL}{topic[found.end() :]}"
    return TopicThreshold(share, found[0].strip(), rest, reached)


_NOT_OURS = re.compile(r"\b(?:reward|entropy|mode|policy)[- ]collaps\w+", re.IGNORECASE)
"""What collapses otherwise than a training does."""
_BY = re.compile(
    r"\b(?:by|in\s+terms\s+of|measured\s+(?:by|in)|judged\s+(?:by|on)|according\s+to|regarding)\s+(?:the\s+|its\s+)?$",
    re.IGNORECASE,
)
"""What stands before the metric that somebody wants runs to be judged by."""
_JOINED = re.compile(r"\b(?:and|or|but|while|yet|without|at\s+the\s+(?:cost|expense)|although|though)\b|[,;]", re.I)
_AMOUNT = re.compile(
    r"(?<![\w.])(?:\d+(?:\.\d+)?\s*(?:%|percent\b|per cent\b|x\b|times\b|-?fold\b)|twice\b|thrice\b|half\b|"
    r"(?:two|three|four|five|ten)\s+times\b)\s+",
    re.IGNORECASE,
)
_COST_OF = re.compile(r"\bat\s+the\s+(?:cost|expense|price)\s+of\s+(?:the\s+|its\s+|an?\s+)?$", re.IGNORECASE)
_UNUSED = re.compile(rf"\s+to\s+{GOAL}")


@dataclass(frozen=True, slots=True)
class TopicMetric:
    """What a topic says of its metric."""

    asked: RequestedMetric
    question: str
    """The topic, with words for better, best, worse or neither in the place of what names the metric, and without what
    names others."""
    others: tuple[RequestedMetric, ...] = ()
    """What else it names, in its order."""


@dataclass(frozen=True, slots=True)
class _MetricMention:
    """Words of a topic that ask for a metric."""

    row: MetricWords
    match: re.Match[str]

    @property
    def at(self) -> tuple[int, int]:
        return self.match.span()


def find_metric(topic: str, judged: str = "") -> TopicMetric | None:
    """Return the metric that a topic asks for, or None; where it names the kind `judged`, its question is about that.

    Raises BadMetric for several thresholds, and for words that say by how much.
    """
    goal = find_threshold(topic)
    text = topic if goal is None else goal.rest
    found = _find_mentions(text, goal is not None)
    if not any(entry.row.kind in SPEED for entry in found) and goal is not None and judged not in SPEED:
        text, goal = topic, None
        found = _find_mentions(text, of_goal=False)
    named = _select_mentions(found)
    if not named:
        return None
    _require_no_amount(text)
    kinds = list(dict.fromkeys(entry.row.kind for entry in named))
    behind = next((entry.row.kind for entry in named if _BY.search(text[: entry.at[0]])), kinds[0])
    chosen = judged if judged in kinds else behind
    usual = [entry for entry in found if entry.row.rank == "usual" and _is_apart(text, entry, named)]
    asked = {kind: _make_request(kind, [entry for entry in found if entry.row.kind == kind], goal) for kind in kinds}
    if usual and chosen != Success.name:
        asked.setdefault(Success.name, _make_request(Success.name, usual, None))
    others = tuple(metric for kind, metric in asked.items() if kind != chosen)
    ways = [entry for entry in found if entry.row.rank == "speed" and entry not in named]
    return TopicMetric(asked[chosen], _rewrite_question(text, chosen, [*named, *ways, *usual]), others)


def remove_metric_words(topic: str, asked: RequestedMetric | None) -> str:
    """Return a topic with the words that ask for metrics replaced by what they say of better and worse."""
    if asked is None:
        return topic
    said = find_metric(topic, asked.kind)
    if said is not None:
        return said.question
    goal = find_threshold(topic)
    return topic if goal is None or asked.kind not in SPEED else _UNUSED.sub("", goal.rest)


def _find_mentions(text: str, of_goal: bool) -> list[_MetricMention]:
    others = [found.span() for found in _NOT_OURS.finditer(text)]
    every = [
        _MetricMention(row, match)
        for row in rows()
        if of_goal or not row.of_goal
        for match in row.pattern.finditer(text)
        if not any(start < match.end() and match.start() < end for start, end in others)
    ]
    taken: list[_MetricMention] = []
    for entry in sorted(every, key=lambda entry: (entry.at[0], -entry.at[1])):
        if not taken or entry.at[0] >= taken[-1].at[1]:
            taken.append(entry)
    return taken


def _select_mentions(found: Sequence[_MetricMention]) -> list[_MetricMention]:
    """Return what names a metric: words such as `faster` where no other metric of speed is named."""
    strong = [entry for entry in found if entry.row.rank == "named"]
    of_speed = any(entry.row.kind in SPEED for entry in strong)
    return [entry for entry in found if entry in strong or (entry.row.rank == "speed" and not of_speed)]


def _is_apart(text: str, usual: _MetricMention, named: Sequence[_MetricMention]) -> bool:
    """Return whether what is compared anyhow is named beside another metric: `solves more, and learns faster`."""
    between = (text[min(usual.at[1], entry.at[1]) : max(usual.at[0], entry.at[0])] for entry in named)
    return all(_JOINED.search(words) for words in between)


def _make_request(kind: str, found: Sequence[_MetricMention], goal: TopicThreshold | None) -> RequestedMetric:
    of = next((resolve_environment(name) for entry in found if (name := entry.match.groupdict().get("of"))), "")
    words = [" ".join(entry.match[0].split()) for entry in found]
    at_least = next((entry.row.threshold for entry in found), None)
    if goal is not None and kind in SPEED:
        at_least = goal.share
        words = [text.replace(f"to {GOAL}", goal.said) for text in words]
        words += [goal.said] if not any(goal.said in text for text in words) else []
    return RequestedMetric(kind, at_least, of, ", ".join(dict.fromkeys(words)))


def _rewrite_question(text: str, chosen: str, found: Sequence[_MetricMention]) -> str:
    """Return the text with what the words say of the chosen metric, and nothing where they are of another."""
    for entry in sorted(found, key=lambda entry: entry.at, reverse=True):
        ours = entry.row.kind == chosen or (entry.row.rank == "speed" and chosen in SPEED)
        before = text[: entry.at[0]]
        text = (before + entry.row.describe_direction(entry.match) if ours else _COST_OF.sub("", before)) + text[
            entry.at[1] :
        ]
    return _UNUSED.sub("", text)


def _require_no_amount(text: str) -> None:
    """Raise BadMetric for a topic that says by how much: the smallest difference that matters is a flag's."""
    for amount in _AMOUNT.finditer(text):
        row = next((row for row in rows() if row.rank != "usual" and row.pattern.match(text, amount.end())), None)
        if row is not None:
            said = text[amount.start() : row.pattern.match(text, amount.end()).end()]  # type: ignore[union-attr]
            raise BadMetric(
                f"expected a question without an amount; found {said!r}; leave the amount out, and say the smallest "
                "difference that matters in the metric's unit, --effect (`ajet metric list`)"
            )


def describe_unjudged(topic: str, judged: RequestedMetric | None) -> tuple[str, ...]:
    judged = judged or RequestedMetric(Success.name)
    said = find_metric(topic, judged.kind)
    if said is None:
        return ()
    asked, others = said.asked, said.others
    if asked.kind != judged.kind:
        return tuple(_describe_other(other, judged) for other in (asked, *others))
    told = tuple(_describe_other(other, judged) for other in others)
    if asked.text == judged.text:
        return told
    return (*told, f"'{asked.words}' asks for {asked.text}, and runs are judged by {judged.text}, as --metric says.")


def _describe_other(other: RequestedMetric, judged: RequestedMetric) -> str:
    kind = find_kind(other.kind)
    way = f"--metric {flag_syntax(kind) if 'of' in kind.takes and not other.of else other.text}"
    reported = _is_reported(other, judged)
    told = "the report has it among other measures, as exploratory" if reported else "nor is it measured"
    return (
        f"'{other.words}' asks for another metric, {kind.name} ({kind.title}), which no verdict here is about: {told}; "
        f"ask for it by {way}."
    )


def _is_reported(other: RequestedMetric, judged: RequestedMetric) -> bool:
    """Return whether the files of runs that are judged by one metric give another one, as a report reads them."""
    if "of" in find_kind(other.kind).takes:
        return False
    return other.kind not in SPEED or (
        judged.kind in SPEED and other.threshold in (None, judged.threshold or THRESHOLD)
    )
