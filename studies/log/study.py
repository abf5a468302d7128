"""StudyState: everything known about a study, made of its events by `studies.log.fold.fold`.

`fold` alone changes a state, and each time a fresh copy. The values of its fields are replaced, never changed in place,
so that a copy shares them (`runs`, `planner_acts` and `notes` grow in place, and `fold` has its own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final, Literal

from studies.log import entries
from studies.records.alpha import ALPHA, AlphaAllocation, AlphaLedgers, Exploration, RoundOutcome
from studies.records.design import Arm, Design, Hypothesis, NoisePlan, RunSpec
from studies.records.procedure import Phase, RunLength, Selection, Sizing
from studies.records.runs import GENERATED_CODE_FAILED
from studies.records.verdict import REPRODUCES, Ended, PlannerMessage, Reproduction, Verdict, quoted

StudyStatus = Literal["planning", "running", "waiting", "paused", "judged", "concluded", "stopped"]
"""A study that is `waiting` waits for a person's approval."""


EXPLORE: Final = "explore"
"""The setting of a study that was asked to make one run of each arm, and to test nothing."""
PAPERS: Final = "papers"
"""Key of the settings, and name of a folder: the texts that a planner may read, by name with their sha256."""
LOOK_RULE: Final = "planner at look"
"""The rule of a decision that the planner took after a look at which the table goes on: on with it, or no more runs."""
REPAIR_RULE: Final = "repair code that crashed early, blind"
"""The rule of a decision that code which crashed is not repaired."""
ASK_RULE: Final = "ask on while level and budget tell something"
BUDGET_RULE: Final = "stop when the wall-clock budget is used up"


@dataclass
class RoundState:
    """What each round has of its own."""

    hypotheses: tuple[Hypothesis, ...] = ()
    noise_plan: NoisePlan | None = None
    noise_hash: str | None = None
    """Hash of `noise_plan`, which its runs carry in the lock's place."""
    noise_seconds: float = 0.0
    explorations: tuple[entries.PlannedExploration, ...] = ()
    """What was tried without a claim since this round began, in order: before its question, then before the next."""
    locked_design: Design | None = None
    design: Design | None = None
    """The effective one: after a screen, its arms and claims in the screen's place; with a pilot, its size so far."""
    design_hash: str | None = None
    lock_file: str | None = None
    """Name of the lock's file in the study's folder; None before the lock."""
    locked: entries.Stamp | None = None
    arm_seeds: Mapping[str, frozenset[int]] = field(default_factory=dict)
    candidates: Mapping[str, Arm] = field(default_factory=dict)
    """What the screen was asked to try, by name, in order."""
    selection: Selection | None = None
    sizing: Sizing | None = None
    length: RunLength | None = None
    """How long the runs of the confirmation are by its pilot; None where nothing was to be decided, or yet is."""
    model: Mapping[str, Any] | None = None
    """Hash and seconds of the model that the confirmation begins with."""
    prepared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Payload of `model.prepared` by the phase whose runs begin with that model; `models` where arms compare them."""
    first_launch: entries.Stamp | None = None
    runs: dict[str, entries.RunState] = field(default_factory=dict)
    has_data: bool = False
    verdicts: tuple[Verdict, ...] = ()
    """The newest verdict on each hypothesis, final or of an early look, while its data are unchanged."""
    superseded: tuple[Verdict, ...] = ()
    interim: tuple[Verdict, ...] = ()
    replications: tuple[Verdict, ...] = ()
    """The newest verdict on each hypothesis that was tried in another setting."""
    judged_short: Mapping[tuple[str, Phase], int] = field(default_factory=dict)
    """The look of a verdict whose test was made when the budget ended, on fewer runs than were made later."""
    stands: frozenset[str] = frozenset()
    """Hypotheses whose verdict stands though a run of its look began later."""
    contexts: Mapping[tuple[str, Phase], entries.VerdictContext] = field(default_factory=dict)
    """What the newest verdict on a hypothesis in a phase was computed with."""
    decisions: tuple[entries.Decision, ...] = ()
    decided: Mapping[str, entries.Decision] = field(default_factory=dict)
    vetoed: Mapping[str, entries.Veto] = field(default_factory=dict)
    crashed: str = ""
    """The first run that its own code ended under the present lock."""
    abandoned: tuple[entries.AbandonedIssue, ...] = ()
    """What was given up of the round's question when its code was repaired, under the locks before the present one."""
    spoken: tuple[int, ...] = ()
    """Numbers of the events that hold what its planner said on the round where the study was stopped."""
    why_asked: str = ""
    """Why this round's question was asked, in the words of whoever asked; empty in the first round."""
    question_try: int = 0
    """Which try at this round's question was taken; 0 in the first round, and where the log does not tell."""


@dataclass
class StudyState(RoundState):
    """Everything known about a study, and of its round. Times are ISO-8601 UTC."""

    id: str = ""
    topic: str = ""
    planner: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: Any = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    amendments: tuple[entries.LoggedAmendment, ...] = ()
    planner_acts: list[entries.PlannerAct] = field(default_factory=list)
    notes: dict[tuple[str, int], entries.PlannerNote] = field(default_factory=dict)
    """What the planner noted, revised and asked the user over all rounds, by turn and index, in order."""
    questions: tuple[entries.LoggedApprovalRequest, ...] = ()
    open_question: entries.LoggedApprovalRequest | None = None
    approvals: tuple[entries.ApprovalAnswer, ...] = ()
    report: Mapping[str, Any] | None = None
    """What `report.built` says of the pages, where only notes came after that event of a study that is over."""
    newest_report: Mapping[str, Any] | None = None
    """Payload of the last `report.built`, whatever happened after it: what the report's files were written as."""
    paused_reason: str | None = None
    """Why no run is scheduled while running attempts finish; None while the study is not paused."""
    stopped_reason: str | None = None
    stopped_seq: int = 0
    concluded_reason: str | None = None
    said: PlannerMessage | None = None
    """The planner's last words, a quotation; None where it had none."""
    declined: bool = False
    """Whether the study is over because its planner declined the topic: nothing was tested."""
    asked_next: Mapping[str, str] | None = None
    """What is worth doing next (`why`, `command`), as it was compiled when the study ended; None in older logs."""
    resumed_count: int = 0
    served: bool = False
    """Whether it was last taken up by a worker, which takes it up again where its controller ended."""
    fruitless: int = 0
    """Times it was taken up since anything else than work happened to it."""
    worked_s: float = 0.0
    """Seconds that count against the budget, as controllers said; in older logs those between events, waits apart."""
    measured: bool = False
    """Whether events hold the seconds worked; before the first that does, timestamps are counted."""
    last_ts: str = ""
    active_ts: str = ""  # of the last event that is no report, amendment, veto or note
    event_count: int = 0
    head_hash: str = ""
    round: int = 1
    rounds_before: tuple[StudyState, ...] = ()
    """The rounds that are over, each as it stood at its end, the first one first."""
    given_up: tuple[StudyState, ...] = ()
    """Rounds that were begun and came to no lock, with the A/A runs that were made for them."""

    @property
    def notebook(self) -> tuple[entries.PlannerNote, ...]:
        return tuple(self.notes.values())

    @property
    def asks_planner(self) -> bool:
        """Whether its planner has words of its own: the rules have none, and are asked for none."""
        return bool(self.planner.get("name", "rules") != "rules")

    @property
    def at_rest(self) -> bool:
        halted = self.stopped_reason is not None or self.paused_reason is not None
        return halted and not any(run.active for run in self.runs.values())

    @property
    def elapsed_s(self) -> float:
        span = datetime.fromisoformat(self.active_ts) - datetime.fromisoformat(self.created)
        return max(0.0, span.total_seconds())

    @property
    def status(self) -> StudyStatus:
        if self.concluded_reason is not None:
            return "concluded"
        if self.stopped_reason is not None:
            return "stopped"
        if self.paused_reason is not None:
            return "paused"
        if self.open_question is not None:
            return "waiting"
        if self.design is None:
            return "planning" if self.explored is None else "running"
        if self.locked_design is not None and self.locked_design.screen is not None and self.selection is None:
            return "running"
        return "judged" if all(self.is_settled(h.id) for h in self.design.hypotheses) else "running"

    @property
    def reproduces(self) -> Reproduction | None:
        """What of another study it puts to the test again; None for a study with a question of its own."""
        held = self.settings.get(REPRODUCES)
        return None if held is None else Reproduction.model_validate(held)

    def challenges(self, claim: str) -> tuple[str, ...]:
        """Return by what a claim of this round is challenged and why, each as a clause."""
        found = (entry.amendment for entry in self.amendments if entry.amendment.claim == claim)
        return tuple(f"challenged by {each.evidence}: {quoted(each.reason)}" for each in found)

    @property
    def explores(self) -> bool:
        """Whether it was asked to make one run of each arm, and to test nothing."""
        return bool(self.settings.get(EXPLORE))

    @property
    def explored(self) -> Exploration | None:
        """What such a study tries; None while it is planned, and for any other."""
        return self.explorations[-1].plan if self.explores and self.explorations else None

    @property
    def denial(self) -> entries.ApprovalAnswer | None:
        """The denial that stopped the study; None where none did, or it goes on."""
        last = self.approvals[-1] if self.approvals and self.stopped_reason is not None else None
        return last if last is not None and last.seq == self.stopped_seq else None

    @property
    def budget_s(self) -> float:
        amended = [a.amendment.value for a in self.amendments if a.amendment.value is not None]
        return float(amended[-1] if amended else self.settings["budget_s"])

    @property
    def rounds(self) -> tuple[StudyState, ...]:
        return (*self.rounds_before, self)

    @property
    def every_round(self) -> tuple[StudyState, ...]:
        """All rounds by number, those that came to no lock included: each has runs of its own."""
        return (*self.rounds_before, self, *self.given_up)

    @property
    def most_rounds(self) -> int:
        """How many rounds the inquiry may have, as its first lock says; 1 before there is one."""
        first = self.rounds[0].locked_design
        return 1 if first is None or first.inquiry is None else first.inquiry.of

    @property
    def takes_notes(self) -> bool:
        """Whether a person may write a note down: there is a lock, of any round, or the planner asked something."""
        return self.design is not None or bool(self.rounds_before) or any(n.kind == "ask" for n in self.notebook)

    @property
    def every_run(self) -> Mapping[str, entries.RunState]:
        if not self.rounds_before and not self.given_up:
            return self.all_runs
        every = (*self.rounds_before, *self.given_up, self)
        return {name: run for state in every for name, run in state.all_runs.items()}

    @property
    def all_runs(self) -> Mapping[str, entries.RunState]:
        """The runs of this round, those of abandoned issues first: only `runs` feed verdicts."""
        if not self.abandoned:
            return self.runs
        before = {name: run for issue in self.abandoned for name, run in issue.runs.items()}
        return {**before, **self.runs}

    @property
    def locks(self) -> tuple[tuple[str, str], ...]:
        own = ((self.lock_file, self.design_hash),) if self.lock_file and self.design_hash else ()
        return (*((issue.file, issue.hash) for issue in self.abandoned), *own)

    @property
    def repair_turn(self) -> str:
        """The planner's turn in which it is asked for the next repair."""
        return f"{self.round}/repair/{len(self.abandoned) + 1}"

    @property
    def repairable(self) -> entries.RunState | None:
        """The run whose code may be repaired now, by the lock: it crashed early, as all that crashed did, and nothing
        that the lock led to was judged."""
        design, runs = self.locked_design, self.runs.values()  # of any length
        ended = [run for run in runs if run.spec.phase == "confirm" and run.code == GENERATED_CODE_FAILED]
        judged = self.contexts or self.verdicts or self.superseded
        if not self.crashed or design is None or judged or len(self.abandoned) >= design.repairs:
            return None
        return self.runs[self.crashed] if all(run.crashed_early for run in ended) else None

    @property
    def answered_by(self) -> tuple[str, ...]:
        """What the planner's endpoint called the models that answered, a name again only after another one."""
        return tuple(name for name, _ in groupby(name for act in self.planner_acts for name in act.models))

    @property
    def seeds_used(self) -> frozenset[int]:
        design, noise = self.locked_design, self.noise_plan
        seeds: list[int | None] = [seed for tried in self.explorations for seed in tried.plan.seeds]
        seeds += [seed for issue in self.abandoned for seed in issue.design.seeds]
        if noise is not None:
            seeds += [*noise.seeds, noise.plumbing]
        if design is not None:
            seeds += [*design.seeds, *(design.replication.seeds if design.replication else ())]
            seeds += [design.screen.seed] if design.screen else []
        return frozenset(seed for seed in seeds if seed is not None)

    @property
    def ledgers(self) -> AlphaLedgers:
        alpha = self.design.alpha if self.most_rounds == 1 and self.design is not None else ALPHA
        ledgers = AlphaLedgers.begin(self.most_rounds, alpha)
        for before in self.rounds_before:
            ledgers = ledgers.after(before.outcome)
        return ledgers

    @property
    def alpha_allocation(self) -> AlphaAllocation:
        """What the tests of this round's design may spend. Raise ValueError without a design."""
        if self.design is None:
            raise ValueError(f"study {self.id} has no design to judge by")
        return self.ledgers.allocate(self.design)

    @property
    def outcome(self) -> RoundOutcome:
        """What the round hands on: the level of a kind where every comparison ended in a claim of it, or none was."""
        verdicts = [self.verdict_on(h.id) for h in (self.design.hypotheses if self.design is not None else ())]
        measured = (run for run in self.runs_in("confirm") if run.spec.metric.key in run.measurements)
        if not verdicts or next(measured, None) is None:
            return RoundOutcome.of(())
        stand = [
            v if v and not v.exploratory and all(m.result == "moved" for m in v.mediators) else None for v in verdicts
        ]
        return RoundOutcome.of(["inconclusive" if v is None else v.verdict for v in stand])

    @property
    def awaits_sizing(self) -> bool:
        """Whether the design's first runs have yet to say how many there are to be."""
        design = self.design
        return design is not None and design.pilot is not None and design.screen is None and self.sizing is None

    @property
    def awaits_length(self) -> bool:
        """Whether the pilot has yet to say how long runs are. A verdict on shorter ones leaves them so."""
        design, judged = self.design, self.verdicts or self.interim or self.superseded
        if design is None or design.extension is None or not self.awaits_sizing or self.length is not None or judged:
            return False
        return any(claim.id not in self.vetoed for claim in design.hypotheses)

    def counts(self, spec: RunSpec) -> bool:
        """Return whether a run is as long as claims rest on: not a pilot's, once the study went on to longer ones."""
        return self.length is None or spec.phase != "confirm" or spec.job["steps"] == self.length.steps

    def verdict_on(self, hypothesis: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.hypothesis == hypothesis), None)

    def is_settled(self, hypothesis: str) -> bool:
        """Return whether a hypothesis gets no more runs for its confirmation, and no later verdict."""
        if (verdict := self.verdict_on(hypothesis)) is None:
            return False
        ended = hypothesis in self.vetoed or self.is_ended_by_rule(hypothesis)
        return ended or (verdict.final and not self.may_go_on(verdict))

    def is_judged(self, hypothesis: str) -> bool:
        """Return whether a verdict stands that no later look replaces: more runs of its own look may still come."""
        verdict = self.verdict_on(hypothesis)
        return verdict is not None and (verdict.final or self.is_settled(hypothesis))

    def is_ended_by_rule(self, hypothesis: str) -> bool:
        return hypothesis in self.decided and self.decided[hypothesis].action != "continue"

    @property
    def open_claims(self) -> list[str]:
        """The hypotheses of the design that may still get a verdict of a later look."""
        return [claim.id for claim in (self.design.hypotheses if self.design else ()) if not self.is_judged(claim.id)]

    def may_go_on(self, verdict: Verdict) -> bool:
        """Return whether a verdict that claims nothing has runs of its look to come: the budget ended before them."""
        if self.concluded_reason is not None or verdict.verdict not in ("inconclusive", "invalid"):
            return False
        missing = self.missing_runs(verdict.hypothesis, verdict.look)
        return any(run is not None and run.invalid is None for run in missing)

    def missing_runs(self, hypothesis: str, look: int) -> list[entries.RunState | None]:
        """Return the runs of a claim's look that the budget has not carried to their end; None for one not planned."""
        design = self.design
        assert design is not None
        seen = design.seeds[: design.looks[look - 1].seeds] if design.looks else design.seeds
        runs = {(run.spec.arm, run.spec.seed): run for run in self.runs_in("confirm")}
        arms = design.contrast_of(design.hypothesis(hypothesis))
        found = [runs.get((arm, seed)) for arm in arms for seed in design.seeds_of(arm, seen)]
        return [
            run for run in found
            if run is None or (run.collected is None and (run.cut or run.code in ("", entries.BUDGET_EXHAUSTED)))
        ]  # fmt: skip

    @property
    def budget_amended(self) -> int:
        """Number of the event that amended the budget last; 0 if none did."""
        return max((a.seq for a in self.amendments if a.amendment.kind == "budget"), default=0)

    @property
    def budget_touched(self) -> bool:
        """Whether the budget was amended by somebody who may have seen data of this round."""
        return self.first_launch is not None and self.budget_amended > self.first_launch.seq

    @property
    def budget_decision(self) -> entries.Decision | None:
        """The decision that the budget is used up, unless the budget was amended after it."""
        return next(
            (d for d in reversed(self.decisions) if d.rule == BUDGET_RULE and d.seq > self.budget_amended), None
        )

    def is_judged_short(self, hypothesis: str, look: int, phase: Phase) -> bool:
        """Return whether the level of a look was spent before, on fewer runs; a last look spends that of all later."""
        short = self.judged_short.get((hypothesis, phase))
        if short == look or (short is not None and self.design is not None and self.design.spending == "reached"):
            return True
        spent = (v.last and v.p for v in self.interim + self.verdicts if v.hypothesis == hypothesis and v.look < look)
        return phase == "confirm" and any(p is not None for p in spent)

    def ended_by(self, hypothesis: str) -> Ended | None:
        """Return what ended the runs of a hypothesis before a look of `reached` spending had them all, if anything."""
        if self.design is None or self.design.spending == "planned":
            return None
        if hypothesis in self.vetoed or (self.budget_decision is not None and self.budget_touched):
            return "hand"
        return "budget" if self.budget_decision is not None else None

    def context_of(self, hypothesis: str, look: int, phase: Phase) -> entries.VerdictContext | None:
        """Return what the current verdict was computed with; None where it is not of this look, or there is none."""
        current = self.verdicts if phase == "confirm" else self.replications
        known = any((v.hypothesis, v.look) == (hypothesis, look) for v in current)
        return self.contexts.get((hypothesis, phase)) if known else None

    def runs_of(self, arm: str, phase: Phase = "confirm") -> tuple[entries.RunState, ...]:
        return tuple(run for run in self.runs_in(phase) if run.spec.arm == arm)

    def runs_in(self, phase: Phase) -> tuple[entries.RunState, ...]:
        """Return the runs of a phase; of the confirmation those that are as long as claims rest on."""
        return tuple(run for run in self.runs.values() if run.spec.phase == phase and self.counts(run.spec))

    def values(self, arm: str, key: str | None = None, phase: Phase = "confirm") -> dict[str, float]:
        """Return what valid collected runs of an arm have of `key` (their own metric unless given), by run id."""
        runs = [run for run in self.runs_of(arm, phase) if run.status == "collected"]
        found = {run.run_id: run.measurements.get(key or run.spec.metric.key) for run in runs}
        return {name: measured.value for name, measured in found.items() if measured is not None}
