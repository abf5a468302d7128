"""One rank: a process with its shard of the policy, which computes gradients and changes its weights by verl's engine.

Promises: between `begin` and the last `step` of an update `undo` puts weights and optimiser back as they were, bit
for bit; `prepare` changes nothing; the reference is the model as training begins with it, whatever was loaded since.
`start`, `score`, `gradient`, `step` and `exported` exchange with the other ranks: all of them must be called.
Does not know the order of minibatches, metrics' names or the driver's waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from swarm.backends.algorithms.metrics import UpdateSums
from swarm.backends.protocols import BackendError, NoRoom
from swarm.backends.verl.learning import adapter, shards
from swarm.backends.verl.processes.bucket import Bucket
from swarm.backends.verl.processes.surroundings import forget_secrets, meet_at
from swarm.backends.verl.saving import sharded
from swarm.job import Job

if TYPE_CHECKING:
    from swarm.backends.verl.learning.loss import Whole
    from swarm.backends.verl.learning.named import Corrected

BUCKET_BYTES = 256 << 20
"""Most bytes of a bucket of exported weights, unless one tensor alone has more."""


class Loss(Protocol):
    """A loss function for verl's engine that counts in `sums`."""

    sums: UpdateSums
    whole: Whole | None

    def __call__(self, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
        """Return the share of a micro-batch and its metrics."""
        ...


@dataclass(frozen=True, slots=True)
class RankShare:
    """What a rank's part of a minibatch came to; `sums` are those of the update so far."""

    loss: float
    sums: UpdateSums


class Rank:
    """A Ray actor's class. Nothing of verl is imported before `start`."""

    def __init__(self, folder: str, job: Job, device: str) -> None:
        self._folder, self._job, self._device = Path(folder), job, device
        self._engine: Any = None
        self._loss: Any = None
        self._before: shards.Shards | None = None
        self._read: sharded.Sets | None = None
        self._reference: Mapping[str, Tensor] | None = None
        self._rank, self._world = 0, 1
        self._meeting: Any = None
        forget_secrets()

    def alive(self) -> None:
        """Say that this process lives."""

    def address(self) -> tuple[str, int]:
        """Return where rank 0 can be met from now on: its node's address and a port."""
        import ray

        here = ray.util.get_node_ip_address()
        self._meeting = adapter.meeting(here, begin=True)
        return here, int(self._meeting.port)

    def start(self, rank: int, world: int, address: str, port: int) -> float:
        """Join the others, load the model and shard it; return the seconds that took."""
        import ray

        begun = time.perf_counter()
        self._rank, self._world = rank, world
        if self._device == "cpu":
            torch.set_num_threads(1)  # ranks that spin beside one another cost ten times as much
        adapter.set_rank(rank, world, address, port)
        alone = self._job.verl is None or self._job.verl.address is None
        meet_at("127.0.0.1" if alone else ray.util.get_node_ip_address())  # nobody else is to reach a Ray of its own
        if not adapter.joined():
            adapter.join(self._device, rank, world, self._meeting or adapter.meeting(address, port, begin=False))
        self._require_names()
        self._engine = adapter.engine(self._folder, self._job, self._device)
        if self._job.kl_coef > 0 and not self._job.lora_rank:
            self._reference = self._copied().weights
        return time.perf_counter() - begun

    def _require_names(self) -> None:
        from swarm.backends.verl.learning import named

        named.require(self._job)

    def _copied(self) -> shards.Shards:
        return shards.copied(self._engine.module, self._engine.optimizer)

    def score(self, batch: Any, longest: int, *, reference: bool) -> Tensor:
        """Return the log-probs (M,) of a batch's sampled tokens under the present weights, or the frozen reference."""
        from swarm.backends.verl.learning.contract import sampled

        prepared = adapter.prepared(batch, self._job, longest, entropy=False)
        if not reference:
            return sampled(adapter.logprobs(self._engine, prepared), batch)
        if self._reference is None:
            with self._engine.disable_adapter():
                return sampled(adapter.logprobs(self._engine, prepared), batch)
        present = self._copied().weights
        try:
            shards.put_weights(self._engine.module, self._reference)
            return sampled(adapter.logprobs(self._engine, prepared), batch)
        finally:
            shards.put_weights(self._engine.module, present)

    def advantages(self, rewards: Sequence[float], groups: Sequence[str], tokens: Sequence[int]) -> list[float]:
        """Return what verl's estimator, by the name in the job, makes of the rewards of a batch's episodes."""
        from swarm.backends.verl.learning import named

        return named.advantages(self._job, rewards, groups, tokens)

    def corrected(self, proximal: Tensor, rollout: Tensor, episodes: Tensor) -> Corrected:
        """Return what verl's preset, by the name in the job, makes of a batch's tokens (M,)."""
        from swarm.backends.verl.learning import named

        return named.corrected(self._job, proximal, rollout, episodes)

    def begin(self, loss: Loss, *, undoable: bool) -> None:
        """Begin an update; `undoable`: it may fail after a step, and everything is kept for `undo`."""
        self._loss, self._before = loss, None
        if undoable:
            self._before = self._copied()

    def keep(self) -> None:
        """End an update that was made: forget what `undo` would have put back."""
        self._before = None

    def gradient(self, batch: Any, longest: int, whole: Whole | None = None) -> RankShare:
        """Leave the gradient of this rank's part of a minibatch, to be exchanged; weights stay.

        whole: the minibatch, where the loss must see it.
        """
        self._loss.whole = whole
        prepared = adapter.prepared(batch, self._job, longest, entropy=True)
        return RankShare(adapter.gradient(self._engine, prepared, self._loss), self._loss.sums)

    def step(self, size: float) -> float:
        """Change the weights by the clipped gradient, unless it is not finite; return the norm it had."""
        norm = adapter.step(self._engine, size)
        self._loss.sums.steps += 1
        return norm

    def undo(self) -> None:
        """Put everything back as it was when the update began, and forget the gradient."""
        self._engine.optimizer_zero_grad()
        if self._before is not None:
            shards.put_back(self._engine.module, self._engine.optimizer, self._before)
        self._before = None

    def save(self, folder: str) -> None:
        """Write this rank's shards into a folder of its own in `folder`."""
        sharded.write_rank(Path(folder), self._rank, self._sets())

    def _sets(self) -> sharded.Sets:
        own = self._copied()
        return {sharded.MODEL: own.weights, sharded.OPTIMIZER: own.moments}

    def prepare(self, folder: str) -> None:
        """Read this rank's shards and hold them for `restore`; BackendError for what is damaged or does not fit.

        As many ranks as there are now share what was saved, by however many.
        """
        saved = sharded.read_rank(Path(folder), self._rank, self._world)
        for name, module in self._modules().items():
            if {own: value.shape for own, value in saved.get(name, {}).items()} != shards.shapes(module):
                raise BackendError(f"the checkpoint {folder} is of another model: load it into the job that wrote it")
        self._read = saved

    def _modules(self) -> Mapping[str, Any]:
        """Return what learns, by the set of a checkpoint in which all of its weights must be found."""
        return {sharded.MODEL: self._engine.module}

    def restore(self) -> None:
        """Take over what `prepare` read."""
        assert self._read is not None
        self._take(self._read)
        self._read = None

    def _take(self, saved: sharded.Sets) -> None:
        found = shards.Shards(saved[sharded.MODEL], saved.get(sharded.OPTIMIZER, {}))
        shards.put_back(self._engine.module, self._engine.optimizer, found)

    def exported(self) -> list[Any]:
        """Return references to buckets of full tensors by name, in Ray's object store: of rank 0, none of others.

        NoRoom where the store and the disk behind it are full; the others are kept company to the end first.
        """
        import ray

        adapter.release(self._engine)  # an update that ran out of memory may have left some
        found: list[Any] = []
        full: Exception | None = None
        for bucket in self._buckets():
            try:
                if self._rank == 0 and full is None:
                    found.append(ray.put(bucket))
            except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
                full, found = error, []
        if full is not None:
            said = " ".join(str(full).split())[:200]
            raise NoRoom(
                "Ray's object store, and the disk that it spills to, have no room for the weights that are published: "
                f"free space under /tmp or where Ray keeps its session; it said: {said}"
            )
        return found

    def _buckets(self) -> Iterator[Bucket]:
        bucket = Bucket()
        size = 0
        for name, tensor in shards.whole(self._engine.module, dtype=getattr(torch, self._job.dtype)):
            if bucket and size + tensor.nbytes > BUCKET_BYTES:
                yield bucket
                bucket, size = Bucket(), 0
            bucket[name] = tensor
            size += tensor.nbytes
        yield bucket
