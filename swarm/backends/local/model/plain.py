"""A plain model: Hugging Face's own forward in float32 over a copy of given weights, for a third opinion.

Promises: it shares no memory, no hook and no kernel of ours with the model whose weights it has; it is refused in a
line where it has no room beside what runs. Slow, and made where something is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from swarm.backends.local.model.fit import free_bytes
from swarm.backends.protocols import BackendError

_FP32 = 4
_SPARE = 1.2


class PlainModel:
    """A causal LM of a configuration, with weights by name that come in parts; BackendError where some are missing."""

    def __init__(self, config: Any, parts: Iterable[Mapping[str, Tensor]]) -> None:
        self._model = _made(config)
        names = set(self._model.state_dict())
        missing = set(names)
        for part in parts:
            known = {name: weight for name, weight in part.items() if name in names}
            self._model.load_state_dict(known, strict=False)
            missing -= set(known)
        tied = self._model.get_output_embeddings()
        if tied is not None and tied.weight is self._model.get_input_embeddings().weight:
            missing = {name for name in missing if self._model.get_parameter(name) is not tied.weight}
        if missing:
            raise BackendError(f"the weights lack {len(missing)} of the model's: {', '.join(sorted(missing)[:3])}")

    @torch.no_grad()
    def logprobs(self, ids: Tensor, temperature: float) -> Tensor:
        """Return the log-prob (T - 1,) of each of `ids` (T,) but the first, the ones before it given."""
        _require(2 * _FP32 * len(ids) * self._model.get_input_embeddings().num_embeddings)
        logits = self._model(input_ids=ids[None, :-1], use_cache=False).logits[0].float() / temperature
        found: Tensor = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        return found


def _made(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    own = copy.deepcopy(config)
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(own, dtype=torch.float32)
    _require(sum(weight.numel() for weight in shapes.parameters()) * _FP32)
    return AutoModelForCausalLM.from_config(own, dtype=torch.float32, attn_implementation="eager").eval()


def _require(size: int) -> None:
    if (needed := int(size * _SPARE)) > (free := free_bytes(torch.device("cpu"))):
        raise BackendError(f"a plain forward needs {needed:,} bytes of memory and {free:,} are free")


@torch.no_grad()
def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all weights by the names that they have without an adapter; its product is added in float32."""
    found = {}
    for name, weight in model.state_dict().items():
        if ".lora_" in name:
            continue
        parent, _, last = name.partition(".base_layer.")
        if last == "weight":
            layer: Any = model.get_submodule(parent)
            delta = sum(layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
            weight = weight.float() + delta
        found[name.replace(".base_layer.", ".")] = weight.detach().cpu()
    return found
