"""A sandbox's folder: files written once, and locks; text that is shown to people and to language models."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import spec
from sandboxes.spec import (
    Exit,
    FolderHandle,
    SandboxError,
    added_text,
    escape_control,
    hold_lock,
    last_lines,
    read,
    write_once,
)


def test_of_many_who_write_at_once_one_wins_whole_and_no_draft_is_left(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda writer: write_once(tmp_path / "a", {"writer": writer, "more": "x" * 9000}), range(8)))
    first = read(tmp_path / "a")
    assert first is not None
    write_once(tmp_path / "a", {"writer": "late"})
    assert read(tmp_path / "a") == first
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_was_written_once_is_on_the_disk_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of which only the content is on the disk is gone after a power cut."""
    synced: list[bool] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            synced.append((tmp_path / "a").exists())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_once(tmp_path / "a", {})
    assert synced == [True]


def test_a_lock_is_one_owners_and_who_waits_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "LOCK_WAIT_S", 0.01)
    held = pytest.raises(SandboxError, match=r"lock for 0 s")
    with hold_lock(tmp_path), held, hold_lock(tmp_path):
        pytest.fail("two owners")
    with hold_lock(tmp_path):
        return


def test_a_record_that_is_no_json_is_one_line(tmp_path: Path) -> None:
    assert read(tmp_path / "a") is None
    (tmp_path / "a").write_text("{")
    with pytest.raises(SandboxError, match=r"JSON in .*/a; .*Restore it"):
        read(tmp_path / "a")


@pytest.mark.parametrize("left", [(), ("spec.json",)], ids=["nothing", "a part"])
def test_a_folder_removed_while_it_is_looked_at_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...]
) -> None:
    for name in left:
        write_once(tmp_path / name, {"created_at": 1.0})
    handle = FolderHandle(tmp_path)
    monkeypatch.setattr(handle, "poll", lambda: Exit("finished", 0))
    with pytest.raises(SandboxError, match="removed meanwhile"):
        handle.run_times()


def test_text_steers_no_terminal_and_is_neither_turned_nor_hidden_and_letters_of_the_world_stay() -> None:
    assert escape_control("\x1b[2J\x1b]0;mine\x07done\r100 %\x9b1m") == r"\x1b[2J\x1b]0;mine\x07done\r100 %\x9b1m"
    assert escape_control("pay \u202eeno\u200b") == r"pay \u202eeno\u200b"
    assert escape_control("say\U000e0061\u3164\U000e0101\ud800") == r"say\U000e0061\u3164\U000e0101\ud800"
    assert escape_control("α\tβ\r\n漢字 😀\n") == "α\tβ\n漢字 😀\n"


@given(st.text(), st.integers(1, 4), st.integers(2, 50))
def test_last_lines_are_one_line_of_bounded_length(text: str, lines: int, most: int) -> None:
    found = last_lines(text, lines, most)
    assert len(found) <= most
    assert len(found.splitlines()) <= 1


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(300, 400))
def test_lines_are_told_once_as_long_as_the_end_that_is_kept_overlaps(lines: list[int], kept: int) -> None:
    """Nothing is lost and nothing is told twice, however many lines come between two looks."""
    whole, before, heard = "", "", ""
    number = itertools.count()
    for count in lines:
        piece = "".join(f"line {next(number):03}\n" for _ in range(count))
        whole += piece
        now = whole[-(kept + len(piece)) :]
        heard += added_text(before, now)
        before = now
    assert heard == whole
