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
        {"role": "assistant", "content": "\n5 "},
        {"role": "assistant", "content": " 5", "reasoning_content": "\n\n", "tool_calls": []},
    ],
)
def test_absent_null_and_split_fields_do_not_matter(same: dict[str, Any]) -> None:
    assert canonical(same) == canonical(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "content": "5"},
        {"role": "assistant", "content": "5", "name": "bob"},
        {"role": "assistant", "content": "5", "reasoning_content": "hm"},
        {"role": "assistant", "content": None},
    ],
)
def test_a_different_role_text_or_name_does(other: dict[str, Any]) -> None:
    assert canonical(other) != canonical(PLAIN)


def test_only_an_assistants_outer_spaces_are_ignored() -> None:
    for role in ("user", "system", "tool"):
        assert canonical({"role": role, "content": "5 "}) != canonical({"role": role, "content": "5"})


def call(arguments: Any, *, id_: str | None = "1", **others: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    named = {"id": id_, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [named], **others}


def test_tool_arguments_compare_as_json_values() -> None:
    assert canonical(call('{"a": 1, "b": 2}')) == canonical(call('{"b":2,"a":1}')) == canonical(call({"a": 1, "b": 2}))
    assert canonical(call('{"a": 1}')) != canonical(call('{"a": 2}'))
    assert canonical(call('{"a": 1}')) != canonical(call('{"a": true}'))
    assert canonical(call("not json")) != canonical(call("nor this"))
    assert canonical(call("[" * 100_000)) != canonical(call("{" * 100_000))


def test_tool_call_ids_do_not_matter() -> None:
    assert canonical(call("{}")) == canonical(call("{}", id_="another")) == canonical(call("{}", id_=None))
    result = {"role": "tool", "content": "x"}
    assert canonical({**result, "tool_call_id": "1"}) == canonical({**result, "tool_call_id": "2"}) == canonical(result)
    assert canonical({**result, "name": "f"}) != canonical(result)


def test_a_call_of_another_tool_or_one_more_call_matters() -> None:
    once = call("{}")
    other = call("{}")
    other["tool_calls"][0]["function"]["name"] = "g"
    assert canonical(other) != canonical(once)
    assert canonical({**once, "tool_calls": once["tool_calls"] * 2}) != canonical(once)


def test_malformed_tool_calls_are_compared_as_they_are() -> None:
    odd: Any
    for odd in ("f", [None], ["f"], [{"function": "f"}], [{"custom": {}}], 7):
        message = {"role": "assistant", "content": "", "tool_calls": odd}
        assert canonical(message) == canonical(dict(message))
        assert normalise(message)["tool_calls"] == odd


def test_normalised_messages_have_text_content_and_no_nulls() -> None:
    assert normalise({"role": "user", "content": None, "name": None}) == {"role": "user", "content": ""}
    assert normalise({"role": "", "content": "", "n": 0}) == {"role": "", "content": "", "n": 0}


@pytest.mark.parametrize(
    ("arguments", "shown"), [('{"b": 1, "a": [2]}', {"b": 1, "a": [2]}), ("{", "{"), ("5", "5"), ({"a": 1}, {"a": 1})]
)
def test_templates_get_tool_arguments_as_objects_where_they_are_ones(arguments: Any, shown: Any) -> None:
    (given,) = normalise(call(arguments))["tool_calls"]
    assert given["function"]["arguments"] == shown
    assert given["id"] == "1"


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"\\udfff": 1}', *("[" * depth + "]" * depth for depth in (300, 985, 990))]
)
def test_arguments_that_no_template_could_write_stay_text(arguments: str) -> None:
    (given,) = normalise(call(arguments))["tool_calls"]
    assert given["function"]["arguments"] == arguments
    assert canonical(call(arguments)) == canonical(call(arguments)) != canonical(call("{}"))
