"""What an evaluator writes is whole, or is not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from swarm.environments.playing.evaluate import write_json


def test_what_cannot_be_written_leaves_what_was_there_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is full."""
    path = tmp_path / "during.json"
    write_json(path, {"evaluations": []})

    def full(self: Path, text: str) -> int:
        with self.open("w") as file:
            file.write(text[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"evaluations": [1]})
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == '{"evaluations": []}'
