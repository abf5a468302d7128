"""A full disk: attempts say so, cost their runs nothing, and the study goes on as soon as there is room."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from research.files import FULL_EXIT, has_room, ignore_disk_full, read_json, require_room, write_json
from sandboxes import Exit, SandboxError
from studies import EventType
from studies.records.runs import DISK_FULL
from tests.disks import needs_mounts, on_small_disk
from tests.research.bench import Bench


@pytest.mark.slow
@needs_mounts
def test_on_a_full_disk_each_command_says_so_and_the_study_goes_on_with_room(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, 96, "-m", "tests.research.filling", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for code, _, said in told["tried"]:
        assert (code, said.count("\n")) == (2, 1), said
        assert "full" in said or "room" in said
    assert "full" in told["said"] or "room" in told["said"]
    assert (told["status"], told["studies"]) == ("concluded", 1)


def test_an_attempt_without_room_for_its_last_word_is_known_by_its_exit_code(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop = bench.loop()
    loop.tick()
    for handle in bench.sandbox.handles.values():
        handle.ended = Exit("error", FULL_EXIT)
    loop.tick()
    ends = [event.payload for event in bench.events() if event.type is EventType.ATTEMPT_ENDED]
    assert {(end["status"], end["code"]) for end in ends} == {("stopped", DISK_FULL)}


def test_nothing_is_launched_on_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr("research.files.free_bytes", lambda folder: 4096)
    with pytest.raises(SandboxError, match="found 4 KiB"):
        bench.loop().tick()
    assert all(event.type is not EventType.ATTEMPT_LAUNCHED for event in bench.events())
    monkeypatch.undo()
    assert bench.drive(bench.loop()).state.status == "concluded"


def test_a_file_system_that_does_not_tell_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_room(tmp_path)
    monkeypatch.setattr("research.files.free_bytes", lambda folder: None)
    require_room(tmp_path, 1 << 60)


def test_a_line_for_a_full_disk_is_dropped_and_other_trouble_is_not(tmp_path: Path) -> None:
    written = list[str]()

    def say(line: str) -> None:
        Path("/dev/full").write_text(line)
        written.append(line)

    ignore_disk_full(say)("how far it is")
    assert not written
    ignore_disk_full(written.append)("how far it is")
    assert written == ["how far it is"]
    with pytest.raises(IsADirectoryError):
        ignore_disk_full(lambda line: tmp_path.write_text(line) and None)("how far it is")


def test_a_file_that_a_full_disk_cuts_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "kept.json", 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "kept.json", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert read_json(tmp_path / "kept.json") == 1
