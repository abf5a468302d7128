"""What a study can do next: the types of its steps.

A step is the smallest thing after which the study may be killed: what it does is in the event log when it is done, so
that the next step follows from the log alone.
"""

from dataclasses import dataclass
from typing import Final

from studies.records.design import Arm, RunSpec
from studies.records.procedure import Phase, Selection
from studies.records.verdict import ApprovalRequest

SHRINK_RULE: Final = "keep the confirmation within the budget"
NO_MORE_CANDIDATES: Final = "ask for no more candidates"
END_SCREEN: Final = "end the screen"
"""Of older logs: the same."""
CONCLUDE_RULE: Final = "conclude when every hypothesis has its verdict"
PLUMBING_RULE: Final = "end where a learning rate of 0 changes anything"
EXPLORED: Final = "explored as far as the budget carried it: nothing was tested"
UNLOCKED: Final = "came to no lock, and nothing was tested in it"
"""What is said of a round that was begun and given up."""
FAILURES: Final = ("failed", "lost", "timeout")
"""Ends of an attempt that count against `Design.max_attempts`; one that was stopped does not."""


@dataclass(frozen=True, slots=True)
class PlanStudy:
    """Have the planner propose and design, and lock the design, or the run that it waits for."""


@dataclass(frozen=True, slots=True)
class PlanRound:
    """Have the planner ask the next round's question, or say that there is none to ask."""


@dataclass(frozen=True, slots=True)
class AskCandidate:
    """Write down the screen's next candidate."""

    index: int
    arm: Arm


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Ask a person whether something may begin."""

    question: ApprovalRequest


@dataclass(frozen=True, slots=True)
class DecideScreen:
    """Write down what the screen kept, and the claims that follow."""

    selection: Selection


@dataclass(frozen=True, slots=True)
class DecideLength:
    """Write down how long runs are by the pilot."""

    carried: bool
    """Whether there is time for the pilot once more at its longest."""


@dataclass(frozen=True, slots=True)
class SizeDesign:
    """Write down what the pilot led to."""

    affordable: int
    """Most seeds of each arm that the budget carries."""


@dataclass(frozen=True, slots=True)
class PlanRun:
    """Write down one run."""

    spec: RunSpec


@dataclass(frozen=True, slots=True)
class PrepareModel:
    """Have the model of a phase at hand before its first run needs it."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Launch:
    """Begin an attempt at a run."""

    run_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End the attempt that runs."""

    run_id: str
    code: str


@dataclass(frozen=True, slots=True)
class Collect:
    """Store the results of a run whose attempt finished."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Record the measurements of a collected run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Invalidate:
    """Give a run up."""

    run_id: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Compute the verdict on a hypothesis at a look."""

    hypothesis: str
    look: int = 1
    phase: Phase = "confirm"


@dataclass(frozen=True, slots=True)
class Decide:
    """Write down what a rule decided: on the study, or on a hypothesis after a look."""

    rule: str
    action: str
    reason: str
    hypothesis: str | None = None
    look: int = 0


@dataclass(frozen=True, slots=True)
class AskLook:
    """Ask the planner whether to go on after a look at which no rule ends anything."""

    decisions: tuple[Decide, ...]
    """What the table decides on every open claim: what is done where no answer comes."""


@dataclass(frozen=True, slots=True)
class AskRepair:
    """Ask the planner for another text of code that crashed early, and begin all arms anew with it."""

    run_id: str


@dataclass(frozen=True, slots=True)
class AskWords:
    """Ask the planner of a study that is over without a conclusion for its words."""


@dataclass(frozen=True, slots=True)
class StopStudy:
    """Stop the study."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConcludeStudy:
    """End the study."""

    reason: str
    """Why, in code's words, if the planner has none."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Build the report."""


RunStep = Launch | StopAttempt | Collect | Measure | Invalidate
"""What is done with one run."""
CompletionStep = (
    DecideLength | Judge | Decide | AskLook | AskRepair | AskWords | StopStudy | ConcludeStudy | BuildReport
)
"""What is computed from runs that are over, or asked about them."""
_PlanningStep = PlanStudy | PlanRound | AskCandidate | AskApproval | DecideScreen | SizeDesign | PlanRun | PrepareModel
Step = _PlanningStep | RunStep | CompletionStep
