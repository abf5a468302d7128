"""Thinking that a client keeps comes back as it was, or not at all."""

from __future__ import annotations

import base64
import hashlib
import zlib

from hypothesis import given
from hypothesis import strategies as st

from swarm.server.dialects import opaque
from swarm.server.dialects.opaque import sealed, signature, thinking_of, unsealed

texts = st.text()


@given(texts)
def test_sealed_thinking_is_unsealed_as_it_was(text: str) -> None:
    assert unsealed(sealed(text)) == text
    assert thinking_of("", sealed(text)) == text


@given(texts, texts)
def test_a_signature_fits_one_text_alone(text: str, other: str) -> None:
    assert thinking_of(text, signature(text)) == text
    assert signature(text) == signature(text)
    if other != text:
        assert thinking_of(other, signature(text)) is None
        assert other == "" or thinking_of(other, sealed(text)) is None


@given(texts, st.data())
def test_a_token_changed_anywhere_is_not_ours(text: str, data: st.DataObject) -> None:
    token = sealed(text)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("Ab0-."))
    changed = token[:place] + letter + token[place + 1 :]
    assert unsealed(changed) in (None, text)
    assert unsealed(token[:place]) is None


@given(st.text())
def test_any_other_text_is_no_token(token: str) -> None:
    assert unsealed(token) is None
    assert unsealed("v1.r." + token) is None


def test_a_token_cannot_unfold_into_more_than_the_bound() -> None:
    bomb = zlib.compress(b"a" * (4 * opaque.MOST_CHARACTERS + 1))
    assert unsealed("v1.r." + base64.urlsafe_b64encode(bytes(24) + bomb).decode()) is None


def test_thinking_that_packs_too_well_is_carried_as_it_is_and_no_token_unfolds_far() -> None:
    text = "so " * 100_000
    assert unsealed(sealed(text)) == text
    assert len(sealed(text)) > len(text)
    assert len(sealed("The answer is seven, for two of them were eaten before. " * 3)) < 168
    packed = zlib.compress(text.encode())
    digest = hashlib.blake2b(text.encode(), digest_size=24).digest()
    assert unsealed("v1.r." + base64.urlsafe_b64encode(digest + packed).decode()) is None


def test_a_signature_says_nothing_of_its_text() -> None:
    assert len(signature("secret")) == len(signature("s" * 10_000))
    assert signature("x").startswith("v1.")


def test_a_token_that_carries_half_a_character_is_none_of_ours() -> None:
    text = "\ud800".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=24).digest()
    assert unsealed("v1.r." + base64.urlsafe_b64encode(digest + zlib.compress(text)).decode()) is None
