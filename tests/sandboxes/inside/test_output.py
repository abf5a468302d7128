"""What PID 1 keeps of its command's output, and that it accounts for the rest."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.inside import output as module
from sandboxes.inside.output import SHORT_LINE, TAIL_BYTES, Output


def taken(pieces: list[bytes], most_bytes: int) -> tuple[bytes, Output]:
    written: list[bytes] = []
    output = Output(written.append, most_bytes)
    for piece in pieces:
        output.feed(piece)
    output.finish()
    return b"".join(written), output


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 1000))
def test_output_is_kept_from_its_beginning_and_every_other_byte_is_accounted_for(
    pieces: list[bytes], most_bytes: int
) -> None:
    data = b"".join(pieces)
    written, output = taken(pieces, most_bytes)
    if written == data:
        assert output.dropped == 0
        return
    head, _, tail = written.partition(f"\n[{output.dropped} bytes of output were dropped here; the last ".encode())
    assert len(head) <= most_bytes
    assert head.count(b"\n") <= most_bytes // SHORT_LINE
    assert data.startswith(head)
    assert data.endswith(tail.partition(b" follow]\n")[2])
    assert len(head) + output.dropped + len(tail.partition(b" follow]\n")[2]) == len(data)


def test_lines_are_bounded_too_and_nothing_is_shown_behind_a_gap() -> None:
    written, output = taken([b"\n" * 4, b"\n" * 9, b"late"], 10 * SHORT_LINE)
    assert written == b"\n" * 10 + b"\n[0 bytes of output were dropped here; the last 7 follow]\n" + b"\n" * 3 + b"late"
    assert output.dropped == 0


def test_the_end_of_a_flood_is_kept_and_no_more_memory_is_taken_than_that() -> None:
    written, output = taken([b"x" * 100_000] * 50 + [b"the end"], 1000)
    assert written.startswith(b"x" * 1000 + b"\n[")
    assert written.endswith(b"the end")
    assert len(written) < 1000 + TAIL_BYTES + 100
    assert output.dropped == 5_000_007 - 1000 - TAIL_BYTES


def test_output_that_nobody_takes_is_counted_and_blocks_nothing() -> None:
    def broken(data: bytes) -> None:
        raise BrokenPipeError

    output = Output(broken, 1000)
    output.feed(b"x" * 10)
    output.feed(b"y" * 10)
    output.finish()
    assert output.dropped >= 10


def test_what_follows_output_that_was_not_taken_is_shown_as_the_end_alone() -> None:
    written: list[bytes] = []

    def broken_once(data: bytes) -> None:
        if not written:
            written.append(b"")
            raise BrokenPipeError
        written.append(data)

    output = Output(broken_once, 1000)
    output.feed(b"lost")
    output.feed(b"end")
    output.finish()
    assert b"".join(written) == b"\n[4 bytes of output were dropped here; the last 3 follow]\nend"


def test_a_pipe_that_somebody_outside_holds_open_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_WAIT_S", 0.05)
    reader, writer = os.pipe()
    output = Output(lambda data: None, 100)
    taker = threading.Thread(target=output.take, args=(reader,), daemon=True)
    taker.start()
    output.settle(taker)
    assert taker.is_alive(), "it was not waited for"
    os.close(writer)
    taker.join()


def test_an_engine_that_is_slow_to_take_the_output_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_WAIT_S", 0.02)
    taken: list[bytes] = []
    go = threading.Event()

    def slow(data: bytes) -> None:
        go.wait()
        taken.append(data)

    reader, writer = os.pipe()
    os.write(writer, b"late")
    os.close(writer)
    output = Output(slow, 100)
    taker = threading.Thread(target=output.take, args=(reader,), daemon=True)
    taker.start()
    threading.Timer(0.2, go.set).start()
    output.settle(taker)
    assert taken == [b"late"]
