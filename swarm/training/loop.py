"""The step loop: rollout, drain, settle, update, checkpoint, metrics, to the last step.

A batch is settled in the store before the learner sees it and consumed once its checkpoint is on disk; an interrupted
training loads its newest checkpoint and learns the batches settled since, in order: each sample is in the weights once.
The tracker is told of every step again from the first. After `evaluate_after` or `eval_every` the next step waits for
the evaluation, whose outcome is written before the next step. A store or disk that is full for now holds a step up
(`waiting`); any other failure ends in FAILED with the reason. Full garbage collections run between rollout and update,
as one walks all captured tokens while every call waits.
"""

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from swarm.backends.protocols import Backend, DiskFull, NotFinite
from swarm.calls.call import InferenceContext
from swarm.calls.prompts import PromptBuilder
from swarm.errors import EngineUnavailable, InvalidRequest, ServerFailed, StoreRefused, StoreUnavailable
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.rollout.episodes import RETRY_AFTER_S
from swarm.rollout.groups import Group
from swarm.rollout.rollout import Rollout
from swarm.rollout.state import LeaseClock, StateMachine
from swarm.rollout.teams import Resolver
from swarm.store.changes import BatchScheduled, Change, CheckpointEvaluated, CheckpointSaved, StepMeasured
from swarm.store.reading import FINISHED, RecoveredState
from swarm.store.tables import best_of
from swarm.store.writer import Store
from swarm.training.checkpoints import Checkpoints
from swarm.training.metrics import EngineWork, FlatRewards, Pace, Stopwatch, batch_metrics, list_samples, make_batch
from swarm.training.trackers import Tracker, TrackerThread
from swarm.wire import AwaitedAdvantages, EvaluationSummary, GivenAdvantages, ServerState, Stillness

WORTH, ALL = 50, 36_000
"""Quiet moments after which one is used to look at all objects, and looks at the new ones (ten a second) after which
all are looked at without a quiet moment."""


def collect_rarely() -> None:
    """Leave what is there now alone for ever, and the rest to `collect_new` and to quiet moments; for a server's
    process. Python itself looks once so many more objects were made than freed: where calls are forgotten as fast as
    they come the new ones pile up unseen, and one look takes as long as hundreds of calls."""
    gc.collect()
    gc.freeze()
    gc.disable()


def collect_new() -> None:
    """Free the garbage among the objects that were made since the last look; called ten times a second."""
    gc.collect(2 if gc.get_count()[1] >= ALL else 0)


def summarise_evaluation(step: int, outcomes: Sequence[tuple[float, bool | None]]) -> EvaluationSummary:
    successes = [success for _, success in outcomes if success is not None]
    reward, all_told = fmean(reward for reward, _ in outcomes), len(successes) == len(outcomes)
    return EvaluationSummary(
        step=step, episodes=len(outcomes), reward=reward, success=fmean(successes) if all_told else None
    )


def evaluation_metrics(evaluation: EvaluationSummary) -> dict[str, float]:
    found = {"eval/episodes": float(evaluation.episodes), "eval/reward/mean": evaluation.reward}
    return found if evaluation.success is None else {**found, "eval/success/mean": evaluation.success}


def parse_evaluation(step: int, metrics: Mapping[str, float]) -> EvaluationSummary | None:
    if "eval/episodes" not in metrics:
        return None
    episodes, success = int(metrics["eval/episodes"]), metrics.get("eval/success/mean")
    return EvaluationSummary(step=step, episodes=episodes, reward=metrics["eval/reward/mean"], success=success)


log = logging.getLogger(__name__)

WATCH_S = 0.5
"""Seconds between two looks of the watchdog."""
ADVANTAGES_S = 300.0
"""Seconds for which a batch waits for its advantages, before training FAILED."""
RETRY_S = (0.1, 5.0)
"""Seconds before a step tries store or disk again: at first, and at most."""

NOT_FINITE = "training/not_finite"
"""Logged for the step whose update was refused, for its loss or gradient was no finite number; training ends there."""

NOTHING = RecoveredState((), 0, {}, (), (), {}, (), 0, {})
"""What a new training goes on from."""

T = TypeVar("T")


class Training:
    """One loaded job being trained, from start to stop. `checkpoints` is a folder for this job's alone; `clock` is that
    of leases (None: one that stands while the server stands still). `checkpoint_after_s`: see `Checkpoints.is_due`."""

    def __init__(
        self,
        job: Job,
        machine: StateMachine,
        opened: tuple[Store, RecoveredState],
        checkpoints: Path,
        make_backend: Callable[[], Backend],
        make_tracker: Callable[[Job], Tracker | None],
        clock: Callable[[], float] | None = None,
        peers: Sequence[str] = (),
        checkpoint_after_s: float | None = None,
    ) -> None:
        self.job = job
        self.store, self._recovered = opened
        self._clock = LeaseClock()
        self.rollout = Rollout(job, machine, self.store, clock or self._clock)
        self.fresh_start = self._recovered.fresh_start
        """Where it began just now beside checkpoints of other jobs: a line that names them."""
        self.step = 0
        self.metrics: Mapping[str, float] = {}
        self._flat = FlatRewards()
        self.flat: str | None = None
        """Why hardly anything is learned, where rewards show it."""
        self.digest = self._recovered.job_digest or job.digest()
        """That of the job which began the training."""
        self.evaluation: EvaluationSummary | None = None
        """The last one of `eval_every`."""
        self.best = best_of(self._recovered.evaluations)
        """The best of these."""
        self.pace = Pace()
        self.updating = False
        """A batch is being learned, or its checkpoint saved."""
        self._resolver = Resolver(self.rollout.teams, peers)
        self.waiting: str | None = None
        """What the present step waits for though nothing is broken, or None."""
        self.not_finite = False
        """The training FAILED because its loss or gradient was no finite number."""
        self._machine = machine
        best = None if self.best is None else self.best.step
        self._checkpoints = Checkpoints(checkpoints, job.checkpoints_kept, self._recovered.checkpoints, best)
        self._make_backend = make_backend
        self._make_tracker = make_tracker
        self._checkpoint_after_s = checkpoint_after_s
        self._now = time.monotonic
        self._tracker = TrackerThread()
        self._made: Backend | None = None
        self._serving: InferenceContext | None = None
        self.provenance: Mapping[str, str] = {}
        """Hashes of what the backend loaded, kept for the status: one that is being stopped has nothing loaded."""
        self.zero_lr_check: Stillness | None = None
        """What a training with a learning rate of 0 did to the weights, once it is finished."""
        self.awaited_advantages = AwaitedAdvantages()
        """The batch that waits for the advantages of its episodes; an empty one for none."""
        self._advantages: asyncio.Future[tuple[float, ...]]
        self._tasks: list[asyncio.Task[None]] = []
        self._learning: asyncio.Future[Any] | None = None

    @property
    def serving(self) -> InferenceContext:
        if self._serving is None:
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)
        return self._serving

    @property
    def backend(self) -> Backend:
        return self.serving.backend

    @property
    def finished(self) -> bool:
        return self.rollout.finished

    def start(self) -> None:
        self._spawn(self._boot(), "boot")

    def fail(self, reason: str) -> None:
        if self._machine.state in (ServerState.OFFLINE, ServerState.FAILED):
            return
        self.updating = False
        self._machine.transition_to(ServerState.FAILED, reason)
        self.rollout.fail(ServerFailed(f"the server FAILED: {reason}"))
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """End the loop, the tracker, the backend and the store; an update that runs is waited for."""
        self.rollout.fail(EngineUnavailable("the engine was stopped", retry_after=RETRY_AFTER_S))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._learning is not None:
            await asyncio.wait({self._learning})
        try:
            await self._tracker.finish()
        finally:
            self._tracker.close()
            try:
                if self._made is not None:
                    await self._made.stop()
            finally:
                await self.store.close()

    async def _boot(self) -> None:
        self._made = backend = await asyncio.to_thread(self._make_backend)
        self._spawn(self._watch(backend), "watchdog")  # a backend may die while it boots
        await backend.start()
        await self._tracker.open(lambda: self._make_tracker(self.job))
        self.rollout.renderer = backend.renderer
        await self._recover(backend)
        self._serving = InferenceContext(self.rollout, backend, PromptBuilder(backend.renderer))
        self.provenance = dict(backend.provenance)
        self.rollout.finish_update(backend.engine.version)
        self._start_rollout()
        self._spawn(self._clock.run(), "clock")
        self._spawn(self._sweep(), "sweep")
        self._spawn(self._resolver.run(), "teams")
        self._spawn(self._train(backend), "training")

    async def _recover(self, backend: Backend) -> None:
        state, self._recovered = self._recovered, NOTHING  # its samples are the rollout's now
        loaded = self.step = await self._in_thread(partial(self._checkpoints.load, backend.learner))
        if loaded:  # what was made or loaded first serves already
            await self._publish(loaded, backend)
        self.rollout.recover(state)
        if self.job.tracking is not None:  # the tracker has not heard of the steps in the weights that were loaded
            for step in await asyncio.to_thread(list, state.measured):
                if step <= loaded:
                    metrics = await asyncio.to_thread(state.measured.get, step)
                    if metrics is not None:  # those of old steps may be cleared meanwhile
                        self.metrics = metrics
                        await self._tracker.log(step, metrics)
        self.metrics = self.metrics or await asyncio.to_thread(state.measured.get, loaded, {})
        if (every := self.job.eval_every) is not None:  # the evaluation due last may not have come to its end
            last = state.step - state.step % every
            for step in (last, last - every):
                if self.evaluation is None:
                    self.evaluation = parse_evaluation(step, await asyncio.to_thread(state.measured.get, step, {}))
        for step in range(loaded + 1, state.step + 1):
            if step not in state.replay:
                first = min(state.replay, default=state.step + 1) - 1
                oldest, name = min(known for known in state.checkpoints if known[0] >= first)
                raise BackendError(
                    f"no checkpoint could be loaded: expected {name} (step {oldest}) or a later one, as the batches "
                    "before it are deleted; put its folder back, or train in another directory"
                )
            samples = await asyncio.to_thread(state.replay.__getitem__, step)
            spent = await asyncio.to_thread(state.measured.get, step, {})
            evaluated = parse_evaluation(step, spent)
            groups: dict[str, Group] = {}
            for sample in samples:
                group = groups.setdefault(
                    sample.group, Group(sample.group, sample.task_id, sample.stream, touched_at=0.0)
                )
                group.ended.append(sample)
            given = await asyncio.to_thread(state.advantages.get, step)
            watch = Stopwatch(self._engine_work, spent=spent)
            await self._learn(backend, tuple(groups.values()), watch, evaluated, given)
        if state.begun:
            log.warning("event=recovered checkpoint=%d step=%d pool=%d", loaded, self.step, len(state.pool))

    async def _train(self, backend: Backend) -> None:
        self._checkpoints.saved_at = self._now()
        self.pace.record_step()
        still = self.job.learning_rate == 0
        before = await self._in_thread(backend.weights) if still else None
        while self.step < self.job.steps:
            await self._await_evaluation()
            await self.rollout.wait_until(lambda: any(self.rollout.groups))
            watch = Stopwatch(self._engine_work)
            groups = await self._take_batch()
            self.updating = True
            advantages = await self._ask_advantages(groups) if self.job.external_advantages else None
            watch.lap("gen")
            gc.collect(2 if gc.get_count()[2] >= WORTH else 1)  # nobody waits for an answer now
            spent = StepMeasured(self.step + 1, watch.metrics())
            scheduled = BatchScheduled(spent.step, tuple(sample.episode for sample in list_samples(groups)), advantages)
            streams = self.rollout.groups.streams
            await self._write_durably(spent.step, lambda: (scheduled, spent, *streams.list_rows()))  # noqa: B023
            watch.lap("settle")
            await self._learn(backend, groups, watch, advantages=advantages)
            self.rollout.finish_update(backend.engine.version)
            if self.step == self.job.steps and still:
                after = await self._in_thread(backend.weights)
                self.zero_lr_check = Stillness(before=before, after=after, probs_tolerance=backend.probs_tolerance)
            self._start_rollout()
            self.pace.record_step()
        await self._await_evaluation()
        if not self.finished:
            self.rollout.finish()
            self.rollout.notify()
        await self._tracker.finish()
        log.info("event=finished steps=%d", self.step)

    async def _await_evaluation(self) -> None:
        if not (awaited := self.rollout.pending_evaluations):
            return
        began = self._now()
        what = f"step {self.step + 1}" if self.step < self.job.steps else "the end"
        self.waiting = f"{what} waits for {awaited} evaluation episodes of version {self.rollout.version}"
        log.info("event=awaits_evaluation step=%d episodes=%d", self.step, awaited)
        await self.rollout.wait_until(lambda: not self.rollout.pending_evaluations)
        self.waiting = None
        log.info("event=evaluated step=%d episodes=%d wait_s=%.2f", self.step, awaited, self._now() - began)
        if self.job.keeps_best_of(self.step):
            summary = summarise_evaluation(self.step, self.rollout.evaluated)
            means = evaluation_metrics(summary)
            self.metrics = {**self.metrics, **means}
            await self._write_durably(
                summary.step, lambda: (CheckpointEvaluated(summary), StepMeasured(summary.step, self.metrics))
            )
            self.evaluation, self.best = summary, best_of([*([self.best] if self.best is not None else []), summary])
            if self.best is summary:
                await self._in_thread(partial(self._checkpoints.keep_best, summary.step))
            await self._tracker.log(summary.step, means)

    async def _take_batch(self) -> tuple[Group, ...]:
        """Wait for a batch; without staleness also until nothing generates, nor does before the next rollout."""
        rollout = self.rollout
        await rollout.wait_until(lambda: rollout.groups.full)
        rollout.full_since = rollout.clock()
        if self.job.max_staleness:
            await rollout.wait_until(lambda: rollout.groups.complete)
            return rollout.take_batch()
        self._machine.transition_to(ServerState.ROLLING_POST)
        groups = await rollout.wait_for_batch()
        self._machine.transition_to(ServerState.WEIGHT_SYNCING)
        return groups

    async def _ask_advantages(self, groups: tuple[Group, ...]) -> tuple[float, ...]:
        """Wait until a client gives the advantages of a batch that is not settled yet: it is settled with them."""
        step, numbers = self.step + 1, dict[str, int]()
        samples = [sample for sample in list_samples(groups) if sample.weight > 0]  # others belong to no group
        self.awaited_advantages = AwaitedAdvantages(
            batch=f"{step}-{secrets.token_hex(8)}", rewards=tuple(sample.reward for sample in samples),
            groups=tuple(numbers.setdefault(sample.group, len(numbers)) for sample in samples),
        )  # fmt: skip
        self._advantages = asyncio.get_running_loop().create_future()
        self.waiting = f"step {step} waits for the advantages of {len(samples)} episodes"
        try:
            async with asyncio.timeout(ADVANTAGES_S):
                given = iter(await self._advantages if samples else ())
            return tuple(next(given) if sample.weight > 0 else 0.0 for sample in list_samples(groups))
        except TimeoutError:
            raise BackendError(
                f"advantage: expected the advantages of step {step} within {ADVANTAGES_S:g} s (the job's "
                "external_advantages); nobody gave them: `swarm.environments play --slot advantage=FILE.py` does"
            ) from None
        finally:
            self.awaited_advantages, self.waiting = AwaitedAdvantages(), None

    def take_advantages(self, given: GivenAdvantages) -> AwaitedAdvantages:
        """Go on with a batch's advantages, if training waits for these; raise InvalidRequest for another number."""
        if given.batch == self.awaited_advantages.batch and not self._advantages.done():
            if (count := len(self.awaited_advantages.rewards)) != len(given.advantages):
                found = f"expected {count} advantages, one for each episode; found {len(given.advantages)}"
                raise InvalidRequest(found, param="advantages")
            self._advantages.set_result(given.advantages)
            self.awaited_advantages = AwaitedAdvantages()
        return self.awaited_advantages

    async def _learn(
        self, backend: Backend, groups: tuple[Group, ...], watch: Stopwatch, evaluated: EvaluationSummary | None = None,
        advantages: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        step, learner, job = self.step + 1, backend.learner, self.job
        rows = {"merged": job.merging != "none", "mask_cut": job.mask_truncated}
        made = partial(make_batch, step, list_samples(groups), advantages, **rows)
        try:
            learned = await self._in_thread(lambda: dict(learner.update(made())))
        except NotFinite:  # the training broke down by itself, not the backend
            self.not_finite = True
            await self._tracker.log(step, {NOT_FINITE: 1.0})
            raise
        watch.lap("update_actor")
        await self._publish(step, backend)
        watch.lap("update_weights")
        if self._machine.state is ServerState.ROLLING:  # episodes go on, and more of them may begin
            self.rollout.finish_update(backend.engine.version)
        late = self._checkpoints.is_due(self._checkpoint_after_s)
        if due := late or step % job.checkpoint_every == 0 or step == job.steps or job.keeps_best_of(step):
            save = partial(self._checkpoints.save, learner, step)
            name = await self._retry_until_room(f"step {step} waits for room", lambda: self._in_thread(save))
            watch.lap("save_checkpoint")
        charted = self.rollout.groups.streams.charted
        measured = await self._in_thread(partial(batch_metrics, self.job, step, groups, charted))
        before = evaluation_metrics(evaluated) if evaluated is not None else {}
        self.step = step
        self.metrics = metrics = {
            **measured, **learned, **watch.metrics(), **before, **self.rollout.metrics(), FINISHED: float(step),
            "episodes/total": float(step * job.episodes_per_step),
        }  # fmt: skip
        self.store.note(StepMeasured(step, metrics))
        await self._tracker.log(step, metrics)
        log.info(
            "event=step step=%d/%d reward=%.4f success=%.4f rollout_s=%.2f update_s=%.2f",
            step, job.steps, metrics["critic/rewards/mean"], metrics.get("critic/success/mean", float("nan")),
            metrics.get("timing_s/gen", 0.0), metrics["timing_s/update_actor"],
        )  # fmt: skip
        flat, self.flat = self.flat, self._flat.observe(metrics)
        if self.flat is not None and flat is None:
            log.warning("event=flat_rewards step=%d reason=%r", step, self.flat)
        if due:
            await self._write_durably(step, lambda: (CheckpointSaved(step, name),))
            await self._in_thread(partial(self._checkpoints.commit, step, name))

    async def _publish(self, step: int, backend: Backend) -> None:
        await self._retry_until_room(f"step {step} waits for room to publish", lambda: self._in_thread(backend.publish))

    async def _write_durably(self, step: int, changes: Callable[[], Sequence[Change]]) -> None:
        await self._retry_until_room(f"step {step} waits for the store", lambda: self.store.write(*changes()))

    async def _retry_until_room(self, waits: str, work: Callable[[], Awaitable[T]]) -> T:
        pause, most = RETRY_S
        while True:
            try:
                done = await work()
            except (StoreUnavailable, DiskFull) as error:
                self.waiting = f"{waits}: {error}"
                log.warning("event=step_waits retry_s=%.1f reason=%r", pause, self.waiting)
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
            else:
                self.waiting = None
                return done

    def _engine_work(self) -> EngineWork:
        return EngineWork(self.rollout.gate.busy_s, self.rollout.sampled_tokens)

    def _start_rollout(self) -> None:
        self.updating = False
        written = self.evaluation is not None and self.evaluation.step == self.step
        if self.job.evaluates_after(self.step) and not (written and self.job.keeps_best_of(self.step)):
            self.rollout.pause_admission(self.job.evaluation_episodes, ending=self.step >= self.job.steps)
        elif self.step >= self.job.steps:
            self.rollout.finish()
        if self._machine.state is not ServerState.ROLLING:
            self._machine.transition_to(ServerState.ROLLING)
        self.rollout.gate.open()
        self.rollout.notify()

    async def _watch(self, backend: Backend) -> None:
        while True:
            if self.store.broken is not None:
                raise StoreRefused(self.store.broken)
            if (reason := backend.failure()) is not None:
                raise BackendError(reason)
            await asyncio.sleep(WATCH_S)

    async def _sweep(self) -> None:
        every = min(0.5, self.job.lease_ttl_s / 4, self.job.drain_timeout_s / 4)
        while True:
            await asyncio.sleep(every)
            self.rollout.sweep()
            self.pace.record_tokens(self.rollout.sampled_tokens)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._learning = learning = asyncio.ensure_future(asyncio.to_thread(work))
        return await asyncio.shield(learning)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        def fail_on_error(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                known = isinstance(error, BackendError | StoreRefused)
                log.error("event=failed task=%s error=%r", name, str(error), exc_info=None if known else error)
                self.fail(str(error) if known else f"{name}: {type(error).__name__}: {error}")

        self._tasks.append(asyncio.create_task(work, name=name))
        self._tasks[-1].add_done_callback(fail_on_error)
