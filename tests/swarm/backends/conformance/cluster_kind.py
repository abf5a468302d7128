"""The kind of the backend `verl`, in the environment where its packages are (`make test-verl`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch

from swarm.backends.protocols import Backend, BackendError
from swarm.backends.verl.backend import VerlBackend
from tests.swarm.backends.conformance.kinds import Kind


class _PublishedOracle:
    """A plain transformers model with the weights that the learner publishes now."""

    def __init__(self, backend: Backend) -> None:
        self._backend = cast(VerlBackend, backend)
        self._model: Any = None

    def _present(self) -> Any:
        import ray
        from transformers import AutoModelForCausalLM

        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32).eval()
        weights = {name: each for bucket in self._backend.learner.exported() for name, each in ray.get(bucket).items()}
        missing, unknown = self._model.load_state_dict(weights, strict=False)
        assert (list(missing), list(unknown)) == ([], [])
        return self._model

    @property
    def _folder(self) -> Path:
        return Path(self._backend.job.model.path)

    @torch.no_grad()
    def _all(self, ids: Sequence[int], temperature: float) -> torch.Tensor:
        """Return log-probs (T, V)."""
        logits: torch.Tensor = self._present()(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return (logits.float() / temperature).log_softmax(-1)

    def distribution(self, prompt: Sequence[int], temperature: float = 1.0) -> list[float]:
        found: list[float] = self._all(prompt, temperature)[-1].tolist()
        return found

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> list[float]:
        places = self._all([*prompt, *answer], temperature)[len(prompt) - 1 : -1]
        found: list[float] = places.gather(-1, torch.tensor(list(answer))[:, None])[:, 0].tolist()
        return found


def _publish_too_little(backend: Backend) -> None:
    """Publish a version that lacks all weights: no replica may serve it, nor go on with the older one in its name."""
    import ray

    own = cast(VerlBackend, backend)
    with suppress(BackendError):
        own.engine.publish(own.learner.version + 1, [ray.put({})])


VERL = Kind(
    "verl",
    {"backend": "verl", "device": "cpu"},
    _PublishedOracle,
    _publish_too_little,
    {"trees": "verl's engine computes each row by itself, and a job that asks for trees is refused"},
    tolerance=1e-4,
    model="wide",
    slow=True,
)
