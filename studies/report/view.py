"""Everything a report shows, as one value computed from state and evidence; templates only lay it out.

A pure function: no file is opened, no time is read. It builds a report from any state, however early or broken
off, and refuses (ReportError) only a verdict that does not follow from the runs it would be shown beside.
"""

from __future__ import annotations

from dataclasses import dataclass

from studies.log.study_state import StudyState
from studies.records.errors import ReportError
from studies.records.verdict import Verdict
from studies.report.figures.series import (
    Curves,
    Forecasts,
    Screening,
    Shifts,
    curves,
    forecasts,
    hidden_curves,
    reward_curves,
    screening,
    shifts,
    training_curves,
)
from studies.report.headline.headline import Headline, headline
from studies.report.measures.table import facts_table, others_table
from studies.report.parts.evidence import Evidence
from studies.report.parts.parts import Code, Fact, Quote, Remark, Table, pairs
from studies.report.parts.wording import command_line, compared, duration, moment, one_line, plural, value_of
from studies.report.sections import accounting, claims, collapses, procedure, rewards, stages
from studies.report.sections.deviations import deviation_table
from studies.report.sections.scrutiny import checks, threats
from studies.report.sections.transcripts import Play, transcripts
from studies.verdicts.recompute import verdict_follows

_STANDING = {
    "planning": "Partial report: the study is still being planned.",
    "running": "Partial report: the study is not finished.",
    "waiting": "Partial report: the study waits for approval.",
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
    screen: str
    screen_rules: str
    candidates: Table | None
    screened: Screening | None
    looks: Table | None
    replication: Table | None


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """How trainings went, for whoever unfolds it: logged metrics, rewards apart, plays before and after."""

    curves: tuple[Curves, ...]
    reward_curves: tuple[Curves, ...]
    transcripts: tuple[Play, ...]


@dataclass(frozen=True, slots=True)
class Appendix:
    """What a busy person does not read, and nobody can do without: design, runs, hashes, versions, constants."""

    numbers: Table | None
    rules: tuple[str, ...]
    quotes: tuple[Quote, ...]
    arms: Table | None
    collapses: Table | None
    others: Table | None
    facts: Table | None
    design: DesignView | None
    codes: tuple[Code, ...]
    codes_written: str
    accounting: str
    runs: Table | None
    files: Table | None
    copies: Table | None
    """Pages at W&B."""
    decisions: Table | None
    approvals: Table | None
    planner_acts: Table | None
    notebook: Table | None
    """What the planner wrote down, quoted."""
    cost: Table
    remarks: tuple[Remark, ...]
    command: str
    versions: Table
    machine: Table
    built_from: str
    head_hash: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """A report's whole content in the order it is read; None or an empty tuple where there is nothing to show."""

    study: str
    title: str
    partial: str
    head: Headline
    planner: str
    said: str
    """The planner's last words as a quotation; empty where it had none."""
    summary: tuple[Fact, ...]
    forecasts: Forecasts | None
    verdicts: Table | None
    arms: Table | None
    shifts: Shifts | None
    hidden: Curves | None
    curves: Curves | None
    stages: Stages
    deviations: Table | None
    threats: tuple[Remark, ...]
    training: TrainingSection
    appendix: Appendix

    @property
    def measured(self) -> bool:
        """Whether any run of any stage was collected."""
        return bool(self.shifts or self.curves or self.stages.screened)


def view(state: StudyState, evidence: Evidence) -> ReportView:
    """Return the content of the report on `state`; raise ReportError when a verdict does not follow from its runs."""
    _refuse_stale(state)
    remarks = (*checks(state, evidence), *threats(state, evidence))
    return ReportView(
        study=state.id,
        title=title(state),
        partial=partial(state),
        head=headline(state, evidence.lock_error),
        planner=claims.planner_said(state),
        said=claims.last_words(state),
        summary=_summary(state),
        forecasts=forecasts(state),
        verdicts=claims.verdict_table(state),
        arms=accounting.arm_table(state),
        shifts=shifts(state),
        hidden=hidden_curves(state, evidence),
        curves=curves(state, evidence),
        stages=_stages(state),
        deviations=deviation_table(state),
        threats=tuple(remark for remark in remarks if remark.level in _URGENT),
        training=TrainingSection(
            training_curves(state, evidence), reward_curves(state, evidence), transcripts(state, evidence)
        ),
        appendix=_appendix(state, evidence, remarks),
    )


def _appendix(state: StudyState, evidence: Evidence, remarks: tuple[Remark, ...]) -> Appendix:
    return Appendix(
        numbers=claims.numbers_table(state),
        rules=claims.rules(state),
        quotes=claims.quotes(state),
        arms=accounting.whole_arm_table(state),
        collapses=collapses.table_of(state),
        others=others_table(state, evidence),
        facts=facts_table(state, evidence),
        design=_design(state),
        codes=rewards.codes(state),
        codes_written=rewards.written(state),
        accounting=accounting.accounting(state),
        runs=accounting.run_table(state),
        files=accounting.file_table(evidence),
        copies=accounting.copy_table(state),
        decisions=accounting.decision_table(state),
        approvals=accounting.approval_table(state),
        planner_acts=accounting.planner_table(state),
        notebook=accounting.notebook_table(state),
        cost=accounting.cost_table(state),
        remarks=tuple(remark for remark in remarks if remark.level not in _URGENT),
        command=command_line(state.command),
        versions=pairs([Fact(name, value_of(value)) for name, value in sorted(state.versions.items())]),
        machine=pairs([Fact(name, value_of(value)) for name, value in sorted(state.machine.items())]),
        built_from=f"{plural(state.event_count, 'event')}, the last at {moment(state.last_ts)}",
        head_hash=state.head_hash,
    )


_URGENT = ("failed", "threat")
"""Levels of what every reader has to know."""


def title(state: StudyState) -> str:
    """Return what is compared, and where; the topic while nothing is planned, which stands in full below."""
    design = state.design
    if design is None:
        topic = one_line(state.topic) or "(no topic)"
        return topic if len(topic) <= _TITLE else f"{topic[: _TITLE - 1]}…"
    if len(design.hypotheses) == 1:
        said = f"{compared(design.hypotheses[0])}, in {design.environment}"
        if len(said) <= _TITLE:
            return said
    return f"{procedure.what_differs(design)} in {design.environment}"


_TITLE = 110


def _refuse_stale(state: StudyState) -> None:
    for verdict in (*state.verdicts, *state.replications):
        if not verdict_follows(state, verdict):
            raise ReportError(
                f"the verdict on {_called(verdict)} does not follow from the runs in the event log: expected the "
                f"inputs {verdict.inputs_sha256[:12]}. Judge the study again; no report is built on it"
            )


def _called(verdict: Verdict) -> str:
    return f"the replication of {verdict.hypothesis}" if verdict.phase == "replicate" else verdict.hypothesis


def partial(state: StudyState) -> str:
    """Return what a reader must know before the answers; empty where there is nothing."""
    said = _STANDING[state.status]
    reason = state.stopped_reason or state.paused_reason
    return f"{said} ({one_line(reason)})." if state.status in ("stopped", "paused") and reason else said


def _stages(state: StudyState) -> Stages:
    return Stages(
        noise=stages.noise_said(state),
        noise_runs=stages.noise_table(state),
        screen=stages.screen_led(state),
        screen_rules=stages.screen_rules(state),
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
        constants=accounting.constants(state, design),
    )
