"""A field of a request is taken or refused by name; none is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swarm.errors import InvalidRequest
from swarm.server.dialects.reading import Fields, body_fields, joined_text, shown

TEXT: Any = {"text": lambda part: None}


def test_what_nobody_took_is_refused_by_its_path() -> None:
    fields = Fields({"a": 1, "b": None, "c": {"d": 2}})
    assert fields.whole("a", 0) == 1
    inner = fields.inner("c")
    assert inner is not None
    fields.close()
    with pytest.raises(InvalidRequest) as found:
        inner.close()
    assert found.value.param == "c.d"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (True, lambda fields: fields.whole("x", 0)),
        (1.5, lambda fields: fields.whole("x", 0)),
        (5, lambda fields: fields.whole("x", 0, 4)),
        (True, lambda fields: fields.number("x", 0, 2)),
        (3, lambda fields: fields.number("x", 0, 2)),
        ("1", lambda fields: fields.number("x", 0, 2)),
        (1, lambda fields: fields.flag("x")),
        (1, lambda fields: fields.text("x")),
        (None, lambda fields: fields.words("x")),
        ([""], lambda fields: fields.stops("x")),
        ("ab", lambda fields: fields.stops("x")),
        ("c", lambda fields: fields.choice("x", ("a", "b"))),
        ([], lambda fields: fields.choice("x", ("a", "b"))),
        ([], lambda fields: fields.inner("x")),
        ({}, lambda fields: fields.items("x")),
        (True, lambda fields: fields.neutral(x=(1,))),
        ("x", lambda fields: fields.neutral(x=())),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_found(value: Any, read: Callable[[Fields], Any]) -> None:
    with pytest.raises(InvalidRequest) as found:
        read(Fields({"x": value}, "at"))
    assert found.value.param == "at.x"
    assert "found none" in found.value.message or repr(value) in found.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"x": NaN}', b'{"x": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as found:
        body_fields(body)
    assert len(found.value.message) < 300


def test_parts_are_joined_with_nothing_between() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert joined_text(parts, "content", TEXT) == "a b"
    assert joined_text("as it is", "content", TEXT) == "as it is"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image", "source": {}}, "content.0"),
        ({"type": "text"}, "content.0.text"),
        ({"type": "text", "text": "x", "weight": 3}, "content.0.weight"),
        ("x", "content.0"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_its_place(part: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        joined_text([part], "content", TEXT)
    assert found.value.param == param


def test_a_value_is_shown_shortly_at_the_cost_of_what_is_shown() -> None:
    wide: Any = [1, {"b": 2, "a": "x" * 1000}]
    for _ in range(30):
        wide = [wide] * 5
    assert len(shown(wide)) <= 80
    assert [shown(value) for value in ("x", 5, None, {"a": [1]})] == ["'x'", "5", "None", "{'a': [1]}"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}', "messages.0.content"),
        (b'{"input": "\\udc00"}', "input"),
        (b'{"metadata": {"x\\ud83d": 1}}', "metadata"),
        (b'{"user": "\xed\xa0\x80"}', "user"),
    ],
)
def test_half_a_character_is_refused_by_its_field(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest, match="expected whole characters, found half of one") as found:
        body_fields(body)
    assert found.value.param == param


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": 1,}'])
def test_what_is_no_json_is_called_so(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="expected JSON, found text that is none"):
        body_fields(body)
