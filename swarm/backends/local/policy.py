"""The policy: one causal LM, with its lock, that the engine samples and the learner trains.

`features` and `head` split the forward so that the vocabulary-sized product is made only where needed; the split is
checked on load against the model's own logits, and the whole forward is used where logits are post-processed. Whoever
runs the weights holds `lock` for reading, whoever changes them for writing; it is not re-entrant. The same seed gives
the same LoRA adapter (arXiv 2106.09685) bit for bit on every device. Gradient checkpointing (arXiv 1604.06174) is never
used with a key-value cache, to which a second pass would append twice.
"""

import copy
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from swarm.backends.local import tree_attention
from swarm.backends.local.fused_forward import PROBED, Cache, CannotFuse, FusedForward, make_fused_forward
from swarm.backends.local.kv_cache import CacheShape, measure_cache_shape
from swarm.rendering.messages import BackendError


def recompute_layers(model: nn.Module) -> None:
    """Make every decoder layer of a transformers model compute itself again; BackendError where none can."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise BackendError(
            f"the job asks for gradient_checkpointing; {type(model).__name__} has no layers that can: switch it off"
        )
    for layer in layers:
        # A method bound by hand follows its layer when the model is copied; a closure would run the first one's.
        layer.forward = MethodType(_recompute, layer)


def _recompute(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    forward = MethodType(type(layer).forward, layer)
    if not torch.is_grad_enabled() or named.get("past_key_values") is not None:
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)


def add_adapter(model: nn.Module, *, rank: int, alpha: float, seed: int) -> None:
    """Put an adapter, in the weights' own element type, on a model that is on the CPU; it alone has gradients then."""
    from peft import inject_adapter_in_model

    config = lora_config(rank=rank, alpha=alpha)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dtype = next(model.parameters()).dtype
        inject_adapter_in_model(config, model)
    for weight in trainable_parameters(model).values():
        weight.data = weight.data.to(dtype)
    model.eval()


def lora_config(*, rank: int, alpha: float) -> Any:
    from peft import LoraConfig

    scale: Any = alpha  # annotated as an int in peft, which only divides it
    return LoraConfig(r=rank, lora_alpha=scale, target_modules="all-linear", lora_dropout=0.0)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a model of its own as before training: weights copied, or shared below an adapter; to be read unlocked."""
    shared: dict[int, Any] = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    twin = copy.deepcopy(model, shared)
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(below := getattr(child, "base_layer", None), nn.Module):
                setattr(parent, name, below)
    return twin.requires_grad_(False)


class ReadWriteLock:
    """Use as `with lock.reading():` and `with lock.writing():`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


_log = logging.getLogger(__name__)

_SPREAD = 1e3
"""Largest of the made-up logits: far above what any soft cap lets through."""


class Policy:
    """One model and its version. `version` counts updates; `revision` counts every change of the weights, also one of
    several within an update: what was computed under another revision (keys, values) is stale. `text` is ids of
    ordinary text for checks, which else feed the first ids of the vocabulary."""

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu", text: Sequence[int] = ()) -> None:
        self.model: Any = model.to(device).eval()
        self.config: Any = self.model.config
        self.device = torch.device(device)
        self.version = 0
        self.revision = 0
        self._text: Sequence[int] = text or range(self.vocab_size)
        self.lock = ReadWriteLock()
        tree_attention.install(self.model)
        self._split = self._has_linear_head()
        self._fused: FusedForward | None = None
        self.unfused: str | None = None
        """Why `fuse` found no fused forward; None where it found one, and before it was called."""

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Hold the weights alone, to change them; they are another revision afterwards."""
        with self.lock.writing():
            self.revision += 1
            yield

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    @cached_property
    def cache_shape(self) -> CacheShape:
        return measure_cache_shape(self.model)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def fused(self) -> bool:
        """Whether `decode` runs a fused forward."""
        return self._fused is not None

    def features(self, ids: Tensor, **inputs: Any) -> Tensor:
        """Return what `head` turns into logits, (B, T, F), for ids (B, T); `inputs` go to the model as they are."""
        if self._split:
            hidden: Tensor = self.model.base_model(input_ids=ids, **inputs).last_hidden_state
            return hidden
        logits: Tensor = self.model(input_ids=ids, **inputs).logits
        return logits

    def probe_ids(self, count: int, first: int = 0) -> list[int]:
        """Return `count` ids for a check to feed: the model's text from its id number `first` on, again and again."""
        return [self._text[place % len(self._text)] for place in range(first, first + count)]

    def fuse(self) -> None:
        """Let `decode` run the model's fused forward from now on, if it has one; a warning says so if not."""
        with self.lock.writing():
            if self._fused is not None or self.unfused is not None:
                return
            rows = [self.probe_ids(PROBED), self.probe_ids(PROBED, first=PROBED)]
            try:
                self._fused = make_fused_forward(self.model, self.head, rows)
            except CannotFuse as reason:
                self.unfused = str(reason)
                _log.warning(
                    "event=no_fused_forward cost='generation takes about 1.5 to 2 times as long' model=%s reason=%r",
                    type(self.model).__name__,
                    self.unfused,
                )

    def decode(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Return `features` (B, T, F) of ids and `positions` (B, T) over `cache`; `mask` (B, 1, T, S): see `Cache`."""
        if self._fused is None:
            return self.features(
                ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
        return self._fused(ids, positions, mask, cache)

    def head(self, features: Tensor) -> Tensor:
        """Return fp32 logits (N, V) of features (N, F)."""
        if not self._split:
            return features.float()
        logits: Tensor = self.model.get_output_embeddings()(features)
        return logits.float()

    @torch.no_grad()
    def _has_linear_head(self) -> bool:
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        seen: list[tuple[Tensor, Tensor]] = []

        def replace_logits(_: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> Tensor:
            spread = torch.linspace(-_SPREAD, _SPREAD, logits.numel(), device=logits.device).view_as(logits)
            seen.append((inputs[0], spread.to(logits.dtype)))
            return seen[-1][1]

        ids = torch.arange(3, device=self.device)[None] % self.vocab_size
        with head.register_forward_hook(replace_logits):
            own = self.model(input_ids=ids, use_cache=False).logits
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        if len(seen) != 1 or own.shape != seen[0][1].shape or hidden.shape != seen[0][0].shape:
            return False
        return torch.equal(own, seen[0][1].to(own.dtype)) and torch.allclose(seen[0][0], hidden, atol=1e-3)
