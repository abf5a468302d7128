"""What is kept of a flight, and cases with one right answer.

What is kept of a flight: its claims beside the planted truth, and what it spent; small enough to be sent around.

There are two truths of a difference: that of the trainings that do not collapse, and that of all. A claim is scored
against the one that its verdict says it speaks of (`Verdict.scope`); the other stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from simlab.scores import Bar, Measured, counted
from simlab.sim_run import Flight, FlightResult, fly
from simlab.worlds import Configuration
from studies import StudyState
from studies.records.design import Arm, Design, Hypothesis
from studies.records.verdict import Scope, Verdict

_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class FlownClaim:
    """One hypothesis, its verdict, and what is true of it."""

    flight: str
    hypothesis: str
    truth: float
    """True mean of the treatment minus that of the control, of the trainings that the verdict speaks of."""
    truth_kept: float
    """The same of the trainings that do not collapse."""
    truth_all: float
    """The same of all trainings."""
    scope: Scope
    promised: float | None
    """The smallest effect of interest."""
    power: float | None
    """The promised power at it."""
    sign: int
    """1 where an increase is claimed, -1 for a decrease."""
    verdict: str
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    n: tuple[int, int]
    collapsed: tuple[int, int]
    """Trainings of the control and of the treatment that were found to have collapsed."""
    brier: float | None
    within_prediction: bool | None

    @property
    def difference(self) -> int:
        """1 or -1 where a difference of this sign is claimed (supported, or refuted by the opposite), else 0."""
        return {"supported": self.sign, "refuted": -self.sign}.get(self.verdict, 0)

    @property
    def said(self) -> int:
        """1 or -1 where a difference of this sign is said to be there, also one too small to matter, else 0."""
        if self.verdict != "equivalent" or self.low is None or self.high is None or self.low <= 0 <= self.high:
            return self.difference
        return 1 if self.low > 0 else -1

    @property
    def false(self) -> bool:
        """Whether a difference is said to be there that is not, or has the other sign."""
        return self.said != 0 and self.said * self.truth <= 0

    @property
    def false_of_all(self) -> bool:
        """Whether it would be false if it were read as one about all trainings."""
        return self.said != 0 and self.said * self.truth_all <= 0

    @property
    def covered(self) -> bool | None:
        """Whether the reported interval, which is of trainings that do not collapse, holds the truth; None for none."""
        return None if self.low is None or self.high is None else self.low <= self.truth_kept <= self.high

    @property
    def falsely_equivalent(self) -> bool:
        """Whether it is called equivalent and the difference is the smallest effect of interest, or more."""
        return self.verdict == "equivalent" and self.promised is not None and abs(self.truth) > self.promised - _EXACT

    @property
    def found(self) -> bool:
        """Whether a difference is claimed that is there, with its sign."""
        return self.difference * self.truth > 0


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """One flight."""

    flight: str
    status: str
    refused: str | None
    claims: tuple[FlownClaim, ...]
    run_hours: float
    worked_s: float
    budget_s: float
    launches: int
    duplicates: int
    orphans: int
    launched_runs: int
    accounted_runs: int
    """Launched runs that are measured or given up with a code; or open, all attempts ended, where the study stands."""
    refusals: int
    """Actions of the planner that were refused."""


def coverage(name: str, claims: Sequence[FlownClaim], slack: float = 0.02) -> Measured:
    """Return how often the reported intervals hold the truth, against the mean of the levels that they state.

    An interval of an early look states a level above 95 %, and covers as much.
    """
    known = [claim for claim in claims if claim.covered is not None]
    level = sum(claim.level for claim in known) / len(known) if known else 0.95
    bar = Bar("between", round(level - slack, 4), round(level + slack, 4))
    return counted(name, sum(bool(claim.covered) for claim in known), len(known), bar)


def flown(flight: Flight) -> FlightRecord:
    """Fly a study and keep what counts."""
    return record(fly(flight))


def record(landed: FlightResult) -> FlightRecord:
    """Return what is kept of a flight."""
    state = landed.state
    launched = [run for run in state.every_run.values() if run.attempts]
    return FlightRecord(
        flight=landed.flight.name,
        status=state.status,
        refused=landed.refused,
        claims=claims(landed),
        run_hours=landed.run_hours,
        worked_s=state.worked_s,
        budget_s=state.budget_s,
        launches=landed.starts.total(),
        duplicates=len(landed.duplicates),
        orphans=len(landed.orphans),
        launched_runs=len(launched),
        accounted_runs=sum(
            run.invalid is not None or run.status == "collected" or (state.concluded_reason is None and not run.active)
            for run in launched
        ),
        refusals=sum(len(act.rejected) for act in state.planner_acts),
    )


def claims(landed: FlightResult) -> tuple[FlownClaim, ...]:
    """Return every verdict of a study beside the truth, round by round."""
    return tuple(claim for entry in landed.state.rounds for claim in claims_of(landed, entry))


def claims_of(landed: FlightResult, state: StudyState) -> Iterator[FlownClaim]:
    """Yield the verdicts of one round of a study beside the truth."""
    design = state.design
    if design is None:
        return
    known = {hypothesis.id: hypothesis for hypothesis in design.hypotheses}
    for verdict in state.verdicts:
        if verdict.hypothesis in known and verdict.phase == "confirm":
            yield _claim(landed, design, known[verdict.hypothesis], verdict)


def place_in(design: Design, arm: Arm) -> Configuration:
    """Return the configuration of an arm, with the source of its code in place of the name."""
    place = {**design.base_job, **arm.overrides, **{slot: design.code[name] for slot, name in arm.slots.items()}}
    return {name: value for name, value in place.items() if isinstance(value, bool | int | float | str)}


def _claim(landed: FlightResult, design: Design, hypothesis: Hypothesis, verdict: Verdict) -> FlownClaim:
    promise, world = design.promise, landed.flight.world
    arms = (
        next(arm for arm in design.arms if arm.name == design.control_arm),
        design.arm_with(hypothesis.variable, hypothesis.treatment),
    )
    before, after = (place_in(design, arm) for arm in arms)
    missed = [rate.count > 0 for rate in verdict.starts] or [False, False]

    def difference(scope: Scope) -> float:
        there, here = (
            world.true_value(at, scope, missed=seen) for at, seen in zip((before, after), missed, strict=True)
        )
        return here - there

    control, treatment = (rate.count for rate in verdict.collapses) if verdict.collapses else (0, 0)
    return FlownClaim(
        flight=landed.flight.name,
        hypothesis=hypothesis.id,
        truth=difference(verdict.scope),
        truth_kept=difference("not_collapsed"),
        truth_all=difference("all"),
        scope=verdict.scope,
        promised=hypothesis.smallest_effect or (promise.effect if promise else None),
        power=promise.power if promise else None,
        sign=1 if hypothesis.direction == "increase" else -1,
        verdict=verdict.verdict,
        estimate=verdict.estimate,
        low=_finite(verdict.low),
        high=_finite(verdict.high),
        level=verdict.level,
        n=(verdict.n_control, verdict.n_treatment),
        collapsed=(control, treatment),
        brier=verdict.brier,
        within_prediction=verdict.within_prediction,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Score = Literal["detected", "withheld", "fooled"]
"""`detected`: named in the system's own words. `withheld`: unnamed, but nothing false is claimed. `fooled`: else."""


@dataclass(frozen=True)
class TemptingCase:
    """One tempting situation. `build` gives its flight by a number, so that it can be repeated in other worlds."""

    name: str
    what: str
    """What is wrong, in a sentence."""
    tempting: str
    """The wrong answer it tempts to."""
    build: Callable[[int], Flight]
    wrong: Callable[[FlownClaim], bool]
    """Whether a claim is the wrong answer."""
    named_by: tuple[str, ...]
    """Words, any of which in the system's own sentences name the situation."""
    heard: bool = False
    """Whether the planner's notes and the report count as well: of what a topic asks for, no verdict can speak."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a case."""

    case: str
    number: int
    score: Score
    verdicts: tuple[str, ...]
    said: str
    """The sentence that named it, or what the study ended with."""


def score(case: TemptingCase, number: int) -> CaseResult:
    """Fly a case and score it: a wrong claim is one unless the system names the situation."""
    landed = fly(case.build(number))
    wrong = [claim for claim in claims(landed) if case.wrong(claim)]
    naming = next((line for line in sentences(landed, case.heard) if any(word in line for word in case.named_by)), None)
    found: Score = "fooled" if wrong and naming is None else "detected" if naming is not None else "withheld"
    verdicts = [verdict for entry in landed.state.rounds for verdict in entry.verdicts]
    said = naming or landed.refused or (verdicts[-1].reason if verdicts else "")
    return CaseResult(case.name, number, found, tuple(verdict.verdict for verdict in verdicts), said[:400])


def sentences(landed: FlightResult, heard: bool = False) -> list[str]:
    """Return what the system says by itself: refusals, verdicts with their warnings, attempts and runs given up.

    With `heard`, also the planner's notes and the report, line by line.
    """
    state = landed.state
    said = [landed.refused or "", state.stopped_reason or ""]
    for verdict in (verdict for entry in state.rounds for verdict in (*entry.verdicts, *entry.superseded)):
        said += [verdict.reason, *verdict.violations, *(f"excluded {key}" for key in verdict.excluded)]
    for run in state.every_run.values():
        said += [f"{run.invalid[0]}: {run.invalid[1]}"] if run.invalid else []
        said += [f"{attempt.code}: {attempt.reason}" for attempt in run.attempts if attempt.status == "failed"]
    if heard:
        said += [act.note for act in state.planner_acts] + (landed.report or "").splitlines()
    return [line for line in said if line]
