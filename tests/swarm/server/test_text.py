"""Text leaves as it comes, whole characters only, and never past a stop string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import FakeRenderer
from swarm.server.text import TextStream

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


@given(st.text(max_size=40), st.integers(1, 7))
def test_the_pieces_are_the_text(text: str, size: int) -> None:
    pieces, stream = fed([*text.encode()], size)
    assert "".join(pieces) == stream.served == text


@given(st.text(alphabet="aé漢🙂", max_size=20), st.integers(1, 3))
def test_no_piece_holds_half_a_character(text: str, size: int) -> None:
    pieces, _ = fed([*text.encode()], size)
    assert all("\ufffd" not in piece for piece in pieces)


@given(st.binary(max_size=30), st.integers(1, 5))
def test_broken_bytes_are_served_as_they_decode_in_the_end(raw: bytes, size: int) -> None:
    _, whole = fed([*raw], size, incremental=False)
    assert whole.served == raw.decode(errors="replace")


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(1, 6),
)
def test_nothing_of_a_stop_string_is_served(text: str, stops: list[str], size: int) -> None:
    pieces, stream = fed([*text.encode()], size, tuple(stops))
    assert "".join(pieces) == stream.served
    seen = next((text[:n] for n in range(0, len(text) + size, size) if any(stop in text[:n] for stop in stops)), text)
    assert stream.served == seen[: min((seen.find(stop) for stop in stops if stop in seen), default=len(seen))]
    assert stream.stopped == any(stop in text for stop in stops)
    assert stream.stopped_at is None or seen[len(stream.served) :].startswith(stream.stopped_at)
    assert not any(stop in stream.served for stop in stops)
