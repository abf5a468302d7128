"""What a replica asks of the engine in it, vLLM or SGLang.

Promises: neither is imported by importing this, or by choosing between their adapters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from swarm.backends.protocols import BackendError, Sampling
from swarm.backends.verl.generating.engines.spec import ReplicaSpec

COLDEST: Final = 0.01
HOTTEST: Final = 2.0
"""Temperatures that both engines heed, beside 0: vLLM raises any below to the first, and refuses any above the last."""
QUIET: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of a process in which an engine is imported: nothing is looked up, or told, anywhere."""


STILL_S: Final = 60.0
"""Seconds within which all that generates must have stopped once it was told to."""
Top = tuple[tuple[int, float], ...]
"""The likeliest ids of a place, likeliest first, with their log-probs."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of a stream, with the log-prob of each and, where asked for, the likeliest ids there."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Top, ...] = ()


class TokenStream(Protocol):
    """What samples: one stream a name, which ends by itself or where it is stopped."""

    def stream(self, name: str, ids: Sequence[int], sampling: Sampling, salt: str) -> AsyncIterator[Piece]:
        """Yield what follows `ids`; streams of another salt share no cache with it. ReplicaDied where it is dead."""
        ...

    async def abort(self, names: Sequence[str]) -> None:
        """End these streams early."""
        ...


class ServedModel(TokenStream, Protocol):
    """A model that an engine serves, whose weights change while no stream is open."""

    @property
    def dead(self) -> bool:
        """Whether the engine's processes are gone."""
        ...

    async def score(self, name: str, ids: Sequence[int]) -> list[float]:
        """Return the log-prob of each of `ids` but the first at temperature 1, by a forward that reads no cache."""
        ...

    async def begin_weights(self) -> None:
        """Make ready for weights."""
        ...

    async def load_bucket(self, path: str) -> None:
        """Load what `torch.save` wrote to a file: names, as in a checkpoint's folder, and tensors."""
        ...

    async def finish_weights(self) -> Sequence[str]:
        """Put the weights in their places; return the names of those that did not come."""
        ...

    async def sleep(self) -> None:
        """Give the memory of weights and cache back, with what is in it."""
        ...

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take memory again, in which there is nothing: weights must be loaded before anything is generated."""
        ...

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        ...


class EngineAdapter(Protocol):
    """What is private to an engine; a module of this package."""

    def check(self) -> str:
        """Return a line that names the engine that is installed; raise BackendError for none, or one never tried."""
        ...

    def surround(self, spec: ReplicaSpec) -> None:
        """Set this process's environment for the engine, before it is imported."""
        ...

    def require_architecture(self, folder: Path) -> str:
        """Return the architecture of a model's folder; raise BackendError unless it is served. Imports the engine."""
        ...

    def require_heads(self, size: int, whose: str, device: str) -> None:
        """Raise BackendError where there is no attention for heads of `size` numbers on a device; 0: nobody says."""
        ...

    def require_servable(self, spec: ReplicaSpec) -> None:
        """Raise BackendError where a spec could not be served, as far as that is seen before. Imports the engine."""
        ...

    def start(self, spec: ReplicaSpec) -> ServedModel:
        """Load a model, and return it served; `boot_error` says what is to be made of what this raises."""
        ...

    def boot_error(self, error: BaseException, log: Iterable[str], spec: ReplicaSpec) -> BackendError:
        """Return what a boot that failed is to be called, by the error and by what the engine's processes wrote."""
        ...


def adapter_of(engine: Literal["vllm", "sglang"]) -> EngineAdapter:
    """Return the adapter of an engine, by its name in a job."""
    if engine == "sglang":
        from swarm.backends.verl.generating.engines import sglang

        return sglang
    from swarm.backends.verl.generating.engines import vllm

    return vllm
