"""The state of a study under construction, as the rules of the fold change it; and how an event is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Final

from studies.log.study_state import (
    Amended,
    ApprovalAnswer,
    AskedApproval,
    Decision,
    PlannerAct,
    RunState,
    Stamp,
    VerdictContext,
    Veto,
)
from studies.records.design import Arm, Design, Hypothesis, RunSpec
from studies.records.design_parts import Phase, Selection
from studies.records.noise_plan import NoisePlan
from studies.records.planner_words import PlannerWords
from studies.records.verdict import Verdict

Payload = Mapping[str, Any]
UNRELEASED: Final = "An ajet from before version 0.1.0 wrote it; this one reads studies of 0.1.0 and later"
"""What is said of an event in a form that no release wrote."""


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
    contexts: dict[tuple[str, Phase], VerdictContext] = field(default_factory=dict)
    questions: list[AskedApproval] = field(default_factory=list)
    open_question: AskedApproval | None = None
    approvals: list[ApprovalAnswer] = field(default_factory=list)
    planner_acts: list[PlannerAct] = field(default_factory=list)
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
    resumed_count: int = 0
    served: bool = False
    fruitless: int = 0
    worked_s: float = 0.0
    measured: bool = False
    """Whether events hold the seconds worked; before the first that does, timestamps are counted."""
    last_ts: str = ""
    event_count: int = 0
    head_hash: str = ""
    arm_seeds: tuple[Design, dict[str, frozenset[int]]] | None = None
    """The training seeds of arms under a design, as far as they were asked for."""

    def copy(self) -> StateBuilder:
        """Return an independent copy: its containers are its own, what they hold is frozen."""
        return StateBuilder(**{entry.name: copy(getattr(self, entry.name)) for entry in fields(self)})

    def seeds_of(self, arm: str, design: Design) -> frozenset[int]:
        """Return the training seeds of an arm in the confirmation; every run that is planned asks for them."""
        if self.arm_seeds is None or self.arm_seeds[0] is not design:
            self.arm_seeds = (design, {})
        known = self.arm_seeds[1]
        if arm not in known:
            known[arm] = frozenset(design.seeds_of(arm, design.seeds))
        return known[arm]

    def run(self, payload: Payload) -> RunState:
        """Return the run that a payload names."""
        run = self.runs.get(str(payload["run_id"]))
        if run is None:
            raise ImpossibleEvent(f"no run {payload['run_id']!r} was planned")
        return run

    def supersede_by(self, spec: RunSpec) -> None:
        """The data of a run changed: the verdicts that rest on it are superseded."""
        if spec.phase == "replicate":
            self.supersede_replications(self.replications)
        elif spec.phase == "confirm":
            self.supersede(name for name, verdict in self.verdicts.items() if self._rests_on(verdict, spec))

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
