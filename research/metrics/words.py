"""By what words a topic asks for a metric: one table, which a plan prints and a flag overrides.

`faster` are the training episodes to 0.6 hidden success, unless the topic names another threshold. Of kinds that
packages bring, their own words count. Each row says whether more of it is better, so that `fewer episodes`, `reduces
the episodes` and `less sample-efficient` are told apart. How a topic is read by it: `research.metrics.reading`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from studies.metrics import kinds
from swarm.environments.registry import environments

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
class AskingWords:
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

    def says(self, found: re.Match[str]) -> str:
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


def _compiled(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){words}(?![\w-])", re.IGNORECASE)


def _noun(
    kind: str,
    means: Means,
    words: str,
    threshold: float | None = None,
    *,
    rank: Rank = "named",
    of_goal: bool = False,
    bare: str = "score",
) -> AskingWords:
    """Return the row of what there may be more or less of: `the time to ⌖ is shorter`, `reduces the time to ⌖`."""
    lead = rf"(?:(?:(?:{_NEEDS}|{_GETS})\s+(?:an?\s+|the\s+)?)?{_LEAD}\s+(?:in\s+)?(?:(?:the|its|their|an?)\s+)?)?"
    return AskingWords(kind, _compiled(rf"{lead}(?:{words}){_TRAIL}"), means, threshold, rank, of_goal, bare)


def _led(
    kind: str,
    means: Means,
    words: str,
    threshold: float | None = None,
    *,
    rank: Rank = "named",
    of_goal: bool = False,
    bare: str = "score",
) -> AskingWords:
    """Return the row of words that hold their `lead` themselves."""
    return AskingWords(kind, _compiled(f"(?:{words})"), means, threshold, rank, of_goal, bare)


def _said(
    kind: str, means: Means, words: str, threshold: float | None = None, *, rank: Rank = "named", of_goal: bool = False
) -> AskingWords:
    """Return the row of words that say better or worse by themselves, unless `less` stands before them."""
    lead = r"(?:(?P<lead>less|more|most|least|not\s+as|not\s+so|as)\s+)?"
    return AskingWords(kind, _compiled(f"{lead}(?:{words})"), means, threshold, rank, of_goal)


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
    _noun(
        "area", "good",
        r"(?:whole\s+)?areas?\s+under\s+(?:the\s+|its\s+|their\s+)?(?:[\w-]+\s+){0,2}curves?|auc|"
        r"learning\s+curves?'\s+areas?",
    ),
    _noun(
        "seconds", "bad",
        rf"wall[- ]?clock(?:\s+time)?{_END}|(?:number\s+of\s+)?seconds{_ENDS}|"
        rf"(?:training\s+)?time\s+to\s+(?:reach|solve|learn|converge|{GOAL})",
        THRESHOLD,
    ),
    _led("seconds", "bad", rf"(?:{_NEEDS}|in)\s+(?:an?\s+|the\s+)?{_LEAD}\s+(?:training\s+)?time{_END}", THRESHOLD),
    _led("seconds", "bad", rf"takes?\s+(?P<lead>longer|longest){_END}", THRESHOLD),
    _noun("tokens", "bad", rf"tokens\s+{_PER_TASK}|costs?\s+{_PER_TASK}"),
    _led("tokens", "bad", rf"(?:{_NEEDS}\s+)?(?P<lead>fewest|fewer|less|least)\s+tokens"),
    _said("tokens", "better", r"cheap(?:er|est|ly)?|token[- ]efficient(?:ly)?"),
    _said("tokens", "worse", r"costl(?:y|ier|iest)|expensive"),
    _noun("tokens", "good", r"token[- ]efficiency"),
    _led("collapse", "bad", r"(?P<lead>less|more|least|most)\s+(?:likely|prone)\s+to\s+collapse"),
    _said("collapse", "better", r"stable|stead(?:y|ier|iest)|stabili[sz](?:e|es|ed|ing)"),
    _said("collapse", "worse", r"unstable|destabili[sz](?:e|es|ed|ing)"),
    _noun("collapse", "good", r"stability|stabilities"),
    _noun("collapse", "bad", r"instabilit(?:y|ies)", bare="worse"),
    _noun(
        "collapse", "bad",
        r"(?:rate|share|risk|probability|chance|likelihood|number|frequency)s?\s+of\s+(?:training\s+)?collaps\w+|"
        r"collapse\s+rates?",
    ),
    _noun("collapse", "bad", r"(?:training\s+)?collaps\w+", bare="worse"),
    _noun("reward", "good", rf"(?:mean|average|final|hidden)\s+(?:hidden\s+)?rewards?|rewards?\s+reached|{_REWARD}"),
    _noun("episodes", "bad", rf"(?:number\s+of\s+)?{_COUNTED}{_ENDS}|sample\s+complexity", THRESHOLD),
    _led("episodes", "bad", rf"(?:{_NEEDS}|in|within)\s+(?P<lead>fewer|less|more)\s+{_COUNTED}{_END}", THRESHOLD),
    _led("episodes", "bad", rf"(?:{_NEEDS}\s+(?:the\s+)?)?(?P<lead>fewest|least)\s+{_COUNTED}{_END}", THRESHOLD),
    _led("episodes", "bad", rf"(?:with\s+)?(?P<lead>fewer|less|more)\s+{_COUNTED}", THRESHOLD, of_goal=True),
    _noun("episodes", "bad", rf"how\s+many\s+{_COUNTED}", THRESHOLD, of_goal=True),
    _said("episodes", "better", r"first", THRESHOLD, of_goal=True),
    _said("episodes", "better", r"(?:sample|data)[- ]efficient(?:ly)?", THRESHOLD),
    _said("episodes", "worse", r"(?:sample|data)[- ]inefficient(?:ly)?", THRESHOLD),
    _noun("episodes", "good", r"(?:sample|data)[- ]efficiency", THRESHOLD),
    _noun("episodes", "bad", r"(?:sample|data)[- ]inefficiency", THRESHOLD, bare="worse"),
    _noun("success", "good", rf"final\s+(?:hidden\s+)?{_ACHIEVED}(?:\s+rate)?|{_OF_THE_END}"),
    _led("success", "good", r"ends?\s+(?:up\s+)?(?P<lead>higher|lower)"),
    _led("success", "good", rf"{_LEAD}\s+(?:(?:the|its)\s+)?(?:hidden\s+)?{_ACHIEVED}", rank="usual"),
    _led("success", "good", r"solves?\s+(?P<lead>more|fewer)(?:\s+(?:of|the|hidden|tasks))*", rank="usual"),
    _said(
        "episodes", "better",
        r"(?:converg\w+\s+)?(?:faste(?:r|st)|quicke(?:r|st)|quickly|fast|rapid(?:ly)?|soone(?:r|st)|earlie(?:r|st)|"
        r"efficient(?:ly)?)(?:\s+convergence)?|speeds(?:\s+up)?|speed(?:ing)?\s+up|sped\s+up|speeding|accelerat\w+",
        THRESHOLD, rank="speed",
    ),
    _said(
        "episodes", "worse",
        r"(?:converg\w+\s+)?(?:slow(?:er|est|s|ing|ly|ed)?|later|latest)(?:\s+(?:down|convergence))?|decelerat\w+|"
        r"inefficient(?:ly)?",
        THRESHOLD, rank="speed",
    ),
    _noun(
        "episodes", "good",
        r"(?:(?:learning|training|convergence)\s+)?(?:speed|efficiency)(?:\s+of\s+(?:learning|training|convergence))?",
        THRESHOLD, rank="speed",
    ),
)  # fmt: skip
"""Words, and the metric that they ask for."""


def rows() -> Iterator[AskingWords]:
    """Yield the rows of the kinds that there are, and of packages' kinds by their own words."""
    known, listed = kinds(), (_transfer(), _transferred(), *TABLE)
    yield from (row for row in listed if row.kind in known)
    told = {row.kind for row in listed}
    for name, kind in known.items():
        if name not in told and kind.words:
            words = "|".join(map(re.escape, kind.words))
            yield _led(name, "better", words, THRESHOLD if "threshold" in kind.takes else None)


def default_threshold(kind: str) -> float | None:
    """Return the threshold of a kind where a topic names none; None for a kind that needs none."""
    return next((row.threshold for row in TABLE if row.kind == kind), None)


def environment_said(text: str) -> str:
    """Return the environment that is called so."""
    return {said.lower(): name for said, name in _names().items()}[text.lower()]


def _transfer() -> AskingWords:
    """Return the row of what is done elsewhere, by the names of the environments that are known here."""
    how = r"(?:\s+(?P<lead>better|worse|well|more|less|best|worst))?"
    return _led(
        "transfer",
        "good",
        rf"(?:generali[sz](?:e|es|ed|ing)|transfer(?:s|red|ring)?){how}{_elsewhere()}",
        bare="better",
    )


def _transferred() -> AskingWords:
    return _noun("transfer", "good", rf"(?:generali[sz]ation|transfer){_elsewhere()}")


def _elsewhere() -> str:
    names = "|".join(re.escape(name) for name in sorted(_names(), key=len, reverse=True))
    return rf"(?:\s+(?:to|on|onto)\s+(?:the\s+)?(?P<of>{names}))?"


def _names() -> Mapping[str, str]:
    """Return the environments by all that they are called."""
    return {text: name for name, known in environments().items() for text in (name, *known.synonyms)}
