"""docs/attacks.md says what these tests try, no more and no less. It needs no engine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.sandboxes.attacks.conftest import HOSTILE, attempts

HERE = Path(__file__).parent
TEXT = (HERE.parents[2] / "docs" / "attacks.md").read_text()
TITLES = {
    "files": "Files", "network": "Network", "privileges": "Privileges", "pid1": "PID 1, from inside",
    "doors": "The two doors",
}  # fmt: skip
ATTEMPTED = {"test_walls.py", "test_table.py"}
"""Their tests are of attempts, or of this document."""


def rows(title: str) -> list[list[str]]:
    table = TEXT.split(f"**{title}**", 1)[1].split("\n\n", 2)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def constant(module: str, name: str) -> set[str]:
    """Return a constant of a test module, without importing what it needs."""
    for statement in ast.parse((HERE / module).read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return set(ast.literal_eval(statement.value))
    raise AssertionError(name)


def named_in(module: Path) -> set[str]:
    found = ast.walk(ast.parse(module.read_text()))
    functions = (node for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize("module", TITLES)
def test_every_attempt_is_a_line_in_its_order(module: str) -> None:
    assert [row[0] for row in rows(TITLES[module])] == list(attempts(module).values())


@pytest.mark.parametrize("module", TITLES)
def test_no_attempt_is_said_to_have_got_anything(module: str) -> None:
    assert all(row[1].startswith("nothing") for row in rows(TITLES[module]))


@pytest.mark.parametrize("module", ["files", "network", "privileges", "pid1"])
def test_the_last_column_says_which_attempts_are_seen_to_succeed_without_the_walls(module: str) -> None:
    succeed = constant("test_walls.py", "WITHOUT_WALLS") | constant("test_walls.py", "AS_A_USER")
    said = {row[0]: row[2] == "yes" for row in rows(TITLES[module])}
    assert said == {tried: name in succeed for name, tried in attempts(module).items()}


def test_every_module_of_attempts_has_a_table() -> None:
    assert {path.stem for path in HOSTILE.glob("*.py") if attempts(path.stem)} == set(TITLES)


def test_every_other_test_is_named_once_and_every_named_test_exists() -> None:
    tests = {name for module in HERE.glob("test_*.py") if module.name not in ATTEMPTED for name in named_in(module)}
    named = re.findall(r"`(test_[a-z0-9_]+)`", TEXT)
    assert sorted(named) == sorted(tests - {"test_an_attacker_gets_nothing_through_its_doors"})
