"""Summary, list row and details of a study; what goes on with it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from research.controller.progress import progress_of
from research.isolation.mode import read_sandboxing
from research.scheduler.required_runs import open_hypotheses, runs_left
from research.text import format_flag
from studies import RunState, StudyState
from studies.checks.conditions import flatten
from studies.log.entries import ApprovalAnswer, LoggedApprovalRequest, PlannerNote
from studies.proof import DOES_NOT_FOLLOW, verdict_fault
from studies.records.statements import metric_name
from studies.records.verdict import Verdict
from studies.report.tables import values_at_own
from studies.report.wording import describe_comparison
from studies.verdicts.wording import list_replications, summarize_verdict


def summary(state: StudyState, folder: Path) -> dict[str, Any]:
    """Return what a script wants to know: status, counts, verdicts, report paths; of an inquiry, which round it is."""
    far, runs, again = progress_of(state), state.every_run, [*list_replications(state)]
    noted = max((entry.seq for entry in state.amendments if entry.amendment.kind == "note"), default=0)
    return {
        **round_progress(state),
        "study": state.id,
        "topic": state.topic,
        "status": state.status,
        "reason": state.stopped_reason or state.paused_reason or state.concluded_reason,
        "asks": None if state.open_question is None else question_json(state.open_question),
        "planner_asks": [
            {"id": note.id, "text": note.text, "ts": note.ts, "noted_since": note.seq < noted}
            for note in planner_questions(state)
        ],
        "declined": state.declined,
        "said": None if state.said is None else state.said.model_dump(mode="json"),
        "planner": dict(state.planner),
        "planner_spent": [dict(act.spent) for act in state.planner_acts if act.spent],
        "design_hash": state.design_hash,
        "runs": {"planned": len(runs), **Counter(run.status for run in runs.values() if run.status != "planned")},
        "progress": {"done": far.done, "at_most": far.most, "percent": round(far.percent, 1)},
        "verdicts": [
            {**round_number(each), **verdict_json(each, folder, verdict)}
            for each in state.rounds
            for verdict in each.verdicts
        ],
        **({"reproduces": again} if again else {}),
        **({} if state.explored is None else {"explored": list(explored_json(state)), "next": state.asked_next}),
        "head": state.head_hash,
        "report": report_paths(state, folder),
        "elapsed_s": state.elapsed_s,
    }


def explored_json(state: StudyState) -> Iterator[dict[str, Any]]:
    assert state.explored is not None
    runs = {run.spec.arm: run for run in state.runs_in("explore")}
    metric = state.explored.metric
    for arm in state.explored.arms:
        run = runs.get(arm.name)
        known = {} if run is None else run.measurements
        values = (known.get(key) for key in ("search/success/initial", "search/success", metric.key))
        before, after, scored = (None if value is None else value.value for value in values)
        yield {
            "arm": arm.name, "status": "not begun" if run is None else run.status, "before": before, "after": after,
            "metric": metric_name(metric), "value": scored, "seconds": 0.0 if run is None else run.seconds,
        }  # fmt: skip


def round_number(state: StudyState) -> dict[str, Any]:
    return {} if state.most_rounds == 1 else {"round": state.round}


def round_progress(state: StudyState) -> dict[str, Any]:
    return {} if state.most_rounds == 1 else {"round": state.round, "most_rounds": state.most_rounds}


def planner_questions(state: StudyState) -> list[PlannerNote]:
    return [note for note in state.notebook if note.kind == "ask"]


def verdict_json(state: StudyState, folder: Path, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as a script gets it: all of it, or that it does not follow, and nothing that it claims."""
    if (reason := verdict_fault(state, folder, verdict)) is None:
        speaks = None if verdict.verdict == "invalid" else verdict.scope
        told = {"scope": speaks, "by_margin": verdict.by_margin, "challenges": state.challenges(verdict.hypothesis)}
        return {**verdict.model_dump(mode="json"), **told}
    said = f"{reason}; ajet study verify {state.id}"
    return {"hypothesis": verdict.hypothesis, "verdict": DOES_NOT_FOLLOW, "reason": said}


def report_paths(state: StudyState, folder: Path) -> dict[str, str] | None:
    if state.report is None:
        return None
    return {kind: str(folder / state.report[kind]["path"]) for kind in ("markdown", "html")}


def describe_explored(entry: Mapping[str, Any]) -> str:
    if entry["before"] is None or entry["after"] is None:
        return f"{entry['arm']}: {entry['status']}"
    said = f"{entry['arm']}: {entry['before']:.3f} → {entry['after']:.3f} of search tasks, in {entry['seconds']:.0f} s"
    known = entry["value"] is not None and entry["value"] != entry["after"]
    return f"{said}; {entry['metric']} {entry['value']:.3f}" if known else said


def describe_pause(state: StudyState) -> str:
    said = "nothing new begins, what runs finishes; go on with"
    return f"paused: {state.paused_reason}; {said}: ajet study resume {state.id}"


def question_json(asked: LoggedApprovalRequest) -> dict[str, Any]:
    return {**asked.question.model_dump(mode="json"), "digest": asked.digest, "ts": asked.ts}


def answer_json(entry: ApprovalAnswer) -> dict[str, Any]:
    told = {"granted": entry.granted, "by": entry.by, "note": entry.note, "ts": entry.ts}
    return {**told, "asked": question_json(entry.asked)}


def describe_resume(state: StudyState) -> str:
    """Say what makes more runs: a study whose budget is used up only concludes when it is resumed as it is."""
    resume = f"ajet study resume {state.id}"
    named = re.search(r"--budget (\w+)", state.stopped_reason or "")  # so that a sentence has one budget
    more = named[1] if named else format_flag(2 * state.budget_s)
    if state.budget_decision is None:
        planned = state.design is not None or state.noise_plan is not None or state.explorations
        if not planned and state.budget_amended < state.stopped_seq:
            return (
                f"plan again with: {resume}; where time was missing, give it more before: "
                f'ajet study amend {state.id} --budget {more} --reason "..."'
            )
        return f"go on with: {resume}"
    has_plan = state.design is not None or state.explored is not None
    if runs_left(state) == 0:
        return f"conclude with: {resume}" if has_plan else "start it again with a larger --max-runs"
    if state.design is not None and state.design.hypotheses and not open_hypotheses(state, state.design):
        return f"each hypothesis had its last look, so more time changes nothing; conclude with: {resume}"
    without = "concludes" if has_plan else "stops again"
    late = ", exploratory as the level is spent" if any(v.last and v.p is not None for v in state.verdicts) else ""
    return (
        f'for more runs{late}: ajet study amend {state.id} --budget {more} --reason "..." and then {resume}; '
        f"resumed without, it {without}"
    )


def list_row(state: StudyState, folder: Path) -> list[str]:
    """Return a study's id, status (with the round), runs, verdicts, when it was created, and its topic."""
    progress = progress_of(state)
    where = "" if state.most_rounds == 1 else f" (round {state.round}/{state.most_rounds})"
    status = f"{'declined' if state.declined else state.status}{where}"
    verdicts = (
        ", ".join(
            verdict.verdict if verdict_fault(each, folder, verdict) is None else DOES_NOT_FOLLOW
            for verdict in each.verdicts
        )
        for each in state.rounds
    )
    runs = f"{progress.done}/{progress.most or progress.done}"
    found = "nothing tested" if state.explores else " | ".join(filter(None, verdicts))
    return [state.id, status, runs, found, state.created[:16], state.topic]


def details(state: StudyState) -> dict[str, Any]:
    def plan(of: StudyState) -> dict[str, Any]:
        at_own = values_at_own(of)
        return {"hypotheses": of.hypotheses, "design": of.design} | ({"at_own_value": at_own} if at_own else {})

    def wandb(run: RunState) -> dict[str, str]:
        last = run.attempts[-1] if run.attempts else None
        return {"wandb": last.url, "wandb_copy": last.standing} if last is not None and last.url else {}

    rounds = [
        {**round_progress(each), "why_asked": each.why_asked, "design_hash": each.design_hash, **plan(each)}
        for each in state.rounds
    ]
    return {
        **({} if state.most_rounds == 1 else {"rounds": rounds}),
        **plan(state),
        "sandbox": read_sandboxing(state.settings),
        **({"servers": servers} if (servers := state.settings.get("servers")) else {}),
        "approvals": [answer_json(entry) for entry in state.approvals],
        "run_table": [
            {
                **round_number(each), "run": run.run_id, "arm": run.spec.arm, "seed": run.spec.seed,
                "status": run.status, "attempts": len(run.attempts), "seconds": run.seconds,
                **{key: measurement.value for key, measurement in run.measurements.items()},
                **wandb(run),
            }
            for each in state.every_round for run in each.all_runs.values()
        ],
    }  # fmt: skip


_NOT_COMPARED: Final = {"seeds", "hypotheses", "arms", "budget", "price", "question", "noise", "repaired", "inquiry"}


def find_differences(*studies: StudyState) -> dict[str, list[Any]]:
    """Return what two studies differ in, by its path, each side's value; of rounds those that both have."""
    sides = []
    for state in studies:
        facts: dict[str, Any] = {"question": state.topic, "machine": state.machine, "versions": state.versions}
        for each in state.rounds[: min(len(other.rounds) for other in studies)]:
            if (design := each.design) is not None:
                facts["design" if each.round == 1 else f"round {each.round}"] = {
                    **design.model_dump(mode="json", exclude=_NOT_COMPARED), "seeds of each arm": len(design.seeds),
                    "arms": {arm.name: arm.overrides for arm in design.arms}, "model": (each.model or {}).get("sha256"),
                }  # fmt: skip
        for each, design in ((each, each.design) for each in state.rounds if each.design is not None):
            where = f" by {metric_name(design.metric)} in {design.environment}"
            judged = [(each.verdict_on(claim.id), describe_comparison(claim) + where) for claim in design.hypotheses]
            facts |= {about: summarize_verdict(design, verdict) for verdict, about in judged if verdict is not None}
        sides.append(flatten(facts))
    both = {name: [side.get(name) for side in sides] for side in sides for name in side}
    return {name: values for name, values in both.items() if values[0] != values[1]}
