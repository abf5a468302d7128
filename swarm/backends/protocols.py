"""The seam between a swarm server and whatever generates and learns.

With a job's `max_staleness` of 0 no generation runs during `update`, `save` or `load`. With 1 and more generation goes
on during `update` and `save`, and it is the backend's own part to keep the two apart where they touch.
"""

import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from swarm.rendering.messages import BackendError, Renderer, RequestRefused
from swarm.timelines.node import TrainRow

Finish = Literal["stop", "length"]


class NotFinite(BackendError):
    """Loss or gradient is no finite number: the training broke down, and no machine is to blame."""


class DiskFull(BackendError):
    """A disk is full: nothing was written, and the same again succeeds once there is room."""


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""What the operating system says then, or where too many files are open: both pass."""


class RequestLost(BackendError):
    """This request's answer was lost, and no other's; the engine lives, and the same request may be made again."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one completion. `temperature` 0 is greedy. `stop_ids` end it and belong to it. top_logprobs: number
    of the likeliest ids to report at each place. grammar: a Lark grammar, as llguidance reads it, that the text must
    follow, for an engine that is `guided`; a rule that is nothing but the text of a special token means that token.
    Log-probs are over what the grammar allows, which no learner computes again: a guided call is not for training."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    top_logprobs: int = 0
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate: `sampling` after `prompt_ids` (P,). `name` is of this request alone. `session` is
    what it has in common with others that continue one another, an episode: an engine of several replicas sends them to
    one, where the prefix that they share is cached. "": nothing."""

    name: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    session: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next sampled ids, all of one policy version; `finish` is set on the last. `logprobs[i]` is the log-prob of
    `ids[i]` under the sampling distribution (at temperature 0: the model's own, temperature 1). `top[i]`, where asked
    for, holds the likeliest ids at that place with their log-probs, likeliest first."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    finish: Finish | None = None
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


def require_readable(request: GenerationRequest, max_context: int, vocabulary: int) -> None:
    """Raise RequestRefused, with what was expected and found, for what no engine of a model could answer."""
    prompt, said = request.prompt_ids, f"request {request.name}"
    if not 0 < len(prompt) < max_context:
        raise RequestRefused(f"{said}: expected 1 to {max_context - 1} prompt ids, found {len(prompt)}")
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        strange = next(token for token in prompt if not 0 <= token < vocabulary)
        raise RequestRefused(
            f"{said}: expected prompt ids from 0 to {vocabulary - 1}, which the model has embeddings for, "
            f"found {strange}"
        )
    if request.sampling.max_tokens < 1:
        raise RequestRefused(f"{said}: expected max_tokens of 1 or more, found {request.sampling.max_tokens}")


class Engine(Protocol):
    """Generates. Requests run concurrently on one event loop; closing the iterator cancels its request."""

    @property
    def guided(self) -> bool:
        """It can hold its text to a `Sampling.grammar`."""

    @property
    def version(self) -> int:
        """Policy version that serves: of what begins to be generated from now on."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield chunks until one has `finish`. RequestRefused, nearly always before the first chunk, and RequestLost
        are about this request alone. Any other BackendError says that the engine broke, for all of them."""


@dataclass(frozen=True, slots=True)
class CallReward:
    """What one call of an episode is worth, and which of the episode's agents made it ("" where nobody said)."""

    call: int
    reward: float
    agent: str = ""


@dataclass(frozen=True, slots=True)
class TrainEpisode:
    """A finished training episode: its group, its reward and its rows. `call_rewards` are of its trained calls, of all
    of them or, where each is worth `reward`, of none. However many rows it has, it weighs `weight`; one of weight 0
    changes neither the loss, nor any gradient, denominator or baseline."""

    episode_id: str
    group: str
    reward: float
    rows: tuple[TrainRow, ...]
    weight: float = 1.0
    call_rewards: tuple[CallReward, ...] = ()
    advantage: float | None = None
    """What a client gave in place of the algorithm's own, of all its calls; of a batch all have one, or none."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All episodes of one training step, in a fixed order (by group, then episode id)."""

    step: int
    episodes: tuple[TrainEpisode, ...]


class Learner(Protocol):
    """Learns. Calls block (the server makes them off the event loop), one at a time."""

    @property
    def version(self) -> int:
        """Policy version of the present weights: 0 at first, one more after each update."""

    def update(self, batch: Batch) -> Mapping[str, float]:
        """Make one training step; return its metrics by verl's names. The new weights are of `version`, one more than
        before, and serve no later than `Backend.publish` returns."""

    def save(self, folder: Path) -> None:
        """Write weights, optimiser, RNG and version to `folder`, atomically (a temporary name, then rename). Raises
        DiskFull, or OSError of NO_ROOM, where the disk is full; the same again must be possible then."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; raise BackendError if `folder` holds no whole checkpoint. As after an update, what
        was restored serves no later than `Backend.publish` returns."""


class Backend(Protocol):
    """One policy with its engine, learner and renderer."""

    @property
    def engine(self) -> Engine: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def renderer(self) -> Renderer: ...
    @property
    def model_name(self) -> str: ...
    def publish(self) -> None:
        """Serve the learner's present weights: returns once all that generates has them and `Engine.version` says so.
        Blocks, off the event loop, and is never called beside another call of the learner. DiskFull: the same must be
        possible again. Any other BackendError where it cannot be done. Either way nothing goes on with older weights
        under the new version's name."""

    async def start(self) -> None:
        """Load or make the model and begin to serve; raise BackendError with the reason if that fails."""

    async def stop(self) -> None:
        """End threads and free memory; safe to call twice."""

    @property
    def provenance(self) -> Mapping[str, str]:
        """sha256 of what was loaded, once started: `weights`, as training begins with them, and `template`, if any."""

    @property
    def probs_tolerance(self) -> float | None:
        """Most by which engine and learner may differ on a sampled token's probability under the same weights. The
        learner says how much they do as `training/rollout_probs_diff_max`. None where it does not."""

    def weights(self) -> str | None:
        """Return the sha256 of all weights that serve now, an adapter's too; None where nobody can say. Reads all."""

    def failure(self) -> str | None:
        """Return why the backend is dead, or None while it lives (the server's watchdog asks)."""
