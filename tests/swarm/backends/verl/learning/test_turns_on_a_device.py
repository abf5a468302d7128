"""What a learner that shares its device does to leave it; a fake engine stands for verl's, and no GPU runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.job import Job


@pytest.fixture
def adapter() -> Any:
    pytest.importorskip("verl", reason="verl is not installed here: `make test-verl` has an environment of its own")
    return import_module("swarm.backends.verl.learning.adapter")


class _FakeEngine:
    """Writes down what is asked of it."""

    is_param_offload_enabled = True

    def __init__(self) -> None:
        self.done: list[str] = []

    def to(self, device: str, **what: bool) -> None:
        self.done.append(f"to {device}: {', '.join(name for name, moved in what.items() if moved)}")

    @contextmanager
    def mode(self, fails: bool = False) -> Iterator[None]:
        self.done.append("there")
        if fails:
            raise MemoryError("on the way there")
        try:
            yield
        finally:
            self.done.append("back")


@pytest.fixture
def sharing(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> _FakeEngine:
    engine = _FakeEngine()
    monkeypatch.setattr(adapter, "_empty", lambda engine: engine.done.append("emptied"))
    return engine


def test_a_device_is_left_after_each_pass(adapter: Any, sharing: _FakeEngine) -> None:
    with adapter.computing(sharing, sharing.mode()):
        sharing.done.append("computed")
    assert sharing.done == ["there", "computed", "back", "emptied"]


def test_what_fails_on_the_way_or_within_leaves_it_too(adapter: Any, sharing: _FakeEngine) -> None:
    with pytest.raises(MemoryError), adapter.computing(sharing, sharing.mode(fails=True)):
        pass
    with pytest.raises(ValueError, match="within"), adapter.computing(sharing, sharing.mode()):
        raise ValueError("within")
    moved = "to cpu: model, optimizer, grad"
    assert sharing.done == ["there", moved, "emptied", "there", "back", moved, "emptied"]


@pytest.mark.parametrize(("device", "colocated", "offloads"), [
    ("cuda", True, True), ("cuda", False, False), ("cpu", True, False),
])  # fmt: skip
def test_weights_and_moments_lie_on_the_host_where_a_gpu_is_shared(
    device: str, colocated: bool, offloads: bool, adapter: Any, llama: Path
) -> None:
    engine = adapter._configurations(llama, Job(backend="verl", verl={"colocated": colocated}), device)[1]
    assert (engine.param_offload, engine.optimizer_offload) == (offloads, offloads)


def test_moves_to_the_host_are_waited_for(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's own functions, which would not wait, are called by the names that are replaced."""
    utils, engines = map(import_module, ("verl.utils.fsdp_utils", "verl.workers.engine.fsdp.transformer_impl"))
    monkeypatch.setattr(utils, "offload_fsdp2_model_to_cpu", utils.offload_fsdp2_model_to_cpu)
    monkeypatch.setattr(engines, "offload_fsdp_optimizer", engines.offload_fsdp_optimizer)
    monkeypatch.setattr(utils, "fsdp_version", lambda model: 2)
    adapter._wait_for_moves()

    class Moved(torch.nn.Module):
        asked: tuple[Any, ...] = ()

        def to(self, *where: Any, **how: Any) -> Moved:
            self.asked = (where, how)
            return self

    model = Moved()
    engines.offload_fsdp_model_to_cpu(model)
    assert model.asked == (("cpu",), {})
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones(3)
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[weight].items()}
    engines.offload_fsdp_optimizer(optimizer)
    assert all(torch.equal(value, before[key]) for key, value in optimizer.state[weight].items())
