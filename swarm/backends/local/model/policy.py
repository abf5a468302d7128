"""The policy: one causal LM that the engine samples from and the learner trains, with its version.

Promises: `features` and `head` split the forward so that the vocabulary-sized product is made only where it is
needed; the split is checked on load against the model's own logits, and where an architecture
post-processes its logits the whole forward is used instead. `decode` gives the engine the same features without
gradients, by a fused forward where the model has one (`forwards/probe.py`); a warning says what it costs where not.
Whoever runs the weights holds `lock` for reading, whoever changes them for writing (`rewriting`), so that nobody ever
computes with weights that are half old and half new.
Knows nothing of requests, batches or files' contents beyond Hugging Face's format.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from swarm.backends.local.forwards import tree_attention
from swarm.backends.local.forwards.fused import Cache, FusedForward
from swarm.backends.local.forwards.probe import PROBED, fused_forward
from swarm.backends.local.forwards.projections import CannotFuse
from swarm.backends.local.model.cache_shape import CacheShape, measure_cache_shape
from swarm.backends.local.model.lock import ReadWriteLock

_log = logging.getLogger(__name__)

_PROBE_TOLERANCE = 1e-3
_SPREAD = 1e3
"""Largest of the made-up logits: far above what any soft cap lets through."""


class Policy:
    """One model and its version.

    `version` counts updates: it is 0 at first. `revision` counts every change of the weights, also one of several
    within an update: what was computed under another revision (keys, values) is stale. `text` is ids of ordinary text
    as the model is shown it, for checks; without any they feed the first ids of the vocabulary.
    """

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu", text: Sequence[int] = ()) -> None:
        self.model: Any = model.to(device).eval()
        self.config: Any = self.model.config
        self.device = torch.device(device)
        self.version = 0
        self.revision = 0
        self._text: Sequence[int] = text or range(self.vocab_size)
        self.lock = ReadWriteLock()
        tree_attention.install(self.model)
        self._split = self._splits()
        self._fused: FusedForward | None = None
        self.unfused: str | None = None
        """Why `fuse` found no fused forward; None where it found one, and before it was called."""
        self._fused_at = -1
        """Revision under which the fused forward was last found to be of the model as it is built."""

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Hold the weights alone, to change them; they are another revision afterwards."""
        with self.lock.writing():
            self.revision += 1
            yield

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: ids below it may be fed to the model."""
        return int(self.model.get_input_embeddings().num_embeddings)

    @cached_property
    def cache_shape(self) -> CacheShape:
        """Shape of the model's keys and values; raise BackendError where it caches anything else."""
        return measure_cache_shape(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the weights."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def fused(self) -> bool:
        """Whether `decode` runs a fused forward, as far as is known by now."""
        return self._fused is not None

    def features(self, ids: Tensor, **inputs: Any) -> Tensor:
        """Return what `head` turns into logits, (B, T, F), for ids (B, T); `inputs` go to the model as they are."""
        if self._split:
            hidden: Tensor = self.model.base_model(input_ids=ids, **inputs).last_hidden_state
            return hidden
        logits: Tensor = self.model(input_ids=ids, **inputs).logits
        return logits

    def checked_ids(self, count: int, first: int = 0) -> list[int]:
        """Return `count` ids for a check to feed: the model's text from its id number `first` on, again and again."""
        return [self._text[place % len(self._text)] for place in range(first, first + count)]

    def fuse(self) -> None:
        """Let `decode` run the model's fused forward from now on, if it has one; a warning says so if not."""
        with self.lock.writing():
            if self._fused is not None and self._fused.intact():
                return
            rows = [self.checked_ids(PROBED), self.checked_ids(PROBED, first=PROBED)]
            before, self.unfused = self.unfused, None
            try:
                self._fused = fused_forward(self.model, self.head, rows)
            except CannotFuse as reason:
                self._fused, self.unfused = None, str(reason)
        if self.unfused not in (None, before):
            _log.warning(
                "event=no_fused_forward cost='generation takes about 1.5 to 2 times as long' model=%s reason=%r",
                type(self.model).__name__,
                self.unfused,
            )

    def decode(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Return `features` (B, T, F) of ids (B, T) at `positions` (B, T), without gradients, over `cache`.

        `mask` (B, 1, T, S) is added to the scores of what `cache.update` returns. What changes the model's structure
        (an adapter, another type) and not its values alone makes this the model's own forward, until the next `fuse`.
        """
        if self._fused is not None and self._fused_at != self.revision:
            self._fused, self._fused_at = self._fused if self._fused.intact() else None, self.revision
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
    def _splits(self) -> bool:
        """Return whether output embeddings over the base model's last hidden state are the model's own logits.

        What a model does to logits behind them (a factor, a soft cap) may hardly show on its own: it is looked for on
        made-up ones of any size.
        """
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        seen: list[tuple[Tensor, Tensor]] = []

        def made_up(_: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> Tensor:
            spread = torch.linspace(-_SPREAD, _SPREAD, logits.numel(), device=logits.device).view_as(logits)
            seen.append((inputs[0], spread.to(logits.dtype)))
            return seen[-1][1]

        ids = torch.arange(3, device=self.device)[None] % self.vocab_size
        with head.register_forward_hook(made_up):
            own = self.model(input_ids=ids, use_cache=False).logits
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        if len(seen) != 1 or own.shape != seen[0][1].shape or hidden.shape != seen[0][0].shape:
            return False
        return torch.equal(own, seen[0][1].to(own.dtype)) and torch.allclose(seen[0][0], hidden, atol=_PROBE_TOLERANCE)
