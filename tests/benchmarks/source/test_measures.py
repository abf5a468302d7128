"""What `make house` measures, on a small tree: each figure follows from lines that can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import house
import pytest
from source.measures import read

FIRST = '''"""A module."""
class Thing:
    @property
    def size(self) -> int:
        """Say how large.

        Lines of a docstring do not count.
        """
        return 1

    async def bare(self, given, *rest: int) -> None:
        def inner() -> None:
            pass
        inner()


class _Only: ...
'''
LONG = "def long() -> None:\n" + "    print()\n" * 60


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "room/inside").mkdir(parents=True)
    (tmp_path / "room/__init__.py").write_text('"""The door."""\n')
    (tmp_path / "room/first.py").write_text(FIRST)
    (tmp_path / "room/inside/second.py").write_text(f"class Thing: ...\n{LONG}")
    return tmp_path


def test_lengths_leave_out_docstrings_and_decorators_and_count_nested_functions(tree: Path) -> None:
    source = read(tree, sorted((tree / "room").rglob("*.py")))
    found = [(function.place, function.length) for function in source.functions]
    assert found == [
        ("room/inside/second.py:2 long", 61),
        ("room/first.py:11 bare", 4),
        ("room/first.py:12 inner", 2),
        ("room/first.py:4 size", 2),
    ]
    assert (source.lines, source.median_length, source.p90_length) == (1 + 17 + 62, 3, 61)
    assert [function.length for function in source.long_functions] == [61]


def test_a_parameter_without_a_type_and_a_module_without_a_docstring_are_shares(tree: Path) -> None:
    source = read(tree, sorted((tree / "room").rglob("*.py")))
    assert source.annotated == 0.75
    assert source.documented == pytest.approx(2 / 3)
    assert source.repeated_classes == {"Thing": ["room/first.py", "room/inside/second.py"]}


def test_each_goal_that_is_missed_is_named_with_its_place(tree: Path) -> None:
    for number in range(13):
        (tree / f"room/inside/m{number}.py").write_text('"""One of many."""\nimport room.top\n')
    (tree / "room/top.py").write_text('"""The top."""\nimport room.inside.m1\n')
    room, everything = house.parts(tree, ("room",))
    assert house.missed(room) == house.missed(everything)
    assert house.missed(room) == [
        "90th percentile 61 over 14",
        "over 60 lines: 61 room/inside/second.py:2 long",
        "annotated 75.00%",
        "modules with a docstring 94.12%",
        "14 files in room/inside",
        "class Thing in room/first.py, room/inside/second.py",
        "circle of inside, top",
    ]


def test_a_tree_that_keeps_all_goals_misses_none(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room/__init__.py").write_text('"""The door."""\n')
    (tmp_path / "room/only.py").write_text('"""One."""\ndef one() -> int:\n    return 1\n')
    assert [house.missed(part) for part in house.parts(tmp_path, ("room",))] == [[], []]
    assert house.parts(tmp_path, ("room",))[0].payload()["missed"] == []
