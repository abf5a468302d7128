"""Whether a reward function that a language model wrote is well formed: readable text that defines `reward`.

Nothing here runs or imports the source; it stays text wherever this package handles it. The check spares a study that
cannot work and a report that cannot be read. It protects against nothing: what the code may do is bounded by the
container it runs in (`sandboxes`), and by nothing else.
"""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from collections.abc import Iterable

from research.errors import DesignRefused
from studies.records.design import BUILT_IN

MOST_BYTES = 8192
SIGNATURE = "def reward(task: dict, messages: list[dict], outcome: dict) -> float"
_PARAMETERS = ["task", "messages", "outcome"]
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of what a reader cannot see, direction marks among them; new line and tab are fine."""


def reward_name(value: object) -> str:
    """Return `value` if it can name a reward; raise DesignRefused otherwise."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise DesignRefused(
        f"reward: expected {BUILT_IN!r} or a short name of lower-case letters, digits and dashes, such as "
        f"'dense-hint'; found {value!r}"
    )


def check_reward(source: str) -> str:
    """Return the source of a reward function; raise DesignRefused if it is not well formed."""
    size = len(source.encode(errors="surrogatepass"))
    if not source.strip() or size > MOST_BYTES:
        raise DesignRefused(f"code: expected {SIGNATURE} in at most {MOST_BYTES} bytes; found {size}")
    for number, line in enumerate(source.split("\n"), start=1):
        _check_line(number, line)
    _check_definition(_parsed(source))
    return source


def _check_line(number: int, line: str) -> None:
    for character in line:
        if unicodedata.category(character) in _UNSEEN and character != "\t":
            raise DesignRefused(
                f"code: expected visible characters; found U+{ord(character):04X} in line {number}; leave it out"
            )


def _parsed(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except SyntaxError as error:
        raise DesignRefused(
            f"code: expected Python; found a syntax error in line {error.lineno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise DesignRefused("code: expected Python; found what its parser cannot take; write it plainly") from error


def _check_definition(module: ast.Module) -> None:
    found = [entry for entry in module.body if isinstance(entry, ast.FunctionDef) and entry.name == "reward"]
    if not found:
        raise DesignRefused(f"code: expected {SIGNATURE} at the top level; found no such function")
    given = _bare(found[-1].args)
    others = (*given.posonlyargs, *given.kwonlyargs, given.vararg, given.kwarg)
    if [entry.arg for entry in given.args] != _PARAMETERS or any(others):
        raise DesignRefused(f"code: expected {SIGNATURE}; found parameters ({ast.unparse(given)})")


def _bare(given: ast.arguments) -> ast.arguments:
    """Return parameters without types and defaults, which may be nested deeper than anything writes them out."""

    def names(entries: Iterable[ast.arg | None]) -> list[ast.arg]:
        return [ast.arg(entry.arg) for entry in entries if entry is not None]

    return ast.arguments(
        posonlyargs=names(given.posonlyargs), args=names(given.args), kwonlyargs=names(given.kwonlyargs),
        vararg=next(iter(names([given.vararg])), None), kwarg=next(iter(names([given.kwarg])), None),
        defaults=[], kw_defaults=[None] * len(given.kwonlyargs),
    )  # fmt: skip
