"""Explorations, alpha spending, surprises, tables over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from studies.log.study import PlannedExploration, PlannerAct, RunState, StudyState
from studies.records.alpha import AlphaLedger, AlphaLedgers, LedgerEntry
from studies.records.design import Arm
from studies.records.statements import metric_name, value_of
from studies.records.verdict import mark_contradictions
from studies.report.elements import Cell, Fact, Table, cell, every_state, pairs, table
from studies.report.evidence import Evidence
from studies.report.measures import surprises
from studies.report.run_tables import (
    RUN_COLUMNS,
    format_measurement,
    has_mixed_sandboxes,
    image_cell,
    run_phase_s,
    run_row,
)
from studies.report.validity import warn_collapsed, warn_miscalibrated, warn_noise
from studies.report.wording import NONE, describe_comparison, duration, fine_percent, number, one_line, percent, plural


@dataclass(frozen=True, slots=True)
class ExplorationTable:
    """One exploration: what its planner wanted to see, what it is, and its runs."""

    why: str
    said: str
    runs: Table


def exploration_tables(state: StudyState) -> tuple[ExplorationTable, ...]:
    return tuple(_exploration_table(state, entry) for entry in state.explorations)


def _exploration_table(state: StudyState, entry: PlannedExploration) -> ExplorationTable:
    plan = entry.plan
    runs = {run.spec.arm: run for run in state.runs_in("explore") if run.spec.design_hash == plan.hash()}
    said = (
        f"Exploration: {plural(len(plan.arms), 'single run')} in {plan.environment}, one seed for all ({plan.seed}), "
        f"scored on {plan.metric.split} tasks. No claim rests on them, and they draw on no ledger."
    )
    rows = [_exploration_row(arm, runs.get(arm.name)) for arm in plan.arms]
    columns = ("Arm", "Sets", "Run", f"{metric_name(plan.metric)}, one run")
    why = mark_contradictions(plan.why, [verdict for each in state.rounds for verdict in each.verdicts])
    return ExplorationTable(why, said, table(columns, rows, numeric=(3,), cards=True))


def _exploration_row(arm: Arm, run: RunState | None) -> list[Cell]:
    sets = ", ".join(f"{name} = {value_of(value)}" for name, value in arm.overrides.items()) or "the base job"
    if run is None:
        return [cell(arm.name), cell(sets), cell(NONE), cell("not begun")]
    measured = run.measurements.get(run.spec.metric.key)
    value = run.status if measured is None else number(measured.value, unit=run.spec.metric.unit)
    said = f"invalid: {run.invalid[0]}" if run.invalid is not None else value
    return [cell(arm.name), cell(sets), cell(run.run_id, "mono"), cell(said)]


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """One ledger, round by round."""

    kind: str
    entries: Table


@dataclass(frozen=True, slots=True)
class LedgerSection:
    """Both ledgers of an inquiry, and what they promise."""

    promise: str
    tables: tuple[LedgerTable, ...]


def ledgers_now(state: StudyState) -> AlphaLedgers:
    return state.ledgers.after(state.outcome) if _is_over(state) else state.ledgers


def count_locked_rounds(state: StudyState) -> int:
    return sum(each.locked_design is not None for each in state.rounds)


def ledger_section(state: StudyState) -> LedgerSection:
    ledgers, locked = ledgers_now(state), count_locked_rounds(state)
    alpha = percent(ledgers.differences.alpha)
    promise = (
        f"The first lock allows {ledgers.differences.rounds} rounds. Over all of them, any false claim of a difference "
        f"has a probability of at most {alpha}, and any false claim of no difference as well. A round may spend its "
        "own part and what the round before handed on: all of its level where each of its comparisons ended in a claim "
        "of the kind, or none was tested, else nothing. Neither ledger pays for the other."
    )
    kinds = (("Claims of a difference", ledgers.differences), ("Claims of no difference", ledgers.equivalences))
    return LedgerSection(promise, tuple(LedgerTable(kind, _entries(ledger, locked)) for kind, ledger in kinds))


def _is_over(state: StudyState) -> bool:
    if state.design is None or state.ledgers.left == 0:
        return False
    return state.concluded_reason is not None or state.status == "judged"


def _entries(ledger: AlphaLedger, locked: int) -> Table:
    rows = [_spending_row(entry, locked, last=entry.round == ledger.rounds) for entry in ledger.entries()]
    return table(("Round", "Own part", "Received", "Level", "Handed on"), rows, numeric=(1, 2, 3), cards=True)


def _spending_row(entry: LedgerEntry, locked: int, *, last: bool) -> list[Cell]:
    handed = {True: "yes", False: "no", None: "not over" if entry.round <= locked else "not locked: nothing was spent"}
    said = "the last round" if last and entry.handed_on is not None else handed[entry.handed_on]
    return [
        cell(str(entry.round)), cell(fine_percent(entry.own)), cell(fine_percent(entry.received)),
        cell(fine_percent(entry.level)), cell(said),
    ]  # fmt: skip


def list_surprises(state: StudyState, evidence: Evidence) -> tuple[str, ...]:
    """Return a sentence for each thing that went otherwise than was thought in one round."""
    rules = (warn_miscalibrated, warn_collapsed, warn_noise)
    told = (remark.text for rule in rules for remark in rule(state, evidence))
    return (*_list_refuted(state), *told, *surprises(state, evidence))


def _list_refuted(state: StudyState) -> Iterator[str]:
    for verdict in state.verdicts:
        if verdict.verdict == "refuted" and state.design is not None:
            claim = state.design.hypothesis(verdict.hypothesis)
            if not claim.open:
                yield (
                    f"{claim.id} was refuted: {describe_comparison(claim)} brought the opposite of the "
                    f"{claim.direction} that was claimed."
                )


def merge_rounds(state: StudyState) -> StudyState:
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
    states = every_state(state)
    judged = any(each.design is not None and each.design.metric.kind for each in states)
    placed = has_mixed_sandboxes(merge_rounds(state))
    rows = [_run(each, run, judged=judged, placed=placed) for each in states for run in each.runs.values()]
    own, image = (["Judged by"] if judged else []), (["Image"] if placed else [])
    columns = ["Round", *RUN_COLUMNS, "For", *own, *image]
    return table(columns, rows, numeric=(3, 6, 7, 8), cards=True) if rows else None


def runs_by_round(state: StudyState) -> Table:
    states = every_state(state)
    rows = [_counts(_round_label(each, state), (each,)) for each in states]
    columns = ("Round", "Planned", "Collected", "Invalid", "Not finished", "Attempts", "Time in runs")
    return table(columns, [*rows, _counts("all", states)], numeric=range(1, 7), cards=True)


def planner_table(state: StudyState) -> Table | None:
    rows = [_act(act) for act in state.planner_acts]
    columns = ("Turn", "Asked for", "Tries", "Tokens", "Sent back", "Note")
    return table(columns, rows, numeric=(2, 3), cards=True) if rows else None


def cost_table(state: StudyState) -> Table:
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
    own = [cell(format_measurement(run, run.spec.metric.key))] if judged else []
    image = [image_cell(run)] if placed else []
    return [cell(str(state.round)), *run_row(state.design, run), cell(run.spec.phase), *own, *image]


def _price(state: StudyState) -> Iterable[Fact]:
    if state.design is None:
        return
    price = state.design.price
    said = f"{duration(price.total_s)} for {plural(price.runs, 'run')}, {price.parallel} at once"
    paid = duration(run_phase_s(state))
    yield Fact(f"Round {state.round}: predicted, and paid", f"{said} ({one_line(price.basis)}); paid {paid}")


def _round_label(state: StudyState, last: StudyState) -> str:
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
