"""Tables over all rounds of an inquiry: every run, every second, every act of the planner; the counts add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from studies.log.study_state import PlannerAct, RunState, StudyState
from studies.report.parts.parts import Cell, Fact, Table, cell, pairs, table
from studies.report.parts.states import every_state
from studies.report.parts.wording import NONE, duration, one_line, plural
from studies.report.sections.accounting import RUN_COLUMNS, measured, run_phase_s, run_row
from studies.report.sections.isolation import differ, image_cell


def as_one(state: StudyState) -> StudyState:
    """Return a study as if all of its runs, decisions, changes and vetoes were of one round, for what counts them."""
    states = every_state(state)
    amendments = {amended.seq: amended for each in states for amended in each.amendments}
    decisions = {decision.seq: decision for each in states for decision in each.decisions}
    return replace(
        state,
        runs=state.every_run,
        amendments=tuple(amendments[seq] for seq in sorted(amendments)),
        decisions=tuple(decisions[seq] for seq in sorted(decisions)),
        vetoed={name: veto for each in states for name, veto in each.vetoed.items()},
    )


def run_table(state: StudyState) -> Table | None:
    """Return one row for each run of each round, those of rounds that were given up included; None for none."""
    states = every_state(state)
    judged = any(each.design is not None and each.design.metric.kind for each in states)
    placed = differ(as_one(state))
    rows = [_run(each, run, judged=judged, placed=placed) for each in states for run in each.runs.values()]
    own, image = (["Judged by"] if judged else []), (["Image"] if placed else [])
    columns = ["Round", *RUN_COLUMNS, "For", *own, *image]
    return table(columns, rows, numeric=(3, 6, 7, 8), cards=True) if rows else None


def runs_by_round(state: StudyState) -> Table:
    """Return how many runs of each round were planned and what became of them; the last line adds them up."""
    states = every_state(state)
    rows = [_counts(_named(each, state), (each,)) for each in states]
    columns = ("Round", "Planned", "Collected", "Invalid", "Not finished", "Attempts", "Time in runs")
    return table(columns, [*rows, _counts("all", states)], numeric=range(1, 7), cards=True)


def planner_table(state: StudyState) -> Table | None:
    """Return every call on the planner with the turn it was; None when there was none."""
    rows = [_act(act) for act in state.planner_acts]
    columns = ("Turn", "Asked for", "Tries", "Tokens", "Sent back", "Note")
    return table(columns, rows, numeric=(2, 3), cards=True) if rows else None


def cost_table(state: StudyState) -> Table:
    """Return what the inquiry cost, beside what each round's design was expected to cost."""
    runs = sum(run.seconds for run in state.every_run.values())
    tokens = [sum(act.tokens.get(kind, 0) for act in state.planner_acts) for kind in ("prompt", "completion")]
    facts = [
        Fact("Wall clock, first to last event", duration(state.elapsed_s)),
        Fact("Time worked, pauses left out", duration(state.worked_s)),
        Fact("Budget", duration(state.budget_s)),
        Fact("Time in runs, all attempts added up", duration(runs)),
        Fact("Planner tokens", f"{tokens[0]:,} in prompts, {tokens[1]:,} in answers"),
    ]
    return pairs([*facts, *(fact for each in state.rounds for fact in _price(each))])


def _run(state: StudyState, run: RunState, *, judged: bool, placed: bool) -> list[Cell]:
    """Return a run's row; with `judged` what it was judged by, with `placed` in which image it ran."""
    own = [cell(measured(run, run.spec.metric.key))] if judged else []
    image = [image_cell(run)] if placed else []
    return [cell(str(state.round)), *run_row(state.design, run), cell(run.spec.phase), *own, *image]


def _price(state: StudyState) -> Iterable[Fact]:
    if state.design is None:
        return
    price = state.design.price
    said = f"{duration(price.total_s)} for {plural(price.runs, 'run')}, {price.parallel} at once"
    paid = duration(run_phase_s(state))
    yield Fact(f"Round {state.round}: predicted, and paid", f"{said} ({one_line(price.basis)}); paid {paid}")


def _named(state: StudyState, last: StudyState) -> str:
    return f"{state.round}, given up" if state in last.given_up else str(state.round)


def _counts(name: str, states: Iterable[StudyState]) -> list[Cell]:
    runs = [run for state in states for run in state.runs.values()]
    collected, invalid = (sum(run.status == status for run in runs) for status in ("collected", "invalid"))
    attempts, seconds = sum(len(run.attempts) for run in runs), sum(run.seconds for run in runs)
    counts = (len(runs), collected, invalid, len(runs) - collected - invalid, attempts)
    return [cell(name), *(cell(str(count)) for count in counts), cell(duration(seconds) if seconds else NONE)]


def _act(act: PlannerAct) -> list[Cell]:
    return [
        cell(act.turn), cell(act.action), cell(str(act.tries)), cell(f"{sum(act.tokens.values()):,}"),
        cell(one_line("; ".join(act.rejected))), cell(one_line(act.note)),
    ]  # fmt: skip
