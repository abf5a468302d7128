"""Checkpoints, also of several ranks: whole or refused, read by any number; and a model folder's check, its process."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from research.runs.files import prune_runs
from studies import AttemptState, RunState, StudyState
from swarm.backends.local import checkpoint, model_check
from swarm.backends.local.checkpoint import Checkpoint, read, write
from swarm.backends.local.model_check import main
from swarm.backends.protocols import DiskFull
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, conditions
from swarm.rendering.messages import BackendError
from tests.research.factories import make_order
from tests.swarm.backends.local.models import TEMPLATE, save_folder


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the figures here, so that one round is enough."""
    monkeypatch.setattr(model_check, "_LONG_ENOUGH_S", 0.0)


def job(folder: Path, **fields: Any) -> Job:
    return Job(**{"model": PathModel(path=str(folder)), "max_context": 64, "device": "cpu", **fields})


def checked(job: Job, out: Path) -> ModelCheck:
    assert main(["--job", job.model_dump_json(), "--folder-hash", "abc", "--out", str(out)]) == 0
    return ModelCheck.model_validate_json(out.read_bytes())


@pytest.mark.slow
def test_a_model_served_by_the_fast_ways_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = job(save_folder(tmp_path / "m"))
    found = checked(asked, tmp_path / "out.json")
    assert (found.fused, found.fused_lost, found.trees, found.trees_lost) == (True, None, True, None)
    assert (found.architecture, found.positions, found.folder_hash) == ("llama", 256, "abc")
    assert found.trained_parameters == found.parameters > 1000
    assert found.logprob_gap < 1e-4 < found.logprob_tolerance
    assert found.conditions == conditions(asked)
    assert found.fed_per_sampled_token < 1.5
    assert found.busy > 0
    assert 0 < found.loaded_bytes <= found.peak_bytes
    assert found.fits_at_once == 64 < found.memory_holds
    for seconds in (
        found.seconds_per_prompt_token, found.seconds_per_generated_token, found.seconds_per_learned_token
    ):  # fmt: skip
        assert 0 < seconds < 1
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("template", "tools", "thinking"),
    [
        (TEMPLATE, "ignored", False),
        (TEMPLATE + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}", "refused", False),
        ("{% if tools %}{{ tools | tojson }} <tool_call> <think>{% endif %}" + TEMPLATE, "rendered", True),
    ],
)
@pytest.mark.slow
def test_what_a_template_does_with_tools_is_said(tmp_path: Path, template: str, tools: str, thinking: bool) -> None:
    folder = save_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    found = checked(job(folder), tmp_path / "out.json").template
    assert (found.tools, found.thinking, found.system) == (tools, thinking, True)
    assert ("no tools" in str(found.tools_refusal)) == (tools == "refused")


def test_what_a_server_would_refuse_is_one_line_and_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    out = tmp_path / "out.json"
    capsys.readouterr()  # how far saving the folder was
    for asked in (job(folder), job(folder, max_context=9999), job(tmp_path / "nothing")):
        assert main(["--job", asked.model_dump_json(), "--folder-hash", "abc", "--out", str(out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not out.exists()


_CHECKPOINT = Checkpoint({"a": {"x": torch.arange(6.0).view(2, 3)}, "b": {"y": torch.tensor(3)}}, {"version": 4})


@pytest.mark.parametrize("last", range(5))
def test_a_killed_writer_leaves_all_or_nothing(last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies as it syncs a file or a folder: two sets, the manifest, the folder, the folder's place."""
    write(tmp_path / "1", _CHECKPOINT)
    syncs = iter(range(5))

    def sync(_: Path) -> None:
        if next(syncs) == last:
            raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(checkpoint, "_sync", sync)
        dying.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)  # the dead clear nothing away
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "2", _CHECKPOINT)
    assert (tmp_path / "2").exists() == (last == 4)
    assert sorted(read(found).facts["version"] for found in tmp_path.glob("[0-9]")) == [4] * (1 + (last == 4))
    write(tmp_path / "2", Checkpoint(_CHECKPOINT.sets, {"version": 9}))
    assert read(tmp_path / "2").facts == {"version": 9}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB, where this machine lets us have one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_from_other_failures_and_leaves_no_scraps(small_disk: Path) -> None:
    large = Checkpoint({"a": {"x": torch.zeros(100_000)}}, {"version": 9})
    with pytest.raises(DiskFull, match="No space left"):
        write(small_disk / "c", large)
    assert list(small_disk.iterdir()) == []
    write(small_disk / "c", _CHECKPOINT)
    with pytest.raises(BackendError) as refusal:
        write(small_disk / "c" / "manifest.json" / "c", _CHECKPOINT)
    assert not isinstance(refusal.value, DiskFull)


@pytest.mark.parametrize(
    ("name", "kept", "error"), [("a", -1, "a.safetensors"), ("b", 0, "b.safetensors"), ("manifest", 0, "no checkpoint")]
)
def test_what_is_damaged_or_missing_is_named(name: str, kept: int, error: str, tmp_path: Path) -> None:
    write(tmp_path / "c", _CHECKPOINT)
    file = next((tmp_path / "c").glob(f"{name}.*"))
    file.write_bytes(file.read_bytes()[:-1] + b"!") if kept else file.unlink()
    with pytest.raises(BackendError, match=error):
        read(tmp_path / "c")


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"format": 99, "files": {}}), '{"format": 1}'])
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path / "c", _CHECKPOINT)
    (tmp_path / "c" / "manifest.json").write_text(text)
    with pytest.raises(BackendError, match="manifest"):
        read(tmp_path / "c")


WEIGHTS = {"a.weight": torch.arange(21.0).reshape(7, 3), "b.bias": torch.arange(2.0)}
MOMENTS = {f"{name}/exp_avg": value / 3 for name, value in WEIGHTS.items()} | {"a.weight/step": torch.tensor(4.0)}
SETS = {checkpoint.MODEL: WEIGHTS, checkpoint.OPTIMIZER: MOMENTS}
ATTEMPTS = (AttemptState(1, "r1-a1", "", status="finished"),)
COLLECTED = StudyState(runs={"r1": RunState("r1", make_order().spec, ATTEMPTS, collected={})})


def part(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    return {
        name: {key: checkpoint.take_shard(value, rank, world) for key, value in own.items()}
        for name, own in SETS.items()
    }


def written(folder: Path, world: int) -> Path:
    for rank in range(world):
        checkpoint.write_rank(folder, rank, part(rank, world))
    checkpoint.write_driver(folder, world, Checkpoint({"random": {"order": torch.ones(3)}}, {"version": 5}))
    return folder


def same(one: checkpoint.Sets, other: checkpoint.Sets) -> bool:
    return one.keys() == other.keys() and all(
        own.keys() == other[name].keys() and all(torch.equal(own[key], other[name][key]) for key in own)
        for name, own in one.items()
    )


@given(rows=st.integers(0, 20), world=st.integers(1, 8))
def test_parts_are_the_tensor_again_and_of_the_sizes_that_torch_distributes(rows: int, world: int) -> None:
    value = torch.randn(rows, 2)
    parts = [checkpoint.take_shard(value, rank, world) for rank in range(world)]
    assert torch.equal(checkpoint.join_shards(parts), value)
    size = -(-rows // world)  # as FSDP2 pads: all but the last are full
    assert [len(each) for each in parts] == [min(size, max(0, rows - rank * size)) for rank in range(world)]


@pytest.mark.parametrize("writers", [1, 2, 3, 8])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path: Path, writers: int, readers: int) -> None:
    folder = written(tmp_path / "c", writers)
    for rank in range(readers):
        assert same(checkpoint.read_rank(folder, rank, readers), part(rank, readers))
    assert same({checkpoint.MODEL: checkpoint.read_model(folder)}, {checkpoint.MODEL: WEIGHTS})
    assert checkpoint.read_driver(folder).facts["version"] == 5
    (checkpoints := tmp_path / "attempts/r1-a1/server/checkpoints/0123").mkdir(parents=True)
    folder = folder.rename(checkpoints / "step-000001")
    prune_runs(tmp_path, COLLECTED)
    assert same({checkpoint.MODEL: checkpoint.read_model(folder)}, {checkpoint.MODEL: WEIGHTS})
    with pytest.raises(BackendError, match="lacks optimizer"):
        checkpoint.read_rank(folder, 0, writers)


def test_the_weights_of_a_collected_run_can_be_read_without_its_optimiser(tmp_path: Path) -> None:
    folder = tmp_path / "attempts/r1-a1/server/checkpoints/0123/step-000001"
    write(folder, Checkpoint(SETS, {"version": 1}))
    prune_runs(tmp_path, COLLECTED)
    assert same(read(folder, checkpoint.MODEL).sets, {checkpoint.MODEL: WEIGHTS})
    with pytest.raises(BackendError, match="lacks optimizer"):
        read(folder)


def test_a_rank_that_is_missing_or_another_checkpoints_is_named(tmp_path: Path) -> None:
    folder, other = written(tmp_path / "c", 3), written(tmp_path / "other", 2)
    shutil.rmtree(folder / "rank-1")
    with pytest.raises(BackendError, match=r"rank-1.*missing or damaged"):
        checkpoint.read_rank(folder, 0, 2)
    shutil.copytree(other / "rank-1", folder / "rank-1")
    with pytest.raises(BackendError, match=r"rank-1.*missing or damaged"):
        checkpoint.read_model(folder)
