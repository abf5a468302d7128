"""Everything a report shows, as one value computed from state and evidence.

A pure function: no file is opened, no time is read; templates only lay it out. It builds a report from any state,
however early or broken off, and refuses (ReportError) only a verdict that does not follow from its round's runs. An
inquiry shows first answers over all rounds, then each round as a study of one round, then the error ledgers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from studies.errors import ReportError
from studies.log.study import StudyState
from studies.records.statements import value_of
from studies.records.verdict import Verdict
from studies.report import claims, design_tables, rounds, run_tables
from studies.report.claims import Play, deviation_table, transcripts
from studies.report.design_tables import what_differs
from studies.report.elements import Code, Fact, Quote, Remark, Table, every_state, pairs
from studies.report.evidence import Evidence
from studies.report.figure_data import (
    Curves,
    Effects,
    Forecasts,
    LevelBars,
    Screening,
    Shifts,
    claim_effects,
    curves,
    forecasts,
    hidden_curves,
    level_bars,
    reward_curves,
    screening,
    shifts,
    training_curves,
)
from studies.report.measures import facts_table, others_table
from studies.report.rounds import (
    ExplorationTable,
    LedgerSection,
    count_locked_rounds,
    exploration_tables,
    ledger_section,
    ledgers_now,
)
from studies.report.summary import CampaignAnswer, Headline, campaign_answer, headline, words_at_end
from studies.report.validity import checks, threats
from studies.report.wording import command_line, describe_comparison, duration, fine_percent, moment, one_line, plural
from studies.verdicts.judge import verdict_follows

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
    decisions: Table | None
    approvals: Table | None
    planner_acts: Table | None
    notebook: Table | None
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
        planner=claims.quote_planner(state),
        said=claims.last_words(state),
        summary=_summary(state),
        forecasts=forecasts(state),
        verdicts=claims.verdict_table(state),
        arms=run_tables.arm_table(state),
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
        arms=run_tables.whole_arm_table(state),
        collapses=design_tables.collapse_table(state),
        others=others_table(state, evidence),
        facts=facts_table(state, evidence),
        design=_design(state),
        codes=claims.codes(state),
        codes_written=claims.describe_authorship(state),
        accounting=run_tables.count_runs(state),
        runs=run_tables.run_table(state),
        files=run_tables.file_table(evidence),
        copies=run_tables.copy_table(state),
        decisions=run_tables.decision_table(state),
        approvals=run_tables.approval_table(state),
        planner_acts=run_tables.planner_table(state),
        notebook=run_tables.notebook_table(state),
        cost=run_tables.cost_table(state),
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
        said = f"{describe_comparison(design.hypotheses[0])}, in {design.environment}"
        if len(said) <= _TITLE:
            return said
    return f"{design_tables.what_differs(design)} in {design.environment}"


_TITLE = 110


def _refuse_stale(state: StudyState) -> None:
    for verdict in (*state.verdicts, *state.replications):
        if not verdict_follows(state, verdict):
            raise ReportError(
                f"the verdict on {_claim_label(verdict)} does not follow from the runs in the event log: expected the "
                f"inputs {verdict.inputs_sha256[:12]}. Judge the study again; no report is built on it"
            )


def _claim_label(verdict: Verdict) -> str:
    return f"the replication of {verdict.hypothesis}" if verdict.phase == "replicate" else verdict.hypothesis


def partial(state: StudyState) -> str:
    """Return what a reader must know before the answers; empty where there is nothing."""
    said = _STANDING[state.status]
    reason = state.stopped_reason or state.paused_reason
    return f"{said} ({one_line(reason)})." if state.status in ("stopped", "paused") and reason else said


def _stages(state: StudyState) -> Stages:
    return Stages(
        noise=design_tables.describe_noise(state),
        noise_runs=design_tables.noise_table(state),
        screen=design_tables.describe_selection(state),
        screen_rules=design_tables.screen_rules(state),
        candidates=design_tables.screen_table(state),
        screened=screening(state),
        looks=design_tables.interim_table(state),
        replication=design_tables.replication_table(state),
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
        proof=run_tables.lock_proof(state),
        arms=run_tables.design_arms(design),
        facts=design_tables.design_facts(design, state.design_hash),
        stakes=design_tables.stakes_table(design.hypotheses),
        looks=design_tables.analyses_table(design),
        rules=design_tables.rules_table(design),
        limits=design_tables.limits_table(design.watchdog),
        constants=run_tables.constants(state, design),
    )


@dataclass(frozen=True, slots=True)
class RoundSection:
    """One round in the order of the report."""

    number: int
    heading: str
    why: str
    """Why it was asked, in the planner's words; empty for the first."""
    level: str
    """What its tests might spend, in a sentence; empty before its lock."""
    open: str
    """Why there is no design to show, in a sentence; empty where there is one."""
    content: ReportView | None
    threats: tuple[Remark, ...] = ()
    """Its own: what threatens every round stands once, after all of them. Of a round without a lock, all that was
    checked or noticed."""
    noise: str = ""
    noise_runs: Table | None = None
    explored: tuple[ExplorationTable, ...] = ()

    @property
    def prefix(self) -> str:
        return f"round-{self.number}-"


@dataclass(frozen=True, slots=True)
class CampaignAppendix:
    """What the rounds share: every run, file, decision and second, and how to do it again."""

    accounting: str
    by_round: Table
    runs: Table | None
    files: Table | None
    copies: Table | None
    decisions: Table | None
    approvals: Table | None
    planner_acts: Table | None
    notebook: Table | None
    cost: Table
    command: str
    versions: Table
    machine: Table
    built_from: str
    head_hash: str


@dataclass(frozen=True, slots=True)
class CampaignView:
    """The content of a report on an inquiry, in the order in which it is read."""

    study: str
    title: str
    partial: str
    answer: CampaignAnswer
    planner: str
    ended: str
    """The planner's words with which it asked nothing more, quoted; empty where it did not end it."""
    said: str
    summary: tuple[Fact, ...]
    effects: tuple[Effects, ...]
    rounds: tuple[RoundSection, ...]
    shared_threats: tuple[Remark, ...]
    ledger: LedgerSection
    levels: tuple[LevelBars, ...]
    deviations: Table | None
    appendix: CampaignAppendix


def campaign_view(state: StudyState, evidence: Sequence[Evidence]) -> CampaignView:
    """Return a report on an inquiry; `evidence` is that of each of `every_state`. Raise ReportError as `view` does."""
    states = every_state(state)
    known = {each.round: found for each, found in zip(states, evidence, strict=True)}
    contents = [None if each.design is None else view(each, known[each.round]) for each in state.rounds]
    whole_state = rounds.merge_rounds(state)
    return CampaignView(
        study=state.id,
        title=_title(state),
        partial=partial(state),
        answer=campaign_answer(state, known),
        planner=claims.quote_planner(state),
        ended=words_at_end(state),
        said=claims.last_words(state),
        summary=_campaign_summary(state),
        effects=claim_effects(state.rounds),
        rounds=tuple(_sections(state, contents, known)),
        shared_threats=_shared_threats(contents),
        ledger=ledger_section(state),
        levels=level_bars(ledgers_now(state), count_locked_rounds(state)),
        deviations=deviation_table(whole_state),
        appendix=_campaign_appendix(whole_state, state, known),
    )


def _shared_threats(contents: Sequence[ReportView | None]) -> tuple[Remark, ...]:
    """Return the threats that stand in every round, of several."""
    there = [content for content in contents if content is not None]
    if len(there) < 2:
        return ()
    counts = Counter(remark for content in there for remark in dict.fromkeys(content.threats))
    return tuple(remark for remark, count in counts.items() if count == len(there))


def _sections(
    state: StudyState, contents: Sequence[ReportView | None], evidence: Mapping[int, Evidence]
) -> Iterator[RoundSection]:
    shared = _shared_threats(contents)
    for each, content in zip(state.rounds, contents, strict=True):
        heading = f"Round {each.round} of at most {state.most_rounds}"
        if content is None:
            yield _unlocked_section(each, evidence[each.round], heading, "No design is locked yet.")
            continue
        own = tuple(remark for remark in content.threats if remark not in shared)
        why, level = claims.why_asked(each), _level(each)
        yield RoundSection(
            each.round, f"{heading}: {content.title}", why, level, "", content, own, explored=exploration_tables(each)
        )
    for each in state.given_up:
        heading = f"Round {each.round} of at most {state.most_rounds}: given up"
        yield _unlocked_section(each, evidence[each.round], heading, "It came to no lock: nothing was tested in it.")


def _unlocked_section(state: StudyState, evidence: Evidence, heading: str, said: str) -> RoundSection:
    return RoundSection(
        state.round, heading, claims.why_asked(state), "", said, None,
        (*checks(state, evidence), *threats(state, evidence)), design_tables.describe_noise(state),
        design_tables.noise_table(state),
        exploration_tables(state),
    )  # fmt: skip


def _level(state: StudyState) -> str:
    place = state.locked_design.inquiry if state.locked_design is not None else None
    if place is None:
        return ""
    return (
        f"What its tests may spend, looks and arms included: {fine_percent(place.difference)} on claims of a "
        f"difference, {fine_percent(place.equivalence)} on claims of no difference."
    )


def _title(state: StudyState) -> str:
    """Return what differed over the rounds, and where; the present round's title while there is no design."""
    designs = [each.design for each in state.rounds if each.design is not None]
    fields = dict.fromkeys(field for design in designs for field in what_differs(design).split(", ") if field)
    places = dict.fromkeys(design.environment for design in designs)
    told = f"{', '.join(fields)} in {' and '.join(places)}" if fields else " and ".join(places)
    return f"{told}: {plural(len(designs), 'round')} of an inquiry"


def _campaign_summary(state: StudyState) -> tuple[Fact, ...]:
    runs = state.every_run.values()
    counting = [run for run in runs if run.spec.phase == "confirm" and run.status == "collected"]
    return (
        Fact("Rounds", f"{count_locked_rounds(state)} of at most {state.most_rounds}"),
        Fact("Runs that count", str(len(counting))),
        Fact("All runs", str(len(runs))),
        Fact("Wall clock", duration(state.elapsed_s)),
    )


def _campaign_appendix(
    whole_state: StudyState, state: StudyState, evidence: Mapping[int, Evidence]
) -> CampaignAppendix:
    merged = {run: found for each in evidence.values() for run, found in each.runs.items()}
    return CampaignAppendix(
        accounting=run_tables.count_runs(whole_state),
        by_round=rounds.runs_by_round(state),
        runs=rounds.run_table(state),
        files=run_tables.file_table(Evidence(merged)),
        copies=run_tables.copy_table(whole_state),
        decisions=run_tables.decision_table(whole_state),
        approvals=run_tables.approval_table(state),
        planner_acts=rounds.planner_table(state),
        notebook=run_tables.notebook_table(state),
        cost=rounds.cost_table(state),
        command=command_line(state.command),
        versions=pairs([Fact(name, value_of(value)) for name, value in sorted(state.versions.items())]),
        machine=pairs([Fact(name, value_of(value)) for name, value in sorted(state.machine.items())]),
        built_from=f"{plural(state.event_count, 'event')}, the last at {moment(state.last_ts)}",
        head_hash=state.head_hash,
    )
