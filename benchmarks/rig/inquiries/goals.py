"""What the figures of simulated inquiries are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

INQUIRIES: Final = 2000
"""Of a cell: of so many the upper end of the interval of a share of 5 % can lie at 6 %."""
MOST: Final = 0.06
"""Where the upper end of the interval of any false claim is to lie."""
WORDS: Final[Mapping[str, str]] = {
    "false_difference": "any false difference", "false_equivalence": "any false equivalence",
    "overdrawn": "a ledger overdrawn",
}  # fmt: skip


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which goals are missed, in words; of fewer inquiries than `INQUIRIES` only what they tell for sure.

    Where rounds share nothing, no goal is set.
    """
    return [words for row in rows if row["ledgers"] for words in _missed(row)]


def _missed(row: Mapping[str, Any]) -> list[str]:
    enough = row["inquiries"] >= INQUIRIES
    found = [
        f"{row['name']}: {WORDS[name]} {percent(row[name])}; the upper end is to lie at {MOST:.0%} or below"
        for name in ("false_difference", "false_equivalence")
        if row[name][2 if enough else 1] > MOST
    ]
    overdrawn = f"{row['name']}: {WORDS['overdrawn']} in {percent(row['overdrawn'])}; expected none"
    return [*found, overdrawn] if row["overdrawn"][0] else found


def percent(rate: Sequence[float] | None) -> str:
    """Return a rate with its interval; a dash for none."""
    return "-" if rate is None else f"{rate[0]:.1%} [{rate[1]:.1%}, {rate[2]:.1%}]"
