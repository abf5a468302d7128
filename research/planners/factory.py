"""Which planner, by flags and environment; and how well planners predicted here.

The track record is every prediction with a final verdict, over all studies of a home. Left out, and counted with a
reason, are claims without a verdict, claims that an amendment after the first result touched, and studies whose log
cannot be read. The scored probability is that of `supported`: of the decided claims against refuted
(`studies.verdicts.forecasts`), and of all valid ones against anything else. Every figure stands beside its count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

from research.errors import BadInput, NotReady, ResearchError
from research.installation.studies import every_study
from research.planners.endpoint import OpenAiEndpoint
from research.planners.llm import TIMEOUT_S, LlmPlanner
from research.planners.protocol import Planner
from research.planners.recording import Recorder, Replay
from research.planners.rules import RulesPlanner
from research.text import did_you_mean
from studies import EventLog, StudyState
from studies.records.procedure import Prediction
from studies.records.verdict import Verdict
from studies.statistics.comparison import Interval
from studies.statistics.proportions import rate_interval
from studies.verdicts.forecasts import Calibration, calibration
from swarm.plugins import PLANNERS, BrokenEntryPoint, load
from swarm.plugins import list_known as known_names

BUILT_IN = ("rules", "llm")
OPENAI = "https://api.openai.com/v1"
RECORD, REPLAY = "AJET_PLANNER_RECORD", "AJET_PLANNER_REPLAY"
"""Environment variables that name a file to record a language model in, or to replay it from."""
TIMEOUT = "AJET_PLANNER_TIMEOUT"
"""Environment variable with the seconds that an answer is waited for."""
LONGEST_TIMEOUT_S = 86_400.0
_NO_KEY = "none"
"""Sent where an endpoint of one's own needs no key; the SDK wants one."""


def make_planner(
    name: str | None,
    model: str | None,
    environ: Mapping[str, str],
    timeout_s: float | None = None,
    *,
    note: Callable[[str], None] = lambda line: None,
) -> Planner:
    """Return the planner called `name`; without a name, `llm` when a model is named and `rules` otherwise.

    A name besides these is one that an installed package brings by an entry point in `ajet.planners`: a callable of
    `model` and `environ` that returns a planner of that very name.

    `llm` reads OPENAI_BASE_URL and OPENAI_API_KEY from `environ`. What it says is written to the file that
    AJET_PLANNER_RECORD names, or read from that of AJET_PLANNER_REPLAY with neither address nor key; an answer is
    waited for `timeout_s` seconds (default: AJET_PLANNER_TIMEOUT), and `note` is told of each pause between two tries.
    Raises BadInput or NotReady; it does not reach out to the endpoint.
    """
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
    record, replay = (Path(text) if (text := environ.get(name, "").strip()) else None for name in (RECORD, REPLAY))
    if record and replay:
        raise NotReady(f"expected {RECORD} or {REPLAY}; found both; leave one out")
    if replay:
        recorded = Replay(replay)
        return LlmPlanner(model or recorded.model, recorded, note=note)
    base_url, key = (environ.get(name, "").strip() for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"))
    if not model:
        raise NotReady("the planner llm expects a model; found none; pass --planner-model NAME")
    if not base_url and not key:
        raise NotReady(
            "the planner llm expects an endpoint; found neither OPENAI_BASE_URL nor OPENAI_API_KEY; set OPENAI_API_KEY "
            "(and OPENAI_BASE_URL for an endpoint of your own), or use --planner rules"
        )
    if base_url and not is_http_url(base_url):
        raise NotReady(
            "OPENAI_BASE_URL expects an address such as http://127.0.0.1:8000/v1; found something else; correct it"
        )
    if not (key.isascii() and key.isprintable()):
        raise NotReady("OPENAI_API_KEY expects printable ASCII; found other characters; copy the key again")
    endpoint = OpenAiEndpoint(api_key=key or _NO_KEY, base_url=base_url or OPENAI)
    timeout_s = _find_timeout(environ) if timeout_s is None else timeout_s
    return LlmPlanner(str(model), Recorder(endpoint, record) if record else endpoint, timeout_s=timeout_s, note=note)


def planner_names() -> tuple[str, ...]:
    return known_names(PLANNERS, BUILT_IN)


def _load_plugin(name: str, model: str | None, environ: Mapping[str, str]) -> Planner:
    try:
        planner: Planner = load(PLANNERS, name)(model, environ)
    except ResearchError:
        raise
    except BrokenEntryPoint as error:
        raise NotReady(str(error)) from error
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


def _find_timeout(environ: Mapping[str, str]) -> float:
    text = environ.get(TIMEOUT, "").strip()
    try:
        seconds = float(text) if text else TIMEOUT_S
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= LONGEST_TIMEOUT_S:
        raise NotReady(
            f"{TIMEOUT} expects seconds from 1 to {LONGEST_TIMEOUT_S:g}; found {text[:40]!r}; correct it, or unset it"
        )
    return seconds


def is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Ends of the bins of predicted probability; each holds its lower end, the last one both."""


@dataclass(frozen=True, slots=True)
class ScoredPrediction:
    """One prediction with what became of it."""

    study: str
    planner: str
    model: str | None
    prediction: Prediction
    verdict: Verdict

    @property
    def outcome(self) -> float:
        """1 for supported, 0 for any other valid verdict."""
        return float(self.verdict.verdict == "supported")


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
    by_planner: defaultdict[tuple[str, str | None], list[ScoredPrediction]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for _, state in every_study(log):
        if not isinstance(state, StudyState):
            reasons["studies whose log is corrupt"] += 1
        elif planner is None or state.planner["name"] == planner:
            for scored in chain.from_iterable(map(_score_round, state.rounds)):
                if isinstance(scored, ScoredPrediction):
                    by_planner[scored.planner, scored.model].append(scored)
                else:
                    reasons[scored] += 1
    ranked = sorted(by_planner.items(), key=lambda kind: (-len(kind[1]), kind[0][0], kind[0][1] or ""))
    return TrackRecord(tuple(score_forecaster(scored) for _, scored in ranked), dict(reasons))


def score_forecaster(scored: Sequence[ScoredPrediction]) -> Forecaster:
    valid = [entry for entry in scored if entry.verdict.verdict != "invalid"]
    share = fmean(entry.outcome for entry in valid) if valid else None
    bins = []
    for low, high in pairwise(EDGES):
        held = [e for e in valid if low <= e.prediction.probability < high or high == e.prediction.probability == 1]
        supported = rate_interval(int(sum(entry.outcome for entry in held)), len(held))
        if supported is not None:
            bins.append(Bin(low, high, len(held), fmean(entry.prediction.probability for entry in held), supported))
    return Forecaster(
        planner=scored[0].planner,
        model=scored[0].model,
        studies=len({entry.study for entry in scored}),
        scores=calibration((entry.prediction, entry.verdict) for entry in scored),
        valid=len(valid),
        brier=fmean((entry.prediction.probability - entry.outcome) ** 2 for entry in valid) if valid else None,
        constant=None if share is None else share * (1 - share),
        bins=tuple(bins),
    )


def _score_round(state: StudyState) -> Iterator[ScoredPrediction | str]:
    """Yield the prediction of each claim with its verdict, or why it is left out."""
    design = state.design
    for claim in design.hypotheses if design is not None else ():
        verdict = state.verdict_on(claim.id)
        if verdict is None or not state.is_settled(claim.id):
            yield "claims without a final verdict"
        elif verdict.exploratory:
            yield "claims that an amendment made exploratory"
        else:
            name, model = str(state.planner["name"]), state.planner["model"]
            yield ScoredPrediction(state.id, name, model, claim.prediction, verdict)
