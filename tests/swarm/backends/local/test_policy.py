"""The policy: a fused forward, head and adapters that are the module's own, or none of them; recomputation."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from swarm.backends.local.fused_forward import CannotFuse, FusedForward, FusedLinear, _FusedAdapters, compute_in_fp32
from swarm.backends.local.kv_cache import SlotCache
from swarm.backends.local.policy import Policy, add_adapter, frozen_copy, recompute_layers, trainable_parameters
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local.models import KINDS, SPECIAL, WORDS, make_model, make_real_vocabulary

_VOCABULARY = 48
_POSITIONS = 64
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {}}


def _make(family: str, seed: int = 0, **fields: Any) -> Any:
    """Return a model whose every parameter is random, also the norms' and the biases'."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.CONFIG_MAPPING[family](**_SIZES | _FAMILIES[family] | fields)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def _feed(policy: Policy, ids: Tensor, starts: list[int], cuts: list[int]) -> Tensor:
    """Return the features (B, L, F) of ids (B, L) by `decode` in parts, row b from position starts[b] on."""
    device = torch.device("cpu")
    cache = SlotCache(policy.cache_shape, len(ids) + 1, _POSITIONS, policy.dtype, device)
    rows = np.arange(len(ids))[::-1].copy() + 1
    columns = torch.arange(ids.shape[1]) + torch.tensor(starts)[:, None]
    parts = []
    for begin, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        positions = columns[:, begin:end]
        mask = cache.bind(rows, positions, int(positions.max()) + 1)
        early = torch.arange(mask.shape[-1]) < torch.tensor(starts)[:, None]
        mask = mask.masked_fill(early[:, None, None], -torch.inf)
        with torch.inference_mode():
            parts.append(policy.decode(ids[:, begin:end], positions, mask, cache))
    return torch.cat(parts, 1)


@torch.no_grad()
def _own(model: Any, ids: Tensor) -> Tensor:
    features: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return features


def _fused(model: Any) -> Policy:
    policy = Policy(model)
    policy.fuse()
    assert policy.fused
    return policy


def _ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(_VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def _assert_own(policy: Policy, atol: float = 1e-5) -> None:
    """Check a prefill, a chunk and single tokens, in rows at different positions, against one plain forward."""
    ids = _ids(3, 12)
    found = _feed(policy, ids, [0, 5, 30], [6, 9, 10, 11])
    assert torch.allclose(found.float(), _own(policy.model, ids).float(), atol=atol)


_ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("rope", _ROPES)
def test_scaled_rotary_embeddings_are_the_module_s_own(rope: str) -> None:
    _assert_own(_fused(_make("llama", rope_parameters={"rope_theta": 10_000.0, **_ROPES[rope]})))


_flags = st.booleans()
_fields = st.one_of(
    st.tuples(st.just("llama"), st.fixed_dictionaries({"attention_bias": _flags, "mlp_bias": _flags})),
    st.tuples(st.just("mistral"), st.just({})),
    st.tuples(st.just("qwen2"), st.just({})),
    st.tuples(st.just("qwen3"), st.fixed_dictionaries({"attention_bias": _flags})),
)


@given(
    _fields, st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 3)]), st.sampled_from([2, 8, 10]), _flags, _flags,
    st.integers(1, 4), st.data(),
)  # fmt: skip
def test_any_small_config_gives_the_module_s_own_features_also_the_way_of_other_devices(
    chosen: tuple[str, dict[str, bool]], heads: tuple[int, int], width: int, tied: bool, plain: bool, rows: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    sizes = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": width}
    # Qwen 2 has no width of its own: its heads share the hidden size.
    hidden = heads[0] * width if chosen[0] == "qwen2" else 24
    family, flags = chosen
    model = _make(family, hidden_size=hidden, num_hidden_layers=2, tie_word_embeddings=tied, **sizes, **flags)
    ids = _ids(rows, 8, data.draw(st.integers(0, 100)))
    cuts = sorted(data.draw(st.sets(st.integers(1, 7))))
    starts = data.draw(st.lists(st.integers(0, 40), min_size=rows, max_size=rows))
    policy = _fused(model)
    assert policy._fused is not None
    policy._fused._plain = plain  # else as where it is not fp32 on a CPU
    found = _feed(policy, ids, starts, cuts)
    own = _own(model, ids)
    assert torch.allclose(found, own, atol=1e-5 * max(1.0, own.abs().max().item()))


def test_bfloat16_is_as_near_to_fp32_as_the_module_is() -> None:
    exact, ids = _make("qwen3"), _ids(3, 12)
    model = copy.deepcopy(exact).to(torch.bfloat16)
    own = (_own(model, ids).float() - _own(exact, ids)).abs().mean()
    found = _feed(_fused(model), ids, [0, 5, 30], [6, 9, 10, 11])
    assert found.dtype == torch.bfloat16
    assert (found.float() - _own(exact, ids)).abs().mean() < 1.5 * own


def _train(policy: Policy, seed: int = 0) -> None:
    draws = torch.Generator().manual_seed(seed)
    with policy.rewriting(), torch.no_grad():
        for value in trainable_parameters(policy.model).values():
            value.add_(torch.randn(value.shape, generator=draws, dtype=value.dtype), alpha=0.2)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_weights_are_served_as_they_are_trained(kind: str, rank: int) -> None:
    model = _make(kind)
    if rank:
        add_adapter(model, rank=rank, alpha=6.0, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    policy = _fused(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for seed in range(2):
        _train(policy, seed)
        _assert_own(policy, atol=1e-4)
    assert policy.fused


class Louder(nn.Linear):
    pass


_LLAMA_ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: FusedForward(_make("mistral", sliding_window=8)), "slides"),
        (lambda: FusedForward(_make("llama", hidden_act="gelu")), "activation is gelu"),
        (lambda: FusedForward(_make("llama", rope_parameters=_LLAMA_ROPE)), "type dynamic"),
        (lambda: FusedLinear(nn.Linear(3, 3), Louder(3, 3)), "Louder"),
        (lambda: FusedLinear(nn.Linear(3, 3, bias=True), nn.Linear(3, 3, bias=False)), "only some"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(CannotFuse, match=reason):
        make()


IDS = torch.tensor([[3, 1, 4, 1, 5]])


def _logits_of(model: Any, ids: Tensor = IDS) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


@pytest.mark.parametrize("cap", [1e4, 30.0])
def test_a_soft_cap_of_logits_is_seen_however_little_it_shows(cap: float) -> None:
    config = transformers.Gemma2Config(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=cap,
        initializer_range=1e-3,
    )  # fmt: skip
    policy = Policy(transformers.Gemma2ForCausalLM(config).eval())
    ids = torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(1e6)
    found = policy.head(policy.features(ids, use_cache=False))
    assert torch.equal(found, _logits_of(policy.model, ids))
    assert found.abs().max() <= cap


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_of_an_adapted_model_is_its_base_over_the_same_memory(kind: str) -> None:
    model = make_model(kind)
    add_adapter(model, rank=3, alpha=6.0, seed=0)
    reference = frozen_copy(model)
    with torch.no_grad():
        for weight in trainable_parameters(model).values():
            weight.add_(0.1)
    assert torch.equal(_logits_of(reference), _logits_of(make_model(kind)))
    assert {weight.data_ptr() for weight in reference.parameters()} < {w.data_ptr() for w in model.parameters()}
    assert len(dict(reference.named_parameters())) == len(dict(make_model(kind).named_parameters()))


def _patch_mlp(model: Any, factor: float) -> None:
    mlp = model.base_model.layers[1].mlp
    mlp.forward = lambda x: factor * type(mlp).forward(mlp, x)


def _hook_attention(model: Any, factor: float) -> None:
    def louder(module: object, inputs: object, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        return output[0] * factor, output[1]

    model.base_model.layers[0].self_attn.register_forward_hook(louder)


def _scale_one_layer(model: Any, factor: float) -> None:
    model.base_model.layers[1].self_attn.scaling *= factor


_CHANGES: tuple[Callable[[Any, float], object], ...] = (
    _patch_mlp, _hook_attention, _scale_one_layer,
    lambda model, factor: model.get_input_embeddings().register_forward_hook(lambda _, __, output: output * factor),
)  # fmt: skip
changes = pytest.mark.parametrize("change", _CHANGES)


def _fixed_tolerance(model: Any, ids: Sequence[int]) -> float:
    rows = torch.tensor([ids])
    with torch.no_grad():
        own = model(input_ids=rows, use_cache=False).logits.float()
        with compute_in_fp32(model):
            exact = model(input_ids=rows, use_cache=False).logits
    return float((own - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("text", [WORDS, ()])
def test_special_tokens_on_which_bfloat16_goes_astray_cost_no_fused_forward(text: Sequence[int]) -> None:
    model = make_real_vocabulary(torch.bfloat16)
    assert _fixed_tolerance(model, range(SPECIAL)) > 0.1
    assert _fixed_tolerance(model, WORDS) < 0.05
    policy = Policy(model, text=text)
    policy.fuse()
    assert policy.fused
    assert policy.unfused is None


@changes
def test_bfloat16_hides_no_wrong_forward(change: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(make_real_vocabulary(torch.bfloat16), text=WORDS)
    change(policy.model, 1.2)
    for _ in range(2):
        policy.fuse()
    assert not policy.fused
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=no_fused_forward cost=" in warning.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_that_would_be_served_wrongly_is_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _adapted("llama", 4).to(dtype)
    monkeypatch.setattr(_FusedAdapters, "add_to", lambda *_: None)
    policy = Policy(model, text=WORDS[:20])
    policy.fuse()
    assert "not the same" in (policy.unfused or "")
    assert not any(weight.any() for name, weight in model.named_parameters() if "lora_B" in name)


def _adapted(kind: str, rank: int) -> Any:
    model = make_model(kind)
    if rank:
        add_adapter(model, rank=rank, alpha=4.0, seed=0)
    return model.to(torch.bfloat16)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_its_modules_compute_as_a_model_of_the_same_weights_in_fp32(kind: str, rank: int) -> None:
    model = _adapted(kind, rank)
    parameters, before = list(model.parameters()), _logits_of(model)
    with compute_in_fp32(model):
        found = _logits_of(model)
    assert found.dtype == torch.float32
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(_logits_of(model), before)
    assert torch.allclose(found, _logits_of(model.float()), atol=1e-5)


def test_a_forward_that_fails_leaves_the_model_as_it_was() -> None:
    model = _adapted("llama", 0)
    parameters = list(model.parameters())
    with pytest.raises(IndexError), compute_in_fp32(model):
        model(input_ids=IDS + 1000)
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert _logits_of(model).dtype == torch.bfloat16


_LONG = torch.arange(40).view(2, 20)


def _gradients(model: Any) -> tuple[Tensor, int]:
    """The gradient, and the bytes that the forward kept for it beyond the weights."""
    kept: dict[int, int] = {}
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(value: Tensor) -> Tensor:
        memory = value.untyped_storage()
        if memory.data_ptr() not in own:
            kept[memory.data_ptr()] = memory.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = model(input_ids=_LONG, use_cache=False).logits.float().log_softmax(-1)[..., 0].sum()
    torch.autograd.backward(loss)
    flat = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return flat, sum(kept.values())


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_equal_and_less_is_kept_for_it(kind: str, rank: int) -> None:
    plain, thrifty = (_adapted(kind, rank).float() for _ in range(2))
    recompute_layers(thrifty)
    assert not thrifty.training
    expected, much = _gradients(plain)
    found, little = _gradients(thrifty)
    assert torch.equal(found, expected)
    assert expected.abs().max() > 0
    assert little < much / 2


def test_a_model_whose_layers_cannot_is_named() -> None:
    with pytest.raises(BackendError, match="Linear"):
        recompute_layers(nn.Linear(2, 2))
