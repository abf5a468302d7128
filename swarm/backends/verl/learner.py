"""The cluster learner: the local learner's updates, over Ray actors with verl's engine.

Same rows, advantages, weights, minibatches (the same permutation from the job's seed), step sizes and loss as the local
learner, so that a batch has the same gradient. A failed update leaves weights, optimiser, order and version as they
were; a rank's death ends it with a BackendError within a bound; a checkpoint is whole or refused.

Each row is with exactly one rank; ranks with fewer get padding rows, so all have as many micro-batches; answers come
back in the rows' order. A call returns what every rank answered, or raises within its bound; ranks left waiting for
each other are ended, and every later call says why. `stop` may be called twice.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.algorithms.advantages import call_advantages, episode_reward
from swarm.algorithms.losses import minibatch_weights, minibatches
from swarm.algorithms.mismatch import OPINION_S, MismatchGuard, ScoreReplicas, diagnose_mismatch, find_mismatches
from swarm.algorithms.objective import Objective, UpdateCost, UpdateSums, batch_metrics
from swarm.algorithms.rows import Row, drop_zero_weight, flatten_tokens, set_call_advantages, tokens_by_call, train_rows
from swarm.backends.local import checkpoint
from swarm.backends.local.learner import step_size
from swarm.backends.local.reference import PlainModel
from swarm.backends.protocols import Batch, DiskFull, NotFinite, TrainEpisode
from swarm.backends.verl import adapter
from swarm.backends.verl.adapter import verl_batch
from swarm.backends.verl.engine import SeedSequence
from swarm.backends.verl.losses import ObjectiveLoss, VerlLoss, WholeMinibatch
from swarm.backends.verl.processes import SuspendAwareTimeout
from swarm.backends.verl.worker import Rank, RankShare
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields


class RowPartition:
    """Which rows are with which rank."""

    def __init__(self, rows: Sequence[Row], world: int) -> None:
        self._rows = rows
        self._parts: list[list[int]] = [[] for _ in range(world)]
        sizes = [0] * world
        for number in sorted(range(len(rows)), key=lambda n: len(rows[n].ids), reverse=True):
            rank = sizes.index(min(sizes))
            self._parts[rank].append(number)
            sizes[rank] += len(rows[number].ids) + 1
        self._even = max(1, *map(len, self._parts)) if world > 1 else max(1, len(rows))
        self.longest = max((len(row.ids) + 1 for row in rows), default=2)
        """Ids of the longest row."""

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model, those of padding rows included."""
        padding = sum(self._even - len(hand) for hand in self._parts)
        return sum(len(row.ids) + 1 for row in self._rows) + 2 * padding

    def batches(
        self, advantages: Sequence[float], weights: Sequence[float], sequence: Sequence[Tensor] = ()
    ) -> list[TensorDict]:
        """Return each rank's batch; `sequence` stands as the rows do, and `places` are among the tokens of all rows."""
        counts = [len(row.targets) for row in self._rows]
        places = torch.arange(sum(counts)).split(counts) if counts else ()
        return [
            verl_batch(
                [self._rows[number] for number in hand],
                advantages,
                weights,
                sequence=[sequence[number] for number in hand] if sequence else (),
                places=[places[number] for number in hand],
                padding=self._even - len(hand),
            )
            for hand in self._parts
        ]

    def gather(self, answers: Sequence[Tensor]) -> list[Tensor]:
        """Return, row by row, what the ranks found for the sampled tokens (M,) of their batches."""
        found: dict[int, Tensor] = {}
        for hand, values in zip(self._parts, answers, strict=True):
            parts = values.split([len(self._rows[number].targets) for number in hand])
            found.update(zip(hand, parts, strict=True))
        return [found[number] for number in range(len(self._rows))]


BOOT_S = 600.0
"""Seconds within which all ranks must be up: Ray waits for free resources without a word."""
GRACE_S = 10.0
"""Seconds that the other ranks have to answer once one of them refused."""
_ROOM = "lower micro_batch_tokens, set gradient_checkpointing, or ask for more verl.trainers"
_APART = frozenset({"save", "prepare"})
"""Methods that exchange nothing: a rank that refuses holds no other one up, and each is let come to its own end."""
_LAST = frozenset({"undo"})
"""Methods after whose refusal nobody knows what the weights are: no more is asked of the ranks."""


class TrainerGroup:
    """`world` ranks, one to a bundle of Ray's resources."""

    def __init__(
        self,
        folder: Path,
        job: Job,
        world: int,
        device: str,
        *,
        options: Callable[[int], Mapping[str, Any]] = lambda number: {},
        rank: type[Rank] = Rank,
    ) -> None:
        """Start ranks of a class, with Ray's `options` by number; BackendError where they do not come up."""
        import ray

        self._ray = ray
        self.failure: str | None = None
        self._signs: list[Any] = []
        wanted = {"num_cpus": 1, **({} if device == "cpu" else {"num_gpus": 1}), "max_restarts": 0}
        variables = {"env_vars": adapter.environment(device)}
        made = [
            ray.remote(rank).options(**{**wanted, "runtime_env": variables, **options(number)})
            for number in range(world)
        ]
        self._actors = [each.remote(str(folder), job, device) for each in made]
        try:
            address, port = self._wait([self._actors[0].address.remote()], BOOT_S, "address")[0]
            each = [(number, world, address, port) for number in range(world)]
            self.boot_s: float = max(self.call("start", each, timeout_s=BOOT_S))
        except BaseException:
            self.stop()
            raise

    @property
    def world(self) -> int:
        return len(self._actors)

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self._wait([a.__ray_call__.remote(_pid) for a in self._actors], GRACE_S, "pid")]

    def call(self, method: str, each: Sequence[tuple[Any, ...]], *, timeout_s: float, **same: Any) -> list[Any]:
        """Call a method of every rank, with the arguments of `each`; return what they answered, in their order."""
        if self.failure is not None:
            raise BackendError(self.failure)
        grace = timeout_s if method in _APART else GRACE_S
        pairs = zip(self._actors, each, strict=True)
        return self._wait(
            [getattr(actor, method).remote(*own, **same) for actor, own in pairs], timeout_s, method, grace
        )

    def call_all(self, method: str, *arguments: Any, timeout_s: float, **same: Any) -> list[Any]:
        return self.call(method, [arguments] * self.world, timeout_s=timeout_s, **same)

    def _wait(self, references: Sequence[Any], timeout_s: float, method: str, grace_s: float = GRACE_S) -> list[Any]:
        pending, patience = list(references), SuspendAwareTimeout(timeout_s)
        first: BackendError | None = None
        while pending:
            ready, pending = self._ray.wait(pending, timeout=patience.slice)
            if not ready and patience.spend():
                continue
            if not ready:
                return self._fail(first or BackendError(_too_long(method, timeout_s, self._ray)))
            refusal = self._refusal(ready[0], references.index(ready[0]), method)
            if refusal is not None and first is None:
                first, patience.left = refusal, min(patience.left, grace_s)
            if self.failure is not None:
                return self._fail(BackendError(self.failure))
        if first is not None:
            if method in _LAST:
                return self._fail(first)
            raise first
        return list(self._ray.get(list(references)))

    def _refusal(self, reference: Any, rank: int, method: str) -> BackendError | None:
        """Return what a rank said in place of an answer; a dead one is the end of the group."""
        errors = self._ray.exceptions
        try:
            self._ray.get(reference)
        except errors.RayActorError as error:
            self.failure = f"rank {rank} of the learner died during {method}: {_line(error)}; start the server again"
            return BackendError(self.failure)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, BackendError):
                return cause
            if isinstance(cause, MemoryError | torch.OutOfMemoryError):
                return BackendError(f"rank {rank} of the learner is out of memory in {method}: {_line(cause)}; {_ROOM}")
            return BackendError(f"rank {rank} of the learner failed in {method}: {type(cause).__name__}: {cause}")
        except errors.OutOfMemoryError as error:
            return BackendError(f"Ray ended rank {rank} of the learner for want of memory: {_line(error)}; {_ROOM}")
        except errors.RayError as error:
            return BackendError(f"rank {rank} of the learner gave no answer to {method}: {_line(error)}")
        return None

    def _fail(self, error: BackendError) -> list[Any]:
        self.failure = str(error)
        self.stop()
        raise error

    def poll_failure(self) -> str | None:
        """Return why the group is over, None while it lives; it never waits: signs of life come behind the work."""
        if self.failure is None:
            self._signs = self._signs or [actor.alive.remote() for actor in self._actors]
            ready, waiting = self._ray.wait(self._signs, num_returns=len(self._signs), timeout=0)
            for sign in ready:
                self._refusal(sign, self._signs.index(sign), "its rest")
            self._signs = self._signs if waiting else []
        return self.failure

    def stop(self) -> None:
        self.failure = self.failure or "the learner was stopped"
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)


def _pid(_: Any) -> int:
    import os

    return os.getpid()


def _too_long(method: str, timeout_s: float, ray: Any) -> str:
    free = ", ".join(f"{name} {amount:g}" for name, amount in sorted(ray.available_resources().items()) if "PU" in name)
    return (
        f"the learner's ranks did not answer {method} within {timeout_s:g} s (Ray has {free or 'no processor'} free): "
        f"give Ray more processors, or ask for fewer trainers"
    )


def _line(error: Exception) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...")


log = logging.getLogger(__name__)
UPDATE_S = 3600.0
"""Seconds within which every single call of the ranks must be answered."""


@dataclass(slots=True)
class RankedUpdate:
    """What one update works on: `rows` and `advantages` stand as `episodes` do."""

    episodes: Sequence[TrainEpisode]
    rows: Sequence[Sequence[Row]]
    advantages: Sequence[float]
    step_size: float
    cost: UpdateCost
    norms: list[float]
    sums: UpdateSums
    verl_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of verl's own."""

    @property
    def all_rows(self) -> list[Row]:
        """The rows of all episodes, in their order."""
        return [row for own in self.rows for row in own]


class VerlLearner:
    """Implements `Learner` from the driver. Ray must be up; the ranks are made at once and live until `stop`."""

    RANK: ClassVar[type[Rank]] = Rank
    """The class of its ranks."""

    def __init__(
        self,
        folder: Path,
        job: Job,
        *,
        trainers: int = 1,
        device: str = "cpu",
        options: Callable[[int], Mapping[str, Any]] = lambda number: {},
        call_timeout_s: float = UPDATE_S,
        draws: SeedSequence | None = None,
    ) -> None:
        """Make the ranks, with Ray's `options` by number; the count of `draws`, which an engine takes, is saved."""
        self._draws = draws
        self.version = 0
        self._folder = folder
        self._job = job
        self._timeout_s = call_timeout_s
        self._objective = Objective(job)
        self._names = (job.verl or VerlFields()).algorithm
        self._guard = MismatchGuard(job.mismatch_limit)
        self.replicas: ScoreReplicas | None = None
        """Asks the engine's replicas, where whoever made both says how."""
        self.use_devices: Callable[[], AbstractContextManager[None]] = nullcontext
        """What an update computes within: its turn, where its ranks share devices with what generates."""
        if job.merging in ("auto", "tree"):
            log.info("event=no_trees reason='verl's engine computes rows by themselves: ids they share are fed again'")
        self._order = torch.Generator().manual_seed(job.seed)
        self.group = TrainerGroup(folder, job, trainers, device, options=options, rank=self.RANK)

    def update(self, batch: Batch) -> Mapping[str, float]:
        """Make one training step: `epochs` passes over the batch, each in `minibatches` optimiser steps."""
        if not batch.episodes:
            raise BackendError(f"step {batch.step}: expected a batch of episodes, found none")
        batch = drop_zero_weight(batch)
        update = self._begin(batch)
        with self.use_devices():
            self._fill_logprobs(update)
            self._train(update)
        return {
            **update.sums.metrics(),
            **batch_metrics(batch, update.advantages),
            **update.cost.metrics(),
            **update.verl_metrics,
            "actor/lr": update.step_size,
        }

    def _begin(self, batch: Batch) -> RankedUpdate:
        rows = train_rows(batch.episodes)
        counts = [tokens_by_call(own) for own in rows]
        values, by_call = self._advantages(batch.episodes, counts)
        for number, own in by_call.items():
            set_call_advantages(rows[number], own)
        cost = UpdateCost(sum(sum(own.values()) for own in counts))
        sums = UpdateSums(self.version, self._job.correction_cap)
        return RankedUpdate(batch.episodes, rows, values, step_size(self._job, self.version), cost, [], sums)

    def _advantages(
        self, episodes: Sequence[TrainEpisode], counts: Sequence[Mapping[int, int]]
    ) -> tuple[list[float], Mapping[int, Mapping[int, float]]]:
        """Return what `call_advantages` does, or each episode's advantage by the estimator that the job names."""
        if self._names.estimator is None:
            return call_advantages(self._job, episodes, counts)
        asked = [
            [self._outcome(episode) for episode in episodes],
            [episode.group for episode in episodes],
            [sum(own.values()) for own in counts],
        ]
        return self.group.call_all("advantages", *asked, timeout_s=self._timeout_s)[0], {}

    def _outcome(self, episode: TrainEpisode) -> float:
        """Return an episode's one reward; raise BackendError where its calls have their own."""
        if len({each.reward for each in episode.call_rewards}) > 1:
            raise BackendError(
                f"episode {episode.episode_id}: expected one reward, as verl.advantage_estimator "
                f"{self._names.estimator} compares episodes; found rewards of single calls: give it one, or leave "
                "the estimator out"
            )
        return episode_reward(episode)

    def _fill_logprobs(self, update: RankedUpdate) -> None:
        """Fill in, once for all epochs, what the loss compares with: the reference and the weights of this moment."""
        rows = update.all_rows
        if self._job.kl_coef > 0:
            with update.cost.measure("ref"):
                for row, found in zip(rows, self._compute_logprobs(rows, reference=True), strict=True):
                    row.reference = found
        stale = any(bool((row.versions != self.version).any()) for row in rows)
        decoupled = self._names.correction is not None and not self._names.bypass
        if decoupled or (self._objective.needs_proximal(stale=stale) and not self._names.bypass):
            with update.cost.measure("old_log_prob"):
                for row, found in zip(rows, self._compute_logprobs(rows), strict=True):
                    row.proximal = found
        if decoupled:
            self._correct(update)

    def _correct(self, update: RankedUpdate) -> None:
        """Fill in the factors and rejections of verl's preset: of the weights of this moment and those that sampled."""
        rows = update.all_rows
        if not rows:
            return
        tokens = flatten_tokens(rows, update.advantages, update.advantages, torch.device("cpu"))
        asked = (tokens.proximal, tokens.rollout, tokens.episodes)
        found = self.group.call_all("correct_rollout", *asked, timeout_s=self._timeout_s)[0]
        counts = [len(row.targets) for row in rows]
        for row, factors, kept in zip(rows, found.factors.split(counts), found.kept.split(counts), strict=True):
            row.correction, row.kept = factors, kept
        update.verl_metrics = found.metrics

    def _compute_logprobs(
        self, rows: Sequence[Row], *, reference: bool = False, timeout_s: float | None = None
    ) -> list[Tensor]:
        """Return the log-probs (K,) of each row's sampled tokens under the present weights, or the reference."""
        return self._call_by_row("score", rows, timeout_s or self._timeout_s, reference=reference)

    def _call_by_row(self, method: str, rows: Sequence[Row], timeout_s: float, **same: Any) -> list[Tensor]:
        if not rows:
            return []
        deal = RowPartition(rows, self.group.world)
        nothing = [0.0] * (1 + max(row.episode for row in rows))
        batches = [(batch, deal.longest) for batch in deal.batches(nothing, nothing)]
        return deal.gather(self.group.call(method, batches, timeout_s=timeout_s, **same))

    def _train(self, update: RankedUpdate) -> None:
        """Make all optimiser steps, or none: what fails on the way is undone."""
        order = self._order.get_state()
        steps = [
            chosen
            for _ in range(self._job.epochs)
            for chosen in minibatches(len(update.episodes), self._job.minibatches, self._order)
        ]
        loss = (ObjectiveLoss if self._names.loss is None else VerlLoss)(self._job, self.version)
        undoable = len(steps) > 1
        try:
            with update.cost.measure("update_actor"):
                self.group.call_all("begin", loss, timeout_s=self._timeout_s, undoable=undoable)
            self._learn(steps, update)
            if undoable or self._names.has_critic:
                self.group.call_all("keep", timeout_s=self._timeout_s)
        except Exception:
            self._order.set_state(order)
            if self.group.failure is None:
                self.group.call_all("undo", timeout_s=self._timeout_s)
            raise
        self.version += 1

    def _learn(self, steps: Sequence[Sequence[int]], update: RankedUpdate) -> None:
        with update.cost.measure("update_actor"):
            for chosen in steps:
                self._gradient(chosen, update)
                self._step(update)

    def _minibatch(self, chosen: Sequence[int], update: RankedUpdate) -> tuple[list[Row], list[float]]:
        """Return the rows of the `chosen` episodes, and the token weight in their minibatch of each one of all."""
        counts = [sum(len(row.targets) for row in own) for own in update.rows]
        weights = minibatch_weights(self._job, counts, [each.weight for each in update.episodes], chosen)
        return [row for number in chosen for row in update.rows[number]], weights

    def _gradient(self, chosen: Sequence[int], update: RankedUpdate) -> None:
        rows, weights = self._minibatch(chosen, update)
        deal = RowPartition(rows, self.group.world)
        parts = deal.batches(update.advantages, weights, self._sequences(rows, weights, update))
        whole = self._whole_minibatch(rows, weights, update)
        asked = [(part, deal.longest, whole) for part in parts]
        found = self.group.call("gradient", asked, timeout_s=self._timeout_s)
        self._take(found, update)
        update.cost.forward += deal.tokens

    def _take(self, found: Sequence[RankShare], update: RankedUpdate) -> None:
        """Add up what the ranks measured; refuse what is not finite, or is too far from what was sampled."""
        loss = sum(each.loss for each in found) / len(found)
        if not math.isfinite(loss):
            raise NotFinite(f"the loss is {loss}: the update was refused and the weights are as before")
        update.sums = UpdateSums(self.version, self._job.correction_cap)
        for each in found:
            update.sums.merge(each.sums)
        if not update.norms:
            self._guard.check(update.sums.mismatch, update.sums.fresh, partial(self._diagnose_mismatch, update))

    def _diagnose_mismatch(self, update: RankedUpdate) -> str:
        import ray
        from transformers import AutoConfig

        rows, job = update.all_rows, self._job
        found = find_mismatches(zip(rows, self._compute_logprobs(rows, timeout_s=OPINION_S), strict=True), self.version)
        buckets = self.export_weights(timeout_s=OPINION_S)
        config = AutoConfig.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        plain = PlainModel(config, (ray.get(bucket, timeout=OPINION_S) for bucket in buckets))
        return diagnose_mismatch(
            found, plain.logprobs, job.temperature, job.mismatch_limit, job.dtype, self.replicas, self.version
        )

    def _sequences(self, rows: Sequence[Row], weights: Sequence[float], update: RankedUpdate) -> list[Tensor]:
        """Return each row's `Tokens.sequence` where the loss needs it: an episode may be spread over the ranks."""
        if not rows or not self._objective.needs_sequences:
            return []
        present = self._compute_logprobs(rows)
        parts = [flatten_tokens([row], update.advantages, weights, torch.device("cpu")) for row in rows]
        return self._objective.sequences(list(zip(present, parts, strict=True)))

    def _whole_minibatch(
        self, rows: Sequence[Row], weights: Sequence[float], update: RankedUpdate
    ) -> WholeMinibatch | None:
        """Return the whole minibatch where each of its micro-batches must see it."""
        kind = self._names.kind_of_loss
        if not rows or kind is None or not kind.whole:
            return None
        tokens = flatten_tokens(rows, update.advantages, weights, torch.device("cpu"))
        seed = self._job.seed + (self.version << 16) + len(update.norms)
        return WholeMinibatch(tokens, torch.cat(self._compute_logprobs(rows)), seed)

    def _step(self, update: RankedUpdate) -> None:
        norm = self.group.call_all("step", update.step_size, timeout_s=self._timeout_s)[0]
        if not math.isfinite(norm):
            raise NotFinite(f"the gradient's norm is {norm}: the update was refused, the weights kept")
        update.norms.append(norm)
        update.sums.steps = len(update.norms)
        update.sums.add(grad_norm=torch.tensor(update.norms).sum())

    def export_weights(self, timeout_s: float | None = None) -> list[Any]:
        """Return references to buckets of the present weights in Ray's object store: full tensors by their names."""
        found: list[list[Any]] = self.group.call_all("export_weights", timeout_s=timeout_s or self._timeout_s)
        return found[0]

    def save(self, folder: Path) -> None:
        """Write every rank's shards, order and version to `folder`, which all nodes must see, atomically."""
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
            try:
                self.group.call_all("save", str(partial), timeout_s=self._timeout_s)
                self._write_own(partial)
                checkpoint.replace(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        except OSError as error:
            said = f"the checkpoint {folder} could not be written: {error}"
            raise DiskFull(f"{said}; free space") if checkpoint.is_full(error) else BackendError(said) from error

    def _write_own(self, partial: Path) -> None:
        facts = {
            "version": self.version,
            "lora_rank": self._job.lora_rank,
            "mismatch": self._guard.state,
            "critic": self._names.has_critic,
            "draws": 0 if self._draws is None else self._draws.count,
        }
        own = checkpoint.Checkpoint({"random": {"order": self._order.get_state()}}, facts)
        checkpoint.write_driver(partial, self.group.world, own)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; BackendError, and nothing is changed, if it is not whole or does not fit."""
        saved = self._read_own(folder)
        self.group.call_all("prepare", str(folder), timeout_s=self._timeout_s)
        self.group.call_all("restore", timeout_s=self._timeout_s)
        self._order.set_state(saved.sets["random"]["order"])
        self._guard.restore(int(saved.facts["mismatch"]))
        if self._draws is not None:
            self._draws.count = int(saved.facts["draws"])
        self.version = int(saved.facts["version"])

    def _read_own(self, folder: Path) -> checkpoint.Checkpoint:
        saved = checkpoint.read_driver(folder)
        rank = saved.facts["lora_rank"]
        if rank != self._job.lora_rank:
            raise BackendError(
                f"the checkpoint {folder} is of lora_rank {rank}, the job of {self._job.lora_rank}: "
                f"load it into the job that wrote it"
            )
        if bool(saved.facts.get("critic")) != self._names.has_critic:
            wrote, asks = ("a", "none") if saved.facts.get("critic") else ("no", "one")
            raise BackendError(
                f"the checkpoint {folder} has {wrote} critic, the job asks for {asks} (verl.advantage_estimator gae): "
                "load it into the job that wrote it"
            )
        return saved

    def stop(self) -> None:
        self.group.stop()
