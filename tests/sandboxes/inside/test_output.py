from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.inside import init
from sandboxes.inside.init import SHORT_LINE, Output


def taken(pieces: list[bytes], most_bytes: int) -> tuple[bytes, Output]:
    written: list[bytes] = []
    output = Output(written.append, most_bytes)
    for piece in pieces:
        output.feed(piece)
    output.finish()
    return b"".join(written), output


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 1000))
def test_output_is_kept_from_its_beginning_and_every_further_byte_counted(pieces: list[bytes], most_bytes: int) -> None:
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


def test_output_that_nobody_takes_is_counted_and_blocks_nothing() -> None:
    def broken(data: bytes) -> None:
        raise BrokenPipeError

    output = Output(broken, 1000)
    output.feed(b"x" * 10)
    output.feed(b"y" * 10)
    output.finish()
    assert output.dropped >= 10


def test_a_pipe_that_somebody_outside_holds_open_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "OUTPUT_WAIT_S", 0.05)
    reader, writer = os.pipe()
    output = Output(lambda data: None, 100)
    taker = threading.Thread(target=output.take, args=(reader,), daemon=True)
    taker.start()
    output.settle(taker)
    assert taker.is_alive()  # it was not waited for
    os.close(writer)
    taker.join()


def test_an_engine_that_is_slow_to_take_the_output_is_waited_for() -> None:
    taken: list[bytes] = []
    began, go = threading.Event(), threading.Event()

    def slow(data: bytes) -> None:
        began.set()
        go.wait()
        taken.append(data)

    class Taker(threading.Thread):
        joins = 0

        def join(self, timeout: float | None = None) -> None:
            self.joins += 1
            if self.joins == 3:
                go.set()
                super().join()

    reader, writer = os.pipe()
    os.write(writer, b"late")
    os.close(writer)
    output = Output(slow, 100)
    taker = Taker(target=output.take, args=(reader,), daemon=True)
    taker.start()
    began.wait()
    output.settle(taker)
    assert taken == [b"late"]


# Which files are results, and in what frames they leave


def opened(workspace: Path, name: str, most_bytes: int = 100) -> int:
    descriptor = os.open(workspace, os.O_RDONLY)
    try:
        return init.open_result(descriptor, name, most_bytes)
    finally:
        os.close(descriptor)


def test_a_plain_file_is_collected_in_frames_that_the_engine_does_not_cut(workspace: Path) -> None:
    data = os.urandom(30_000)
    (workspace / "results" / "a").write_bytes(data)
    frames = list(init.collect(os.open(workspace, os.O_RDONLY), "a", 30_000))
    assert b"".join(base64.b64decode(frame["data"]) for frame in frames[:-1]) == data
    assert frames[-1] == {"result": "a", "sha256": hashlib.sha256(data).hexdigest()}
    assert max(len(json.dumps(frame)) for frame in frames) < 16_384 - 1000


REFUSED = {
    "pipe": "regular", "folder": "regular", "one": "second name", "large": "too large: 101", "link": "a symbolic link",
    "none": "missing",
}  # fmt: skip


def test_what_is_no_plain_file_of_one_name_of_its_size_and_in_its_place_is_refused_unread(workspace: Path) -> None:
    folder = workspace / "results"
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "one").write_text("x")
    (folder / "other").hardlink_to(folder / "one")
    (folder / "large").write_bytes(bytes(101))
    (folder / "link").symlink_to("/etc/passwd")
    for name, why in REFUSED.items():
        with pytest.raises(ValueError, match=why):
            opened(workspace, name)
    (folder / "other").unlink()
    os.close(opened(workspace, "one"))
    folder.rename(workspace / "away")
    (workspace / "results").symlink_to("/proc/self")
    with pytest.raises(ValueError, match="its folder is not a folder"):
        opened(workspace, "environ")
    with pytest.raises(ValueError, match="not in the workspace"):
        init.check_result(os.stat("/proc/self/environ"), workspace.stat().st_dev, 100)
