"""Messages that say the same have the same key."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.timelines import canonical, normalise

PLAIN = {"role": "assistant", "content": "5"}


@pytest.mark.parametrize(
    "same",
    [
        {"content": "5", "role": "assistant"},
        {"role": "assistant", "content": "5", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "assistant", "content": [{"type": "text", "text": "5"}]},
        {"role": "assistant", "content": "5", "reasoning_content": "", "function_call": {}},
    ],
)
def test_absent_null_and_split_fields_do_not_matter(same: dict[str, Any]) -> None:
    assert canonical(same) == canonical(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "content": "5"},
        {"role": "assistant", "content": "5 "},
        {"role": "assistant", "content": "5", "name": "bob"},
        {"role": "assistant", "content": None},
    ],
)
def test_a_different_role_text_or_name_does(other: dict[str, Any]) -> None:
    assert canonical(other) != canonical(PLAIN)


def call(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


def test_tool_arguments_compare_as_json_values() -> None:
    assert canonical(call('{"a": 1, "b": 2}')) == canonical(call('{"b":2,"a":1}'))
    assert canonical(call('{"a": 1}')) != canonical(call('{"a": 2}'))
    assert canonical(call("not json")) != canonical(call("nor this"))
    assert canonical(call("[" * 100_000)) != canonical(call("{" * 100_000))


def test_normalised_messages_have_text_content_and_no_nulls() -> None:
    assert normalise({"role": "user", "content": None, "name": None}) == {"role": "user", "content": ""}
    assert normalise({"role": "", "content": "", "n": 0}) == {"role": "", "content": "", "n": 0}
