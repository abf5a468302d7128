"""Wall-clock budgets: read what a person typed, and say it back.

Durations are sums of whole or decimal numbers with a unit (`90s`, `10m`, `1h30m`, `1d`), each unit once, largest
first. What a study has spent is counted elsewhere (`research.study.controller.budget_left`).
"""

from __future__ import annotations

import math
import re

from research.errors import BadBudget

MOST_SECONDS = 365 * 86_400.0
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _UNITS), re.ASCII)
_EXAMPLES = "such as 90s, 10m, 2h, 1h30m or 1d"


def parse_budget(text: str) -> float:
    """Return the seconds of a duration such as `1h30m`; raise BadBudget for anything else, for zero or over a year."""
    compact = "".join(text.split()).lower()
    found = _DURATION.fullmatch(compact)
    if not compact or found is None:
        raise BadBudget(f"expected a budget {_EXAMPLES}; found {text[:60]!r}; give numbers with the units d, h, m, s")
    seconds = sum(float(found[unit]) * size for unit, size in _UNITS.items() if found[unit])
    if not 1 <= seconds <= MOST_SECONDS:
        raise BadBudget(f"expected a budget between 1s and 365d; found {text[:60]!r}; use one {_EXAMPLES}")
    return seconds


def format_seconds(seconds: float) -> str:
    """Return a duration as a person says it, in its two largest units: `45 s`, `6 min`, `1 h 30 min`, `2 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 600:
        return _two(whole, 60, "min", 1, "s")
    if whole < 3_570:
        return f"{round(whole / 60)} min"
    if whole < 86_400 - 30:
        return _two(round(whole / 60) * 60, 3_600, "h", 60, "min")
    return _two(round(whole / 3_600) * 3_600, 86_400, "d", 3_600, "h")


def format_flag(seconds: float) -> str:
    """Return a duration that `parse_budget` reads as at least `seconds`, in whole minutes: `7m`, `1h30m`, `2d3h5m`."""
    left = max(1, math.ceil(seconds / 60)) * 60
    parts: list[str] = []
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNITS[unit])
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    count, rest = divmod(whole, large)
    tail = f" {rest // small} {small_name}" if rest // small else ""
    return f"{count} {large_name}{tail}"
