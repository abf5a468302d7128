"""What each id of a span says: joined, the texts are the text; nothing of a character is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake.backend import EOS_ID, EOS_TEXT, FakeRenderer
from swarm.server.service.token_texts import token_texts, with_texts
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan

RENDERER = FakeRenderer()


class Trimming(FakeRenderer):
    """Drops a space at the beginning of what it decodes, as SentencePiece's tokenizers do."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        text = super().decode(ids, special=special)
        return text[1:] if text.startswith(" ") else text


@given(st.text(max_size=40), st.booleans())
def test_the_texts_joined_are_the_text(text: str, ended: bool) -> None:
    ids = [*text.encode(), *([EOS_ID] if ended else [])]
    texts = token_texts(RENDERER, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text + (EOS_TEXT if ended else "")


@given(st.lists(st.integers(0, 255), max_size=12))
def test_every_id_has_a_text_whatever_the_bytes(ids: list[int]) -> None:
    texts = token_texts(RENDERER, ids)
    assert len(texts) == len(ids)
    assert sum(character != "\ufffd" for text in texts for character in text) <= len(ids)


def test_the_last_id_of_a_character_has_it() -> None:
    assert token_texts(RENDERER, list("a€é".encode())) == ("a", "", "", "€", "", "é")


def test_a_character_cut_off_at_the_end_is_seen() -> None:
    assert token_texts(RENDERER, list("a€".encode())[:-1]) == ("a", "", "�")


def test_a_tokenizer_that_drops_leading_spaces_loses_none_inside() -> None:
    assert "".join(token_texts(Trimming(), list(b"one  two three"))) == "one  two three"
    assert "".join(token_texts(Trimming(), list(b" two"), before=list(b"one"))) == " two"


def record(*sampled: Sequence[int]) -> EpisodeRecord:
    calls = tuple(
        CallRecord(
            index=number,
            parent=number - 1 if number else None,
            drift="clean",
            context=TokenSpan(ids=(65, EOS_ID), texts=()),
            sampled=TokenSpan(ids=tuple(ids), texts=(), logprobs=(-0.1,) * len(ids), versions=(0,) * len(ids)),
        )
        for number, ids in enumerate(sampled)
    )
    known = {"id": "e", "task_id": "t", "stream": "s", "kind": "train", "owner": "o", "state": "open", "group": None}
    return EpisodeRecord(**known, calls=len(calls), tokens=0, record=calls)


def test_special_ids_and_cut_answers_are_marked() -> None:
    first, second = with_texts(record((66, EOS_ID), (67,)), RENDERER).record
    assert first.context.texts == ("A", EOS_TEXT)
    assert first.context.special == (1,)
    assert first.sampled.special == (1,)
    assert (first.truncated, second.truncated) == (False, True)


@pytest.mark.parametrize("gone", [(), (0,)])
def test_an_answer_of_no_id_is_cut(gone: tuple[int, ...]) -> None:
    (call,) = with_texts(record(gone), RENDERER).record
    assert call.truncated is True
