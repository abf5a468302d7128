"""The policy: one causal LM that the engine samples from and the learner trains, with its version.

Promises: `features` and `head` split the forward so that the vocabulary-sized product is made only where it is
needed; the split is proved on load by comparing it with the model's own logits, and where an architecture
post-processes its logits the whole forward is used instead. `decode` gives the engine the same features without
gradients, by a fused forward where the model has one (`probe.py`).
Whoever runs the weights holds `lock` for reading, whoever changes them for writing (`rewriting`), so that nobody ever
computes with weights that are half old and half new.
Knows nothing of requests, batches or files' contents beyond Hugging Face's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from swarm.backends.local import tree_attention
from swarm.backends.local.fused import Cache, FusedForward
from swarm.backends.local.lock import ReadWriteLock
from swarm.backends.local.probe import fused_forward
from swarm.backends.protocols import BackendError

_PROBE_TOLERANCE = 1e-3


class Policy:
    """One model and its version.

    `version` counts updates: it is 0 at first. `revision` counts every change of the weights, also one of several
    within an update: what was computed under another revision (keys, values) is stale.
    """

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        self.model: Any = model.to(device).eval()
        self.config: Any = self.model.config
        self.device = torch.device(device)
        self.version = 0
        self.revision = 0
        self.lock = ReadWriteLock()
        require_full_attention(self.config)
        tree_attention.install(self.model)
        self._split = self._splits()
        self._fused: FusedForward | None = None
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

    def fuse(self) -> None:
        """Let `decode` run the model's fused forward from now on, if it has one; the log says so if not."""
        with self.lock.writing():
            if self._fused is None or not self._fused.intact():
                self._fused = fused_forward(self.model, self.head)

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
        """Return whether output embeddings over the base model's last hidden state are the model's own logits."""
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        ids = torch.arange(3, device=self.device)[None] % self.vocab_size
        own = self.model(input_ids=ids, use_cache=False).logits
        split = head(self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
        return own.shape == split.shape and torch.allclose(own, split, atol=_PROBE_TOLERANCE)


def require_full_attention(config: Any) -> None:
    """Raise BackendError for a model in which a token does not see all before it: caches and trees rely on that."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise BackendError(
            f"the local backend serves models with full attention in every layer; "
            f"{config.model_type} has {', '.join(sorted(kinds))}: choose another model"
        )
