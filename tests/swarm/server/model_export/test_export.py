"""Which checkpoint an export means, and what goes wrong on the way: nothing is left behind."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import NoRoom
from swarm.errors import InvalidRequest, NotFound
from swarm.job import Job
from swarm.server import model_export
from swarm.server.model_export import Wanted, chosen, exported
from swarm.store import Outline
from swarm.wire import CheckpointList, CheckpointSummary, EvaluationSummary
from tests.golden import refused


def wanted(tmp_path: Path) -> Wanted:
    return Wanted(tmp_path / "server", tmp_path / "models", tmp_path / "out", "latest", False)


def found(monkeypatch: pytest.MonkeyPatch, job: Job, written: Any = None) -> None:
    async def known(_: Wanted) -> tuple[CheckpointSummary, Path, Outline]:
        summary = CheckpointSummary(name="step-000001", step=1, size_bytes=1)
        return summary, Path("gone"), Outline(job, job.digest(), {}, 0, None)

    monkeypatch.setattr(model_export, "_found", known)
    monkeypatch.setattr(model_export, "_written", written)


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        (arguments[4] / "model.safetensors").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    found(monkeypatch, Job(), full)
    with refused(NoRoom, "out"):
        exported(wanted(tmp_path), lambda _: None)
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with refused(InvalidRequest, "out"):
        exported(wanted(tmp_path), lambda _: None)
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_what_the_fake_backend_trained_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, Job(backend="fake"))
    with refused(InvalidRequest, "fake"):
        exported(wanted(tmp_path), lambda _: None)


def test_no_adapter_is_kept_apart_where_all_weights_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, Job())
    with refused(InvalidRequest, "lora_rank"):
        exported(replace(wanted(tmp_path), apart=True), lambda _: None)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_server_is_none(tmp_path: Path) -> None:
    with refused(NotFound):
        exported(wanted(tmp_path), lambda _: None)


def kept(*steps: int, best: int | None = None) -> CheckpointList:
    found = tuple(CheckpointSummary(name=f"step-{step:06d}", step=step, size_bytes=1) for step in steps)
    score = None if best is None else EvaluationSummary(step=best, episodes=4, reward=1.0)
    return CheckpointList(job_digest="d" * 64, checkpoints=found, best=score)


def test_a_step_the_latest_and_the_best_are_found() -> None:
    listed = kept(30, 20, 10, best=20)
    assert [chosen(step, listed).step for step in ("latest", "10", "best")] == [30, 10, 20]


@pytest.mark.parametrize("step", ["25", "-1", "last", "", "030"])
def test_what_is_not_kept_is_refused_with_what_is(step: str) -> None:
    with refused(NotFound, "10, 20, 30"):
        chosen(step, kept(30, 20, 10))


def test_without_an_evaluation_there_is_no_best() -> None:
    with refused(NotFound, "eval_every"):
        chosen("best", kept(30, 20))


def test_where_nothing_was_saved_one_line_says_so() -> None:
    with refused(NotFound):
        chosen("latest", CheckpointList(job_digest=None, checkpoints=()))
    with refused(NotFound):
        chosen("latest", CheckpointList(job_digest="d" * 64, checkpoints=()))
