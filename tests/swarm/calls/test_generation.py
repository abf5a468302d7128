"""What is captured is what was sampled, what is served is the same however it was cut, and retries find their call."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import FakeRenderer
from swarm.calls.call import KEPT_S, Call, CallState, RetryCache
from swarm.calls.generation import TextStream, read_message, short_name
from tests.swarm.server.support import Clock


@given(st.lists(st.text(max_size=20), unique=True, max_size=50))
def test_short_names_are_nine_letters_and_digits_and_differ(texts: list[str]) -> None:
    names = [short_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(len(name) == 9 and set(name) <= set(string.ascii_letters + string.digits) for name in names)
    assert names == [short_name(text) for text in texts]


def test_ids_are_read_again_as_a_message_with_its_thought_and_its_calls() -> None:
    renderer = FakeRenderer()
    said = '<think>add</think>So:<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|end|>'
    found = read_message(renderer, "<|assistant|>", renderer.encode(said))
    assert (found["reasoning_content"], str(found["content"]).strip()) == ("add", "So:")
    (call,) = found["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
    assert read_message(renderer, "<|assistant|>", renderer.encode("5<|end|>")) == {"role": "assistant", "content": "5"}


decode = FakeRenderer().decode


def fed(
    ids: list[int], size: int, stops: tuple[str, ...] = (), *, incremental: bool = True
) -> tuple[list[str], TextStream]:
    stream = TextStream(decode, stops, incremental=incremental)
    pieces = []
    for start in range(0, len(ids), size):
        pieces.append(stream.feed(ids[start : start + size]))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream


@given(st.text(alphabet="aé漢🙂", max_size=20), st.integers(1, 3))
def test_no_piece_holds_half_a_character(text: str, size: int) -> None:
    pieces, _ = fed([*text.encode()], size)
    assert all("\ufffd" not in piece for piece in pieces)


@given(st.lists(st.sampled_from([*"a🙂漢é".encode(), 0x80, 0xFF]), max_size=80), st.integers(1, 30))
def test_broken_bytes_stream_as_they_decode_in_the_end(raw: list[int], size: int) -> None:
    pieces, _ = fed(raw, size)
    assert "".join(pieces) == bytes(raw).decode(errors="replace")


def test_what_stays_broken_streams_at_the_cost_of_what_is_new() -> None:
    decoded = 0

    def counting(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    stream = TextStream(counting, incremental=True)
    for _ in range(1000):
        stream.feed([0x80])
    assert len(stream.served) > 1000 - 2 * 16
    assert decoded < 1000 * 100


def test_a_stream_keeps_characters_that_some_tokenizers_break_afterwards() -> None:
    def fallback(ids: Sequence[int]) -> str:
        try:
            return bytes(ids).decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(ids)

    stream = TextStream(fallback, incremental=True)
    assert [stream.feed([0xC3]), stream.feed([0xA9]), stream.feed([0xFF]), stream.finish()] == [
        "", "é", "", "\ufffd\ufffd",
    ]  # fmt: skip
    assert fallback([0xC3, 0xA9, 0xFF]) == "\ufffd" * 3


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(1, 6),
)
def test_nothing_of_a_stop_string_is_served(text: str, stops: list[str], size: int) -> None:
    pieces, stream = fed([*text.encode()], size, tuple(stops))
    assert "".join(pieces) == stream.served
    seen = next((text[:n] for n in range(len(text) + 1) if any(stop in text[:n] for stop in stops)), text)
    assert (stream.length, stream.decoded) == (len(seen), seen)
    assert stream.served == seen[: min((seen.find(stop) for stop in stops if stop in seen), default=len(seen))]
    assert stream.stopped == any(stop in text for stop in stops)
    assert stream.stopped_at is None or seen[len(stream.served) :].startswith(stream.stopped_at)
    assert not any(stop in stream.served for stop in stops)


@dataclass(eq=False)
class Standing:
    waiting: bool = False
    state: CallState = CallState.GENERATING
    over_at: float | None = None


def add(retries: RetryCache, key: str, call: Standing) -> Standing:
    retries.add(key, cast(Call, call))
    return call


def found(retries: RetryCache, key: str) -> Any:
    return retries.find(key)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_call_without_its_client_comes_first_then_one_that_goes_on_then_one_that_was_served(
    clock: Clock, order: tuple[int, ...]
) -> None:
    retries = RetryCache(clock)
    calls = [Standing(waiting=True), Standing(), Standing(state=CallState.SERVED, over_at=1000.0)]
    for place in order:
        add(retries, "k", calls[place])
    for call in calls:
        assert found(retries, "k") is call
        call.state = CallState.FAILED
    assert (found(retries, "k"), found(retries, "other")) == (None, None)


def test_a_call_that_goes_on_is_found_however_long_it_takes(clock: Clock) -> None:
    retries = RetryCache(clock)
    slow = add(retries, "slow", Standing())
    clock.now += 100 * KEPT_S
    add(retries, "other", Standing())
    assert found(retries, "slow") is slow
    slow.state, slow.over_at = CallState.SERVED, clock.now
    clock.now += KEPT_S - 1
    add(retries, "other", Standing())
    assert found(retries, "slow") is slow


@given(lasting=st.lists(st.floats(0, 3 * KEPT_S), max_size=30))
def test_nothing_is_remembered_for_ever(lasting: list[float]) -> None:
    clock = Clock()
    retries = RetryCache(clock)
    for number, seconds in enumerate(lasting):
        add(retries, str(number % 3), Standing(state=CallState.SERVED, over_at=clock.now + seconds))
        clock.now += 1.0
    for _ in range(2):
        clock.now += 5 * KEPT_S
        add(retries, "last", Standing(state=CallState.SERVED, over_at=clock.now))
    assert len(retries) == 1
    assert all(retries.find(str(number)) is None for number in range(3))
