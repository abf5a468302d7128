"""Verdicts, questions for approval, a planner's words, and what its code made: nothing follows from the last two."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from studies.records.base import EvolvingRecord, Record
from studies.records.design import Budget, Design
from studies.records.procedure import Phase

Origin = Literal["terminal", "command", "Prefect", "page"]
"""Where an answer was given: in the controller's terminal, by `ajet study`, in a form of Prefect, on a page of ours."""
ORIGINS: Final = {
    "terminal": "in the terminal",
    "command": "by a command",
    "Prefect": "in Prefect",
    "page": "on a page",
}
ANALYSE: Final = "analyse"
MADE: Final = "made"
"""Key of its result in `planner.acted`; one that made nothing has none."""
_MOST: Final = 1e15
_LONGEST: Final = 200
"""Characters of a text."""
VerdictName = Literal["supported", "refuted", "equivalent", "inconclusive", "invalid"]
Scope = Literal["all", "not_collapsed", "reached", "started", "started_not_collapsed"]
"""What a verdict speaks of: all trainings, those that do not collapse, those that reach a threshold or start."""
Ended = Literal["budget", "hand"]
"""What ended the runs of a claim between two looks: a budget set before them, or somebody who may have seen data."""


class ApprovalRequest(Record):
    """One question: what a yes lets begin, and what that costs at most."""

    study: str
    number: int
    """The how manieth question of its study, from 1: no two of a study have the same digest."""
    stage: str
    """`noise`, `design` (all that is locked), `screen`, `pilot`, `longer pilot`, `sized`, `look N`, `replication` or
    `exploration`."""
    lock: str
    """Hash of the noise plan or of the design that it is a part of."""
    runs: int
    seconds: float
    """What they take at the price of the moment of asking."""
    left_s: float
    """Seconds of the budget that were left then."""
    would: str
    """What a yes lets begin, as a phrase."""


class Equivalence(Record):
    """Two one-sided tests: whether the difference is surely inside the margin."""

    margin: float
    low: float
    high: float
    """Ends of the interval of level 1 - 2 alpha."""
    p: float
    """The larger of the two one-sided p-values."""


class ReachedRate(Record):
    """How many of an arm's trainings reached a threshold, with exact 95 % limits of the rate."""

    arm: str
    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float
    high: float


class CollapseRate(ReachedRate):
    """How many of an arm's trainings collapsed, with the same limits."""

    upper: float
    """One-sided upper 95 % limit: a higher rate is ruled out."""


class StartRate(CollapseRate):
    """How many of an arm's trainings never started, with the same limits."""

    begin: float
    """What a training has that never starts, in the metric: what the arm's had before their first step, on average."""


class ArmMean(Record):
    """One arm of a contrast, as it entered."""

    arm: str
    weight: float
    n: int = Field(ge=0)
    mean: float | None
    sd: float | None


Moved = Literal["moved", "opposite", "alike", "open", "untested"]


class Mediation(Record):
    """What became of one mediator at the look that decided its claim."""

    metric: str
    expected: Literal["increase", "decrease"]
    result: Moved
    """As was expected, the other way, provably by less than matters, not shown either way, or not tested."""
    why: str = ""
    """Why it was not tested, or there was no test."""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    p: float | None = None
    equivalence: Equivalence | None = None
    n_control: int = 0
    n_treatment: int = 0


class LastLook(Record):
    """The look that a study comes to where it ends before all its runs are made (`Design.spending`)."""

    ended: Ended
    alpha: float
    """Two-sided level of a difference, before claims share it."""
    equivalence: float
    """Level of each of the two one-sided tests, by the same rule."""


class Verdict(EvolvingRecord):
    """What the data say about one hypothesis, computed by code under the locked design."""

    added_fields: ClassVar = frozenset({"scope", "collapses", "starts", "reached", "arms", "last", "mediators"})

    hypothesis: str
    verdict: VerdictName
    reason: str
    """One sentence that states the rule that decided."""
    estimate: float | None
    """Mean of treatment runs minus mean of control runs; None when it cannot be computed."""
    low: float | None
    high: float | None
    level: float
    p: float | None
    n_control: int
    n_treatment: int
    mean_control: float | None
    mean_treatment: float | None
    sd_control: float | None
    sd_treatment: float | None
    test: str
    inputs_sha256: str
    """Hash of the exact inputs (run ids and values per arm, alpha, hypothesis)."""
    within_prediction: bool | None
    brier: float | None
    """(probability - outcome)^2 with outcome 1 for supported, 0 for refuted; None otherwise."""
    phase: Phase = "confirm"
    look: int = Field(default=1, ge=1)
    """Which look it was computed at, 1 for the first or only one."""
    final: bool = True
    p_adjusted: float | None = None
    """p corrected for the other arms of its variable; None where there is nothing to correct."""
    df: float | None = None
    sd_pooled: float | None = None
    """The common standard deviation that the test used; None for Welch's and the paired test."""
    equivalence: Equivalence | None = None
    excluded: Mapping[str, int] = {}
    """Runs left out, by `ARM: CODE`."""
    counted_as_worst: Mapping[str, int] = {}
    """Runs that count with the worst value, by `ARM: CODE`."""
    violations: tuple[str, ...] = ()
    """What the confound linter found in the runs, one line each."""
    exploratory: bool = False
    """Whether an amendment after the first result touched it: it is no test of the locked claim any more."""
    scope: Scope = "all"
    """What it speaks of; all trainings in designs that lock no rule of collapse, no `start` and no `scope_reached`."""
    collapses: tuple[CollapseRate, ...] = ()
    """Of the control and of the treatment; empty for a design without a rule of collapse."""
    starts: tuple[StartRate, ...] = ()
    """Of trainings that never started, of the control and of the treatment; empty for a design that does not look."""
    reached: tuple[ReachedRate, ...] = ()
    """Of the control and of the treatment, where a time to a threshold is judged."""
    arms: tuple[ArmMean, ...] = ()
    """Of an interaction or a trend, all its arms, the control first: the estimate is their weighted sum."""
    last: LastLook | None = None
    """Set where the study ended before the look had its runs; None for a look that was reached."""
    mediators: tuple[Mediation, ...] = ()

    @property
    def nonzero(self) -> bool:
        """Whether its interval leaves zero out: an equivalent difference may be small and yet not none."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def by_margin(self) -> bool:
        """Whether a difference is claimed whose whole interval lies beyond the margin; never of rates."""
        if self.verdict not in ("supported", "refuted") or self.equivalence is None or self.test == "boschloo":
            return False
        return self.nonzero and min(abs(self.low or 0.0), abs(self.high or 0.0)) > self.equivalence.margin


REPRODUCES: Final = "reproduces"
"""Setting of a study: the `Reproduction` that it is."""
Outcome = Literal["replicated", "not replicated", "inconclusive"]


class Reproduction(Record):
    """Claims of another study that are put to the test again: what was locked there, and what was found."""

    study: str
    round: int
    lock: str
    """Hash of the lock that they were judged under."""
    head: str
    """Hash of the last event of its log as it was read."""
    design: Design
    """What is made again: their comparison as it was judged, with the seeds of then."""
    verdicts: tuple[Verdict, ...]

    def lock_again(self, seeds: Sequence[int], task_seed: int | None, budget: Budget) -> Design:
        """Return the lock that follows: all but these values is equal in all studies that reproduce it."""
        metric = self.design.metric
        tasks = {} if metric.task_seed is None else {"task_seed": task_seed}
        beside = {name: other.model_copy(update=tasks) for name, other in metric.beside.items()}
        metric = metric.model_copy(update={**tasks, "beside": beside})
        return self.design.model_copy(update={"seeds": tuple(seeds), "metric": metric, "budget": budget})

    def outcome(self, verdict: Verdict | None) -> Outcome:
        """Return what a settled verdict makes of the one before: the same claim by the same rule, or another one."""
        if verdict is None or verdict.verdict in ("inconclusive", "invalid") or verdict.exploratory:
            return "inconclusive"
        before = next(known for known in self.verdicts if known.hypothesis == verdict.hypothesis)
        alike = verdict.verdict == "equivalent" or (verdict.estimate or 0) * (before.estimate or 0) > 0
        return "replicated" if verdict.verdict == before.verdict and alike else "not replicated"


class AnswerFigure(Record):
    """Curves of a logged metric by arm, which a planner chose and code draws."""

    metric: str = Field(max_length=200)
    """One of the round's metrics in `may_be_drawn`."""
    arms: tuple[str, ...] = Field(default=(), max_length=6)
    """Names of its arms; none for all."""
    round: int = Field(default=1, ge=1)
    """Number of the round."""


class WrittenAnswer(Record):
    """What a planner wrote beside its answer, with references in the place of numbers and verdicts."""

    mechanism: str = ""
    limits: str = ""
    figures: tuple[AnswerFigure, ...] = ()
    unsupported: tuple[str, ...] | None = None
    """Sentences that a second reading found without support in facts; None where nobody read it again."""
    unread: str = ""


class PlannerMessage(EvolvingRecord):
    """What a planner said."""

    added_fields: ClassVar = frozenset({"answer"})

    by: str
    """Who: the planner, and the model behind it where there is one."""
    text: str
    """Its words, unchanged."""
    unfounded: tuple[str, ...] | None = None
    """Numbers in them that are in no fact the planner was shown; None where nobody looked."""
    contradicted: tuple[str, ...] = ()
    """Verdicts that they name and that not every claim they speak of has."""
    answer: WrittenAnswer | None = None
    """Set where the words answer the topic by references, which are looked up whenever it is shown."""


def planner_label(name: str, model: str | None) -> str:
    return f"{name} {model}" if model else name


def quote_message(said: PlannerMessage) -> str:
    """Return a planner's words as a quotation on one line, with who said them and what is wrong with them."""
    return f"{said.by}: {quoted(said.text)}{describe_doubts(said)}"


_INNER: Final = str.maketrans('"“”', "'‘’")


def quoted(text: str) -> str:
    """Return words between quotation marks, on one line: what in them is one ends no quotation."""
    return f'"{one_line(text).translate(_INNER)}"'


def one_line(text: str) -> str:
    """Return a text on one line without what does not print, such as marks that turn the direction of writing."""
    return " ".join("".join(char for char in text if char.isprintable() or char.isspace()).split())


def describe_doubts(said: PlannerMessage) -> str:
    """Return what is wrong with a planner's words, to stand behind them; empty for nothing."""
    wrong = []
    if said.unfounded is None:
        wrong.append("its numbers were not checked")
    elif said.unfounded:
        wrong.append(f"numbers that are in no fact: {', '.join(said.unfounded)}")
    if said.contradicted:
        wrong.append(f"verdicts that were not reached: {', '.join(said.contradicted)}")
    return f" ({'; '.join(wrong)})" if wrong else ""


def _require_visible(text: str) -> str:
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise ValueError(f"expected visible characters; found others in {text[:60]!r}")
    return text


Source = Annotated[str, StringConstraints(strict=True, max_length=16_384), AfterValidator(_require_visible)]
Plain = Annotated[
    str, StringConstraints(strict=True, max_length=_LONGEST, pattern=r"^[^\n\t]*$"), AfterValidator(_require_visible)
]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-_MOST, le=_MOST)]


def _require_cell(cell: object) -> object:
    one_line = isinstance(cell, str) and len(cell) <= _LONGEST and cell.isprintable()
    if cell is None or one_line or (isinstance(cell, bool | int | float) and abs(cell) <= _MOST):
        return cell
    raise ValueError(f"expected a number, true, false, null, or one line of at most {_LONGEST} characters")


Cell = Annotated[bool | int | float | str | None, BeforeValidator(_require_cell)]
Row = Annotated[Mapping[Plain, Cell], Field(min_length=1, max_length=8)]


class AnalysisSeries(Record):
    """One line, or one set of points."""

    name: Plain
    points: tuple[tuple[Number, Number], ...] = Field(min_length=1, max_length=100)


class AnalysisFigure(Record):
    """What the report is to draw, with the names of its axes."""

    kind: Literal["lines", "points"]
    x: Plain
    y: Plain
    series: tuple[AnalysisSeries, ...] = Field(min_length=1, max_length=6)


class AnalysisResult(Record):
    """What the code returned."""

    table: tuple[Row, ...] = Field(min_length=1, max_length=40)
    """Cells by column, of which all rows have the same."""
    figure: AnalysisFigure | None = None
    note: Plain = ""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if any(row.keys() != self.table[0].keys() for row in self.table):
            raise ValueError(f"expected the columns {', '.join(self.table[0])} in each row of the table; found others")
        return self
