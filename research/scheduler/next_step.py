"""What a study does next: a pure function of state, time left and runs at once.

A study goes through its stages in order: the run that must not learn (and A/A runs, in logs from before there were
pilots), the screen, the pilot, the confirmation look by look, the replication; then the next round's question is asked.
No run begins that by its price would end after the budget. Once that is used up, what was collected is judged, and the
study stops; resumed with no more budget, it concludes. Candidate number i of a screen is chosen by the results of those
before it less the parallel slots: equal results lead to equal candidates, wherever a controller is killed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from research.design.pricing import price_of
from research.design.screening import Allowed, Scores, ScreenProgress
from research.errors import NotReady
from research.proposals.arms import is_job
from research.scheduler import budget, steps
from research.scheduler import required_runs as need
from research.scheduler.approvals import require_approval
from research.scheduler.budget import StepLimits, replication_seconds
from research.scheduler.required_runs import RequiredRun
from research.text import format_seconds, memoize_last
from studies import RunState, StudyState
from studies.checks.conditions import find_fault, find_zero_lr_run
from studies.log.entries import BUDGET_EXHAUSTED, Decision
from studies.log.study import BUDGET_RULE, LOOK_RULE, REPAIR_RULE
from studies.records.base import JsonValue, canonical
from studies.records.design import Design, Hypothesis
from studies.records.procedure import Phase, Screen
from studies.records.runs import EVIDENCE_CODES, PLUMBING_ARM, VETOED, screen_metric
from studies.records.statements import control_values
from studies.records.verdict import Verdict

_TAKES_TIME = (steps.PlanStudy, steps.AskCandidate, steps.PlanRun, steps.PrepareModel, steps.Launch)
_USED_UP = "{:g} s of work are used up"
MOST_ATTEMPTS = 3
"""Tries at an A/A run, which has no design to say it."""


def next_step(state: StudyState, seconds_left: float, parallel: int) -> steps.Step | None:
    """Return the next step of at most `parallel` attempts; None when only those that run, or nobody, can move it on."""
    if state.concluded_reason is not None:
        return steps.BuildReport() if state.report is None else None
    if state.stopped_reason is not None:
        return next(_when_stopped(state), None)
    used_up = state.budget_decision
    if used_up is not None and (not _has_design(state) or state.stopped_seq < used_up.seq):
        return steps.StopStudy(need.budget_stop_reason(used_up))
    limits = StepLimits(seconds_left, parallel)
    if state.paused_reason is not None:  # what runs may finish, as long as there is a budget for it
        step = next(_follow_up(state), None)
        if step is None and limits.seconds <= 0 and any(need.attempts_running(state)):
            return steps.Decide(BUDGET_RULE, "stop", _USED_UP.format(state.budget_s))
        return step
    if used_up is not None:
        return next(_wind_up(state, used_up), None)
    step = next(_work(state, limits), None)
    if (reason := _budget_end_reason(state, step, limits)) is not None:
        return steps.Decide(BUDGET_RULE, "stop", reason)
    return require_approval(state, step, limits)


def is_done(state: StudyState) -> bool:
    """Return whether no tick can move the study on, unless somebody resumes it."""
    still = state.concluded_reason is not None or state.stopped_reason is not None
    return still and next_step(state, 0.0, 0) is None


def _work(state: StudyState, limits: StepLimits) -> Iterator[steps.Step]:
    required = _stage_runs(state)
    yield from _follow_up(state)
    design, runs = state.design, need.planned_runs(state)
    if need.exploration_runs(state):
        yield from _make(state, required, limits)
        if not any(need.attempts_running(state)) and price_of(state, "explore") > limits.seconds:
            left = (runs[entry] for entry in required if entry in runs and not need.is_over(runs[entry]))
            reason = "the budget carries no more of the exploration"
            yield from (steps.Invalidate(run.run_id, BUDGET_EXHAUSTED, reason) for run in left)
        return
    if state.explored is not None:
        yield steps.ConcludeStudy(steps.EXPLORED)
        return
    if design is None:
        yield from zero_lr_conclusion(state)
        yield from _make(state, required, limits)
        if not need.unmet_runs(state, required):
            yield steps.PlanStudy()
        return
    yield from repair_step(state, limits)
    yield from budget.foresee_cuts(state, design, limits)
    if design.screen is not None:
        yield from screen_step(state, design, design.screen, required, limits)
    elif not state.awaits_sizing:
        yield from judgements(state, design, limits)
        required = _held(state, design, required)
    elif not need.unmet_runs(state, required):
        if state.awaits_length and design.extension is not None:
            yield steps.DecideLength(budget.carries_longer(state, design.extension, limits))
        else:
            yield steps.SizeDesign(budget.affordable_seeds(state, design, limits))
    yield from _make(state, required, limits)
    if required or any(need.attempts_running(state)):
        return
    if need.may_continue(state) and limits.seconds > 0 and need.runs_left(state) != 0:
        yield steps.PlanRound()
    else:
        yield from conclusion(state, design)


def repair_step(state: StudyState, limits: StepLimits) -> Iterator[steps.Step]:
    """Yield the question for a repair of code that crashed, where the budget carries all arms up to a look anew."""
    crash, locked, required = state.repairable, state.locked, need.confirmation_runs(state)
    if crash is None or locked is None or any(d.rule == REPAIR_RULE and d.seq > locked.seq for d in state.decisions):
        return
    seconds = -(-len(required) // max(1, limits.parallel)) * price_of(state, "confirm")
    carried = seconds <= limits.seconds and len(required) <= (need.runs_left(state) or len(required))
    wanted = crash.spec.arm in {each.arm for each in required}  # by a claim that nobody vetoed
    answered = any(act.turn == state.repair_turn for act in state.planner_acts)  # whatever it took
    if answered or (wanted and carried and state.asks_planner and need.runs_left(state) != 0):
        yield steps.AskRepair(crash.run_id)


def _stage_runs(state: StudyState) -> tuple[RequiredRun, ...]:
    design = state.design
    if exploring := need.exploration_runs(state):
        return exploring
    if design is None:
        required = () if state.noise_plan is None else need.noise_runs(state.noise_plan)
        if required and required[0].arm == PLUMBING_ARM:
            still = need.planned_runs(state).get(required[0])
            if still is None or not need.is_over(still) or still.invalid is not None:
                return required[:1]  # nothing is trained before the machinery is seen to work
        return required
    if design.screen is not None:
        screen, progress = design.screen, _screen_progress(state, design, design.screen)
        due = (arm.name for arm in progress.asked if arm.name not in progress.scores)
        return tuple(RequiredRun("screen", arm, screen.seed, screen.rungs[0].steps) for arm in due)
    return need.confirmation_runs(state) or need.replication_runs(state, design)


def _follow_up(state: StudyState) -> Iterator[steps.Step]:
    wanted, design = _possible_runs(state), state.design
    for run in state.runs.values():
        if run.invalid is not None:
            continue
        if (step := _settle(run, design)) is not None:
            yield step
        elif not need.is_over(run) and need.to_required_run(run) not in wanted:
            about = [h.id for h in design.hypotheses if run.spec.arm in design.contrast_of(h)] if design else []
            code, why = BUDGET_EXHAUSTED, "its claim was settled on what the budget had carried"
            if (run.active is not None and state.vetoed) or (about and state.vetoed.keys() >= set(about)):
                code, why = VETOED, "nothing needs it any more: its hypothesis was vetoed"
            if run.active is not None and code == VETOED:
                yield steps.StopAttempt(run.run_id, code)
            yield steps.Invalidate(run.run_id, code, why)


@memoize_last
def _possible_runs(state: StudyState) -> frozenset[RequiredRun]:
    """Return what is needed, or will be if a verdict that is computed again at an earlier look comes out as it did."""
    design, required = state.design, _stage_runs(state)
    if design is None or design.screen is not None:
        return frozenset(required)
    return frozenset((*required, *need.later_runs(state, design)))


def _make(state: StudyState, required: Sequence[RequiredRun], limits: StepLimits) -> Iterator[steps.Step]:
    runs = need.planned_runs(state)
    left = need.runs_left(state)
    if left is None or left > 0:
        yield from (steps.PlanRun(need.spec_of(state, missing)) for missing in need.missing_runs(runs, required))
    planned = [required_run for required_run in required if required_run in runs]
    waiting = [required_run for required_run in planned if runs[required_run].status in ("planned", "ended")]
    if not waiting:
        return
    design, phase = state.design, waiting[0].phase
    of_model: Phase = "confirm" if phase == "screen" else phase  # a screen begins with the confirmation's
    if of_model not in state.prepared:
        yield steps.PrepareModel(of_model)
    if sum(1 for _ in need.attempts_running(state)) >= limits.parallel:
        return
    if design is not None and phase == "replicate" and replication_seconds(state, design, limits) > limits.seconds:
        return
    for required_run in waiting:
        if price_of(state, phase, required_run.steps) <= limits.seconds:
            run = runs[required_run]
            yield steps.Launch(run.run_id, len(run.attempts) + 1)
            return


def _settle(run: RunState, design: Design | None) -> steps.Step | None:
    if run.status not in ("ended", "collected"):
        return None
    if run.collected is None and run.attempts[-1].status == "finished":
        return steps.Collect(run.run_id)
    if (failure := need.find_failure(run, MOST_ATTEMPTS if design is None else design.max_attempts)) is not None:
        return steps.Invalidate(run.run_id, *failure)
    return steps.Measure(run.run_id) if run.collected is not None and not need.is_over(run) else None


def _budget_end_reason(state: StudyState, step: steps.Step | None, limits: StepLimits) -> str | None:
    running = any(need.attempts_running(state))
    if limits.seconds <= 0 and (isinstance(step, _TAKES_TIME) or (step is None and running)):
        return _USED_UP.format(state.budget_s)
    if step is not None or running:
        return None
    unmet = need.unmet_runs(state, _stage_runs(state))
    if need.runs_left(state) == 0 and not any(required_run in need.planned_runs(state) for required_run in unmet):
        return f"all {len(state.every_run)} runs are used up"
    if not unmet:
        raise NotReady(f"expected a next step of study {state.id}; found none, and nothing that it waits for")
    required, design = unmet[0], state.design
    price, left = price_of(state, required.phase, required.steps), f"{max(0.0, limits.seconds):.0f} s"
    replication_s = replication_seconds(state, design, limits) if required.phase == "replicate" and design else 0.0
    if replication_s > max(0.0, limits.seconds):
        takes = f"the replication takes about {format_seconds(replication_s)}"
    elif price > limits.seconds:
        takes = f"a run takes about {price:.0f} s"
    else:
        return None
    return f"{left} of {state.budget_s:g} s are left, and {takes}"


def _when_stopped(state: StudyState) -> Iterator[steps.Step]:
    """End what runs; after the budget, judge what was collected, and report that, or a denial."""
    used_up = state.budget_decision is not None
    code = BUDGET_EXHAUSTED if used_up else "stopped"
    yield from (steps.StopAttempt(run.run_id, code) for run in need.attempts_running(state))
    if used_up and state.design is not None:
        yield from filter(None, (_settle(run, state.design) for run in state.runs.values() if run.invalid is None))
        if any(run.attempts for run in state.runs_in("confirm")):
            yield from last_judgements(state, state.design)
    if (used_up or state.denial is not None) and _has_design(state) and state.report is None:
        silent = state.asks_planner and all(seq < state.stopped_seq for seq in state.spoken)
        if silent and any(each.verdicts for each in state.rounds):
            yield steps.AskWords()
        yield steps.BuildReport()


def _has_design(state: StudyState) -> bool:
    return state.design is not None or bool(state.rounds_before) or state.explored is not None


def _wind_up(state: StudyState, used_up: Decision) -> Iterator[steps.Step]:
    """Go on after the budget was used up and nobody amended it: judge what is there, and conclude."""
    yield from (steps.StopAttempt(run.run_id, BUDGET_EXHAUSTED) for run in need.attempts_running(state))
    for run in state.runs.values():
        if run.invalid is not None:
            continue
        if (step := _settle(run, state.design)) is not None:
            yield step
        elif not need.is_over(run):
            point = "had finished" if run.attempts else "began"
            yield steps.Invalidate(
                run.run_id, BUDGET_EXHAUSTED, f"the study's budget was used up before the run {point}"
            )
    if state.design is None:
        yield steps.ConcludeStudy(
            steps.EXPLORED if state.explores else f"round {state.round} {steps.UNLOCKED}: {used_up.reason}"
        )
        return
    yield from last_judgements(state, state.design)
    yield from conclusion(state, state.design)


def judgements(state: StudyState, design: Design, limits: StepLimits) -> Iterator[steps.Step]:
    """Yield the verdicts and decisions that are due: of the confirmation, then of the replication."""
    over = {required_run for required_run, run in need.planned_runs(state).items() if need.is_over(run)}
    required = need.confirmation_runs(state)
    # A verdict that stands no more is formed again before those of later looks, which take it as it stands then.
    for hypothesis in sorted(design.hypotheses, key=lambda h: need.next_analysis(state, h.id)):
        verdict = state.verdict_on(hypothesis.id)
        if state.is_settled(hypothesis.id) or (verdict is not None and _is_undecided(state, design, hypothesis)):
            continue
        analysis = need.next_analysis(state, hypothesis.id)
        seen = _seeds_of_arms(design, design.seeds[: need.count_seeds(design, analysis)])
        if all(required_run in over for required_run in required if required_run.seed in seen[required_run.arm]):
            yield steps.Judge(hypothesis.id, analysis)
    due, rest = _find_due(state, design)
    if any((d.rule, d.action) == (LOOK_RULE, "settle") for d in state.decided.values()):  # the rest of that answer
        due = tuple(replace(d, rule=LOOK_RULE, action="settle") if d.action == "continue" else d for d in due)
    asks = state.asks_planner and limits.seconds > 0 and all(decision.action == "continue" for decision in due)
    if not (due and asks) or not state.decided.keys().isdisjoint(rest):
        yield from due
    elif not rest:
        yield steps.AskLook(due)
    wanted = [] if required else need.replication_hypotheses(state, design)
    if wanted and over.issuperset(need.replication_runs(state, design)):
        yield from (steps.Judge(hypothesis.id, phase="replicate") for hypothesis in wanted)


def _find_due(state: StudyState, design: Design) -> tuple[tuple[steps.Decide, ...], list[str]]:
    """Return what the table decides on claims that were judged and not decided on since, and the other open claims."""
    due = tuple(
        _decision(state, design, claim, verdict)
        for claim in design.hypotheses
        if (verdict := state.verdict_on(claim.id)) is not None
        and not state.may_go_on(verdict) and _is_undecided(state, design, claim)
    )  # fmt: skip
    about = {decision.hypothesis for decision in due}
    return due, [claim.id for claim in need.open_hypotheses(state, design) if claim.id not in about]


def _held(state: StudyState, design: Design, required: tuple[RequiredRun, ...]) -> tuple[RequiredRun, ...]:
    """Return the runs that may begin while claims wait for others of their look: those that the others need."""
    due, rest = _find_due(state, design)
    if not due or not rest:
        return required
    seeds = max(need.count_seeds(design, need.next_analysis(state, name)) for name in rest)
    seen = _seeds_of_arms(design, design.seeds[:seeds])
    return tuple(each for each in required if each.phase != "confirm" or each.seed in seen[each.arm]) or required


def last_judgements(state: StudyState, design: Design) -> Iterator[steps.Judge]:
    """Yield the verdicts on the runs that were made, once no more will be."""
    for hypothesis in sorted(design.hypotheses, key=lambda h: need.next_analysis(state, h.id)):
        analysis = need.next_analysis(state, hypothesis.id)
        if state.is_settled(hypothesis.id):
            continue
        rest = state.ended_by(hypothesis.id) == "budget" and analysis <= len(design.looks)
        verdict = state.verdict_on(hypothesis.id)
        if verdict is None or (rest and verdict.last is None) or _has_new_runs(state, design, hypothesis, analysis):
            yield steps.Judge(hypothesis.id, analysis)
    launched = {run.spec.arm for run in state.runs_in("replicate") if run.attempts}
    for hypothesis in need.replication_hypotheses(state, design):
        if design.arm_with(hypothesis.variable, hypothesis.treatment).name in launched:
            yield steps.Judge(hypothesis.id, phase="replicate")


def conclusion(state: StudyState, design: Design) -> Iterator[steps.Step]:
    if design.screen is not None and state.budget_decision is not None:
        reason = "the budget was used up before the screen was decided: there is no claim to judge"
    elif design.screen is not None:
        reason = "no candidate of the screen could be measured to its end: there is no claim to judge"
    elif not design.hypotheses:
        reason = "the screen kept no candidate that differs from the control: there is no claim to judge"
    else:
        verdicts, count = state.verdicts, len(state.verdicts)
        reason = f"{'the hypothesis is' if count == 1 else f'all {count} hypotheses are'} judged: " + ", ".join(
            f"{verdict.hypothesis} {verdict.verdict}" for verdict in verdicts
        )
    if all((decision.rule, decision.reason) != (steps.CONCLUDE_RULE, reason) for decision in state.decisions):
        yield steps.Decide(steps.CONCLUDE_RULE, "conclude", reason)
    yield steps.ConcludeStudy(reason)


def zero_lr_conclusion(state: StudyState) -> Iterator[steps.Step]:
    """Yield the end of a study whose run with a learning rate of 0 shows that the machinery is broken."""
    run = find_zero_lr_run(state)
    if run is None or not need.is_over(run) or run.invalid is not None or (fault := find_fault(run.conditions)) is None:
        return
    reason = (
        f"invalid(plumbing): {fault}; nothing was trained after it, as no comparison by this backend could be "
        f"trusted: look at run {run.run_id}, mend the backend, and start a new study"
    )
    if all(decision.rule != steps.PLUMBING_RULE for decision in state.decisions):
        yield steps.Decide(steps.PLUMBING_RULE, "conclude", reason)
    yield steps.ConcludeStudy(reason)


def _seeds_of_arms(design: Design, drawn: Sequence[int]) -> Mapping[str, frozenset[int]]:
    return {arm.name: frozenset(design.seeds_of(arm.name, drawn)) for arm in design.arms}


def _is_undecided(state: StudyState, design: Design, hypothesis: Hypothesis) -> bool:
    ruled = bool(design.looks or design.decision_table or hypothesis.kill_if)
    return ruled and hypothesis.id not in state.decided and hypothesis.id not in state.vetoed


def _decision(state: StudyState, design: Design, hypothesis: Hypothesis, verdict: Verdict) -> steps.Decide:
    analyses = max(1, len(design.looks))
    rule = need.decide(need.rules_for(hypothesis, design.decision_table), verdict, analyses)
    action, why = rule.then, f"{rule.when}: {hypothesis.id} is {verdict.verdict} at look {verdict.look} of {analyses}"
    if action == "continue" and (verdict.final or verdict.look >= analyses):
        action, why = "settle", f"{why}, which is final"
    if action == "continue" and verdict.verdict == "invalid":
        accepted, arms = {entry.amendment.target for entry in state.amendments}, tuple(design.contrast_of(hypothesis))
        seen = _seeds_of_arms(design, design.seeds[: need.count_seeds(design, verdict.look)])
        runs = (run for arm in arms for run in state.runs_of(arm) if run.spec.seed in seen[arm])
        codes = (run.invalid[0] for run in runs if run.invalid)
        spoilt = [code for code in codes if code in EVIDENCE_CODES and code not in accepted]
        if spoilt:
            action, why = "settle", f"{why}, which no more seeds can heal: {spoilt[0]}"
    if action == "replicate" and design.replication is None:
        action, why = "settle", f"{why}, and the lock has no replication"
    return steps.Decide(rule.name, action, why, hypothesis.id, verdict.look)


def _has_new_runs(state: StudyState, design: Design, hypothesis: Hypothesis, analysis: int) -> bool:
    if analysis > max(1, len(design.looks)):
        return False
    new = _seeds_of_arms(
        design, design.seeds[need.count_seeds(design, analysis - 1) : need.count_seeds(design, analysis)]
    )
    arms = tuple(design.contrast_of(hypothesis))
    return any(run.attempts and run.spec.seed in new[arm] for arm in arms for run in state.runs_of(arm))


def screen_step(
    state: StudyState, design: Design, screen: Screen, required: tuple[RequiredRun, ...], limits: StepLimits
) -> Iterator[steps.Step]:
    """Yield the next candidate while there are slots and time for it, or whom the screen kept once it is over."""
    progress, known = _screen_progress(state, design, screen), scores(state)
    every = tuple(state.candidates)
    settled = set(every[: max(0, len(every) + 1 - int(state.settings["parallel"]))])
    arm = None
    if settled <= known.keys():  # else slots are full
        seen = {name: score for name, score in known.items() if name in settled}
        arm = replace(progress, scores=seen).next_candidate()
    if arm is not None:
        yield from budget.end_candidates(state, design, screen, limits)
        yield steps.AskCandidate(len(every), arm)
    elif not required and any(score is not None for score in known.values()):
        asked = tuple(arm for arm in progress.asked if arm.name in known)
        yield steps.DecideScreen(replace(progress, asked=asked).select())


def scores(state: StudyState) -> Scores:
    """Return the score of each candidate whose screening run is over; None for one that was given up."""
    found: dict[str, float | None] = {}
    for run in filter(need.is_over, state.runs_in("screen")):
        value = run.measurements.get(run.spec.metric.key) if run.invalid is None else None
        found[run.spec.arm] = None if value is None else value.value
    return found


def _screen_progress(state: StudyState, design: Design, screen: Screen) -> ScreenProgress:
    """Return how far the screen went; one that was cut short asks for no more candidates."""
    progress = ScreenProgress(
        screen, control_values(design), tuple(state.candidates.values()), scores(state),
        screen_metric(design.metric).higher_is_better, _cached_check(canonical(design.base_job)),
    )  # fmt: skip
    if need.was_cut(state):  # what an older version gave up then was never tried
        left = {run.spec.arm for run in state.runs_in("screen") if run.code == BUDGET_EXHAUSTED}
        asked = tuple(arm for arm in progress.asked if arm.name not in left)
        return replace(progress, asked=asked, screen=screen.model_copy(update={"candidates": len(asked)}))
    return progress


@lru_cache(maxsize=4)
def _cached_check(base: str) -> Allowed:
    """Return what says whether knob values make a job; each is tried once, as every step of a screen asks for all."""
    fields, known = json.loads(base), dict[tuple[tuple[str, JsonValue], ...], bool]()

    def is_allowed(values: Mapping[str, JsonValue]) -> bool:
        key = tuple(values.items())
        if key not in known:
            known[key] = is_job(fields, values)
        return known[key]

    return is_allowed
