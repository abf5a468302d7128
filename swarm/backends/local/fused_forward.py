"""The Llama family's decoder in few large products, checked against the model's own forward.

No weight is copied: parameters of layers over one input become views of one matrix's rows, so optimisers and
checkpoints that change them in place keep working. A LoRA adapter (arXiv 2106.09685) is computed beside its layer, as
merging it into a coarse type would round most of it away. In types coarser than fp32 no fixed bound on the difference
holds, so both forwards are compared with the modules in fp32, and the fused one may be off by little more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

_LORA = "peft.tuners.lora.layer"
"""Where peft defines the layers that a LoRA adapter is in; not imported, for peft need not be installed."""


class CannotFuse(Exception):
    """The model's own forward has to be used; the message says why."""


class _Adapter(NamedTuple):
    """What LoRA adds to a layer: `scaling` times the product of `up` (R, r) and `down` (r, F)."""

    down: nn.Parameter
    up: nn.Parameter
    scaling: float


class FusedLinear:
    """One or more linear layers, each with its adapter or none with one, run as one."""

    def __init__(self, *linears: nn.Module) -> None:
        adapters = [adapter for linear in linears if (adapter := _adapter(linear)) is not None]
        if len(adapters) not in (0, len(linears)):
            raise CannotFuse("only some of the projections over one input have an adapter")
        plain = [_plain(linear) for linear in linears]
        biases = [linear.bias for linear in plain if linear.bias is not None]
        if len(biases) not in (0, len(plain)):
            raise CannotFuse("only some of the projections over one input have a bias")
        self._weight = share_rows([linear.weight for linear in plain])
        self._transposed = self._weight.t()
        self._bias = share_rows(biases) if biases else None
        self._adapters = _FusedAdapters(adapters) if adapters else None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return all outputs side by side, (N, R), of inputs (N, F)."""
        outputs = functional.linear(inputs, self._weight, self._bias)
        if self._adapters is not None:
            self._adapters.add_to(outputs, inputs)
        return outputs

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        """Add the outputs (N, R) of inputs (N, F) to `sums`, in place."""
        sums.addmm_(inputs, self._transposed)
        if self._bias is not None:
            sums.add_(self._bias)
        if self._adapters is not None:
            self._adapters.add_to(sums, inputs)


class _FusedAdapters:
    """What the adapters of layers over one input add to their outputs side by side: one product down, one each up."""

    def __init__(self, adapters: Sequence[_Adapter]) -> None:
        self._down = share_rows([adapter.down for adapter in adapters]).t()
        self._ups = [(adapter.up.detach().t(), adapter.scaling) for adapter in adapters]
        self._ranks, self._outputs = ([up.shape[side] for up, _ in self._ups] for side in (0, 1))

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        lows, parts = (inputs @ self._down).split(self._ranks, 1), sums.split(self._outputs, 1)
        for part, low, (up, scaling) in zip(parts, lows, self._ups, strict=True):
            part.addmm_(low, up, alpha=scaling)


def _adapter(linear: Any) -> _Adapter | None:
    kind = type(linear)
    if kind.__module__ != _LORA or kind.__qualname__ != "Linear":
        return None
    if linear.merged or linear.disable_adapters or len(linear.active_adapters) != 1:
        raise CannotFuse("its adapter is merged, switched off, or one of several")
    [name] = linear.active_adapters
    down, up = linear.lora_A[name], linear.lora_B[name]
    if linear.lora_variant or up.bias is not None or type(linear.lora_dropout[name]) is not nn.Identity:
        raise CannotFuse("its adapter is more than two products: a variant of LoRA, with a bias or with dropout")
    return _Adapter(down.weight, up.weight, float(linear.scaling[name]))


def _plain(linear: nn.Module) -> nn.Linear:
    inner = linear.base_layer if _adapter(linear) is not None else linear
    if type(inner) is not nn.Linear:
        raise CannotFuse(f"a projection is {type(inner).__module__}.{type(inner).__name__}, not a plain one")
    return inner


@contextmanager
def perturb_adapters(model: nn.Module) -> Iterator[None]:
    """Let adapters, untrained too, add something inside; bit for bit as before after it. Nobody else runs the model."""
    ups = [weight for name, weight in model.named_parameters() if ".lora_B." in name]
    before = [weight.detach().clone() for weight in ups]
    try:
        with torch.no_grad():
            for weight in ups:
                wave = torch.arange(weight.numel(), device=weight.device).sin().view_as(weight)
                weight.copy_(0.05 * wave)
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(ups, before, strict=True):
                weight.copy_(value)


@torch.no_grad()
def share_rows(parameters: Sequence[Tensor]) -> Tensor:
    """Return one tensor of all the rows; each parameter is a view of its own from now on."""
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, rows in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = rows
    return whole


_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not depend on how long a sequence has become."""


class Cache(Protocol):
    """Where keys and values live between forwards."""

    def update(self, keys: Tensor, values: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Store (B, Hkv, T, D) each; return the rows' whole history, (B, Hkv, S, D) each."""


class FusedForward:
    """One model's forward, to be called without gradients; raises CannotFuse for a model it does not know. Shapes: B
    rows of T tokens, N = B * T; H heads, of which Hkv have keys and values, of width D; S positions."""

    def __init__(self, model: Any) -> None:
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
        base = model.base_model
        first = base.layers[0].self_attn
        self._heads, self._kv = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._width, self._scaling = int(first.head_dim), float(first.scaling)
        self._embedding = base.embed_tokens.weight.detach()
        self._plain = self._embedding.device.type == "cpu" and self._embedding.dtype == torch.float32
        rope = base.rotary_emb
        if rope.rope_type not in _STATIC_ROPE:
            raise CannotFuse(f"its rotary embedding is of the type {rope.rope_type}")
        if 2 * len(rope.inv_freq) != self._width:
            raise CannotFuse("its rotary embedding turns a part of a head only")
        self._frequencies = torch.cat((-rope.inv_freq, rope.inv_freq)).float()
        self._stretch = float(base.rotary_emb.attention_scaling)
        self._layers = [self._layer(layer) for layer in base.layers[: config.num_hidden_layers]]
        self._norm = _Norm(base.norm, self._plain)

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Return features (B, T, F) of ids (B, T) at `positions` (B, T); `mask` (B, 1, T, S) is added to scores."""
        x = functional.embedding(ids.flatten(), self._embedding)
        # cosines and signed sines (N, 1, D) of rotary embedding (arXiv 2104.09864, equation 34)
        angles = (positions.reshape(-1, 1) * self._frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin_()
        if self._stretch != 1.0:
            cos, sin = cos.mul_(self._stretch), sin.mul_(self._stretch)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        # what attends, and its mask; no layer repeats keys and values to all heads
        attend = self._attend
        if not self._plain:  # (B, 1, H / Hkv * T, S)
            shared = self._heads // self._kv
            attend, mask = self._attend_grouped, mask[:, :, None].expand(-1, -1, shared, -1, -1).flatten(2, 3)
        elif ids.shape[1] == 1:  # (B * Hkv, 1, S)
            attend, mask = self._attend_once, mask.expand(-1, self._kv, 1, -1).flatten(0, 1)
        for number, layer in enumerate(self._layers):
            queries, keys, values = self._project(layer, x, cos, sin)
            keys, values = cache.update(_split_heads(keys, ids), _split_heads(values, ids), number)
            layer.out.add_to(x, attend(queries, keys, values, mask))
            gate, up = layer.gate_up(layer.after(x)).chunk(2, -1)
            layer.down.add_to(x, functional.silu(gate, inplace=True).mul_(up))
        return self._norm(x).view(*ids.shape, -1)

    def _project(self, layer: "_Layer", x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (N, H, D), keys and values (N, Hkv, D) of x (N, F), the first two rotated to their places."""
        heads = layer.qkv(layer.before(x)).view(len(x), -1, self._width)
        mixed, values = heads.split((self._heads + self._kv, self._kv), 1)
        if layer.by_head is not None:
            mixed = layer.by_head(mixed)
        turned = (mixed * cos).addcmul_(mixed.roll(self._width // 2, -1), sin)
        queries, keys = turned.split((self._heads, self._kv), 1)
        return queries, keys, values

    def _attend_once(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return what queries (B, H, D), one a row, see of (B, Hkv, S, D): (B, H * D); mask (B * Hkv, 1, S)."""
        shared = queries.reshape(len(mask), -1, self._width)
        scores = torch.baddbmm(mask, shared, keys.flatten(0, 1).mT, alpha=self._scaling)
        return torch.bmm(scores.softmax(-1), values.flatten(0, 1)).view(len(queries), -1)

    def _attend_grouped(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return what queries (N, H, D) see of keys and values (B, Hkv, S, D), (N, H * D); mask (B, 1, H / Hkv * T, S).
        Heads that share keys stand as tokens of one head: CUDA's kernels know either masks or shared keys."""
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

    def _layer(self, layer: Any) -> "_Layer":
        attention, mlp, by_head = layer.self_attn, layer.mlp, None
        if hasattr(attention, "q_norm"):
            by_head = _HeadNorm(attention.q_norm, attention.k_norm, (self._heads, self._kv), self._plain)
        return _Layer(
            before=_Norm(layer.input_layernorm, self._plain),
            qkv=FusedLinear(attention.q_proj, attention.k_proj, attention.v_proj),
            by_head=by_head,
            out=FusedLinear(attention.o_proj),
            after=_Norm(layer.post_attention_layernorm, self._plain),
            gate_up=FusedLinear(mlp.gate_proj, mlp.up_proj),
            down=FusedLinear(mlp.down_proj),
        )


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
    qkv: FusedLinear
    by_head: _HeadNorm | None
    out: FusedLinear
    after: _Norm
    gate_up: FusedLinear
    down: FusedLinear


def _split_heads(heads: Tensor, ids: Tensor) -> Tensor:
    return heads.unsqueeze(2) if ids.shape[1] == 1 else heads.unflatten(0, ids.shape).transpose(1, 2)


_EXACT = 1e-4
"""How far fp32 values may be apart, as a part of the greatest."""
_MORE = 2.0
"""How many times the rounding of its modules another way to compute a model may be off; right ones were up to 1.1."""
_LEAST = 2.0**-8
"""Relative error, one rounding of bfloat16, that is allowed however little the modules round."""


@torch.no_grad()
def describe_difference(model: nn.Module, own: Callable[[], Tensor], found: Tensor) -> str | None:
    """Return in words how far `found` is from what the model's modules compute; None if by rounding alone."""
    expected = own().float()
    if next(model.parameters()).dtype == torch.float32:
        gap = ((found.float() - expected).abs().max() / expected.abs().max()).item()
        return None if gap <= _EXACT else f"{gap:.1e} of the greatest apart"
    with compute_in_fp32(model):
        exact = own().float()
    rounding, error = (((values - exact).norm() / exact.norm()).item() for values in (expected, found.float()))
    if error <= max(_LEAST, _MORE * rounding):
        return None
    return f"{error:.1e} apart from fp32, where its modules are {rounding:.1e}"


@contextmanager
def compute_in_fp32(model: nn.Module) -> Iterator[None]:
    """Let modules compute in fp32 inside, one module's weights at a time, none changed. Nobody else runs the model."""
    kept: dict[tuple[nn.Module, str], nn.Parameter] = {}

    def widen(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for name, weight in module.named_parameters(recurse=False):
            if weight.is_floating_point():
                kept[module, name] = weight
                module._parameters[name] = nn.Parameter(weight.detach().float(), requires_grad=False)
        return tuple(one.float() if (isinstance(one, Tensor) and one.is_floating_point()) else one for one in inputs)

    def restore(module: nn.Module, _: object, __: object) -> None:
        for name in list(module._parameters):
            if (module, name) in kept:
                module._parameters[name] = kept.pop((module, name))

    handles = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            handles += [module.register_forward_pre_hook(widen), module.register_forward_hook(restore)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for (module, name), weight in kept.items():  # of a forward that failed
            module._parameters[name] = weight


_PREFILL, PROBED = 10, 12
"""Tokens of a row that are fed at once, and all of them."""
_SHIFT = 7


@torch.no_grad()
def make_fused_forward(model: Any, head: Callable[[Tensor], Tensor], rows: Sequence[Sequence[int]]) -> FusedForward:
    """Return the fused forward of `model`, whose features `head` turns into logits; raise CannotFuse if it has none.
    `rows`: two of PROBED ids each that the check feeds. Nobody else may run the model meanwhile."""
    from transformers import DynamicCache

    fused = FusedForward(model)
    embeddings = model.get_input_embeddings().weight
    ids = torch.tensor(rows, device=embeddings.device)
    cache, columns = DynamicCache(), torch.arange(PROBED, device=ids.device)
    positions = columns + torch.tensor([[0], [_SHIFT]], device=ids.device)
    mask = torch.zeros(2, 1, PROBED, PROBED, dtype=embeddings.dtype, device=ids.device)
    mask.masked_fill_(columns > columns[:, None], -torch.inf)

    def own() -> Tensor:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits.flatten(0, 1)

    with perturb_adapters(model):
        parts = [
            fused(ids[:, start:end], positions[:, start:end], mask[:, :, start:end, :end], cache)
            for start, end in pairwise([0, *range(_PREFILL, PROBED + 1)])
        ]
        found = head(torch.cat(parts, 1).flatten(0, 1))
        if found.shape != own().shape:
            raise CannotFuse("its logits are more than the product of its features with its output embeddings")
        apart = describe_difference(model, own, found)
    if apart is not None:
        raise CannotFuse(f"its logits and those of the fused forward are not the same: {apart}")
    return fused
