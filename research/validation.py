"""Validation errors in one line, for people and for language models that are to answer again."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MOST = 4
_INPUT_CHARACTERS = 60


def describe(error: ValidationError) -> str:
    """Return the first few problems of a validation as one line: `field: what was expected; found value`."""
    problems = error.errors(include_url=False, include_context=False)
    lines = [_line(problem) for problem in problems[:_MOST]]
    more = len(problems) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")


def _line(problem: ErrorDetails) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    text = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if problem["type"] == "value_error":
        return f"{where}: {text}" if where else text
    if problem["type"] == "missing":
        return f"{where}: missing"
    found = repr(problem["input"])
    found = found if len(found) <= _INPUT_CHARACTERS else found[: _INPUT_CHARACTERS - 1] + "…"
    return f"{where}: {text}; found {found}" if where else f"{text}; found {found}"
