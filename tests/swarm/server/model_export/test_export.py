"""What goes wrong on the way leaves nothing behind, and is told in one line."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import NoRoom
from swarm.errors import InvalidRequest, NotFound
from swarm.job import Job
from swarm.server.model_export import export
from swarm.server.model_export.export import Wanted, exported
from swarm.store import Outline
from swarm.wire import CheckpointSummary


def wanted(tmp_path: Path) -> Wanted:
    return Wanted(tmp_path / "server", tmp_path / "models", tmp_path / "out", "latest", False)


def found(monkeypatch: pytest.MonkeyPatch, job: Job, written: Any = None) -> None:
    async def known(_: Wanted) -> tuple[CheckpointSummary, Path, Outline]:
        summary = CheckpointSummary(name="step-000001", step=1, size_bytes=1)
        return summary, Path("gone"), Outline(job, job.digest(), {}, 0, None)

    monkeypatch.setattr(export, "_found", known)
    monkeypatch.setattr(export, "_written", written)


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        (arguments[4] / "model.safetensors").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    found(monkeypatch, Job(), full)
    with pytest.raises(NoRoom, match="is full: nothing was written"):
        exported(wanted(tmp_path), lambda _: None)
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(InvalidRequest, match="not there yet, or empty"):
        exported(wanted(tmp_path), lambda _: None)
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_what_the_fake_backend_trained_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, Job(backend="fake"))
    with pytest.raises(InvalidRequest, match="expected a training of the backend local or verl, found one of 'fake'"):
        exported(wanted(tmp_path), lambda _: None)


def test_no_adapter_is_kept_apart_where_all_weights_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, Job())
    with pytest.raises(InvalidRequest, match="expected a job with a lora_rank to keep its adapter apart"):
        exported(replace(wanted(tmp_path), apart=True), lambda _: None)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_server_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="train first"):
        exported(wanted(tmp_path), lambda _: None)
