"""Text helpers: durations as typed, did-you-mean, validation errors in one line, text that is safe for a terminal.

Durations are sums of numbers with a unit (`90s`, `10m`, `1h30m`, `1d`), each unit once, largest first.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from research.errors import BadInput

if TYPE_CHECKING:
    from studies import StudyState

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")


SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|AUTH(?!OR(?!I[SZ]))", re.IGNORECASE)
"""Found in the name of a variable that holds a secret."""


def strip_control_chars(text: str) -> str:
    """Return a text without the characters that steer a terminal: topics, notes and models' words may hold them."""
    return _STEERS.sub("", text)


def warn(message: str) -> None:
    sys.stderr.write(f"ajet: {strip_control_chars(message)}\n")


MOST_SECONDS = 365 * 86_400.0
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _UNITS), re.ASCII)
_EXAMPLES = "such as 90s, 10m, 2h, 1h30m or 1d"


def parse_budget(text: str) -> float:
    """Return the seconds of a duration such as `1h30m`; raise BadInput for anything else, for zero or over a year."""
    compact = "".join(text.split()).lower()
    found = _DURATION.fullmatch(compact)
    if not compact or found is None:
        raise BadInput(f"expected a budget {_EXAMPLES}; found {text[:60]!r}; give numbers with the units d, h, m, s")
    seconds = sum(float(found[unit]) * size for unit, size in _UNITS.items() if found[unit])
    if not 1 <= seconds <= MOST_SECONDS:
        raise BadInput(f"expected a budget between 1s and 365d; found {text[:60]!r}; use one {_EXAMPLES}")
    return seconds


def is_duration(text: str) -> bool:
    return _DURATION.fullmatch("".join(text.split()).lower()) is not None


def format_size(count: int) -> str:
    large = f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
    return large if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def format_seconds(seconds: float) -> str:
    """Return a duration as a person says it, in its two largest units: `45 s`, `6 min`, `1 h 30 min`, `2 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 600:
        return _format_units(whole, 60, "min", 1, "s")
    if whole < 3_570:
        return f"{round(whole / 60)} min"
    if whole < 86_400 - 30:
        return _format_units(round(whole / 60) * 60, 3_600, "h", 60, "min")
    return _format_units(round(whole / 3_600) * 3_600, 86_400, "d", 3_600, "h")


def format_flag(seconds: float) -> str:
    """Return a duration that `parse_budget` reads as at least `seconds`, in whole minutes: `7m`, `1h30m`, `2d3h5m`."""
    left = max(1, math.ceil(seconds / 60)) * 60
    parts: list[str] = []
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNITS[unit])
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)


def _format_units(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    count, rest = divmod(whole, large)
    tail = f" {rest // small} {small_name}" if rest // small else ""
    return f"{count} {large_name}{tail}"


Result = TypeVar("Result")


def memoize_last(compute: Callable[[StudyState], Result]) -> Callable[[StudyState], Result]:
    """Return a function that keeps what it computed last; what it returns must not be changed."""
    last: list[tuple[StudyState, Result]] = []

    @wraps(compute)
    def compute_once(state: StudyState) -> Result:
        for known, found in last:  # one look at the list, as a thread beside may replace what is in it
            if known is state:
                return found
        found = compute(state)
        last[:] = [(state, found)]
        return found

    return compute_once


_ALIKE = 0.75


def did_you_mean(found: str, known: Iterable[str], alike: float = _ALIKE) -> str:
    """Return `; did you mean NAME?`, or nothing where no name is as much `alike`, or one is the same."""
    names = {name.lower(): name for name in known}
    near = get_close_matches(found.lower(), names, n=1, cutoff=alike)
    return f"; did you mean {names[near[0]]}?" if near and names[near[0]] != found else ""


def suggest_from_text(text: str, known: Sequence[str]) -> str:
    """Return the same for whatever words of a text, one after the other, are nearest to a name; longer ones first."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    for length in (3, 2, 1):  # words that may be one name
        for start in range(len(words) - length + 1):
            if said := did_you_mean("_".join(words[start : start + length]), known):
                return said
    return ""


def suggest_path(path: Path) -> str:
    """Return `; did you mean PATH?` where the first part of a path that is not there is spelt like one that is."""
    missing = next((part for part in reversed([path, *path.parents]) if not os.path.exists(part)), path)
    try:
        names = sorted(os.listdir(missing.parent))
    except OSError:  # a part is a file, or may not be read
        return ""
    near = get_close_matches(missing.name, names, n=1, cutoff=_ALIKE)
    if not near:
        return ""
    meant = missing.parent / near[0] / path.relative_to(missing)
    return f"; did you mean {meant if os.path.exists(meant) else missing.parent / near[0]}?"


def is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


_INPUT_CHARACTERS = 60


def describe(error: ValidationError) -> str:
    """Return the first few problems of a validation as one line: `field: what was expected; found value`."""
    problems = error.errors(include_url=False, include_context=False)
    lines = []
    for problem in problems[:4]:
        where = ".".join(map(str, problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        if problem["type"] == "missing":
            text = "missing"
        elif problem["type"] != "value_error":
            found = repr(problem["input"])
            text += f"; found {found if len(found) <= _INPUT_CHARACTERS else f'{found[: _INPUT_CHARACTERS - 1]}…'}"
        lines.append(f"{where}: {text}" if where else text)
    more = len(problems) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")
