"""The wire between servers and clients of different ages, and what a person reads of a wrong value on it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from swarm.errors import HALF_A_CHARACTER, to_invalid_request
from swarm.job import Job
from swarm.wire import BeginRequest, EndRequest, Status, StreamStatus, stream_label


@pytest.mark.parametrize(("kind", "known"), [
    (Status, {"state": "ROLLING", "group_size": 4}),
    (StreamStatus, {"name": "a", "share": 0.5, "cursor": 1, "groups_open": 0, "groups_trained": 1}),
])  # fmt: skip
def test_a_client_takes_no_notice_of_what_a_newer_server_says(kind: type[BaseModel], known: dict[str, Any]) -> None:
    assert kind.model_validate({**known, "learned_to_say_later": {"a": 1}}) == kind.model_validate(known)


def test_a_request_with_a_word_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match="succes"):
        EndRequest.model_validate({"reward": 1.0, "succes": True})


@given(st.lists(st.text(min_size=1, max_size=128), min_size=2, max_size=2, unique=True))
def test_any_two_streams_have_labels_of_their_own_that_any_tracker_takes(streams: list[str]) -> None:
    labels = [stream_label(stream) for stream in streams]
    assert len({*labels, "others+"}) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]{1,71}", label) for label in labels)


@pytest.mark.parametrize(("kind", "text", "line"), [
    (Job, '{"grupsize": 4}', "grupsize: there is no such field"),
    (Job, '{"steps": -1}', "steps: expected a value greater than or equal to 1, found -1"),
    (Job, '{"model": "tiny"}', "model: expected an object, found 'tiny'"),
    (Job, '{"model": {"path": "x"}}', "model: expected an object that says its 'kind', found {'path': 'x'}"),
    (
        Job,
        '{"model": {"kind": "hub"}}',
        "model: expected an object whose 'kind' is one of 'tiny', 'path', found {'kind': 'hub'}",
    ),
    (Job, '{"missing_stream": "renormalise"}', "missing_stream: expected 'wait', found 'renormalise'"),
    (Job, '{"group_size": 3}', "episodes_per_step must be a multiple of group_size; found 128 and 3"),
    (Job, '{"steps": 3', "expected JSON, found text that is none: EOF while parsing an object at line 1 column 11"),
    (BeginRequest, "{}", "task_id: expected `task_id`, or `tasks` to leave the task to the server; found neither"),
    (BeginRequest, '{"task_id": "x", "kind": "tran"}', "kind: expected 'train' or 'eval', found 'tran'"),
    (BeginRequest, '{"task_id": "\\ud800"}', HALF_A_CHARACTER),
    (EndRequest, "{}", "reward: expected a value, found none"),
    (EndRequest, '{"reward": NaN}', "reward: expected a finite number, found nan"),
])  # fmt: skip
def test_a_wrong_value_is_one_line_of_field_expected_and_found_and_no_word_of_pydantic_s(
    kind: type[BaseModel], text: str, line: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(text)
    assert str(to_invalid_request(refused.value)) == line


@pytest.mark.parametrize(
    ("fields", "start"),
    [({"task_id": "\ud800"}, f"task_id: {HALF_A_CHARACTER}"), ({"task_id": "x", "wait_s": "é\n" * 1000}, "wait_s: ")],
)
def test_what_was_found_is_shown_short_and_in_ascii(fields: dict[str, Any], start: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BeginRequest(**fields)
    line = str(to_invalid_request(refused.value))
    assert (line.startswith(start), line.isascii(), line.isprintable(), len(line) < 200) == (True, True, True, True)
