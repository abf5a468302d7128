"""The check against eager attention: it passes what is right, and names what engine and learner both get wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local import backend
from swarm.backends.local.backend import LocalBackend
from swarm.backends.local.forwards import tree_attention
from swarm.backends.local.generating.cache import SlotCache
from swarm.backends.local.generating.eager_check import check_rows, check_slots
from swarm.backends.local.model import architecture
from swarm.backends.local.model.loading import load_policy
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError
from swarm.job import Job, PathModel
from tests.swarm.backends.local.families import POSITIONS, SERVED, WINDOW, save_family
from tests.swarm.backends.local.models import make_model, make_policy, save_folder

_PLAIN = SlotCache.bind


def _one_too_many(cache: SlotCache, rows: Any, positions: Any, end: int) -> Any:
    return _PLAIN(cache, rows, positions + 1, end + 1)


def _sees_all(cache: SlotCache, rows: Any, positions: Any, end: int) -> Any:
    return torch.zeros_like(_PLAIN(cache, rows, positions, end))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("bind", [_one_too_many, _sees_all])
def test_an_engine_that_sees_what_it_must_not_is_refused_with_what_was_found(
    kind: str, bind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_slots(make_policy(kind))
    monkeypatch.setattr(SlotCache, "bind", bind)
    with pytest.raises(
        BackendError, match=rf"slot engine to compute {kind} .* within 0.001 .*found [\d.]+: try"
    ) as told:
        check_slots(make_policy(kind))
    assert "engine `transformers`" in str(told.value)


def test_rows_that_were_copied_wrongly_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotCache, "copy", lambda *_: None)
    with pytest.raises(BackendError, match="slot engine"):
        check_slots(make_policy())


def test_keys_of_another_prompt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a row is taken for more of the next prompt than it is."""
    from swarm.backends.local.generating.slots import SlotTable

    plain = SlotTable._common

    def more(table: SlotTable, prompt: Any) -> Any:
        found = plain(table, prompt)
        return (found + (found > 8) * 2).clip(max=prompt.size)

    monkeypatch.setattr(SlotTable, "_common", more)
    with pytest.raises(BackendError, match="slot engine"):
        check_slots(make_policy())


def _load(family: str, folder: Path, max_context: int = WINDOW) -> Policy:
    return load_policy(save_family(*SERVED[family], folder), Job(max_context=max_context, device="cpu"))


def test_soft_caps_that_sdpa_drops_are_found_though_engine_and_learner_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture, "soft_caps", lambda _: False)
    with pytest.raises(BackendError, match=r"gemma2 .*SDPA has no softcap"):
        _load("gemma2", tmp_path / "told")
    monkeypatch.setattr(tree_attention, "_DROPPED", ())
    policy = _load("gemma2", tmp_path / "dropped")
    with pytest.raises(BackendError, match=r"learner's forward .* gemma2 .*found \d\.\d+: choose another model"):
        check_rows(policy, WINDOW)
    with pytest.raises(BackendError, match="slot engine to compute gemma2"):
        check_slots(policy)


def test_frequencies_that_follow_the_company_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "_MOVING", frozenset())
    policy = _load("phi3-longrope", tmp_path, POSITIONS)
    check_rows(policy, WINDOW)
    with pytest.raises(BackendError, match=r"phi3 .*does not depend on the others in its batch, found .* smaller"):
        check_rows(policy, WINDOW + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_leaves_the_model_as_it_was(dtype: torch.dtype) -> None:
    policy = Policy(make_model("qwen3").to(dtype))
    attention = policy.config._attn_implementation
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    stream = torch.get_rng_state()
    check_rows(policy, 64)
    check_slots(policy)
    assert policy.config._attn_implementation == attention
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(torch.equal(before[name], weight) for name, weight in policy.model.state_dict().items())
    assert not any(weight.is_inference() for weight in policy.model.parameters()), "they could not be trained"


@pytest.mark.parametrize("check", ["check_rows", "check_slots"])
async def test_no_backend_serves_what_was_not_checked(
    check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BackendError("not as eager attention does")

    monkeypatch.setattr(f"swarm.backends.local.generating.eager_check.{check}", refuse)
    job = Job(model=PathModel(path=str(save_folder(tmp_path / "m"))), max_context=64, device="cpu")
    local = LocalBackend(job, tmp_path)
    with pytest.raises(BackendError, match="not as eager"):
        await local.start()
    with pytest.raises(BackendError, match="not started"):
        _ = local.engine
    assert backend.PROBS_TOLERANCE
