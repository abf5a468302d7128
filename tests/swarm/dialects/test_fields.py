"""What all dialects share: fields that are taken or refused by name, events, and thinking that a client keeps."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.dialects import base
from swarm.dialects.base import event, named_event, recover_thinking, seal, signature, unseal
from swarm.dialects.fields import abbreviate, body_fields
from swarm.errors import InvalidRequest

NO_JSON = (b"", b"{", b"\xff", b"[" * 100_000, b'{"a": 1,}', b'{"x": NaN}')


@pytest.mark.parametrize("body", [*NO_JSON, b"[]", b"3", b'{"x": "\\ud800"}'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as found:
        body_fields(body)
    assert len(found.value.message) < 300
    assert ("expected JSON" in found.value.message) == (body in NO_JSON)


def test_a_value_is_shown_shortly_at_the_cost_of_what_is_shown() -> None:
    wide: Any = [1, {"b": 2, "a": "x" * 1000}]
    for _ in range(30):
        wide = [wide] * 5
    assert len(abbreviate(wide)) <= 80
    assert [abbreviate(value) for value in ("x", 5, None, {"a": [1]})] == ["'x'", "5", "None", "{'a': [1]}"]


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
    with pytest.raises(InvalidRequest, match="half of one") as found:
        body_fields(body)
    assert found.value.param == param


def test_half_a_character_below_a_long_name_costs_no_more_than_is_sent() -> None:
    """Whole paths would be a hundred gigabytes."""
    with pytest.raises(InvalidRequest, match="half of one"):
        body_fields(b'{"%s": [%s "\\ud800"]}' % (b"k" * 200_000, b"1," * 500_000))


@given(st.text())
@example("a\r\nb\rc\nd\x0be\x0cf\x1cg\x1dh\x1ei\x85j\u2028k\u2029l")
def test_an_event_is_one_line_of_data_for_every_client(text: str) -> None:
    value = {"type": "said", "text": text}
    data, end = event(value).decode().splitlines()
    assert (json.loads(data.removeprefix("data: ")), end) == (value, "")
    assert named_event(value).decode().splitlines() == ["event: said", data, ""]


texts = st.text()


@given(texts)
def test_sealed_thinking_is_unsealed_as_it_was(text: str) -> None:
    assert unseal(seal(text)) == text
    assert recover_thinking("", seal(text)) == text


@given(texts, texts)
def test_a_signature_fits_one_text_alone(text: str, other: str) -> None:
    assert recover_thinking(text, signature(text)) == text
    assert signature(text) == signature(text)
    if other != text:
        assert recover_thinking(other, signature(text)) is None
        assert other == "" or recover_thinking(other, seal(text)) is None


@given(texts, st.data())
def test_a_token_changed_anywhere_is_not_ours(text: str, data: st.DataObject) -> None:
    token = seal(text)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("Ab0-."))
    changed = token[:place] + letter + token[place + 1 :]
    assert unseal(changed) in (None, text)
    assert unseal(token[:place]) is None


def test_a_token_cannot_unfold_into_more_than_the_bound() -> None:
    bomb = zlib.compress(b"a" * (4 * base.MOST_CHARACTERS + 1))
    assert unseal("v1.r." + base64.urlsafe_b64encode(bytes(24) + bomb).decode()) is None


SAID = "The answer is seven, for two of them were eaten before. "


def test_thinking_that_packs_too_well_is_carried_as_it_is_and_no_token_unfolds_far() -> None:
    text = "so " * 100_000
    assert unseal(seal(text)) == text
    assert len(seal(text)) > len(text)
    assert len(seal(SAID * 3)) < 168
    packed = zlib.compress(text.encode())
    digest = hashlib.blake2b(text.encode(), digest_size=24).digest()
    assert unseal("v1.r." + base64.urlsafe_b64encode(digest + packed).decode()) is None


def test_a_token_that_carries_half_a_character_is_none_of_ours() -> None:
    text = "\ud800".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=24).digest()
    assert unseal("v1.r." + base64.urlsafe_b64encode(digest + zlib.compress(text)).decode()) is None
