"""A training that learner and engine's disagreement stops says which of them moved: a fault is put in on each side."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swarm.backends.local import LocalBackend
from swarm.backends.local.model.plain import PlainModel, plain_weights
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError
from swarm.job import Job, PathModel
from tests.swarm.backends.conformance.support import played
from tests.swarm.backends.local.models import forced_logprobs, save_folder


@pytest.fixture(params=[{}, {"lora_rank": 4}], ids=["all weights", "adapter"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    model = PathModel(path=str(save_folder(tmp_path / "model")))
    job = Job(model=model, max_context=128, max_concurrency=4, learning_rate=1e-3, seed=3, **request.param)
    backend = LocalBackend(job, tmp_path / "models")
    await backend.start()
    yield backend
    await backend.stop()


async def stopped(backend: LocalBackend) -> str:
    """Learn until the guard stops it; return what it says."""
    for step in range(2):
        backend.learner.update(await played(backend, 12, step, 6))
    third = await played(backend, 12, 2, 6)
    with pytest.raises(BackendError, match="learner and engine disagree") as caught:
        backend.learner.update(third)
    return str(caught.value)


async def test_an_engine_whose_weights_are_others_moved(backend: LocalBackend) -> None:
    other: Any = copy.deepcopy(backend.policy.model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    twin = Policy(other)
    twin.fuse()
    assert twin._fused is not None
    backend.policy._fused = twin._fused
    assert ". The engine moved: " in await stopped(backend)


@pytest.mark.parametrize("whole", [True, False], ids=["always", "with gradients"])
async def test_a_learner_whose_forward_is_off_moved(backend: LocalBackend, whole: bool) -> None:
    backend.policy.features = _off(backend.policy.features, lambda: whole or torch.is_grad_enabled())  # type: ignore[method-assign]
    assert ". The learner moved: " in await stopped(backend)


def _off(features: Callable[..., Tensor], when: Callable[[], bool]) -> Callable[..., Tensor]:
    def found(*ids: Any, **inputs: Any) -> Tensor:
        right = features(*ids, **inputs)
        return right * 1.5 if when() else right

    return found


def test_a_plain_model_computes_what_the_model_does_whose_weights_it_has(backend: LocalBackend) -> None:
    policy = backend.policy
    with torch.no_grad():
        for weight in policy.model.parameters():  # an adapter does something
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    plain = PlainModel(policy.config, [plain_weights(policy.model)])
    ids = [5, 9, 2, 2, 7, 11]
    expected = forced_logprobs(policy, ids[:1], ids[1:], 0.7)
    assert plain.logprobs(torch.tensor(ids), 0.7).tolist() == pytest.approx(expected, abs=1e-5)


def test_weights_that_are_missing_are_named(backend: LocalBackend) -> None:
    weights = plain_weights(backend.policy.model)
    del weights["model.norm.weight"]
    with pytest.raises(BackendError, match=r"lack 1 of the model's: model\.norm\.weight"):
        PlainModel(backend.policy.config, [weights])
