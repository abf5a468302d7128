"""The walk of a topic: what docs/architecture.md names is there, and is read in few files."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILES = 8


class Step(NamedTuple):
    file: str
    function: str


def walk() -> tuple[list[Step], list[Step]]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text[text.index("\n## A topic\n") :]
    section = section[: section.index("\n## ", 1)]
    before, after = section[: section.index("\n### ", 1)].split("\nAfter the lock:\n")
    return _steps(before), _steps(after)


def _steps(text: str) -> list[Step]:
    return [Step(*found) for found in re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", text, re.MULTILINE)]


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    methods = {
        f"{owner.name}.{node.name}"
        for owner in tree.body
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, kinds)
    }
    return methods | {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("part", [0, 1], ids=["up to the lock", "after it"])
def test_a_part_of_the_walk_is_of_functions_that_are_there_in_eight_files(part: int) -> None:
    steps = walk()[part]
    assert len(steps) >= 5
    assert len({step.file for step in steps}) <= MOST_FILES
    assert [step for step in steps if step.function not in functions(step.file)] == []
