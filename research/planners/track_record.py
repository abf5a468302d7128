"""How well this installation's planners predict: every prediction with a final verdict, over all studies of a home.

Predictions were written before data, verdicts are code's. Left out, and counted with a reason, are claims that still
wait for their verdict, claims that an amendment after the first result touched, and studies whose log cannot be read.
The probability that is scored is that of `supported`: of the decided claims against refuted, as
`studies.verdicts.calibration` has it, and of all valid ones against anything else, as it was asked for.

It does not know why a planner is wrong, and a handful of claims says little: every figure stands beside its count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from research.installation.every_study import every_study
from studies import EventLog, StudyState
from studies.records.design_parts import Prediction
from studies.records.verdict import Verdict
from studies.statistics.rates import rate_interval
from studies.statistics.samples import Interval
from studies.verdicts.calibration import Calibration, calibration

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
        """What a reader calls it."""
        return f"{self.planner} {self.model}" if self.model else self.planner


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """The planners of a home, the one with most predictions first."""

    forecasters: tuple[Forecaster, ...]
    left_out: Mapping[str, int]
    """What was not scored, by reason."""


def track(log: EventLog, planner: str | None = None) -> TrackRecord:
    """Return the record of each planner, or of those of one name, over all studies of the log."""
    scored: list[ScoredPrediction] = []
    reasons: Counter[str] = Counter()
    for _, state in every_study(log):
        if not isinstance(state, StudyState):
            reasons["studies whose log is corrupt"] += 1
            continue
        if planner is None or state.planner["name"] == planner:
            for found in _of_study(state):
                scored += [found] if isinstance(found, ScoredPrediction) else []
                reasons.update([found] if isinstance(found, str) else [])
    kinds = Counter((entry.planner, entry.model) for entry in scored)
    ranked = sorted(kinds, key=lambda kind: (-kinds[kind], kind[0], kind[1] or ""))
    return TrackRecord(tuple(forecaster(_by(scored, kind)) for kind in ranked), dict(reasons))


def forecaster(scored: Sequence[ScoredPrediction]) -> Forecaster:
    """Return the record of one planner; there is a prediction at least."""
    valid = [entry for entry in scored if entry.verdict.verdict != "invalid"]
    share = fmean(entry.outcome for entry in valid) if valid else None
    return Forecaster(
        planner=scored[0].planner,
        model=scored[0].model,
        studies=len({entry.study for entry in scored}),
        scores=calibration((entry.prediction, entry.verdict) for entry in scored),
        valid=len(valid),
        brier=fmean((entry.prediction.probability - entry.outcome) ** 2 for entry in valid) if valid else None,
        constant=None if share is None else share * (1 - share),
        bins=tuple(_bins(valid)),
    )


def _of_study(state: StudyState) -> Iterator[ScoredPrediction | str]:
    """Yield the prediction of each claim of each round with its verdict, or why it is left out."""
    for entry in state.rounds:
        yield from _of_round(entry)


def _of_round(state: StudyState) -> Iterator[ScoredPrediction | str]:
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


def _by(scored: Iterable[ScoredPrediction], kind: tuple[str, str | None]) -> list[ScoredPrediction]:
    return [entry for entry in scored if (entry.planner, entry.model) == kind]


def _bins(valid: Sequence[ScoredPrediction]) -> Iterator[Bin]:
    for low, high in pairwise(EDGES):
        held = [e for e in valid if low <= e.prediction.probability < high or high == e.prediction.probability == 1]
        share = rate_interval(int(sum(entry.outcome for entry in held)), len(held))
        if share is not None:
            yield Bin(low, high, len(held), fmean(entry.prediction.probability for entry in held), share)
