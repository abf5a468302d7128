"""Which planner, by flags and environment; and how well planners predicted here.

The scored probability is that of `supported`: of the decided claims against refuted, and of all valid ones against
anything else.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from pydantic import ValidationError

from research.errors import BadInput, NotReady, ResearchError
from research.installation.studies import every_study
from research.planners.context import Planner
from research.planners.endpoint import AnthropicEndpoint, Endpoint, OpenAiEndpoint, Recorder, Replay
from research.planners.llm import LlmPlanner, PlannerOptions
from research.planners.rules import RulesPlanner
from research.text import describe, did_you_mean, is_http_url
from studies import EventLog, StudyState
from studies.records.procedure import Prediction
from studies.records.verdict import Verdict, VerdictName
from studies.statistics.comparison import Interval
from studies.statistics.proportions import rate_interval
from studies.verdicts.rules import Calibration, calibration
from swarm.errors import InvalidRequest
from swarm.plugins import PLANNERS, list_known, load

BUILT_IN = ("rules", "llm")
_APIS: Mapping[str, tuple[type[OpenAiEndpoint], str]] = {
    "openai": (OpenAiEndpoint, "https://api.openai.com/v1"),
    "anthropic": (AnthropicEndpoint, "https://api.anthropic.com"),
}
"""APIs of language models, with the address of whoever made each."""
RECORD, REPLAY = "AJET_PLANNER_RECORD", "AJET_PLANNER_REPLAY"
"""Environment variables that name a file to record a language model in, or to replay it from."""
FALLBACK_KEY = "AJET_PLANNER_FALLBACK_KEY"
"""Environment variable with the key for a second endpoint that is named by its address."""
_NO_KEY = "none"
"""Sent where an endpoint of one's own needs no key; the SDK wants one."""
_PARTS = ("BASE_URL", "API_KEY")
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Ends of the bins of predicted probability; each holds its lower end, the last one both."""


def make_planner(
    name: str | None, model: str | None, environ: Mapping[str, str], options: Mapping[str, Any] = {}, *,
    note: Callable[[str], None] = lambda line: None,
) -> Planner:  # fmt: skip
    """Return the planner called `name`; without one, `llm` when a model is named, else `rules`. Others are callables of
    `model` and `environ` of installed packages (`ajet.planners`). `llm` reads from `environ` what `options` lacks.
    Raises BadInput or NotReady; it does not reach out to the endpoint."""
    chosen = name or ("llm" if model else "rules")
    names = planner_names()
    if chosen not in names:
        near = did_you_mean(chosen, names) or "; choose one of them"
        raise BadInput(f"expected a planner among {', '.join(names)}; found {chosen!r}{near}")
    if chosen == "rules" and model:
        raise NotReady(
            f"expected no --planner-model beside the planner rules, which asks no model; found {model}; add "
            "--planner llm"
        )
    if chosen != "llm":
        return RulesPlanner() if chosen == "rules" else _load_plugin(chosen, model, environ)
    named = {
        key: text for key in PlannerOptions.model_fields if (text := environ.get(f"AJET_{key.upper()}", "").strip())
    }
    try:
        asked = PlannerOptions.model_validate({**named, **options})
    except ValidationError as error:
        raise NotReady(
            f"expected options of a language model, by flags or AJET_PLANNER_...; found {describe(error)}"
        ) from error
    if asked.planner_max_cost is not None and asked.planner_price is None:
        raise NotReady("expected --planner-price IN,OUT beside --planner-max-cost; found no prices; name them")
    record, replay = (Path(text) if (text := environ.get(name, "").strip()) else None for name in (RECORD, REPLAY))
    if record and replay:
        raise NotReady(f"expected {RECORD} or {REPLAY}; found both; leave one out")
    second, _, place = (asked.planner_fallback or "").partition("@")
    if replay:
        recorded = Replay(replay)
        fallback: tuple[str, Endpoint] | None = (second, recorded) if second else None
        return LlmPlanner(model or recorded.model, recorded, options=asked, fallback=fallback, note=note)
    if not model:
        raise NotReady("the planner llm expects a model; found none; pass --planner-model NAME")
    source = _open(asked.planner_endpoint or _choose_api(environ), environ, record)
    fallback = None
    if second:
        if place not in _APIS and not is_http_url(place):
            raise NotReady(
                "expected --planner-fallback MODEL@openai, @anthropic or an address such as @http://127.0.0.1:8000/v1; "
                "found something else; correct it"
            )
        api = place if place in _APIS else "openai"
        own = {"OPENAI_BASE_URL": place, "OPENAI_API_KEY": environ.get(FALLBACK_KEY, "")}
        fallback = second, _open(api, environ if place in _APIS else own, record)
    return LlmPlanner(model, source, options=asked, fallback=fallback, note=note)


def _choose_api(environ: Mapping[str, str]) -> str:
    there = [api for api in _APIS if any(environ.get(f"{api.upper()}_{part}", "").strip() for part in _PARTS)]
    if len(there) > 1:
        raise NotReady(
            "expected one endpoint of a language model; found variables of two, OPENAI_... and ANTHROPIC_...; say "
            "which: --planner-endpoint openai or anthropic"
        )
    return there[0] if there else "openai"


def _open(api: str, environ: Mapping[str, str], record: Path | None) -> Endpoint:
    make, usual = _APIS[api]
    url_name, key_name = (f"{api.upper()}_{part}" for part in _PARTS)
    base_url, key = (environ.get(name, "").strip() for name in (url_name, key_name))
    if not base_url and not key:
        raise NotReady(
            f"the planner llm expects an endpoint; found neither {url_name} nor {key_name}; set {key_name} (and "
            f"{url_name} for an endpoint of your own; ANTHROPIC_... for Anthropic's), or use --planner rules"
        )
    if base_url and not is_http_url(base_url):
        raise NotReady(
            f"{url_name} expects an address such as http://127.0.0.1:8000/v1; found something else; correct it"
        )
    if not (key.isascii() and key.isprintable()):
        raise NotReady(f"{key_name} expects printable ASCII; found other characters; copy the key again")
    endpoint = make(api_key=key or _NO_KEY, base_url=base_url or usual)
    return Recorder(endpoint, record) if record else endpoint


def planner_names() -> tuple[str, ...]:
    return list_known(PLANNERS, BUILT_IN)


def _load_plugin(name: str, model: str | None, environ: Mapping[str, str]) -> Planner:
    try:
        make = load(PLANNERS, name)
    except InvalidRequest as error:
        raise NotReady(str(error)) from error
    try:
        planner: Planner = make(model, environ)
    except ResearchError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise NotReady(
            f"expected the planner {name} of a package to be made; found {said}; mend that package"
        ) from error
    if getattr(planner, "name", None) != name:
        raise NotReady(
            f"expected the planner {name} to have that name, by which a study is resumed; found "
            f"{getattr(planner, 'name', None)!r}; correct it in its package"
        )
    return planner


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions of about one probability."""

    low: float
    high: float
    n: int
    predicted: float
    """Mean probability that was predicted."""
    supported: Interval
    """Share that was supported, with its Wilson interval."""


@dataclass(frozen=True, slots=True)
class Forecaster:
    """One planner's record. A language model counts by its name, `rules` has none."""

    planner: str
    model: str | None
    studies: int
    scores: Calibration
    valid: int
    """Predictions with a verdict that is not invalid."""
    brier: float | None
    """Mean Brier score of `supported` against anything else, over the valid ones."""
    constant: float | None
    """The same of a forecaster who always says how often they were supported."""
    bins: tuple[Bin, ...]
    """Where there are any, by ascending probability."""

    @property
    def title(self) -> str:
        return f"{self.planner} {self.model}" if self.model else self.planner


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """The planners of a home, the one with most predictions first."""

    forecasters: tuple[Forecaster, ...]
    left_out: Mapping[str, int]


def load_track_record(log: EventLog, planner: str | None = None) -> TrackRecord:
    judged: defaultdict[tuple[str, str | None], list[tuple[str, Prediction, Verdict]]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for _, study in every_study(log):
        if not isinstance(study, StudyState):
            left_out["studies whose log is corrupt"] += 1
            continue
        if planner not in (None, study.planner["name"]):
            continue
        for state in study.rounds:
            by = str(state.planner["name"]), state.planner["model"]
            for claim in state.design.hypotheses if state.design is not None else ():
                verdict = state.verdict_on(claim.id)
                if verdict is None or not state.is_settled(claim.id):
                    left_out["claims without a final verdict"] += 1
                elif verdict.exploratory:
                    left_out["claims that an amendment made exploratory"] += 1
                else:
                    judged[by].append((state.id, claim.prediction, verdict))
    ranked = sorted(judged.items(), key=lambda kind: (-len(kind[1]), kind[0][0], kind[0][1] or ""))
    return TrackRecord(tuple(_score(*by, entries) for by, entries in ranked), dict(left_out))


def _score(planner: str, model: str | None, judged: Sequence[tuple[str, Prediction, Verdict]]) -> Forecaster:
    verdicts = [(prediction, verdict) for _, prediction, verdict in judged]
    valid = [(p.probability, float(v.verdict == "supported")) for p, v in verdicts if v.verdict != "invalid"]
    share = fmean(outcome for _, outcome in valid) if valid else None
    bins = []
    for low, high in pairwise(EDGES):
        held = [(p, outcome) for p, outcome in valid if low <= p < high or high == p == 1]
        supported = rate_interval(int(sum(outcome for _, outcome in held)), len(held))
        if supported is not None:
            bins.append(Bin(low, high, len(held), fmean(p for p, _ in held), supported))
    return Forecaster(
        planner, model, len({study for study, _, _ in judged}), calibration(verdicts), len(valid),
        brier=fmean((p - outcome) ** 2 for p, outcome in valid) if valid else None,
        constant=None if share is None else share * (1 - share), bins=tuple(bins),
    )  # fmt: skip


def describe_scores(entry: Forecaster) -> Iterator[str]:
    scores = entry.scores
    ended = ", ".join(f"{scores.verdicts[name]} {name}" for name in get_args(VerdictName) if name in scores.verdicts)
    claims = f"{scores.predictions} claim{'' if scores.predictions == 1 else 's'}"
    yield f"{claims} in {entry.studies} stud{'y' if entry.studies == 1 else 'ies'}: {ended}"
    if entry.brier is not None and entry.constant is not None:
        yield f"Brier {entry.brier:.3f}, of a constant forecaster {entry.constant:.3f}: all {entry.valid} valid"
    if scores.brier is not None and scores.constant is not None:
        yield f"Brier {scores.brier:.3f}, of a constant forecaster {scores.constant:.3f}: the {scores.scored} decided"
    if scores.coverage is not None and scores.mean_level is not None:
        held, n = describe_share(scores.coverage), f"{scores.intervals} interval{'' if scores.intervals == 1 else 's'}"
        yield f"predicted intervals held {held} of the estimates, at a level of {scores.mean_level:.0%}: {n}"


def describe_bins(entry: Forecaster) -> list[tuple[str, ...]]:
    """Return how often what a planner held for likely came true: a row of texts for each range of probability."""
    return [
        (f"{one.low:.0%} to {one.high:.0%}", f"{one.predicted:.0%}", str(one.n), describe_share(one.supported))
        for one in entry.bins
    ]


def describe_share(interval: Interval) -> str:
    return f"{interval.mean:.0%} [{interval.low:.0%}, {interval.high:.0%}]"
