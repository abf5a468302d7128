from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxes import spec
from sandboxes.spec import Exit, SandboxError, hold_lock, read, read_run_times, write_once


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
def test_a_folder_removed_while_it_is_looked_at_is_told_in_a_line(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        write_once(tmp_path / name, {"created_at": 1.0})
    with pytest.raises(SandboxError, match="removed meanwhile"):
        read_run_times(tmp_path, Exit("finished", 0))
