"""What happened to a study after its lock that was not in it: amendments, vetoes, verdicts that they touched."""

from __future__ import annotations

from collections.abc import Iterator

from studies.log.study_state import Amended, StudyState, Veto
from studies.report.parts.parts import Cell, Table, cell, table
from studies.report.parts.wording import duration, moment, one_line


def deviation_table(state: StudyState) -> Table | None:
    """Return every change after the lock in the order it was made; None where there was none."""
    rows = [(a.seq, _amended(a)) for a in state.amendments]
    rows += [(veto.seq, _vetoed(name, veto)) for name, veto in state.vetoed.items()]
    columns = ("When", "By", "Change", "Why", "")
    return table(columns, [row for _, row in sorted(rows, key=lambda row: row[0])], cards=True) if rows else None


def touched(state: StudyState) -> Iterator[str]:
    """Yield a sentence for each verdict that an amendment after the first result touched."""
    for verdict in (*state.verdicts, *state.replications):
        if verdict.exploratory and state.judged_short.get((verdict.hypothesis, verdict.phase)) == verdict.look:
            yield (
                f"The verdict on {verdict.hypothesis} is exploratory: its look was judged before, on what a budget had "
                "carried, and its level was spent then."
            )
        elif verdict.exploratory:
            yield (
                f"The verdict on {verdict.hypothesis} is exploratory: an amendment made after the first result let "
                "pass what the locked rules would have stopped, or cut the budget so that its look came early."
            )


def _amended(amended: Amended) -> list[Cell]:
    change = amended.amendment
    said = {
        "accept": f"accepts the violation {change.target}",
        "budget": f"budget of {duration(change.value)}",
        "note": "note",
    }[change.kind]
    after = "after the first result" if amended.after_data else "before any result"
    return [cell(moment(amended.ts)), cell(amended.actor), cell(said), cell(one_line(change.reason)), cell(after)]


def _vetoed(hypothesis: str, veto: Veto) -> list[Cell]:
    said = f"veto of {hypothesis}: no more runs for it"
    return [cell(moment(veto.ts)), cell(veto.actor), cell(said), cell(one_line(veto.reason)), cell("")]
