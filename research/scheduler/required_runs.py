"""Which runs a study needs now, and when a run is given up: pure functions of its state.

Runs come seed by seed, so that what a budget cuts off leaves the arms in balance. A machine's failure is tried again,
up to the locked number of attempts; what another try would turn into a choice is not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from research.proposals.actions import CONDITIONS, DEFAULT_TABLE, KILL, UNRULED
from research.scheduler.steps import END_SCREEN, FAILURES, NO_MORE_CANDIDATES, SHRINK_RULE
from research.text import memoize_last
from studies import RunState, StudyState
from studies.log.entries import Decision
from studies.log.study import ASK_RULE
from studies.records import runs as records
from studies.records.alpha import exploration_spec
from studies.records.design import Design, Hypothesis, NoisePlan, RunSpec
from studies.records.procedure import Phase, Rule
from studies.records.verdict import Verdict

EVERY_RUN = 2
"""Measurements of a run: before and after training."""


class RunFailure(NamedTuple):
    """Why a run has no result that could be analysed."""

    code: str
    reason: str


def find_failure(run: RunState, max_attempts: int) -> RunFailure | None:
    """Return why a run whose last attempt ended, or that was collected, is to be given up; None if it is not."""
    if run.collected is not None:
        raised = (run.collected or {}).get("alarms", ())
        ending = next((alarm for alarm in raised if alarm["effect"] in ("worst", "exclude")), None)
        return None if ending is None else RunFailure(ending["code"], ending["sentence"])
    last = run.attempts[-1]
    if last.status not in FAILURES:
        return None
    if last.code in (*records.WORST_CODES, *records.EVIDENCE_CODES, records.NOT_MEASURABLE):
        return RunFailure(last.code, f"not tried again: {last.reason}")
    if run.spec.sources and last.code in records.WITHIN_REACH_OF_CODE:
        reason = f"not tried again, as generated code may have brought {last.code} about: {last.reason}"
        return RunFailure(records.GENERATED_CODE_FAILED, reason)
    failures = sum(attempt.status in FAILURES for attempt in run.attempts)
    if failures < max_attempts:
        return None
    return RunFailure(last.code, f"{failures} attempts failed, the last one: {last.reason}")


def rules_for(hypothesis: Hypothesis, table: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that decide on a hypothesis: its kill condition first, then the table (default: the default)."""
    kill = (Rule(name=KILL, when=hypothesis.kill_if, then="settle"),) if hypothesis.kill_if else ()
    return (*kill, *(table or DEFAULT_TABLE))


def decide(rules: Sequence[Rule], verdict: Verdict, analyses: int) -> Rule:
    """Return the first rule that holds of a verdict, else `UNRULED`; a condition of another version does not hold."""
    undecided = verdict.verdict in ("inconclusive", "invalid")
    holds = (
        not undecided, undecided and analyses > verdict.look, undecided and analyses <= verdict.look,
        verdict.verdict == "supported", verdict.verdict in ("refuted", "equivalent"),
        verdict.verdict == "inconclusive" and verdict.p is not None and verdict.p > 0.5,
    )  # fmt: skip
    conditions = dict(zip(CONDITIONS, holds, strict=True))
    return next((rule for rule in rules if conditions.get(rule.when)), UNRULED)


@dataclass(frozen=True, slots=True)
class RequiredRun:
    """A run that is needed, planned or not. `steps` is set for screening runs alone."""

    phase: Phase
    arm: str
    seed: int
    steps: int | None = None


def to_required_run(run: RunState) -> RequiredRun:
    spec = run.spec
    return RequiredRun(spec.phase, spec.arm, spec.seed, int(spec.job["steps"]) if spec.phase == "screen" else None)


def is_over(run: RunState) -> bool:
    """Return whether a run is measured or given up; one that ended by an alarm is yet to be given up."""
    if run.invalid is not None:
        return True
    measured = len(run.measurements) >= EVERY_RUN and run.spec.metric.key in run.measurements
    return measured and find_failure(run, 1) is None


def attempts_running(state: StudyState) -> Iterator[RunState]:
    return (run for run in state.runs.values() if run.active is not None)


@memoize_last
def planned_runs(state: StudyState) -> Mapping[RequiredRun, RunState]:
    return {to_required_run(run): run for run in state.runs.values() if state.counts(run.spec)}


def unmet_runs(state: StudyState, required: Iterable[RequiredRun]) -> list[RequiredRun]:
    runs = planned_runs(state)
    return [required_run for required_run in required if required_run not in runs or not is_over(runs[required_run])]


def noise_runs(plan: NoisePlan) -> tuple[RequiredRun, ...]:
    """Return the runs of a noise plan: the one that must not learn first, then the A/A runs."""
    still = () if plan.plumbing is None else (RequiredRun("noise", records.PLUMBING_ARM, plan.plumbing),)
    return (*still, *(RequiredRun("noise", records.NOISE_ARM, seed) for seed in plan.seeds))


def exploration_runs(state: StudyState) -> tuple[RequiredRun, ...]:
    """Return the runs of the exploration that was planned last, as long as one of them is not over."""
    if not state.explorations:
        return ()
    plan = state.explorations[-1].plan
    wanted = tuple(RequiredRun("explore", arm.name, seed) for seed in plan.seeds for arm in plan.arms)
    return wanted if unmet_runs(state, wanted) else ()


def confirmation_runs(state: StudyState, *, all_analyses: bool = False) -> tuple[RequiredRun, ...]:
    """Return the runs of the confirmation up to the looks that open hypotheses wait for, or up to the last one."""
    next_ones, all_of_them = _confirmation_runs(state)
    return all_of_them if all_analyses else next_ones


@memoize_last
def _confirmation_runs(state: StudyState) -> tuple[tuple[RequiredRun, ...], tuple[RequiredRun, ...]]:
    if (design := state.design) is None:
        return (), ()
    claims = open_hypotheses(state, design)
    counts = [count_seeds(design, next_analysis(state, claim.id)) for claim in claims]

    def runs(seeds: Sequence[int]) -> tuple[RequiredRun, ...]:
        limits: dict[str, int] = {}
        for claim, count in zip(claims, seeds, strict=True):
            limits |= {arm: max(limits.get(arm, 0), count) for arm in design.contrast_of(claim)}
        own = {arm: design.seeds_of(arm, design.seeds[:count]) for arm, count in limits.items()}
        return tuple(
            RequiredRun("confirm", arm.name, own[arm.name][index])
            for index in range(len(design.seeds))
            for arm in design.arms
            if index < limits.get(arm.name, 0)
        )

    return runs(counts), runs([len(design.seeds)] * len(claims))


def replication_runs(state: StudyState, design: Design) -> tuple[RequiredRun, ...]:
    """Return the runs in the replication's setting that a decision asked for."""
    wanted = replication_hypotheses(state, design)
    if design.replication is None or not wanted:
        return ()
    arms = _all_arms(design, wanted)
    return tuple(
        RequiredRun("replicate", arm.name, design.seeds_of(arm.name, [seed])[0])
        for seed in design.replication.seeds
        for arm in design.arms
        if arm.name in arms
    )


def later_runs(state: StudyState, design: Design) -> tuple[RequiredRun, ...]:
    """Return every run that a hypothesis which is not given up may come to need, at any look or in the replication."""
    judged = {verdict.hypothesis for verdict in state.replications}
    repeated = [h for h in design.hypotheses if h.id not in state.vetoed and h.id not in judged]
    again = () if design.replication is None else design.replication.seeds
    phases: tuple[tuple[Phase, list[Hypothesis], Sequence[int]], ...] = (
        ("confirm", open_hypotheses(state, design), design.seeds), ("replicate", repeated, again),
    )  # fmt: skip
    return tuple(
        RequiredRun(phase, arm, seed)
        for phase, claims, seeds in phases
        for arm in _all_arms(design, claims)
        for seed in design.seeds_of(arm, seeds)
    )


def _all_arms(design: Design, hypotheses: Sequence[Hypothesis]) -> set[str]:
    return {arm for claim in hypotheses for arm in design.contrast_of(claim)}


def open_hypotheses(state: StudyState, design: Design) -> list[Hypothesis]:
    return [h for h in design.hypotheses if not state.is_settled(h.id) and h.id not in state.vetoed]


def replication_hypotheses(state: StudyState, design: Design) -> list[Hypothesis]:
    """Return the hypotheses that wait for the verdict on their replication."""
    judged = {verdict.hypothesis for verdict in state.replications}
    asked = {name for name, decision in state.decided.items() if decision.action == "replicate"}
    return [h for h in design.hypotheses if h.id in asked - judged and h.id not in state.vetoed]


def next_analysis(state: StudyState, hypothesis: str) -> int:
    """Return the look at which a hypothesis that is not settled is judged next."""
    verdict = state.verdict_on(hypothesis)
    if verdict is not None:
        return verdict.look + 1
    before = (*state.interim, *state.superseded)
    analysis = max((v.look for v in before if v.hypothesis == hypothesis and v.phase == "confirm"), default=1)
    analyses = 1 if state.design is None else len(state.design.looks)
    return analysis + 1 if state.judged_short.get((hypothesis, "confirm")) == analysis < analyses else analysis


def count_seeds(design: Design, analysis: int) -> int:
    if not design.looks:
        return len(design.seeds)
    return design.looks[min(analysis, len(design.looks)) - 1].seeds


def spec_of(state: StudyState, required_run: RequiredRun) -> RunSpec:
    if required_run.phase == "noise":
        plan, key = state.noise_plan, state.noise_hash
        if plan is None or key is None:
            raise ValueError(f"expected a plan of A/A runs in study {state.id}; found none to make {required_run} by")
        make_noise = records.zero_lr_spec if required_run.arm == records.PLUMBING_ARM else records.noise_spec
        return make_noise(state.id, plan, key, required_run.seed)
    if required_run.phase == "explore":
        tried = next(each.plan for each in state.explorations if required_run.seed in each.plan.seeds)
        arm = next(arm for arm in tried.arms if arm.name == required_run.arm)
        return exploration_spec(state.id, tried, arm, required_run.seed)
    design, lock = state.design, state.design_hash
    if design is None or lock is None:
        raise ValueError(f"expected a locked design in study {state.id}; found none to make {required_run} by")
    if required_run.steps is not None:
        return records.screen_spec(state.id, design, lock, state.candidates[required_run.arm], required_run.steps)
    arm = {arm.name: arm for arm in design.arms}[required_run.arm]
    make = records.replicate_spec if required_run.phase == "replicate" else records.confirm_spec
    return make(state.id, design, lock, arm, required_run.seed)


def runs_left(state: StudyState) -> int | None:
    """Return how many more runs may be planned, of all phases; None for any number."""
    most = state.settings.get("max_runs")
    return None if most is None else max(0, int(most) - len(state.every_run))


def budget_stop_reason(decision: Decision) -> str:
    """Return the reason by which a study stops after the decision that its budget is used up."""
    return f"budget: {decision.reason}"


def is_stopped_by_budget(state: StudyState) -> bool:
    """Return whether it was the budget that stopped a study; somebody may do so, too, after it was used up."""
    used_up = state.budget_decision
    return used_up is not None and state.stopped_reason == budget_stop_reason(used_up)


def was_cut(state: StudyState) -> bool:
    """Return whether the screen asks for no more candidates, to keep the confirmation within the budget."""
    return any(d.rule == SHRINK_RULE and d.action in (NO_MORE_CANDIDATES, END_SCREEN) for d in state.decisions)


def may_continue(state: StudyState) -> bool:
    """Return whether another round may follow: the inquiry has some left, and nobody said that there is none to ask."""
    answered = any(decision.rule == ASK_RULE for decision in state.decisions)
    return state.round < state.most_rounds and not answered and state.budget_decision is None


def is_complete(state: StudyState) -> bool:
    """Return whether no run is needed any more: what is left is to judge, to conclude and to report."""
    design = state.design
    if may_continue(state) or design is None or design.screen is not None:
        return False
    if state.budget_decision is not None:
        return True
    settled = all(state.is_settled(h.id) or h.id in state.vetoed for h in design.hypotheses)
    if not all(is_over(run) for run in state.runs.values()) or (design.looks and not settled):
        return False
    return not missing_runs(planned_runs(state), (*confirmation_runs(state), *replication_runs(state, design)))


def missing_runs(runs: Mapping[RequiredRun, RunState], required: Sequence[RequiredRun]) -> list[RequiredRun]:
    return [required_run for required_run in required if required_run not in runs]
