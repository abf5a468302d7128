"""The result files of the benchmarks: figures as JSON, with the day and the commit of their measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """What one benchmark measured; `date` (ISO) and `commit` are None where its file does not know them."""

    name: str
    figures: Figures
    date: str | None
    commit: str | None


def load(name: str, folder: Path = RESULTS) -> Result | None:
    """Return the result of a benchmark; None where it was never run at full size."""
    path = folder / f"{name}.json"
    return parse(name, json.loads(path.read_text())) if path.exists() else None


def parse(name: str, figures: Figures) -> Result | None:
    """Return figures with when they were measured; None for those of a `--quick` run, which are not relied on."""
    around = next(
        (found for found in (figures.get("circumstances"), figures, *_recorded(figures)) if found and "date" in found),
        {"date": None},
    )
    return None if around.get("quick") else Result(name, figures, around["date"], around.get("commit"))


def _recorded(figures: Figures) -> list[Figures]:
    """Return the circumstances of the parts of a result that were measured apart, the newest first."""
    parts = figures.get("environments", {})
    found = [part["recorded"] for part in parts.values() if isinstance(part, dict) and "recorded" in part]
    return sorted(found, key=lambda each: each["date"], reverse=True)
