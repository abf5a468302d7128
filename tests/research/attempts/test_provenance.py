"""What an attempt writes down of its own conditions: what the server says, and nothing where it says nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from research.runs.files import AttemptFolder
from research.runs.provenance import LISTED, READS, decoding, file_hashes, hardware, trained_and_evaluated
from research.runs.wandb_log import TrackedRun
from swarm.job import Job
from swarm.wire import EpisodeSummary
from tests.research.factories import make_order


def episode(task: str, **changed: Any) -> EpisodeSummary:
    known: dict[str, Any] = {"kind": "train", "state": "consumed", "step": 1} | changed
    return EpisodeSummary(id=task, task_id=task, stream="default", owner="x", calls=1, tokens=1, **known)


def test_only_tasks_that_were_both_trained_on_and_evaluated_overlap() -> None:
    listed = [
        episode("a"), episode("b"), episode("b"),
        episode("c", kind="eval", step=None),
        episode("d", step=None, state="aborted"),
    ]  # fmt: skip
    assert trained_and_evaluated(listed, {"b", "c", "d", "e"}) == 1
    assert trained_and_evaluated(listed, {"x"}) == 0


def test_nobody_knows_the_overlap_where_episodes_may_be_missing_from_the_list() -> None:
    assert trained_and_evaluated([episode("a")] * LISTED, {"a"}) is None


def test_jobs_that_sample_alike_are_decoded_alike() -> None:
    assert decoding(Job()) == decoding(Job(seed=7, learning_rate=1e-4))
    assert len({decoding(job) for job in (Job(), Job(temperature=0.5), Job(max_tokens=8), Job(max_context=64))}) == 4
    assert "cpus" in hardware(Job())


class Reader:
    """Reads a log as one that was closed or not, and lets W&B write on meanwhile."""

    def __init__(self, *ended: bool, writes: int = 0) -> None:
        self._ended = iter(ended)
        self._writes = writes

    def __call__(self, path: Path) -> TrackedRun:
        if self._writes:
            self._writes -= 1
            path.write_bytes(path.read_bytes() + b"more")
        return TrackedRun(ended=next(self._ended, True))


def hashes(tmp_path: Path, read: Reader) -> dict[str, str]:
    folder, order = AttemptFolder(tmp_path), make_order()
    assert file_hashes(folder, order, read) == {}
    folder.evaluation("final").write_text("{}")
    log = tmp_path / "wandb" / f"offline-run-1-{order.tracking_id}" / f"run-{order.tracking_id}.wandb"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"log")
    return {path.split("/")[-1].split("-")[0]: sha256 for path, sha256 in file_hashes(folder, order, read).items()}


def test_files_are_hashed_as_they_are_and_those_that_are_missing_are_left_out(tmp_path: Path) -> None:
    assert hashes(tmp_path, Reader(True)) == {
        "evaluation": hashlib.sha256(b"{}").hexdigest(), "run": hashlib.sha256(b"log").hexdigest(),
    }  # fmt: skip


def test_a_log_that_is_still_written_is_hashed_when_it_is_whole(tmp_path: Path) -> None:
    assert hashes(tmp_path, Reader(False, True, writes=2))["run"] == hashlib.sha256(b"logmoremore").hexdigest()


def test_a_log_that_never_comes_to_its_end_is_left_out(tmp_path: Path) -> None:
    assert set(hashes(tmp_path, Reader(*[False] * READS))) == {"evaluation"}
