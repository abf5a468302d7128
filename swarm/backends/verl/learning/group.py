"""The ranks as Ray actors, called together and waited for with a bound.

Promises: a call returns what every rank answered, or raises a BackendError within its bound: a rank that died is
noticed as Ray notices it, and one that refuses is quoted. Where not all ranks answered, those left wait for one another
for nothing: they are ended, and every later call says why. `stop` ends all of them and may be called twice.
Does not know what the ranks compute.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from swarm.backends.protocols import BackendError
from swarm.backends.verl.learning import adapter
from swarm.backends.verl.learning.worker import Rank
from swarm.backends.verl.processes.own_time import OwnTime
from swarm.job import Job

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
        """Start ranks of a class; BackendError where they do not come up.

        `options` are more of Ray's for an actor, by its number.
        """
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
        """Number of ranks."""
        return len(self._actors)

    @property
    def pids(self) -> list[int]:
        """Return the ranks' processes."""
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
        """Call a method of every rank with the same arguments."""
        return self.call(method, [arguments] * self.world, timeout_s=timeout_s, **same)

    def _wait(self, references: Sequence[Any], timeout_s: float, method: str, grace_s: float = GRACE_S) -> list[Any]:
        pending, patience = list(references), OwnTime(timeout_s)
        first: BackendError | None = None
        while pending:
            ready, pending = self._ray.wait(pending, timeout=patience.slice)
            if not ready and patience.spend():
                continue
            if not ready:
                return self._lost(first or BackendError(_too_long(method, timeout_s, self._ray)))
            refusal = self._refusal(ready[0], references.index(ready[0]), method)
            if refusal is not None and first is None:
                first, patience.left = refusal, min(patience.left, grace_s)
            if self.failure is not None:
                return self._lost(BackendError(self.failure))
        if first is not None:
            return self._refused(first, method)
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

    def _refused(self, error: BackendError, method: str) -> list[Any]:
        if method in _LAST:
            return self._lost(error)
        raise error

    def _lost(self, error: BackendError) -> list[Any]:
        self.failure = str(error)
        self.stop()
        raise error

    def died(self) -> str | None:
        """Return why the group is over, None while it lives; it never waits.

        Each rank is asked for a sign of life, which stands behind what it works on; a dead one says so by Ray at once.
        """
        if self.failure is None:
            self._signs = self._signs or [actor.alive.remote() for actor in self._actors]
            ready, waiting = self._ray.wait(self._signs, num_returns=len(self._signs), timeout=0)
            for sign in ready:
                self._refusal(sign, self._signs.index(sign), "its rest")
            self._signs = self._signs if waiting else []
        return self.failure

    def stop(self) -> None:
        """End all ranks."""
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
