"""Generated reward functions: whether one is well formed, and what planners know of them.

A reward function is code, so only a language model writes one and only a container runs one. Nothing here runs or
imports the source. The check for readable text that defines `reward` spares a study that cannot work; it protects
against nothing: only the container (`sandboxes`) bounds what the code may do.
"""

from __future__ import annotations

import ast
import random
import re
import unicodedata
import warnings
from collections.abc import Iterable
from typing import Any

from research.errors import DesignRefused
from studies.records.design import BUILT_IN
from swarm.environments.base import PlainEnvironment
from swarm.environments.registry import environments

_PLAY = 4
"""Seed of the scripted player in the examples."""


def examples(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return, for each environment of plain games, what a reward is called with after one play of a training task."""
    shown: list[dict[str, Any]] = []
    for name in names:
        environment = environments()[name]
        if not isinstance(environment, PlainEnvironment):
            continue
        task = environment.tasks("train")[0]
        messages, game = environment.imitate(task, random.Random(_PLAY)), environment.game(task)
        game.opening()
        for message in messages:
            if message["role"] == "assistant":
                game.answer(message)
        outcome = game.outcome()
        shown.append({
            "environment": name, "task": {"id": task.id, "data": dict(task.data)}, "messages": messages,
            "outcome": {"reward": outcome.reward, "success": outcome.success},
        })  # fmt: skip
    return shown


MOST_BYTES = 8192
SIGNATURE = "def reward(task: dict, messages: list[dict], outcome: dict) -> float"
UNWRITTEN = f"{SIGNATURE}:\n    return 0.0\n"
"""Stands for code that is yet to be written, where a price is asked."""
_PARAMETERS = ["task", "messages", "outcome"]
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of what a reader cannot see, direction marks among them; new line and tab are fine."""


def reward_name(value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise DesignRefused(
        f"reward: expected {BUILT_IN!r} or a short name of lower-case letters, digits and dashes, such as "
        f"'dense-hint'; found {value!r}"
    )


def check_reward(source: str) -> str:
    size = len(source.encode(errors="surrogatepass"))
    if not source.strip() or size > MOST_BYTES:
        raise DesignRefused(f"code: expected {SIGNATURE} in at most {MOST_BYTES} bytes; found {size}")
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
    definitions = [item for item in body if isinstance(item, ast.FunctionDef) and item.name == "reward"]
    if not definitions:
        raise DesignRefused(f"code: expected {SIGNATURE} at the top level; found no such function")
    given = definitions[-1].args
    others = [*given.posonlyargs, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    if [item.arg for item in given.args] != _PARAMETERS or others:
        # Types and defaults may be nested deeper than anything writes them out.
        given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
        for item in (*given.args, *others):
            item.annotation = None
        raise DesignRefused(f"code: expected {SIGNATURE}; found parameters ({ast.unparse(given)})")
    return source
