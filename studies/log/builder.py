"""The state of a study under construction, as the rules of the fold change it; and how an event is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from studies.log.study_state import (
    Amended,
    ApprovalAnswer,
    AskedApproval,
    Decision,
    PlannedExploration,
    PlannerAct,
    PlannerNote,
    RunState,
    Stamp,
    StudyState,
    VerdictContext,
    Veto,
)
from studies.records.design import Arm, Design, Hypothesis, RunSpec
from studies.records.design_parts import Phase, Selection
from studies.records.noise_plan import NoisePlan
from studies.records.planner_words import PlannerWords
from studies.records.verdict import Verdict

Payload = Mapping[str, Any]


OF_A_ROUND: Final = (
    "hypotheses", "noise_plan", "noise_hash", "noise_seconds", "design", "locked_design", "design_hash", "lock_file",
    "locked", "vetoed", "candidates", "selection", "first_launch", "runs", "has_data", "verdicts", "interim",
    "replications", "superseded", "decisions", "decided", "contexts", "model", "prepared", "why_asked",
    "explorations", "arm_seeds", "question_try", "judged_short", "stands",
)  # fmt: skip
"""What each round has of its own; all else is the study's."""


class ImpossibleEvent(Exception):
    """The event cannot follow the ones before it."""


@dataclass(slots=True)
class StateBuilder:
    """Field names are StudyState's."""

    id: str = ""
    topic: str = ""
    planner: Payload = field(default_factory=dict)
    settings: Payload = field(default_factory=dict)
    command: Any = None
    versions: Payload = field(default_factory=dict)
    machine: Payload = field(default_factory=dict)
    created: str = ""
    hypotheses: dict[str, Hypothesis] = field(default_factory=dict)
    noise_plan: NoisePlan | None = None
    noise_hash: str | None = None
    noise_seconds: float = 0.0
    design: Design | None = None
    locked_design: Design | None = None
    design_hash: str | None = None
    lock_file: str | None = None
    locked: Stamp | None = None
    amendments: list[Amended] = field(default_factory=list)
    vetoed: dict[str, Veto] = field(default_factory=dict)
    candidates: dict[str, Arm] = field(default_factory=dict)
    selection: Selection | None = None
    first_launch: Stamp | None = None
    runs: dict[str, RunState] = field(default_factory=dict)
    has_data: bool = False
    """Whether a run of a claim was measured."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    interim: list[Verdict] = field(default_factory=list)
    replications: dict[str, Verdict] = field(default_factory=dict)
    superseded: list[Verdict] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    decided: dict[str, Decision] = field(default_factory=dict)
    judged_short: dict[tuple[str, Phase], int] = field(default_factory=dict)
    stands: set[str] = field(default_factory=set)
    """Hypotheses whose verdict stands though a run of its look began later."""
    contexts: dict[tuple[str, Phase], VerdictContext] = field(default_factory=dict)
    questions: list[AskedApproval] = field(default_factory=list)
    open_question: AskedApproval | None = None
    approvals: list[ApprovalAnswer] = field(default_factory=list)
    planner_acts: list[PlannerAct] = field(default_factory=list)
    notebook: list[PlannerNote] = field(default_factory=list)
    model: Payload | None = None
    prepared: dict[str, Payload] = field(default_factory=dict)
    report: Payload | None = None
    newest_report: Payload | None = None
    paused_reason: str | None = None
    stopped_reason: str | None = None
    stopped_seq: int = 0
    concluded_reason: str | None = None
    said: PlannerWords | None = None
    declined: bool = False
    asked_next: Payload | None = None
    resumed_count: int = 0
    served: bool = False
    fruitless: int = 0
    worked_s: float = 0.0
    measured: bool = False
    """Whether events hold the seconds worked; before the first that does, timestamps are counted."""
    last_ts: str = ""
    event_count: int = 0
    head_hash: str = ""
    round: int = 1
    why_asked: str = ""
    explorations: list[PlannedExploration] = field(default_factory=list)
    question_try: int = 0
    before: tuple[StateBuilder, ...] = ()
    """The rounds that are over."""
    rounds_before: tuple[StudyState, ...] = ()
    """The same, frozen."""
    given_up: tuple[StudyState, ...] = ()
    arm_seeds: tuple[Design, dict[str, frozenset[int]]] | None = None
    """The training seeds of arms under a design, as far as they were asked for."""

    def copy(self) -> StateBuilder:
        """Return an independent copy: its containers are its own, what they hold is frozen."""
        return StateBuilder(**{entry.name: copy(getattr(self, entry.name)) for entry in fields(self)})

    def begin_round(self, over: StudyState, why: str, tried: int) -> None:
        """Close the round, which is `over`, and begin the next with nothing of its own."""
        self.before = (*self.before, self.copy())
        self.rounds_before = (*self.rounds_before, over)
        fresh = StateBuilder()
        for name in OF_A_ROUND:
            setattr(self, name, getattr(fresh, name))
        # What was accepted of one round's runs is accepted of no other's.
        self.amendments = [entry for entry in self.amendments if entry.amendment.kind != "accept"]
        self.round, self.why_asked, self.question_try = self.round + 1, why, tried

    def give_round_up(self, unlocked: StudyState) -> None:
        """Go back to the round before one that came to no lock."""
        last = self.before[-1]
        self.given_up = (*self.given_up, unlocked)
        for name in OF_A_ROUND:
            setattr(self, name, copy(getattr(last, name)))
        since = [entry for entry in self.amendments if entry not in last.amendments]
        self.amendments = [*last.amendments, *since]
        self.round, self.before, self.rounds_before = last.round, self.before[:-1], self.rounds_before[:-1]

    def seeds_of(self, arm: str, design: Design) -> frozenset[int]:
        """Return the training seeds of an arm in the confirmation; every run that is planned asks for them."""
        if self.arm_seeds is None or self.arm_seeds[0] is not design:
            self.arm_seeds = (design, {})
        known = self.arm_seeds[1]
        if arm not in known:
            known[arm] = frozenset(design.seeds_of(arm, design.seeds))
        return known[arm]

    def open_claims(self) -> list[str]:
        """Return the hypotheses of the design that may still get runs or another verdict."""
        claims = () if self.design is None else self.design.hypotheses
        return [claim.id for claim in claims if not self._is_settled(claim.id)]

    def _is_settled(self, name: str) -> bool:
        verdict, decided = self.verdicts.get(name), self.decided.get(name)
        if verdict is None:
            return False
        return verdict.final or name in self.vetoed or (decided is not None and decided.action != "continue")

    def run(self, payload: Payload) -> RunState:
        """Return the run that a payload names."""
        run = self.runs.get(str(payload["run_id"]))
        if run is None:
            raise ImpossibleEvent(f"no run {payload['run_id']!r} was planned")
        return run

    def run_of_any_round(self, payload: Payload) -> RunState:
        """Return the run that a payload names, be its round over."""
        name = str(payload["run_id"])
        over = (state.runs[name] for state in (*self.rounds_before, *self.given_up) if name in state.runs)
        return next(over, None) or self.run(payload)

    def put_in_its_round(self, run: RunState) -> None:
        """Put a run in the place of what it was, in whichever round it is of."""
        name = run.run_id
        if name in self.runs:
            self.runs[name] = run
        self.rounds_before = tuple(_with(state, run) for state in self.rounds_before)
        self.given_up = tuple(_with(state, run) for state in self.given_up)
        for over in self.before:
            if name in over.runs:
                kept = over.copy()
                kept.runs[name] = run
                self.before = tuple(kept if each is over else each for each in self.before)

    def supersede_by(self, spec: RunSpec, *, but: Collection[str] = ()) -> None:
        """The data of a run changed: the verdicts that rest on it are superseded."""
        if spec.phase == "replicate":
            self.supersede_replications(self.replications)
        elif spec.phase == "confirm":
            rest = [name for name, verdict in self.verdicts.items() if self._rests_on(verdict, spec)]
            self.supersede(name for name in rest if name not in but)

    def reopen_by(self, spec: RunSpec) -> None:
        """A run begins after its look was judged without it: the claims that it is of are open again.

        Where a test was made, its level is spent. What others came to stands.
        """
        if spec.phase == "replicate":
            found = [name for name, verdict in self.replications.items() if self._is_of(verdict, spec)]
            self._spend(self.replications[name] for name in found)
            self.supersede_replications(found)
        elif spec.phase == "confirm":
            rest = [name for name, verdict in self.verdicts.items() if self._rests_on(verdict, spec)]
            found = [name for name in rest if self._is_of(self.verdicts[name], spec)]
            self._spend(self.verdicts[name] for name in found)
            self.supersede(found)
            self.stands = (self.stands | set(rest)) - set(found)

    def settling(self, name: str) -> bool:
        """Whether a rule ended a claim's confirmation."""
        return name in self.decided and self.decided[name].action != "continue"

    def _spend(self, verdicts: Iterable[Verdict]) -> None:
        self.judged_short |= {(one.hypothesis, one.phase): one.look for one in verdicts if one.p is not None}

    def _is_of(self, verdict: Verdict, spec: RunSpec) -> bool:
        assert self.design is not None
        return spec.arm in self.design.contrast_of(self.design.hypothesis(verdict.hypothesis))

    def supersede(self, names: Iterable[str]) -> None:
        """Take back the verdicts on these hypotheses, and what was decided by them."""
        for name in tuple(names):
            self.superseded.append(self.verdicts.pop(name))
            self.decided.pop(name, None)

    def supersede_replications(self, names: Iterable[str]) -> None:
        """Take back the verdicts on the replications of these hypotheses."""
        self.superseded.extend([self.replications.pop(name) for name in tuple(names)])

    def _rests_on(self, verdict: Verdict, spec: RunSpec) -> bool:
        """Whether a run's seed is among those of a verdict's look; without looks, every seed is."""
        assert self.design is not None
        if not self.design.looks:
            return True
        return spec.seed in self.design.seeds_of(
            spec.arm, self.design.seeds[: self.design.looks[verdict.look - 1].seeds]
        )


def _with(state: StudyState, run: RunState) -> StudyState:
    return replace(state, runs={**state.runs, run.run_id: run}) if run.run_id in state.runs else state
