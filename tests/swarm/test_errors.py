"""What a person reads when a value is wrong: field, what was expected, what was found; no word of pydantic's own."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from swarm.errors import HALF_A_CHARACTER, wrong_value
from swarm.job import Job
from swarm.wire import BeginRequest, EndRequest


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        (Job, '{"grupsize": 4}', "grupsize: there is no such field"),
        (Job, '{"steps": -1}', "steps: expected a value greater than or equal to 1, found -1"),
        (Job, '{"model": "tiny"}', "model: expected an object, found 'tiny'"),
        (Job, '{"model": {"path": "x"}}', "model: expected an object that says its 'kind', found {'path': 'x'}"),
        (
            Job,
            '{"model": {"kind": "hub"}}',
            "model: expected an object whose 'kind' is one of 'tiny', 'path', found {'kind': 'hub'}",
        ),
        (Job, '{"group_size": 3}', "episodes_per_step must be a multiple of group_size; found 128 and 3"),
        (Job, '{"steps": 3', "expected JSON, found text that is none: EOF while parsing an object at line 1 column 11"),
        (BeginRequest, "{}", "task_id: expected `task_id`, or `tasks` to leave the task to the server; found neither"),
        (BeginRequest, '{"task_id": "x", "kind": "tran"}', "kind: expected 'train' or 'eval', found 'tran'"),
        (BeginRequest, '{"task_id": "\\ud800"}', HALF_A_CHARACTER),
        (EndRequest, "{}", "reward: expected a value, found none"),
        (EndRequest, '{"reward": NaN}', "reward: expected a finite number, found nan"),
    ],
)
def test_a_wrong_value_is_one_line_in_plain_words(kind: type[BaseModel], text: str, line: str) -> None:
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(text)
    assert str(wrong_value(refused.value)) == line


def test_half_a_character_in_a_value_of_python_is_told_as_in_json() -> None:
    with pytest.raises(ValidationError) as refused:
        BeginRequest(task_id="\ud800")
    assert str(wrong_value(refused.value)) == f"task_id: {HALF_A_CHARACTER}"


def test_what_was_found_is_shown_short_and_in_ascii() -> None:
    with pytest.raises(ValidationError) as refused:
        BeginRequest(task_id="x", wait_s="é\n" * 1000)  # type: ignore[arg-type]
    line = str(wrong_value(refused.value))
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 200
