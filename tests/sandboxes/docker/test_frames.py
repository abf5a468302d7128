from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.docker.container import (
    LINE_BYTES,
    NOT_COLLECTED,
    TROUBLE_BYTES,
    FrameReport,
    classify_exit,
    read_frames,
)
from sandboxes.spec import Exit, ExitReason


def lines(*frames: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


def result(name: str, data: bytes) -> list[dict[str, Any]]:
    parts = [data[at : at + 7] for at in range(0, len(data), 7)]
    chunks = [{"result": name, "data": base64.b64encode(part).decode()} for part in parts]
    return [*chunks, {"result": name, "sha256": hashlib.sha256(data).hexdigest()}]


END = {"exit": "error", "code": 3, "dropped": 5, "oom_kills": 1}


@given(st.binary(max_size=200))
def test_a_whole_result_is_read_as_it_was(data: bytes) -> None:
    report = read_frames(lines(END, *result("a", data)), {"a": 200})
    assert (report.ended, report.dropped_bytes, report.oom_kills) == (Exit("error", 3), 5, 1)
    assert (report.results, report.refused, report.trouble) == ({"a": data}, {}, "")


def test_a_log_that_ends_early_has_no_half_results() -> None:
    whole = lines(END, *result("a", b"first"), *result("b", b"second, longer"))
    for length in range(len(whole)):
        report = read_frames(whole[:length], {"a": 100, "b": 100})
        assert report.results.keys() | report.refused.keys() == {"a", "b"}
        assert report.results.get("b", b"second, longer") == b"second, longer"
    assert read_frames(b"", {"a": 1}).refused == {"a": NOT_COLLECTED}


@pytest.mark.parametrize(("frames", "why"), [
    (result("a", b"123456789"), "too large: more than 8 bytes"),
    ([*result("a", b"1")[:1], {"result": "a", "sha256": "0" * 64}], "its hash"),
    ([{"result": "a", "data": "!"}], "not base64"), (result("../b", b"1"), NOT_COLLECTED),
    ([{"result": "a", "refused": "missing"}, *result("a", b"1")], "missing"),  # the first word is the last
])  # fmt: skip
def test_a_result_that_is_larger_other_unasked_or_refused_is_not_taken(frames: list[dict[str, Any]], why: str) -> None:
    report = read_frames(lines(*frames), {"a": 8})
    assert (report.results, why in report.refused["a"]) == ({}, True)


def test_the_first_word_on_a_result_and_on_the_end_is_the_last() -> None:
    report = read_frames(lines(END, *result("a", b"1"), *result("a", b"2"), {**END, "exit": "finished"}), {"a": 8})
    assert (report.results, report.refused, report.ended) == ({"a": b"1"}, {}, Exit("error", 3))


def test_words_and_counts_that_pid_1_does_not_say_are_not_believed() -> None:
    assert read_frames(lines({**END, "exit": "killed"}), {}).ended is None
    odd = read_frames(lines({**END, "code": True, "dropped": "5", "oom_kills": None}), {})
    assert (odd.ended, odd.dropped_bytes, odd.oom_kills) == (Exit("error", 0), 0, 0)
    assert len(read_frames(lines({"result": "a", "refused": "x" * 10_000}), {"a": 8}).refused["a"]) == TROUBLE_BYTES
    assert read_frames(lines({**END, "more": "x" * LINE_BYTES}), {}).ended is None  # a line too long is none


@given(st.binary(max_size=300) | st.lists(st.dictionaries(st.sampled_from(
    ["exit", "code", "dropped", "oom_kills", "result", "data", "sha256", "refused"]
), st.none() | st.integers() | st.sampled_from(["a", "error", "MTIz"]) | st.lists(st.integers())), max_size=6).map(
    lambda frames: lines(*frames)
))  # fmt: skip
def test_no_log_whatsoever_breaks_the_reader(log: bytes) -> None:
    report = read_frames(log, {"a": 3})
    assert report.results.keys() | report.refused.keys() == {"a"}


ASKED = {"asked_at": 1.0}
OVERDUE = {"asked_at": 1.0, "overdue": True}


def word(reason: ExitReason, code: int = 0, oom_kills: int = 0) -> FrameReport:
    return FrameReport(Exit(reason, code), 0, oom_kills)


@pytest.mark.parametrize(("report", "code", "oom", "asked", "ended"), [
    (word("finished"), 0, False, None, Exit("finished", 0)),
    (word("finished"), 0, True, None, Exit("finished", 0)),
    (word("finished"), 0, False, ASKED, Exit("finished", 0)),
    (word("error", 3), 3, False, None, Exit("error", 3)),
    (word("error", -9), 137, True, None, Exit("out_of_memory", -9)),
    (word("error", -9, oom_kills=1), 137, False, None, Exit("out_of_memory", -9)),
    (word("error", 3), 3, False, ASKED, Exit("error", 3)),
    (word("timeout", -15), 143, False, ASKED, Exit("timeout", -15)),
    (word("timeout", -15), 143, True, None, Exit("timeout", -15)),
    (word("stopped", -15), 143, False, ASKED, Exit("stopped", -15)),
    (word("stopped", -15), 143, False, None, Exit("killed", -15)),
    (FrameReport(), 137, False, None, Exit("killed", 137)),
    (FrameReport(), 137, True, None, Exit("out_of_memory", 137)),
    (FrameReport(), 137, True, ASKED, Exit("out_of_memory", 137)),
    (FrameReport(), 137, False, ASKED, Exit("stopped", 137)),
    (FrameReport(), 137, False, OVERDUE, Exit("timeout", 137)),
    (FrameReport(), 0, False, None, Exit("killed", 0)),
    (FrameReport(), 127, False, None, Exit("error", 127)),
    (FrameReport(), 128, False, None, Exit("killed", 128)),
    (FrameReport(), 255, False, None, Exit("killed", 255)),
    (FrameReport(trouble="Traceback"), 1, False, None, Exit("error", 1)),
])  # fmt: skip
def test_every_end_is_told_apart(report: FrameReport, code: int, oom: bool, asked: dict[str, Any], ended: Exit) -> None:
    assert classify_exit({"ExitCode": code, "OOMKilled": oom}, report, asked) == ended
