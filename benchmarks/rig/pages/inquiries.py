"""The chapter of `docs/calibration.md` on inquiries that are judged alone, as far as they were flown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rig.inquiries.goals import missed
from rig.pages.tables import figures_of, share_of

ABOUT = """
## Inquiries of twelve rounds, judged alone

`python benchmarks/inquiries.py --json` asks twelve questions one after the other, each chosen on what came before, and
judges each round by the shipped verdict at the level that the shipped ledgers give it: {inquiries} inquiries. A round
is a real design at its place in the inquiry, of one to three claims with five seeds an arm, looked at after three and
five. There are two ledgers, one of claims of a difference and one of claims of equivalence; the promise is that each
kind is false anywhere in an inquiry with a probability of 5 % at most, whoever asks: one that asks something new each
time (*plain*); one that asks the *largest* estimate again; one that *repeats* until something is claimed; one that
*farms* sure questions in every second round, to earn level for hopeless ones; and a *liar* that asks for three claims a
round, whatever looked best first. An effect is as large as the margin of equivalence, which five seeds see with a power
of 80 % at a level of 5 %, or of 96 % where equivalences are asked for; it has either sign. A question that is asked
again is a new round on fresh runs of control and treatment.

*Either*: any false claim of either kind, of which nothing is promised but the sum. *Overdrawn*: rounds that had a claim
without an effect spent more than 5 % in levels, up to the first false one. *5 % each round*: the same inquiries where
every round has the whole level to itself, as somebody has who tests until something is significant. The goal of all
others: the upper end of the interval of any false claim of a kind at 6 % or below.
"""
POWER = """
**What later rounds still see**: effects as large as the margin that were claimed with their sign, by round. Where
effects are found their level is handed on, so that rounds after them see more.
"""
SHOWN_ROUNDS = (1, 2, 3, 4, 6, 9, 12)


def inquiry_tables() -> Iterator[str]:
    """Yield the chapter; nothing where no inquiry was flown."""
    if (figures := figures_of("inquiries")) is None:
        return
    rows = figures["rows"]
    yield ABOUT.format(inquiries=f"{sum(row['inquiries'] for row in rows):,}")
    if short := missed(rows):
        yield "**Missed**:\n"
        yield "\n".join(f"- {words}" for words in short) + "\n"
    yield (
        "| true | asked by | noise | level | inquiries | any false difference | any false equivalence | either | "
        "false of all claims | right differences | right equivalences | overdrawn |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    yield from map(_row, rows)
    yield f"\nFlown {', '.join(_flown(rows))}."
    yield from _power([row for row in rows if row["ledgers"] and row["power"][0] is not None])


def _row(row: Mapping[str, Any]) -> str:
    cells = [
        row["truth"], row["planner"], row["noise"], "two ledgers" if row["ledgers"] else "5 % each round",
        f"{row['inquiries']:,}",
        *(share_of(row[name]) for name in ("false_difference", "false_equivalence", "either", "false_among_claims")),
        f"{row['right_differences']:.2f}", f"{row['right_equivalences']:.2f}", f"{100 * row['overdrawn'][0]:.0f} %",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _flown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{day} at commit {commit}" for day, commit in dict.fromkeys((row["date"], row["commit"]) for row in rows)]


def _power(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield POWER
    yield f"| true | asked by | noise | {' | '.join(f'round {number}' for number in SHOWN_ROUNDS)} |"
    yield f"|---|---|---|{'---|' * len(SHOWN_ROUNDS)}"
    for row in rows:
        found = [row["power"][number - 1] for number in SHOWN_ROUNDS]
        shown = [f"{100 * share[0]:.0f} %" if share else "" for share in found]
        yield f"| {row['truth']} | {row['planner']} | {row['noise']} | {' | '.join(shown)} |"
