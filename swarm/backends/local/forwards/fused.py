"""The engine's own forward for the Llama family: a decoder's arithmetic in few large products, without its modules.

Promises: the features of the model's own base within rounding, for whatever keys and values the cache returns, with
its LoRA adapter if it has one. No copy of the weights (`projections.py`). `intact` tells whether the model is still
built as it was: an adapter that comes, goes or is merged, other storage, another forward or type end it.
Does not check that the model does nothing more than its structure tells (`probe.py` does), and knows neither the
product with the vocabulary nor where keys and values live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from swarm.backends.local.forwards.projections import CannotFuse, JoinedLinear, adapter_state, share_rows

_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not depend on how long a sequence has become."""


class Cache(Protocol):
    """Where keys and values live between forwards."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store (B, Hkv, T, D) each; return the rows' whole history, (B, Hkv, S, D) each."""


class FusedForward:
    """One model's forward, to be called without gradients; raises CannotFuse for a model it does not know.

    Shapes: B rows of T tokens, N = B * T; H heads, of which Hkv have keys and values, of width D; S positions.
    """

    def __init__(self, model: Any) -> None:
        _require_known(model)
        base, config = model.base_model, model.config
        first = base.layers[0].self_attn
        self._model = model
        self._heads, self._kv = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._width, self._scaling = int(first.head_dim), float(first.scaling)
        self._embedding = base.embed_tokens.weight.detach()
        self._plain = self._embedding.device.type == "cpu" and self._embedding.dtype == torch.float32
        self._frequencies = _signed_frequencies(base.rotary_emb, self._width)
        self._stretch = float(base.rotary_emb.attention_scaling)
        self._layers = [self._layer(layer) for layer in base.layers[: config.num_hidden_layers]]
        self._norm = _Norm(base.norm, self._plain)
        self._built = _structure(model)

    def intact(self) -> bool:
        """Return whether the model is still the one this was made of, whatever its weights' values are now."""
        return _structure(self._model) == self._built

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Return features (B, T, F) of ids (B, T) at `positions` (B, T); `mask` (B, 1, T, S) is added to scores."""
        x = functional.embedding(ids.flatten(), self._embedding)
        cos, sin = self._rotation(positions, x.dtype)
        attend, mask = self._attention(ids.shape[1], mask)
        for number, layer in enumerate(self._layers):
            queries, keys, values = self._project(layer, x, cos, sin)
            keys, values = cache.update(_by_head(keys, ids), _by_head(values, ids), number)
            layer.out.add_to(x, attend(queries, keys, values, mask))
            gate, up = layer.gate_up(layer.after(x)).chunk(2, -1)
            layer.down.add_to(x, functional.silu(gate, inplace=True).mul_(up))
        return self._norm(x).view(*ids.shape, -1)

    def _attention(self, tokens: int, mask: Tensor) -> tuple[Callable[..., Tensor], Tensor]:
        """Return what attends for so many tokens a row, and its mask; no layer repeats keys and values to all heads."""
        if not self._plain:  # (B, 1, H / Hkv * T, S)
            shared = self._heads // self._kv
            return self._attend_grouped, mask[:, :, None].expand(-1, -1, shared, -1, -1).flatten(2, 3)
        if tokens > 1:
            return self._attend, mask
        return self._attend_once, mask.expand(-1, self._kv, 1, -1).flatten(0, 1)  # (B * Hkv, 1, S)

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines (N, 1, D) of rotary embedding (arXiv 2104.09864, equation 34)."""
        angles = (positions.reshape(-1, 1) * self._frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin_()
        if self._stretch != 1.0:
            cos, sin = cos.mul_(self._stretch), sin.mul_(self._stretch)
        return cos.to(dtype), sin.to(dtype)

    def _project(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (N, H, D), keys and values (N, Hkv, D) of x (N, F), the first two rotated to their places."""
        heads = layer.qkv(layer.before(x)).view(len(x), -1, self._width)
        mixed, values = heads.split((self._heads + self._kv, self._kv), 1)
        if layer.by_head is not None:
            mixed = layer.by_head(mixed)
        turned = (mixed * cos).addcmul_(mixed.roll(self._width // 2, -1), sin)
        queries, keys = turned.split((self._heads, self._kv), 1)
        return queries, keys, values

    def _attend_once(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return what one token a row, queries (B, H, D), sees of (B, Hkv, S, D), (B, H * D); mask (B * Hkv, 1, S).

        Heads that share keys are the rows of one product with them, so that nothing is repeated.
        """
        shared = queries.reshape(len(mask), -1, self._width)
        scores = torch.baddbmm(mask, shared, keys.flatten(0, 1).mT, alpha=self._scaling)
        return torch.bmm(scores.softmax(-1), values.flatten(0, 1)).view(len(queries), -1)

    def _attend_grouped(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return what queries (N, H, D) see of keys and values (B, Hkv, S, D), (N, H * D); mask (B, 1, H / Hkv * T, S).

        By SDPA, whose softmax is fp32 in any type. Heads that share keys stand as the tokens of one head, one head's
        below another's: CUDA's kernels know either masks or shared keys, and would leave both to the plain way.
        """
        shared = queries.view(len(keys), -1, self._kv, self._heads // self._kv, self._width).permute(0, 2, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(shared.flatten(2, 3), keys, values, mask, scale=self._scaling)
        return seen.view(shared.shape).permute(0, 3, 1, 2, 4).reshape(len(queries), -1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the same on a CPU, whose kernel knows masks and shared keys together; mask (B, 1, T, S)."""
        queries = queries.unflatten(0, (len(keys), -1)).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(
            queries, keys, values, mask, scale=self._scaling, enable_gqa=True
        )
        return seen.transpose(1, 2).flatten(2).flatten(0, 1)

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            before=_Norm(layer.input_layernorm, self._plain),
            qkv=JoinedLinear(attention.q_proj, attention.k_proj, attention.v_proj),
            by_head=self._by_head_norm(attention),
            out=JoinedLinear(attention.o_proj),
            after=_Norm(layer.post_attention_layernorm, self._plain),
            gate_up=JoinedLinear(mlp.gate_proj, mlp.up_proj),
            down=JoinedLinear(mlp.down_proj),
        )

    def _by_head_norm(self, attention: Any) -> _HeadNorm | None:
        if not hasattr(attention, "q_norm"):
            return None
        return _HeadNorm(attention.q_norm, attention.k_norm, (self._heads, self._kv), self._plain)


class _Norm:
    """Root mean square norm over the last dimension (arXiv 1910.07467, equation 4)."""

    def __init__(self, module: Any, plain: bool) -> None:
        self.weight: Tensor = module.weight.detach()
        self._eps = float(module.variance_epsilon)
        self._root = self.weight.new_tensor(self._eps**0.5)
        self._plain = plain

    def __call__(self, x: Tensor) -> Tensor:
        """Return x (..., D) normed and scaled; in fp32 on a CPU by fewer, cheaper kernels than torch's own."""
        if not self._plain:
            return functional.rms_norm(x, x.shape[-1:], None, self._eps) * self._scale()
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(x.shape[-1] ** -0.5)
        return (x * self._scale()).div_(size.hypot_(self._root))

    def _scale(self) -> Tensor:
        return self.weight


class _HeadNorm(_Norm):
    """The norms of every query's and every key's head, as one over (N, H + Hkv, D)."""

    def __init__(self, queries: Any, keys: Any, counts: tuple[int, int], plain: bool) -> None:
        super().__init__(queries, plain)
        if queries.variance_epsilon != keys.variance_epsilon:
            raise CannotFuse("queries and keys are normed with different epsilons")
        self.weight = share_rows([queries.weight, keys.weight]).view(2, -1)
        self._which = torch.arange(2).repeat_interleave(torch.tensor(counts)).to(self.weight.device)

    def _scale(self) -> Tensor:
        return self.weight.index_select(0, self._which)


@dataclass(frozen=True, slots=True)
class _Layer:
    before: _Norm
    qkv: JoinedLinear
    by_head: _HeadNorm | None
    out: JoinedLinear
    after: _Norm
    gate_up: JoinedLinear
    down: JoinedLinear


def _by_head(heads: Tensor, ids: Tensor) -> Tensor:
    """Return (N, h, D) as (B, h, T, D)."""
    return heads.unsqueeze(2) if ids.shape[1] == 1 else heads.unflatten(0, ids.shape).transpose(1, 2)


def _signed_frequencies(rope: Any, width: int) -> Tensor:
    """Return the rotary embedding's frequencies (D,), those of the first half negative.

    A cosine does not mind the sign, and the sine brings the minus that turning the second half into the first takes.
    """
    if rope.rope_type not in _STATIC_ROPE:
        raise CannotFuse(f"its rotary embedding is of the type {rope.rope_type}")
    if 2 * len(rope.inv_freq) != width:
        raise CannotFuse("its rotary embedding turns a part of a head only")
    return torch.cat((-rope.inv_freq, rope.inv_freq)).float()


def _require_known(model: Any) -> None:
    config = model.config
    if config.model_type not in _FAMILIES:
        raise CannotFuse(f"its architecture is {config.model_type}")
    if config.model_type == "mistral" and config.sliding_window is not None:
        raise CannotFuse("its attention slides")
    if config.hidden_act != "silu":
        raise CannotFuse(f"its activation is {config.hidden_act}")
    kinds = {(parameter.dtype, parameter.device) for parameter in model.parameters()}
    if len(kinds) != 1:
        raise CannotFuse("its weights are of several types or on several devices")


def _structure(model: nn.Module) -> list[tuple[object, ...]]:
    """Return what a model is built of: its modules with their own forwards, and where its weights are."""
    modules = [
        (id(module), type(module), vars(module).get("forward"), *adapter_state(module)) for module in model.modules()
    ]
    tensors = [*model.parameters(), *model.buffers()]
    return [*modules, *((tensor.data_ptr(), tensor.dtype) for tensor in tensors)]
