"""The cluster learner on real ranks: what the local one learns, failures within a bound, and checkpoints."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from swarm.backends.local.loading import hash_stream
from swarm.backends.local.model_files import write_model
from swarm.backends.protocols import Batch, NotFinite
from swarm.backends.verl import adapter
from swarm.backends.verl.backend import _hash_weights
from swarm.backends.verl.learner import TrainerGroup
from swarm.backends.verl.vllm import merge_tensors
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.cluster_kind import exported, pids
from tests.swarm.backends.conformance.test_learning import PROMISED
from tests.swarm.backends.local.models import make_batch
from tests.swarm.backends.verl.learning.conftest import DEVICE, Ranks, job, local, plain_weights

pytestmark = pytest.mark.timeout(240)
_CLOSE = 1e-5 if DEVICE == "cpu" else 1e-4

_JOBS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (2, {}),
    (1, {"algorithm": "dr_grpo", "entropy_coef": 0.05}),
    (2, {"algorithm": "rloo", "kl_coef": 0.2, "epochs": 2, "minibatches": 3, "micro_batch_tokens": 48}),
    (1, {"algorithm": "reinforce_pp", "loss_weighting": "token", "minibatches": 2, "temperature": 0.7}),
    (2, {"algorithm": "reinforce_pp_baseline", "weight_decay": 0.1, "lr_schedule": "linear", "lr_warmup_steps": 1}),
    (2, {"algorithm": "gspo", "minibatches": 2, "clip_ratio": 0.02, "micro_batch_tokens": 32}),
    (1, {"algorithm": "gspo", "rollout_correction": "off", "clip_ratio": 0.02}),
    (1, {"epochs": 2, "rollout_correction": "mask", "max_staleness": 1, "gradient_checkpointing": True}),
    (2, {"lora_rank": 4, "kl_coef": 0.1, "learning_rate": 2e-3}),
    (2, {"kind": "qwen2", "verl": {"engine": {"reshard_after_forward": False}}, "backend": "verl"}),
]


def _weighted(batch: Batch) -> Batch:
    return replace(batch, episodes=tuple(replace(e, weight=(i % 4) / 2) for i, e in enumerate(batch.episodes)))


def _compared(metrics: dict[str, float]) -> dict[str, float]:
    apart = ("timing_s", "tokens", "merge", "rollouter", "perf")
    return {name: value for name, value in metrics.items() if name.split("/")[0] not in apart}


@pytest.mark.parametrize(("world", "fields"), _JOBS, ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
def test_a_frozen_batch_teaches_what_it_teaches_the_local_learner(
    world: int, fields: dict[str, Any], weighted: bool, ranks: Ranks, llama: Path, qwen2: Path
) -> None:
    kind = fields.get("kind", "llama")  # the other one has a head of its own
    made = job(**{name: value for name, value in fields.items() if name != "kind"})
    policy, ours = local(made, kind)
    theirs = ranks.learner(llama if kind == "llama" else qwen2, made, world)
    single = made.epochs * made.minibatches == 1
    for seed in range(2):
        # AdamW's steps are of like size for the least gradients, too, and so carry their rounding into a few weights
        close = _CLOSE if single and not seed else 10 * _CLOSE
        batch = make_batch(policy, seed=seed, temperature=made.temperature, drift=0.05)
        batch = _weighted(batch) if weighted else batch
        expected, found = dict(ours.update(batch)), dict(theirs.update(batch))
        assert set(found) >= PROMISED | {"perf/max_memory_allocated_gb"}
        assert _compared(found) == pytest.approx(_compared(expected), rel=close, abs=close)
        plain, own = plain_weights(policy), exported(theirs)
        assert set(own) == set(plain)
        gaps = torch.cat([(own[name] - plain[name]).abs().flatten() for name in plain])
        assert (gaps > close).double().mean().item() < 1e-3
        assert not single or seed or gaps.max().item() < 2 * _CLOSE
    assert theirs.version == ours.version == 2


@pytest.mark.parametrize("fields", [{}, {"lora_rank": 4}], ids=str)
@pytest.mark.parametrize(("wrote", "reads"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_goes_on_from_a_checkpoint_and_a_folder_is_made_of_it(
    wrote: int, reads: int, fields: dict[str, Any], ranks: Ranks, llama: Path, tmp_path: Path
) -> None:
    made = job(backend="verl", model={"kind": "path", "path": str(llama)}, **fields)
    policy, _ = local(made)
    batches = [make_batch(policy, seed=seed, drift=0.05) for seed in range(3)]
    first = ranks.learner(llama, made, wrote)
    for batch in batches[:2]:
        first.update(batch)
    first.save(tmp_path / "c")
    saved = exported(first)
    other = ranks.learner(llama, made, reads)
    other.load(tmp_path / "c")
    found = exported(other)
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    (tmp_path / "out").mkdir()
    write_model(made, tmp_path, tmp_path / "c", tmp_path / "out", apart=False, say=lambda _: None)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert set(loaded) == set(saved)
    assert max((loaded[name] - saved[name]).abs().max().item() for name in saved) < 1e-7  # adapters are merged by peft
    first.update(batches[2])
    other.update(batches[2])
    expected, found = exported(first), exported(other)
    assert max((found[name] - expected[name]).abs().max().item() for name in expected) < 2 * _CLOSE


@pytest.mark.parametrize("fields", [{}, {"epochs": 2}], ids=str)
def test_what_is_not_finite_is_refused_and_changes_nothing(fields: dict[str, Any], ranks: Ranks, llama: Path) -> None:
    made = job(**fields)
    policy, _ = local(made)
    batch = make_batch(policy, drift=0.05)
    infinite = replace(batch, episodes=(replace(batch.episodes[0], reward=math.inf), *batch.episodes[1:]))
    straight = ranks.learner(llama, made, 1)
    expected = _compared(dict(straight.update(batch)))
    weights = exported(straight)
    tried = ranks.learner(llama, made, 1)
    with pytest.raises(NotFinite):
        tried.update(infinite)
    assert tried.version == 0
    assert _compared(dict(tried.update(batch))) == expected
    found = exported(tried)
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def _without_memory(rank: Any, *, until_undone: bool) -> None:
    """Have the rank's next gradient fail for want of memory, and its undoing too, if so."""
    plain = adapter.gradient

    def fails(*_: Any) -> float:
        adapter.gradient = plain
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def lost(*_: Any) -> None:
        raise ValueError("made up")

    adapter.gradient = fails
    if not until_undone:
        rank._engine.optimizer_zero_grad = lost


def test_out_of_memory_says_what_to_turn_and_an_update_that_cannot_be_undone_ends_the_learner(
    ranks: Ranks, llama: Path
) -> None:
    import ray

    policy, _ = local(job())
    learner, batch = ranks.learner(llama, job(), 1), make_batch(policy)
    (rank,) = learner.group._actors
    ray.get(rank.__ray_call__.remote(partial(_without_memory, until_undone=True)))
    with pytest.raises(BackendError, match=r"in gradient: CUDA .*micro_batch_tokens"):
        learner.update(batch)
    assert learner.version == 0
    learner.update(batch)
    assert learner.version == 1
    ray.get(rank.__ray_call__.remote(partial(_without_memory, until_undone=False)))
    with pytest.raises(BackendError, match="undo: ValueError: made"):
        learner.update(batch)
    with pytest.raises(BackendError, match="failed in undo"):
        learner.export_weights()


@pytest.mark.timeout(120)
def test_a_rank_that_is_killed_is_a_failure_with_a_reason_and_no_hang(ranks: Ranks, llama: Path) -> None:
    made = job()
    policy, _ = local(made)
    learner = ranks.learner(llama, made, 2)
    batch = make_batch(policy)
    learner.update(batch)
    os.kill(pids(learner.group._actors)[1], signal.SIGKILL)
    with pytest.raises(BackendError, match="rank 1 "):
        learner.update(batch)
    assert learner.version == 1
    with pytest.raises(BackendError, match="rank 1 "):
        learner.save(Path("never"))
    assert not Path("never").exists()
    learner.stop()
    learner.stop()


def test_too_few_processors_are_one_line_in_time(ranks: Ranks, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.backends.verl.learner.BOOT_S", 3.0)
    with pytest.raises(BackendError, match="fewer trainers"):
        TrainerGroup(llama, job(), 1, "cpu", lambda number: {"num_cpus": 64})


@pytest.mark.parametrize(("model", "fields"), [("llama", {}), ("qwen2", {}), ("llama", {"lora_rank": 4})], ids=str)
def test_weights_come_by_name_and_their_hash_is_that_of_all_at_once(
    model: str, fields: dict[str, Any], ranks: Ranks, request: pytest.FixtureRequest
) -> None:
    learner = ranks.learner(request.getfixturevalue(model), job(**fields), 2)
    found = exported(learner)
    assert list(found) == sorted(found)
    assert "lm_head.weight" in found
    assert _hash_weights(learner) == hash_stream(found.items(), zero=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_alone_is_with_the_model_s_folder_what_all_weights_are(
    dtype: str, ranks: Ranks, llama: Path
) -> None:
    import ray

    made = job(lora_rank=4, dtype=dtype)
    learner = ranks.learner(llama, made, 2)
    learner.update(make_batch(local(made)[0], drift=0.05))
    expected = exported(learner)
    (adapters,) = ray.get(learner.export_version())
    found = dict(merge_tensors(adapters, str(llama), dtype, made.lora_alpha / made.lora_rank))
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert any(name.endswith("q_proj.lora_B.weight") and weight.any() for name, weight in adapters.items())
    other = {**adapters, "lm_head.weight.sample": adapters["lm_head.weight.sample"] + 1}
    with pytest.raises(ValueError, match="found other weights in it: lm_head"):
        dict(merge_tensors(other, str(llama), dtype, 1.0))


def test_why_a_rank_refused_is_told_though_ray_answers_nothing_more() -> None:
    class Stuck:
        def wait(self, pending: list[str], timeout: float) -> tuple[list[str], list[str]]:
            return [each for each in pending if each == "refused"], [each for each in pending if each != "refused"]

        def available_resources(self) -> dict[str, float]:
            raise ConnectionError("it is gone")

    class Waiting(TrainerGroup):
        def __init__(self) -> None:
            self._ray, self._actors, self.failure, self._lost = Stuck(), [], None, lambda: None

        def _refusal(self, reference: Any, rank: int, method: str) -> BackendError | None:
            return BackendError("out of memory")

        def stop(self) -> None:
            pass

    with pytest.raises(BackendError, match="out of memory"):
        Waiting()._wait(["refused", "waits for it"], 3600.0, "gradient", grace_s=0.0)
    headless = Waiting()
    headless._lost = lambda: "Ray's head is gone"
    with pytest.raises(BackendError, match="head is gone"):
        headless._wait(["waits for it"], 3600.0, "gradient")
