"""Everything a report on an inquiry shows: first answers over all rounds, the rounds in order, the error ledgers.

Each round is shown by the view of its own state, as a study of one round is. A pure function, like
`studies.report.view`: it refuses (ReportError) a verdict of any round that does not follow from that round's runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from studies.log.study_state import StudyState
from studies.report.figures.round_series import Effects, LevelBars, claim_effects, level_bars
from studies.report.parts.evidence import Evidence
from studies.report.parts.parts import Fact, Remark, Table, pairs
from studies.report.parts.states import every_state
from studies.report.parts.wording import command_line, duration, fine_percent, moment, plural, value_of
from studies.report.rounds import whole
from studies.report.rounds.answer import InquiryAnswer, inquiry_answer
from studies.report.rounds.ending import words_at_end
from studies.report.rounds.exploring import ExploredTable, explored
from studies.report.rounds.spending import LedgerSection, ledger_section, ledgers_now, locked_rounds
from studies.report.sections import accounting, claims, stages
from studies.report.sections.deviations import deviation_table
from studies.report.sections.procedure import what_differs
from studies.report.sections.scrutiny import checks, threats
from studies.report.view import ReportView, partial, view


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
    """A/A runs of a round that came to no lock."""
    explored: tuple[ExploredTable, ...] = ()
    """What was tried in it without a claim."""

    @property
    def prefix(self) -> str:
        """What the names of its figures and places begin with."""
        return f"round-{self.number}-"


@dataclass(frozen=True, slots=True)
class InquiryAppendix:
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
class InquiryView:
    """The content of a report on an inquiry, in the order in which it is read."""

    study: str
    title: str
    partial: str
    answer: InquiryAnswer
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
    appendix: InquiryAppendix


def inquiry_view(state: StudyState, evidence: Sequence[Evidence]) -> InquiryView:
    """Return the content of a report on an inquiry; `evidence` has an entry for each of `every_state`.

    Raise ReportError when a verdict of any round does not follow from its runs.
    """
    states = every_state(state)
    known = {each.round: found for each, found in zip(states, evidence, strict=True)}
    contents = [None if each.design is None else view(each, known[each.round]) for each in state.rounds]
    whole_state = whole.as_one(state)
    return InquiryView(
        study=state.id,
        title=_title(state),
        partial=partial(state),
        answer=inquiry_answer(state, known),
        planner=claims.planner_said(state),
        ended=words_at_end(state),
        said=claims.last_words(state),
        summary=_summary(state),
        effects=claim_effects(state.rounds),
        rounds=tuple(_sections(state, contents, known)),
        shared_threats=_shared(contents),
        ledger=ledger_section(state),
        levels=level_bars(ledgers_now(state), locked_rounds(state)),
        deviations=deviation_table(whole_state),
        appendix=_appendix(whole_state, state, known),
    )


def _shared(contents: Sequence[ReportView | None]) -> tuple[Remark, ...]:
    """Return the threats that stand in every round, of several."""
    there = [content for content in contents if content is not None]
    if len(there) < 2:
        return ()
    counts = Counter(remark for content in there for remark in dict.fromkeys(content.threats))
    return tuple(remark for remark, count in counts.items() if count == len(there))


def _sections(
    state: StudyState, contents: Sequence[ReportView | None], evidence: Mapping[int, Evidence]
) -> Iterator[RoundSection]:
    shared = _shared(contents)
    for each, content in zip(state.rounds, contents, strict=True):
        heading = f"Round {each.round} of at most {state.most_rounds}"
        if content is None:
            yield _unlocked(each, evidence[each.round], heading, "No design is locked yet.")
            continue
        own = tuple(remark for remark in content.threats if remark not in shared)
        why, level = claims.why_asked(each), _level(each)
        yield RoundSection(
            each.round, f"{heading}: {content.title}", why, level, "", content, own, explored=explored(each)
        )
    for each in state.given_up:
        heading = f"Round {each.round} of at most {state.most_rounds}: given up"
        yield _unlocked(each, evidence[each.round], heading, "It came to no lock: nothing was tested in it.")


def _unlocked(state: StudyState, evidence: Evidence, heading: str, said: str) -> RoundSection:
    return RoundSection(
        state.round, heading, claims.why_asked(state), "", said, None,
        (*checks(state, evidence), *threats(state, evidence)), stages.noise_said(state), stages.noise_table(state),
        explored(state),
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


def _summary(state: StudyState) -> tuple[Fact, ...]:
    runs = state.every_run.values()
    counting = [run for run in runs if run.spec.phase == "confirm" and run.status == "collected"]
    return (
        Fact("Rounds", f"{locked_rounds(state)} of at most {state.most_rounds}"),
        Fact("Runs that count", str(len(counting))),
        Fact("All runs", str(len(runs))),
        Fact("Wall clock", duration(state.elapsed_s)),
    )


def _appendix(whole_state: StudyState, state: StudyState, evidence: Mapping[int, Evidence]) -> InquiryAppendix:
    merged = {run: found for each in evidence.values() for run, found in each.runs.items()}
    return InquiryAppendix(
        accounting=accounting.accounting(whole_state),
        by_round=whole.runs_by_round(state),
        runs=whole.run_table(state),
        files=accounting.file_table(Evidence(merged)),
        copies=accounting.copy_table(whole_state),
        decisions=accounting.decision_table(whole_state),
        approvals=accounting.approval_table(state),
        planner_acts=whole.planner_table(state),
        notebook=accounting.notebook_table(state),
        cost=whole.cost_table(state),
        command=command_line(state.command),
        versions=pairs([Fact(name, value_of(value)) for name, value in sorted(state.versions.items())]),
        machine=pairs([Fact(name, value_of(value)) for name, value in sorted(state.machine.items())]),
        built_from=f"{plural(state.event_count, 'event')}, the last at {moment(state.last_ts)}",
        head_hash=state.head_hash,
    )
