"""The history of the headline figures: one CSV file, one line for each figure of each version that was measured."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import hypot
from pathlib import Path

from performance.headlines import headlines
from performance.writing import RESULTS, Result

FILE = RESULTS / "history" / "headlines.csv"


@dataclass(frozen=True)
class Entry:
    """One figure of one version: `commit` (short) and `date` (ISO) of the measurement, value and noise in its unit."""

    benchmark: str
    figure: str
    commit: str
    date: str
    value: float
    noise: float
    better: str


def entries(result: Result) -> list[Entry]:
    """Return the entries of a result."""
    at = (result.commit or "unknown", result.date or "unknown")
    return [
        Entry(result.name, each.name, *at, float(f"{each.value:.4g}"), float(f"{each.noise:.2g}"), each.better)
        for each in headlines(result)
    ]


def read(path: Path = FILE) -> list[Entry]:
    """Return the history, oldest first within each benchmark; empty where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return [_entry(row) for row in csv.DictReader(lines)]


def _entry(row: dict[str, str]) -> Entry:
    value, noise = float(row.pop("value")), float(row.pop("noise"))
    return Entry(**row, value=value, noise=noise)


def append(found: Iterable[Entry], path: Path = FILE) -> None:
    """Add entries to the history; a version's figure that is there is written anew in its place."""
    kept = {(each.benchmark, each.figure, each.commit): each for each in [*read(path), *found]}
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(field.name for field in fields(Entry))
        for each in kept.values():
            writer.writerow((each.benchmark, each.figure, each.commit, each.date, f"{each.value:g}", f"{each.noise:g}",
                             each.better))  # fmt: skip


def is_worse(now: Entry, before: Entry) -> bool:
    """Say whether a figure is worse than before by more than the noise of both together."""
    loss = before.value - now.value if now.better == "higher" else now.value - before.value
    return loss > hypot(now.noise, before.noise)


def regressions(history: Sequence[Entry], of: Iterable[Entry]) -> list[tuple[Entry, Entry]]:
    """Return each of some entries that is worse than the last one of another version, with that one."""
    found = []
    for now in of:
        before = previous(history, now)
        if before is not None and is_worse(now, before):
            found.append((now, before))
    return found


def previous(history: Sequence[Entry], now: Entry) -> Entry | None:
    """Return the entry of the same figure that was measured last, of another version than `now`; None without one."""
    same = [each for each in history if (each.benchmark, each.figure) == (now.benchmark, now.figure)]
    until = next((place for place, each in enumerate(same) if each.commit == now.commit), len(same))
    return same[until - 1] if until else None
