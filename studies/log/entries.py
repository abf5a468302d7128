"""What stands in a study's log, as parts of its state: runs with their attempts, a planner's acts, people's words.

`studies.log.fold` makes them of events; each is replaced as a whole and never changed in place.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from studies.records.alpha import Exploration
from studies.records.design import Design, RunSpec
from studies.records.procedure import Amendment, PlanNode
from studies.records.runs import CRASHES, EARLY, GENERATED_CODE_FAILED, Conditions, Measurement
from studies.records.verdict import ORIGINS, ApprovalRequest, Ended, Origin, Verdict

BUDGET_EXHAUSTED: Final = "budget_exhausted"
RunStatus = Literal["planned", "running", "ended", "collected", "invalid"]
NoteKind = Literal["note", "revise", "ask", "plan"]
AttemptStatus = Literal["finished", "failed", "timeout", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where in the log something happened: the event's number and its time (ISO-8601 UTC)."""

    seq: int
    ts: str


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One try at a run; `status` is None while it runs."""

    number: int
    name: str
    launched: str
    status: AttemptStatus | None = None
    code: str = ""
    reason: str = ""
    seconds: float | None = None
    ended: str = ""
    """When its end was written down (ISO-8601 UTC, as `launched`); empty while it runs."""
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    """Where its client and evaluators ran: `kind`, and for containers the `image`; empty for processes of old logs."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """What its containers asked for and were refused, by who asked and why."""
    resumes: int | None = None
    """Number of the attempt whose training it went on with; None where it began from nothing."""
    initial_sha256: str = ""
    """Of the evaluation before training that was copied for it; empty where it makes its own."""
    initial_of: str = ""
    """The run that evaluated the untrained policy for it; empty where the evaluation is its run's own."""
    during_sha256: str = ""
    """Of the evaluations during training that it kept of that one; empty where there were none."""
    why: str = ""
    """Why it went on, or began from nothing; empty for a first attempt and in old logs."""
    resumed_at: int | None = None
    """Training steps that were done when it went on; None where it began from nothing, or was not seen to go on."""
    step: int | None = None
    """Training steps that were done when it failed; None where nobody looked: of runs without code."""
    server: str = ""
    """The swarm server elsewhere that trains for it, by address or name; empty where it has one of its own."""
    url: str = ""
    """Its page at W&B; empty where its log was not sent there."""
    standing: str = ""
    """How W&B's copy of its log stands: `sending`, `sent` or `failed`; empty where there is none."""
    standing_reason: str = ""


@dataclass(frozen=True, slots=True)
class RunState:
    """One run with all its attempts. `collected` is the payload of `run.collected`; `invalid` is (code, reason)."""

    run_id: str
    spec: RunSpec
    attempts: tuple[AttemptState, ...] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    collected: Mapping[str, Any] | None = None
    invalid: tuple[str, str] | None = None
    planned: str = ""
    settled: str = ""

    @property
    def active(self) -> AttemptState | None:
        return self.attempts[-1] if self.attempts and self.attempts[-1].status is None else None

    @property
    def status(self) -> RunStatus:
        if self.invalid is not None:
            return "invalid"
        if self.collected is not None:
            return "collected"
        if self.active is not None:
            return "running"
        return "ended" if self.attempts else "planned"

    @property
    def untrained(self) -> str:
        """The run whose evaluation before training it has; empty where it was evaluated itself."""
        return self.attempts[-1].initial_of if self.attempts else ""

    @property
    def cut(self) -> bool:
        """Whether the study itself ended it, with its budget or by a veto: its arm did not choose that."""
        return self.status in ("ended", "invalid") and bool(self.attempts) and self.attempts[-1].status == "stopped"

    @property
    def code(self) -> str:
        """Why a look counts no value of it: the code it was given up with; empty where it was not tried, or runs."""
        if self.invalid is not None:
            return self.invalid[0]
        # Between two attempts a look is taken only where the budget ended: the run may still go on.
        return BUDGET_EXHAUSTED if self.status == "ended" else ""

    @property
    def crashed_early(self) -> bool:
        last = self.attempts[-1] if self.attempts else None
        if self.code != GENERATED_CODE_FAILED or last is None or last.code not in CRASHES or last.step is None:
            return False
        return max(last.step, last.resumed_at or 0) <= EARLY * int(self.spec.job["steps"])

    @property
    def seconds(self) -> float:
        return sum(attempt.seconds or 0.0 for attempt in self.attempts)

    @property
    def conditions(self) -> Conditions | None:
        recorded = (self.collected or {}).get("conditions")
        return None if recorded is None else Conditions.model_validate(recorded)

    @property
    def lineage(self) -> tuple[AttemptState, ...]:
        """The attempts whose training the last one's is: it, and those that it went on from, the first one first."""
        by_number: dict[int | None, AttemptState] = {attempt.number: attempt for attempt in self.attempts}
        line = list(self.attempts[-1:])
        while line and (earlier := by_number.get(line[0].resumes)) is not None:
            line.insert(0, earlier)
        return tuple(line)


@dataclass(frozen=True, slots=True)
class PlannerAct:
    """One call on the planner: `tokens` counts prompt and completion, `rejected` holds the errors sent back."""

    action: str
    tries: int
    tokens: Mapping[str, int]
    rejected: tuple[str, ...]
    note: str
    not_tested: tuple[str, ...] = ()
    turn: str = ""
    """Which turn it was, by round, stage and number (`2/design/1`); empty in logs that knew one round."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """What it looked at before: name, arguments, hash and size of the answer; of an analysis its result (`MADE`)."""
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Its tokens (`prompt`, `completion`) and their `cost` by what they were for; empty in older logs."""
    node: str = ""
    """The question of its own plan that it says to ask; empty for another one."""
    left: tuple[str, ...] | None = None
    """Words of the topic that nothing in the design covers, by code; None where nobody looked."""
    choices: tuple[str, ...] = ()
    """What it chose that nobody had asked for, a sentence of code's each."""
    models: tuple[str, ...] = ()
    """What its endpoint calls the models that answered."""


@dataclass(frozen=True, slots=True)
class PlannerNote(Stamp):
    """What a planner wrote down beside its actions: its own voice, from which nothing follows."""

    kind: NoteKind
    text: str
    """The note, the idea as it was narrowed (empty: withdrawn), the question to the user, or why the plan is such."""
    round: int
    turn: str
    index: int
    about: str = ""
    """Of a revision: the id of the idea that it is about."""
    reason: str = ""
    nodes: tuple[PlanNode, ...] = ()

    @property
    def id(self) -> str:
        kind = "idea" if self.kind in ("note", "revise") else "question" if self.kind == "ask" else self.kind
        return f"{kind}-{self.seq}"


@dataclass(frozen=True, slots=True)
class Decision(Stamp):
    """What a rule decided, and why; on one hypothesis after a look, or (None) on the study."""

    rule: str
    action: str
    reason: str
    hypothesis: str | None = None
    look: int = 0


@dataclass(frozen=True, slots=True)
class LoggedAmendment(Stamp):
    """An amendment with its place in the log, and whether a claim had its first result before it."""

    amendment: Amendment
    actor: str
    after_data: bool
    after_conclusion: bool = False
    """Whether the study was concluded before it: no verdict follows from it any more."""


@dataclass(frozen=True, slots=True)
class PlannedExploration:
    """An exploration with its place in the log."""

    plan: Exploration
    seconds_per_run: float
    turn: str
    seq: int

    @property
    def round(self) -> int:
        """The round before whose question it was made, by the turn that asked for it; 0 where the log names none."""
        return int(self.turn.partition("/")[0] or 0)


@dataclass(frozen=True, slots=True)
class AbandonedIssue(Stamp):
    """The runs of a lock whose code crashed, given up for a lock that repairs it: they feed no verdict."""

    design: Design
    hash: str
    file: str
    crash: RunState
    runs: Mapping[str, RunState]

    @property
    def name(self) -> str:
        """Of the code that crashed."""
        return self.design.arm(self.crash.spec.arm).code

    def describe(self) -> str:
        last, counts = self.crash.attempts[-1], Counter(run.status for run in self.runs.values())
        return (
            f"{self.name} crashed at step {last.step} of {self.crash.spec.job['steps']} in run {self.crash.run_id} "
            f"({last.code}), so {len(self.runs)} runs, {counts['collected']} of them collected, count in no verdict"
        )


@dataclass(frozen=True, slots=True)
class Veto(Stamp):
    """Why a person gave a hypothesis up, and when: it gets no more runs, and its verdict rests on what is there."""

    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class LoggedApprovalRequest(Stamp):
    """A question to a person, with its place in the log."""

    question: ApprovalRequest
    digest: str


@dataclass(frozen=True, slots=True)
class ApprovalAnswer(Stamp):
    """What a person answered, where, and when."""

    asked: LoggedApprovalRequest
    granted: bool
    by: Origin
    note: str

    def describe(self) -> str:
        return f"{'approved' if self.granted else 'denied'} {ORIGINS[self.by]}: {self.asked.question.would}"


@dataclass(frozen=True, slots=True)
class VerdictContext:
    """What a current verdict was computed with besides the runs; a later veto or amendment does not change it."""

    seq: int
    """Number of the verdict's event: amendments before it were known."""
    earlier: Mapping[str, Verdict]
    """Verdicts on other hypotheses that were settled at an earlier look, by hypothesis."""
    ended: Ended | None = None
    """What had ended the runs of the hypothesis."""
    design: Design | None = None
    """The effective design: a pilot that the budget ended may have been sized since."""
    runs: dict[str, RunState] = field(default_factory=dict)
    """The runs: of other claims some may have been made since, on more budget."""
