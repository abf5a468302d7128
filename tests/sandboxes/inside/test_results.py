"""Which files are results, and in what frames they leave."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from sandboxes.inside import results
from sandboxes.inside.results import NotAResult


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path


def opened(workspace: Path, name: str, most_bytes: int = 100) -> int:
    descriptor = os.open(workspace, os.O_RDONLY)
    try:
        return results.open_result(descriptor, name, most_bytes)
    finally:
        os.close(descriptor)


def test_a_plain_file_is_collected_in_frames_that_the_engine_does_not_cut(workspace: Path) -> None:
    data = os.urandom(30_000)
    (workspace / "results" / "a").write_bytes(data)
    frames = list(results.collect(os.open(workspace, os.O_RDONLY), "a", 30_000))
    assert b"".join(base64.b64decode(frame["data"]) for frame in frames[:-1]) == data
    assert frames[-1] == {"result": "a", "sha256": hashlib.sha256(data).hexdigest()}
    assert max(len(json.dumps(frame)) for frame in frames) < 16_384 - 1000


def test_what_is_no_plain_file_of_one_name_and_of_its_size_is_refused(workspace: Path) -> None:
    folder = workspace / "results"
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "one").write_text("x")
    (folder / "other").hardlink_to(folder / "one")
    (folder / "large").write_bytes(bytes(101))
    for name, why in {"pipe": "regular", "folder": "regular", "one": "second name", "large": "too large: 101"}.items():
        with pytest.raises(NotAResult, match=why):
            opened(workspace, name)
    (folder / "other").unlink()
    os.close(opened(workspace, "one"))


def test_a_device_a_link_and_a_file_elsewhere_are_refused_unread(workspace: Path) -> None:
    (workspace / "results" / "link").symlink_to("/etc/passwd")
    with pytest.raises(NotAResult, match="a symbolic link"):
        opened(workspace, "link")
    with pytest.raises(NotAResult, match="missing"):
        opened(workspace, "none")
    (workspace / "results").rename(workspace / "away")
    (workspace / "results").symlink_to("/proc/self")
    with pytest.raises(NotAResult, match="its folder is not a folder"):
        opened(workspace, "environ")
    with pytest.raises(NotAResult, match="not in the workspace"):
        results.check_result(os.stat("/proc/self/environ"), workspace.stat().st_dev, 100)
