"""Files of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Task, get_environment
from swarm.environments.tasks_file import fitting, read_tasks, to_json
from swarm.errors import InvalidRequest

ids = st.text(min_size=1).filter(lambda text: text.isprintable())
values = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans()), max_size=3)


@given(st.dictionaries(ids, values, min_size=1, max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    tasks = tuple(Task(name, value) for name, value in data.items())
    path = tmp_path_factory.getbasetemp() / "tasks.json"
    path.write_text(to_json(tasks))
    assert read_tasks(path) == tasks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nonsense", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "[]"),
        ('{"id": "a"}', '{"id": "a"}'),
        ('[{"id": "a"}, 7]', "task 2 is 7"),
        ('[{"id": ""}]', "task 1"),
        ('[{"id": 3}]', "task 1"),
        ('[{"id": "a", "data": [1]}]', "task 1"),
        ('[{"id": "a", "date": {}}]', "task 1"),
        ('[{"id": "a"}, {"id": "b"}, {"id": "a"}]', "'a' 2 times"),
        ('[{"id": "a"}, {"id": "b\\ud800"}]', "whole characters"),
        (json.dumps([{"id": "a" * 513}]), "at most 512"),
    ],
)
def test_what_is_no_list_of_tasks_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_tasks(path)
    assert expected in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="could not read"):
        read_tasks(tmp_path / "none.json")


def test_tasks_an_environment_cannot_pose_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"id": "sum", "data": {"left": 1, "right": 2}}]))
    tasks = read_tasks(path)
    assert fitting(tasks, get_environment("arith")) == tasks
    with pytest.raises(InvalidRequest, match=r"guess.*'sum'.*KeyError"):
        fitting(tasks, get_environment("guess"))
