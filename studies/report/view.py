"""Everything a report shows, as one value computed from state and evidence; templates only lay it out.

A pure function: no file is opened, no time is read. It builds a report from any state, however early or broken
off, and refuses (ReportError) only a verdict that does not follow from the runs it would be shown beside.
"""

from __future__ import annotations

from dataclasses import dataclass

from studies.errors import ReportError
from studies.records import Verdict
from studies.report import accounting, claims, exploratory, procedure, rewards, stages
from studies.report.deviations import deviation_table
from studies.report.evidence import Evidence
from studies.report.parts import Answer, Code, Fact, Quote, Remark, Table, pairs
from studies.report.scrutiny import checks, threats, verdict_follows
from studies.report.series import (
    Curves,
    Forecasts,
    Screening,
    Shifts,
    curves,
    forecasts,
    reward_curves,
    screening,
    shifts,
)
from studies.report.wording import command_line, duration, moment, one_line, plural, value_of
from studies.said import quotation
from studies.standing import StudyState

_STANDING = {
    "planning": "Partial report: the study is still being planned.",
    "running": "Partial report: the study is not finished.",
    "paused": "Partial report: the study is paused",
    "judged": "",
    "concluded": "",
    "stopped": "Partial report: the study is stopped",
}


@dataclass(frozen=True, slots=True)
class DesignView:
    """The locked design."""

    proof: str
    arms: Table
    facts: Table
    stakes: Table | None
    looks: Table | None
    rules: Table | None
    limits: Table | None
    constants: Table


@dataclass(frozen=True, slots=True)
class Stages:
    """What was run beside the confirmation, and what its looks said."""

    noise: str
    noise_runs: Table | None
    screen: tuple[str, ...]
    candidates: Table | None
    screened: Screening | None
    looks: Table | None
    replication: Table | None


@dataclass(frozen=True, slots=True)
class ReportView:
    """A report's whole content in the order it is read; None or an empty tuple where there is nothing to show."""

    study: str
    title: str
    status: str
    partial: str
    built_from: str
    answers: tuple[Answer, ...]
    planner: str
    said: str
    """The planner's last words as a quotation; empty where it had none."""
    summary: tuple[Fact, ...]
    forecasts: Forecasts | None
    predictions: Table | None
    verdicts: Table | None
    rules: tuple[str, ...]
    quotes: tuple[Quote, ...]
    curves: Curves | None
    reward_curves: tuple[Curves, ...]
    shifts: Shifts | None
    arms: Table | None
    stages: Stages
    exploratory: Table | None
    design: DesignView | None
    deviations: Table | None
    codes: tuple[Code, ...]
    codes_written: str
    accounting: str
    runs: Table | None
    files: Table | None
    decisions: Table | None
    planner_acts: Table | None
    cost: Table
    checks: tuple[Remark, ...]
    threats: tuple[Remark, ...]
    command: str
    versions: Table
    machine: Table
    events: int
    head_hash: str


def view(state: StudyState, evidence: Evidence) -> ReportView:
    """Return the content of the report on `state`; raise ReportError when a verdict does not follow from its runs."""
    _refuse_stale(state)
    return ReportView(
        study=state.id,
        title=one_line(state.topic) or "(no topic)",
        status=state.status,
        partial=_partial(state, evidence),
        built_from=f"{plural(state.event_count, 'event')}, the last at {moment(state.last_ts)}",
        answers=claims.answers(state),
        planner=claims.planner_said(state),
        said=quotation(state.said) if state.said is not None else "",
        summary=_summary(state),
        forecasts=forecasts(state),
        predictions=claims.prediction_table(state),
        verdicts=claims.verdict_table(state),
        rules=claims.rules(state),
        quotes=claims.quotes(state),
        curves=curves(state, evidence),
        reward_curves=reward_curves(state, evidence),
        shifts=shifts(state),
        arms=accounting.arm_table(state),
        stages=_stages(state),
        exploratory=exploratory.table_of(state),
        design=_design(state),
        deviations=deviation_table(state),
        codes=rewards.codes(state),
        codes_written=rewards.written(state),
        accounting=accounting.accounting(state),
        runs=accounting.run_table(state),
        files=accounting.file_table(evidence),
        decisions=accounting.decision_table(state),
        planner_acts=accounting.planner_table(state),
        cost=accounting.cost_table(state),
        checks=checks(state, evidence),
        threats=threats(state, evidence),
        command=command_line(state.command),
        versions=pairs([Fact(name, value_of(value)) for name, value in sorted(state.versions.items())]),
        machine=pairs([Fact(name, value_of(value)) for name, value in sorted(state.machine.items())]),
        events=state.event_count,
        head_hash=state.head_hash,
    )


def _refuse_stale(state: StudyState) -> None:
    for verdict in (*state.verdicts, *state.replications):
        if not verdict_follows(state, verdict):
            raise ReportError(
                f"the verdict on {_called(verdict)} does not follow from the runs in the event log: expected the "
                f"inputs {verdict.inputs_sha256[:12]}. Judge the study again; no report is built on it"
            )


def _called(verdict: Verdict) -> str:
    return f"the replication of {verdict.hypothesis}" if verdict.phase == "replicate" else verdict.hypothesis


def _partial(state: StudyState, evidence: Evidence) -> str:
    """Return what a reader must know before the answers; empty where there is nothing."""
    if evidence.lock_error is not None and any(verdict.verdict != "invalid" for verdict in state.verdicts):
        return f"No verdict below follows from the locked design any more: {evidence.lock_error}."
    said = _STANDING[state.status]
    reason = state.stopped_reason or state.paused_reason
    return f"{said} ({one_line(reason)})." if state.status in ("stopped", "paused") and reason else said


def _stages(state: StudyState) -> Stages:
    return Stages(
        noise=stages.noise_said(state),
        noise_runs=stages.noise_table(state),
        screen=stages.screen_words(state),
        candidates=stages.screen_table(state),
        screened=screening(state),
        looks=stages.looks_taken(state),
        replication=stages.replication_table(state),
    )


def _summary(state: StudyState) -> tuple[Fact, ...]:
    if state.design is None:
        return (Fact("Runs", str(len(state.runs))), Fact("Wall clock", duration(state.elapsed_s)))
    collected = sum(run.status == "collected" for run in state.runs_in("confirm"))
    most = len(state.design.arms) * len(state.design.seeds)
    return (
        Fact("Runs that count", f"{collected} of {'at most ' if len(state.design.looks) > 1 else ''}{most}"),
        Fact("Arms and seeds", f"{len(state.design.arms)} and {len(state.design.seeds)}"),
        Fact("Hidden episodes per run", f"{state.design.metric.episodes:,}"),
        Fact("Wall clock", duration(state.elapsed_s)),
    )


def _design(state: StudyState) -> DesignView | None:
    if state.design is None:
        return None
    design = state.design
    return DesignView(
        proof=accounting.lock_proof(state),
        arms=accounting.design_arms(design),
        facts=procedure.design_facts(design, state.design_hash),
        stakes=procedure.stakes_table(design.hypotheses),
        looks=procedure.looks_table(design),
        rules=procedure.rules_table(design),
        limits=procedure.limits_table(design.watchdog),
        constants=accounting.constants(design),
    )
