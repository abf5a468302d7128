"""The cluster learner: one training step over Ray actors with verl's engine.

A batch has the same gradient as with the local learner. Each row is with exactly one rank; a rank with fewer
micro-batches gets one that is padding alone, so that all have as many. A call returns what every rank answered, or
raises within its bound; ranks left waiting for each other are ended, and every later call says why. `stop` may be
called twice.
"""

import contextlib
import logging
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.algorithms.advantages import episode_reward
from swarm.algorithms.learner import CPU, PolicyLearner, PolicyUpdate
from swarm.algorithms.objective import UpdateSums
from swarm.algorithms.rows import Row, flatten_tokens
from swarm.backends.local import checkpoint
from swarm.backends.local.micro_batch import group_by_length
from swarm.backends.protocols import NotFinite, TrainEpisode
from swarm.backends.verl import adapter
from swarm.backends.verl.engine import SeedSequence
from swarm.backends.verl.processes import LOOK_S
from swarm.backends.verl.worker import ObjectiveLoss, Rank, VerlLoss, verl_batch
from swarm.job import Job
from swarm.rendering.messages import BackendError

_WASTE = 0.25
"""Most padding of a micro-batch, as a part of the ids it may hold: more costs more than another one."""


class RowPartition:
    """Which rows are with which rank, and beside which others: each rank has as many micro-batches, each of which holds
    at most `tokens` ids, padding included, but always one row. The longest are computed side by side."""

    def __init__(self, rows: Sequence[Row], world: int, tokens: int) -> None:
        self._rows = rows
        sizes = [len(row.ids) + 1 for row in rows]
        cut = group_by_length(sizes, tokens, tokens * _WASTE)
        rounds = max(1, -(-len(cut) // world))
        while len(cut) < rounds * world and (most := max(cut, key=len, default=[])) and len(most) > 1:
            place = cut.index(most)
            cut[place : place + 1] = [most[: len(most) // 2], most[len(most) // 2 :]]
        cut += [[] for _ in range(rounds * world - len(cut))]
        self._parts = [cut[rank::world] for rank in range(world)]
        self.tokens = sum(max((sizes[number] for number in part), default=2) * max(1, len(part)) for part in cut)
        """Ids that are fed to the model, padding included."""

    def batches(self, advantages: Sequence[float], weights: Sequence[float]) -> list[list[TensorDict]]:
        """Return each rank's micro-batches."""
        rows = [[[self._rows[number] for number in part] for part in own] for own in self._parts]
        return [[verl_batch(part, advantages, weights, padding=not part) for part in own] for own in rows]

    def gather(self, answers: Sequence[Tensor]) -> list[Tensor]:
        """Return, row by row, what the ranks found for the sampled tokens (M,) of their micro-batches."""
        found: dict[int, Tensor] = {}
        for own, values in zip(self._parts, answers, strict=True):
            numbers = [number for part in own for number in part]
            parts = values.split([len(self._rows[number].targets) for number in numbers])
            found.update(zip(numbers, parts, strict=True))
        return [found[number] for number in range(len(self._rows))]


BOOT_S = 600.0
"""Seconds within which all ranks must be up: Ray waits for free resources without a word."""
GRACE_S = 10.0
"""Seconds that the other ranks have to answer once one of them refused."""
_ROOM = "lower micro_batch_tokens, set gradient_checkpointing, or ask for more verl.trainers"


class TrainerGroup:
    """`world` ranks, one to a bundle of Ray's resources."""

    def __init__(
        self, folder: Path, job: Job, world: int, device: str,
        options: Callable[[int], Mapping[str, Any]] = lambda number: {}, lost: Callable[[], str | None] = lambda: None,
    ) -> None:  # fmt: skip
        """Start ranks, with Ray's `options` by number; BackendError where they do not come up. `lost` says why there
        is no Ray any more, which who waits for it is not told."""
        import ray

        self._ray, self.world, self._lost = ray, world, lost
        self.failure: str | None = None
        self._signs: list[Any] = []
        wanted: dict[str, Any] = {"num_cpus": 1, **({} if device == "cpu" else {"num_gpus": 1}), "max_restarts": 0}
        wanted["runtime_env"] = {"env_vars": adapter.environment(device)}
        made = [ray.remote(Rank).options(**{**wanted, **options(number)}) for number in range(world)]
        self._actors = [each.remote(str(folder), job, device) for each in made]
        try:
            address, port = self._wait([self._actors[0].address.remote()], BOOT_S, "address")[0]
            each = [(number, world, address, port) for number in range(world)]
            self.call("start", each, timeout_s=BOOT_S)
        except BaseException:
            self.stop()
            raise

    def call(self, method: str, each: Sequence[tuple[Any, ...]], *, timeout_s: float, **same: Any) -> list[Any]:
        """Call a method of every rank, with the arguments of `each`; return what they answered, in their order."""
        if self.failure is not None:
            raise BackendError(self.failure)
        # those exchange nothing: a rank that refuses holds no other one up, and each is let come to its own end
        grace = timeout_s if method in ("save", "prepare") else GRACE_S
        pairs = zip(self._actors, each, strict=True)
        return self._wait(
            [getattr(actor, method).remote(*own, **same) for actor, own in pairs], timeout_s, method, grace
        )

    def _wait(self, references: Sequence[Any], timeout_s: float, method: str, grace_s: float = GRACE_S) -> list[Any]:
        pending, end = list(references), time.monotonic() + timeout_s
        first: BackendError | None = None
        while pending:
            left = max(0.0, end - time.monotonic())
            ready, pending = self._ray.wait(pending, timeout=min(LOOK_S, left))
            if (gone := self._lost()) is not None:
                return self._fail(first or BackendError(gone))
            if not ready and left > LOOK_S:
                continue
            if not ready and first is not None:
                return self._fail(first)  # why is known: a Ray that is in trouble is asked nothing more
            if not ready:
                resources = sorted(self._ray.available_resources().items())
                free = ", ".join(f"{name} {amount:g}" for name, amount in resources if "PU" in name)
                late = (
                    f"the learner's ranks did not answer {method} within {timeout_s:g} s (Ray has "
                    f"{free or 'no processor'} free): give Ray more processors, or ask for fewer trainers"
                )
                return self._fail(BackendError(late))
            refusal = self._refusal(ready[0], references.index(ready[0]), method)
            if refusal is not None and first is None:
                first, end = refusal, min(end, time.monotonic() + grace_s)
            if self.failure is not None:
                return self._fail(BackendError(self.failure))
        if first is not None:
            if method == "undo":  # nobody knows what the weights are
                return self._fail(first)
            raise first
        return list(self._ray.get(list(references)))

    def _refusal(self, reference: Any, rank: int, method: str) -> BackendError | None:
        """Return what a rank said in place of an answer; a dead one is the end of the group."""
        errors, who = self._ray.exceptions, f"rank {rank} of the learner"
        try:
            self._ray.get(reference)
        except errors.RayActorError as error:
            died = f"{who} died during {method}: {_line(error)}; start the server again"
            self.failure = self._lost() or died
            return BackendError(self.failure)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, BackendError):
                return cause
            if isinstance(cause, MemoryError | torch.OutOfMemoryError):
                return BackendError(f"{who} is out of memory in {method}: {_line(cause)}; {_ROOM}")
            return BackendError(f"{who} failed in {method}: {type(cause).__name__}: {_line(cause)}")
        except errors.OutOfMemoryError as error:
            return BackendError(f"Ray ended {who} for want of memory: {_line(error)}; {_ROOM}")
        except errors.RayError as error:
            return BackendError(f"{who} gave no answer to {method}: {_line(error)}")
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


def _line(error: Exception) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...")


log = logging.getLogger(__name__)
UPDATE_S = 3600.0
"""Seconds within which every single call of the ranks must be answered."""


class VerlLearner(PolicyLearner):
    """Implements `Learner` from the driver, over ranks that live until `stop`."""

    version = 0

    def __init__(self, job: Job, group: TrainerGroup, draws: SeedSequence | None = None) -> None:
        """The count of `draws`, which an engine takes, is saved."""
        super().__init__(job)
        self.group = group
        self._draws = draws
        self._names = job.verl_fields
        self._undoable = False
        if job.merging in ("auto", "tree"):
            log.info("event=no_trees reason='verl's engine computes rows by themselves: ids they share are fed again'")

    def _call_all(self, method: str, *arguments: Any, **same: Any) -> list[Any]:
        return self.group.call(method, [arguments] * self.group.world, timeout_s=UPDATE_S, **same)

    def _advantages(
        self, episodes: Sequence[TrainEpisode], counts: Sequence[Mapping[int, int]]
    ) -> tuple[list[float], Mapping[int, Mapping[int, float]]]:
        """Return advantages by the estimator that the job names, if any; BackendError for rewards of single calls."""
        if self._names.advantage_estimator is None:
            return super()._advantages(episodes, counts)
        for episode in episodes:
            if len({call.reward for call in episode.call_rewards}) > 1:
                raise BackendError(
                    f"episode {episode.episode_id}: expected one reward, as verl.advantage_estimator "
                    f"{self._names.advantage_estimator} compares episodes; found rewards of single calls: give it "
                    "one, or leave the estimator out"
                )
        rewards = [episode_reward(episode) for episode in episodes]
        groups, tokens = [episode.group for episode in episodes], [sum(own.values()) for own in counts]
        return self._call_all("call_verl", "advantages", rewards, groups, tokens)[0], {}

    def _needs_proximal(self, rows: Sequence[Row]) -> bool:
        return not self._names.bypass and (self._names.rollout_correction is not None or super()._needs_proximal(rows))

    def _fill_logprobs(self, update: PolicyUpdate) -> None:
        """Fill in, too, the factors and rejections of verl's preset."""
        super()._fill_logprobs(update)
        rows = update.all_rows
        if self._names.rollout_correction is None or self._names.bypass or not rows:
            return
        tokens = flatten_tokens(rows, update.advantages, update.advantages, CPU)
        found = self._call_all("call_verl", "correct_rollout", tokens.proximal, tokens.rollout, tokens.episodes)[0]
        counts = [len(row.targets) for row in rows]
        for row, factors, kept in zip(rows, found.factors.split(counts), found.kept.split(counts), strict=True):
            row.correction, row.kept = factors, kept
        update.metrics |= found.metrics

    def _compute_logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> Iterable[tuple[Row, Tensor]]:
        if not rows:
            return ()
        deal = RowPartition(rows, self.group.world, self._job.micro_batch_tokens)
        nothing = [0.0] * (1 + max(row.episode for row in rows))
        batches = [(own,) for own in deal.batches(nothing, nothing)]
        found = self.group.call("score", batches, timeout_s=UPDATE_S, reference=reference)
        return zip(rows, deal.gather(found), strict=True)

    def _begin_steps(self, *, undoable: bool) -> None:
        loss = (ObjectiveLoss if self._names.loss is None else VerlLoss)(self._job, self.version)
        self._undoable = undoable
        self._call_all("begin", loss, undoable=undoable)

    def _undo_steps(self) -> None:
        if self.group.failure is None:
            self._call_all("undo")

    def _keep_steps(self) -> None:
        if self._undoable:
            self._call_all("keep")
        self.version += 1

    def _gradient(self, rows: Sequence[Row], weights: Sequence[float], update: PolicyUpdate) -> None:
        self._fill_sequences(rows, weights, update, spread=True)  # over the ranks
        deal = RowPartition(rows, self.group.world, self._job.micro_batch_tokens)
        each = [(own,) for own in deal.batches(update.advantages, weights)]
        found = self.group.call("gradient", each, timeout_s=UPDATE_S)
        shares: list[tuple[float, UpdateSums, Mapping[str, float]]] = found
        loss = sum(own for own, _, _ in shares) / len(shares)
        if not math.isfinite(loss):
            raise NotFinite(f"the loss is {loss}: the update was refused and the weights are as before")
        update.sums = UpdateSums(self.version, self._job.correction_cap)  # a rank's are of the whole update so far
        for _, sums, used in shares:
            update.sums.merge(sums)
            update.metrics |= {name: max(value, update.metrics.get(name, 0.0)) for name, value in used.items()}
        update.cost.forward += deal.tokens

    def _step(self, size: float, *, last: bool) -> float:
        return float(self._call_all("step", size)[0])

    def export_weights(self) -> list[Any]:
        """Return references to buckets of the present weights in Ray's object store: full tensors by their names."""
        return list(self._call_all("export_weights")[0])

    def export_version(self) -> list[Any]:
        """Return references to buckets of what replicas need of the present weights."""
        return list(self._call_all("export_version")[0])

    def save(self, folder: Path) -> None:
        """Write every rank's shards, order and version to `folder`, which all nodes must see, atomically."""
        with checkpoint.written_whole(folder) as partial:
            self._call_all("save", str(partial))
            facts = {**self._facts(), "draws": 0 if self._draws is None else self._draws.count}
            own = checkpoint.Checkpoint({"random": {"order": self._order.get_state()}}, facts)
            checkpoint.write_driver(partial, self.group.world, own)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; BackendError, and nothing is changed, if it is not whole or does not fit."""
        saved = checkpoint.read_driver(folder)
        self._require_rank(folder, saved.facts)
        self._call_all("prepare", str(folder))
        self._call_all("restore")
        self._order.set_state(saved.sets["random"]["order"])
        self._guard.above = int(saved.facts["mismatch"])
        if self._draws is not None:
            self._draws.count = int(saved.facts["draws"])
        self.version = int(saved.facts["version"])

    def stop(self) -> None:
        self.group.stop()
