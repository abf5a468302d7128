"""Tools in a game, what a policy's message calls and how a call is answered; and files of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Task, calling, calls_of, get_environment, said, text_of, tool, tool_result
from swarm.environments.custom import fitting, read_tasks, to_json
from swarm.errors import InvalidRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda own: st.lists(own, max_size=3), max_leaves=5
)


def written(arguments: Any) -> dict[str, Any]:
    """A policy's message with one call whose arguments are as given."""
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@given(st.dictionaries(st.text().filter(lambda name: name not in ("name", "call_id")), VALUES))
def test_a_call_is_read_back_as_it_was_written(arguments: dict[str, Any]) -> None:
    (call,) = calls_of(calling("price", "c7", **arguments))
    assert (call.id, call.name, call.arguments, call.error) == ("c7", "price", arguments, "")


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "null", '{"a": 1} {', "9" * 5000, "[" * 100_000])
def test_arguments_that_are_no_json_object_are_an_error_with_the_call_still_named(text: str) -> None:
    (call,) = calls_of(written(text))
    assert (call.id, call.name, call.arguments) == ("c1", "price", {})
    assert call.error


def test_arguments_may_be_an_object_already_and_a_message_that_calls_nothing_has_no_calls() -> None:
    (call,) = calls_of(written({"item": "tea"}))
    assert call.arguments == {"item": "tea"}
    assert calls_of(said("7")) == []
    assert calls_of({"role": "assistant", "content": "7", "tool_calls": None}) == []


def test_calls_keep_their_order_and_each_is_answered_by_its_id() -> None:
    message = written("{}")
    message["tool_calls"].append({**message["tool_calls"][0], "id": "c2"})
    answers = [tool_result(call, str(place)) for place, call in enumerate(calls_of(message))]
    assert answers == [
        {"role": "tool", "tool_call_id": "c1", "content": "0"},
        {"role": "tool", "tool_call_id": "c2", "content": "1"},
    ]


def test_a_tool_is_what_chat_completions_take() -> None:
    made = tool("price", "A price.", item="string", unit={"type": "string", "enum": ["cent"]})
    unit = {"type": "string", "enum": ["cent"]}
    parameters = {
        "type": "object", "properties": {"item": {"type": "string"}, "unit": unit}, "required": ["item", "unit"]
    }  # fmt: skip
    function = {"name": "price", "description": "A price.", "parameters": parameters}
    assert json.loads(json.dumps(made)) == {"type": "function", "function": function}


def test_the_text_of_a_message_is_that_of_all_its_parts() -> None:
    assert text_of(calling("price")) == ""
    assert text_of({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "ab"


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
        (None, "could not read"),
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
def test_what_is_no_list_of_tasks_is_refused(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "tasks.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_tasks(path)
    assert expected in str(refused.value)
    assert str(path) in str(refused.value)


def test_tasks_an_environment_cannot_pose_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"id": "sum", "data": {"left": 1, "right": 2}}]))
    tasks = read_tasks(path)
    assert fitting(tasks, get_environment("arith")) == tasks
    with pytest.raises(InvalidRequest, match=r"guess.*'sum'.*KeyError"):
        fitting(tasks, get_environment("guess"))
