"""Code as a variable, by typed slots: what each is called with, whether code for it is well formed.

A slot's code is Python, which a container alone runs, or a numeric expression behind `=`, which runs anywhere. Nothing
here runs or imports Python. The check for readable text that defines the function spares a study that cannot work; it
protects against nothing: only the container (`sandboxes`) bounds what the code may do. It runs in the training client,
never in the evaluator.
"""

import ast
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from research.errors import DesignRefused
from research.files import load_table
from studies.records.design import BUILT_IN, REWARD, is_expression
from swarm.environments.base import PlainEnvironment
from swarm.environments.registry import environments
from swarm.environments.user_code import MOST_CHARACTERS, MOST_S, PLAY_NUMBERS, Advantage, Expression
from swarm.environments.user_code import SLOTS as TAKES
from swarm.errors import InvalidRequest

MOST_BYTES = 8192
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of what a reader cannot see, direction marks among them; new line and tab are fine."""


@dataclass(frozen=True, slots=True)
class CodeSlot:
    """One place for code in a training client: `name` is the variable, and the function's in Python."""

    name: str
    signature: str
    does: str
    """What it is called with and what it gives, for whoever writes one."""
    built_in: str
    """What is there anyway, as Python that does the same."""
    names: str = ""
    """What an expression in its place may name; empty where it takes none."""

    def check(self, source: str) -> str:
        """Return a source that is well formed; raise DesignRefused for any other."""
        if not is_expression(source):
            return _check_python(self, source)
        if not self.names:
            raise DesignRefused(f"code: expected {self.signature}; found an expression, which {self.name} cannot be")
        try:
            _ = (expression := Expression(source)).names or expression({})  # a number that is none
        except (InvalidRequest, ValueError) as error:
            raise DesignRefused(f"code: {error}") from error
        return source


def does_as_written(slot: str, job: Mapping[str, object]) -> bool:
    """Return whether `built_in` is what a job does: of advantages that is the formula of GRPO alone."""
    return slot != "advantage" or (job["algorithm"] in ("grpo", "gspo") and bool(job["normalize_advantage"]))


SLOTS: Final[Mapping[str, CodeSlot]] = {
    name: CodeSlot(name, **slot) for name, slot in load_table(__package__, "slots.toml").items()
}


def code_rule(python: bool) -> str:
    """Return what a language model is told of slots."""
    lines = "; ".join(
        f"`{slot.name}`: `{slot.signature}`, called {slot.does}"
        + (f" (an expression names {slot.names})" if slot.names else "")
        for slot in SLOTS.values()
        if python or slot.names
    )
    form = f"an expression behind `=` (arithmetic, comparisons, if/else, min, max, abs; {MOST_CHARACTERS} characters)"
    if python:
        form = f"Python source (at most {MOST_BYTES} bytes, the standard library alone, {MOST_S:g} s a call) or {form}"
    return (
        "A hypothesis may vary code in place of a job field: its `variable` is a slot, its `control` 'built-in', its "
        f"`treatment` a short name you give, such as 'dense-hint', and its `code` {form}. The "
        f"slots: {lines}. Code replaces a part of training only, in a container without network; the verdict is "
        "measured on hidden tasks by the environment's own evaluator. Code that raises, hangs, or gives what is no "
        "finite number fails its runs. In any other hypothesis `code` is null."
    )


def check_code_in(environment: str, code: Iterable[tuple[str, str]]) -> None:
    """Raise DesignRefused for code, by slot and source, that cannot be trained with in an environment: an expression
    over names that have no value there, or Python where what it trained on could not be audited."""
    for slot, source in code:
        if not is_expression(source):
            if not isinstance(environments()[environment], PlainEnvironment):
                raise DesignRefused(
                    f"expected an expression, or another variable, in {environment}: what generated code trained on is "
                    "played again afterwards, which is known to give the same of the built-in environments alone; "
                    "write the code into the environment, and compare two environments"
                )
            continue
        numbers = (*Advantage.NAMES,) if slot != REWARD else (*PLAY_NUMBERS, *environments()[environment].facts)
        try:
            Expression(source).require_names(numbers)
        except InvalidRequest as error:
            raise DesignRefused(f"code: {error.message}, in {environment}") from error


def code_name(slot: str, value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise DesignRefused(
        f"{slot}: expected {BUILT_IN!r} or a short name of lower-case letters, digits and dashes, such as "
        f"'dense-hint'; found {value!r}"
    )


def _check_python(slot: CodeSlot, source: str) -> str:
    size = len(source.encode(errors="surrogatepass"))
    if not source.strip() or size > MOST_BYTES:
        raise DesignRefused(f"code: expected {slot.signature} in at most {MOST_BYTES} bytes; found {size}")
    for number, line in enumerate(source.split("\n"), start=1):
        for character in line:
            if unicodedata.category(character) in _UNSEEN and character != "\t":
                raise DesignRefused(
                    f"code: expected visible characters; found U+{ord(character):04X} in line {number}; leave it out"
                )
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source).body
    except SyntaxError as error:
        raise DesignRefused(
            f"code: expected Python; found a syntax error in line {error.lineno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise DesignRefused("code: expected Python; found what its parser cannot take; write it plainly") from error
    kind = ast.AsyncFunctionDef if slot.signature.startswith("async") else ast.FunctionDef
    definitions = [item for item in body if isinstance(item, kind) and item.name == slot.name]
    if not definitions:
        raise DesignRefused(f"code: expected {slot.signature} at the top level; found no such function")
    given = definitions[-1].args
    others = [*given.posonlyargs, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    if [item.arg for item in given.args] != TAKES[slot.name].split(", ") or others:
        # Types and defaults may be nested deeper than anything writes them out.
        given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
        for item in (*given.args, *others):
            item.annotation = None
        raise DesignRefused(f"code: expected {slot.signature}; found parameters ({ast.unparse(given)})")
    return source
