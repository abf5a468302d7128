"""From runs that are over to an end: verdicts at looks, decisions, screen steps, conclusion.

Pure functions of the state. A hypothesis is judged when every run of the open arms up to its look is over; a vetoed one
with the others. What a rule decides is about runs only: a claim rests on the locked test whatever the table says.

The screen's next step: `research.design.screening` chooses and ranks. Candidate number i is chosen by the results of
those before it less the parallel slots, whatever else is known: equal results lead to equal candidates, wherever a
controller is killed. A run that was given up has no score, which ranks worst.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from research.design.screening import Allowed, Scores, ScreenProgress
from research.proposals.actions import decide, rules_for
from research.proposals.arms import is_job
from research.scheduler.budget import StepLimits, end_candidates
from research.scheduler.required_runs import (
    RequiredRun,
    attempts_running,
    confirmation_runs,
    count_seeds,
    is_over,
    next_analysis,
    planned_runs,
    replication_hypotheses,
    replication_runs,
    to_required_run,
    was_cut,
)
from research.scheduler.steps import (
    BUDGET_CODE,
    CONCLUDE_RULE,
    END_SCREEN,
    NO_MORE_CANDIDATES,
    PLUMBING_RULE,
    AskCandidate,
    ConcludeStudy,
    Decide,
    DecideScreen,
    Judge,
    Step,
)
from studies import StudyState
from studies.checks.training import PLUMBING, find_fault, find_zero_lr_run
from studies.records.base import JsonValue, canonical
from studies.records.design import Design, Hypothesis
from studies.records.procedure import Screen
from studies.records.runs import EVIDENCE_CODES, screen_metric
from studies.records.statements import control_values
from studies.records.verdict import Verdict


def judgements(state: StudyState, design: Design) -> Iterator[Step]:
    """Yield the verdicts and decisions that are due: of the confirmation, then of the replication."""
    over = {required_run for required_run, run in planned_runs(state).items() if is_over(run)}
    required = confirmation_runs(state)
    # A verdict that stands no more is formed again before those of later looks, which take it as it stands then.
    for hypothesis in sorted(design.hypotheses, key=lambda h: next_analysis(state, h.id)):
        verdict = state.verdict_on(hypothesis.id)
        if state.is_settled(hypothesis.id) or (verdict is not None and _is_undecided(state, design, hypothesis)):
            continue
        analysis = next_analysis(state, hypothesis.id)
        seen = _seeds_of_arms(design, design.seeds[: count_seeds(design, analysis)])
        if all(required_run in over for required_run in required if required_run.seed in seen[required_run.arm]):
            yield Judge(hypothesis.id, analysis)
    for hypothesis in design.hypotheses:
        verdict = state.verdict_on(hypothesis.id)
        if verdict is not None and not state.may_go_on(verdict) and _is_undecided(state, design, hypothesis):
            yield _decision(state, design, hypothesis, verdict)
    wanted = [] if required else replication_hypotheses(state, design)
    if wanted and over.issuperset(replication_runs(state, design)):
        yield from (Judge(hypothesis.id, phase="replicate") for hypothesis in wanted)


def last_judgements(state: StudyState, design: Design) -> Iterator[Judge]:
    """Yield the verdicts on the runs that were made, once no more will be."""
    for hypothesis in sorted(design.hypotheses, key=lambda h: next_analysis(state, h.id)):
        analysis = next_analysis(state, hypothesis.id)
        if state.is_settled(hypothesis.id):
            continue
        rest = state.ended_by(hypothesis.id) == "budget" and analysis <= len(design.looks)
        verdict = state.verdict_on(hypothesis.id)
        if verdict is None or (rest and verdict.last is None) or _has_new_runs(state, design, hypothesis, analysis):
            yield Judge(hypothesis.id, analysis)
    launched = {run.spec.arm for run in state.runs_in("replicate") if run.attempts}
    for hypothesis in replication_hypotheses(state, design):
        if design.arm_with(hypothesis.variable, hypothesis.treatment).name in launched:
            yield Judge(hypothesis.id, phase="replicate")


def conclusion(state: StudyState, design: Design) -> Iterator[Step]:
    """Yield the decision to conclude, then the conclusion."""
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
    if all((decision.rule, decision.reason) != (CONCLUDE_RULE, reason) for decision in state.decisions):
        yield Decide(CONCLUDE_RULE, "conclude", reason)
    yield ConcludeStudy(reason)


def zero_lr_conclusion(state: StudyState) -> Iterator[Step]:
    """Yield the end of a study whose run with a learning rate of 0 shows that the machinery is broken."""
    run = find_zero_lr_run(state)
    if run is None or not is_over(run) or run.invalid is not None or (fault := find_fault(run.conditions)) is None:
        return
    reason = (
        f"invalid({PLUMBING}): {fault}; nothing was trained after it, as no comparison by this backend could be "
        f"trusted: look at run {run.run_id}, mend the backend, and start a new study"
    )
    if all(decision.rule != PLUMBING_RULE for decision in state.decisions):
        yield Decide(PLUMBING_RULE, "conclude", reason)
    yield ConcludeStudy(reason)


def _seeds_of_arms(design: Design, drawn: Sequence[int]) -> Mapping[str, frozenset[int]]:
    return {arm.name: frozenset(design.seeds_of(arm.name, drawn)) for arm in design.arms}


def _is_undecided(state: StudyState, design: Design, hypothesis: Hypothesis) -> bool:
    ruled = bool(design.looks or design.decision_table or hypothesis.kill_if)
    return ruled and hypothesis.id not in state.decided and hypothesis.id not in state.vetoed


def _decision(state: StudyState, design: Design, hypothesis: Hypothesis, verdict: Verdict) -> Decide:
    analyses = max(1, len(design.looks))
    rule = decide(rules_for(hypothesis, design.decision_table), verdict, analyses)
    action, why = rule.then, f"{rule.when}: {hypothesis.id} is {verdict.verdict} at look {verdict.look} of {analyses}"
    if action == "continue" and (verdict.final or verdict.look >= analyses):
        action, why = "settle", f"{why}, which is final"
    if action == "continue" and (code := _find_altered_evidence(state, design, hypothesis, verdict)) is not None:
        action, why = "settle", f"{why}, which no more seeds can heal: {code}"
    if action == "replicate" and design.replication is None:
        action, why = "settle", f"{why}, and the lock has no replication"
    return Decide(rule.name, action, why, hypothesis.id, verdict.look)


def _find_altered_evidence(state: StudyState, design: Design, hypothesis: Hypothesis, verdict: Verdict) -> str | None:
    """Return the code of altered evidence that a verdict rests on, unless an amendment accepts it; None without any."""
    accepted = {entry.amendment.target for entry in state.amendments}
    arms = tuple(design.contrast_of(hypothesis))
    seen = _seeds_of_arms(design, design.seeds[: count_seeds(design, verdict.look)])
    runs = (run for arm in arms for run in state.runs_of(arm) if run.spec.seed in seen[arm])
    codes = (run.invalid[0] for run in runs if run.invalid)
    spoilt = (code for code in codes if code in EVIDENCE_CODES and code not in accepted)
    return next(spoilt, None) if verdict.verdict == "invalid" else None


def _has_new_runs(state: StudyState, design: Design, hypothesis: Hypothesis, analysis: int) -> bool:
    if analysis > max(1, len(design.looks)):
        return False
    new = _seeds_of_arms(design, design.seeds[count_seeds(design, analysis - 1) : count_seeds(design, analysis)])
    arms = tuple(design.contrast_of(hypothesis))
    return any(run.attempts and run.spec.seed in new[arm] for arm in arms for run in state.runs_of(arm))


def screen_runs(state: StudyState, design: Design, screen: Screen) -> tuple[RequiredRun, ...]:
    """Return the screening runs that are needed now, those that are over excepted."""
    if was_cut(state, END_SCREEN):
        return tuple(to_required_run(run) for run in attempts_running(state))
    return tuple(
        RequiredRun("screen", trial.candidate, screen.seed, screen.rungs[trial.rung].steps)
        for trial in _screen_progress(state, design, screen).due_trials()
    )


def screen_step(
    state: StudyState, design: Design, screen: Screen, required: tuple[RequiredRun, ...], limits: StepLimits
) -> Iterator[Step]:
    """Yield the next candidate while there are slots and time for it, or whom the screen kept once it is over."""
    progress, known = _screen_progress(state, design, screen), scores(state, screen)
    every = tuple(state.candidates)
    settled = set(every[: max(0, len(every) + 1 - int(state.settings["parallel"]))])
    arm = None
    if all((name, 0) in known for name in settled):  # else slots are full
        seen = {trial: score for trial, score in known.items() if trial[0] in settled}
        arm = replace(progress, scores=seen).next_candidate()
    last = len(progress.screen.rungs) - 1
    if arm is not None:
        yield from end_candidates(state, design, screen, limits)
        yield AskCandidate(len(every), arm)
    elif not required and any(rung == last and score is not None for (_, rung), score in known.items()):
        asked = tuple(arm for arm in progress.asked if (arm.name, 0) in known)
        yield DecideScreen(replace(progress, asked=asked).select())


def scores(state: StudyState, screen: Screen) -> Scores:
    """Return the score of each screening run that is over, by candidate and rung; None for one that was given up."""
    found: dict[tuple[str, int], float | None] = {}
    ended = was_cut(state, END_SCREEN)
    for run in state.runs_in("screen"):
        if is_over(run) and not (ended and run.invalid is not None and run.invalid[0] == BUDGET_CODE):
            value = run.measurements.get(run.spec.metric.key) if run.invalid is None else None
            for index, rung in enumerate(screen.rungs):
                if rung.steps == int(run.spec.job["steps"]):
                    found[run.spec.arm, index] = None if value is None else value.value
    return found


def _screen_progress(state: StudyState, design: Design, screen: Screen) -> ScreenProgress:
    """Return how far the screen went; one that was cut short asks for no more candidates, or is at its end."""
    progress = ScreenProgress(
        screen, control_values(design), tuple(state.candidates.values()), scores(state, screen),
        screen_metric(design.metric).higher_is_better, _cached_check(canonical(design.base_job)),
    )  # fmt: skip
    if was_cut(state, END_SCREEN):
        return progress.ended()
    if was_cut(state, NO_MORE_CANDIDATES):
        return replace(progress, screen=screen.model_copy(update={"candidates": len(progress.asked)}))
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
