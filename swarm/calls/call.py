"""One model call, from its prompt to the moment its reply is taken.

    opened -> generating -> generated -> captured -> served
                                any of them -> given up, or failed

Nothing is written before a client is there to take the end of the reply; captured means that the store has all `n`
answers durably, or none; only served answers become nodes of the episode's tree, which are matched with later requests
and trained. So a reply that nobody took is never trained: after the capture a `CallWithdrawn` is noted, always before
the episode is closed.

A client that goes away cancels its call, unless a header announced that it sends requests again: then the call goes on
for `GRACE_S`, and the repeated request attaches to it (one generation, one node, one reply). Equal bodies that were not
sent again are calls of their own. No wire format is known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from swarm.backends.protocols import Backend
from swarm.calls.generation import AnswerGeneration, SampledPiece
from swarm.calls.prompts import PromptBuilder, SamplingPlan, sampling_plan, visible_tools
from swarm.dialects.base import CompletionRequest, Reply
from swarm.errors import ContextExceeded, EngineUnavailable, SwarmError
from swarm.job import TINY_CONTEXT, Job, TinyModel
from swarm.rendering.messages import Tool
from swarm.rollout.episodes import EpisodeRegistry, LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.rollout import Rollout
from swarm.store import CallCaptured, CallWithdrawn
from swarm.timelines import Node, Prompt

log = logging.getLogger(__name__)

GRACE_S = 10.0
"""Seconds for which a call waits for a client that went away and announced to come back."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class InferenceContext:
    """What calls are made with: the rollout of their episodes, the backend, and the builder of prompts."""

    rollout: Rollout
    backend: Backend
    prompts: PromptBuilder


class Call:
    """Made and used on one event loop. Starts at once; whoever wants its reply is `attached` to it. Raises
    ContextExceeded where there is no room for an answer."""

    def __init__(
        self,
        registry: EpisodeRegistry,
        backend: Backend,
        episode: LeasedEpisode,
        prompt: Prompt,
        plan: SamplingPlan,
        *,
        n: int = 1,
        agent: str = "",
        grace_s: float = GRACE_S,
    ) -> None:
        _check_room(prompt, plan, registry.job)
        self._registry = registry
        self._episode = episode
        self._claims = Claims("model", episode=episode.id, fencing_token=episode.fencing_token)
        self._grace_s = grace_s
        self.name = f"{episode.id}/{next(_numbers)}"
        self.reply_name = hashlib.blake2b(self.name.encode(), digest_size=12).hexdigest()
        self.created = int(time.time())
        self.prompt_tokens = len(prompt.prompt_ids)
        self._answers = [
            AnswerGeneration(backend, prompt, plan.for_choice(choice), f"{self.name}.{choice}", choice, episode.id)
            for choice in range(n)
        ]
        self._streamed = plan.streamed
        self._trained = plan.trained
        self._agent = agent
        self._pieces: list[SampledPiece] = []
        self._nodes: list[Node] = []
        self._replies: Sequence[Reply] = ()
        self._clients = 0
        self._takers = 0
        self._grace: asyncio.TimerHandle | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._generated = False
        self._captured = False
        self.served = False
        """Somebody took its reply."""
        self._error: BaseException | None = None
        self.over_at: float | None = None
        """When its reply was first taken, or it failed or was given up, by the event loop's clock."""
        self._enter()
        self._task = asyncio.create_task(self._run())

    @classmethod
    async def open(
        cls,
        inference: InferenceContext,
        claims: Claims,
        episode: LeasedEpisode,
        request: CompletionRequest,
        *,
        agent: str = "",
        grace_s: float = GRACE_S,
    ) -> Call:
        """Make the prompt and the sampling plan of what an open episode's `agent` asks, and start the call.

        Raises InvalidRequest for what cannot be honoured, and what the key's owner is told where its episode ends
        while the prompt is made.
        """
        rollout, tools = inference.rollout, visible_tools(request)
        playing = partial(rollout.renew_episode, claims)
        episode, prompt = await inference.prompts.build(episode, playing, request.messages, tools)
        for name in (*request.left_out, *(["tools"] if _hides_tools(tools, prompt) else [])):
            rollout.counts[f"left_out_{name}"] += 1
            if rollout.counts[f"left_out_{name}"] == 1:
                log.warning("event=left_out what=%s reason=no_model_here_can_be_given_it", name)
        plan = sampling_plan(request, episode.kind, rollout.registry, inference.backend, prompt.prompt_text)
        plan = plan.limit_to_context(rollout.registry.job, request.sampling.max_tokens, len(prompt.prompt_ids))
        return cls(
            rollout.registry, inference.backend, episode, prompt, plan, n=request.n, agent=agent, grace_s=grace_s
        )

    @property
    def alive(self) -> bool:
        return self._error is None

    @property
    def waiting(self) -> bool:
        return self.alive and not self.served and not self._clients

    @property
    def generating(self) -> bool:
        """The engine works for it."""
        return any(answer.generating for answer in self._answers)

    @contextlib.contextmanager
    def attach(self, *, comes_back: bool) -> Iterator[None]:
        """Be a client of the call; the last one to leave it unserved gives it up, or lets it wait."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1
            if self.waiting:
                give_up = partial(
                    self.interrupt, EngineUnavailable(f"nobody came back for call {self.name}; ask again")
                )
                if comes_back:
                    self._grace = asyncio.get_running_loop().call_later(self._grace_s, give_up)
                else:
                    give_up()

    async def stream_pieces(self) -> AsyncIterator[Sequence[SampledPiece]]:
        """Yield all pieces, those from before too, as they come; raise what the call failed with."""
        heard = 0
        while True:
            pieces = self._pieces[heard:]
            heard += len(pieces)
            if pieces:
                yield pieces
            elif self._generated:
                return
            else:
                await self._wait_for_change()

    async def replies(self) -> Sequence[Reply]:
        """Return the replies once they are captured; raise what the call failed with. They count as served from then
        on, so the caller must send them before it waits for anything else."""
        self._takers += 1
        try:
            self._wake()
            while self._error is not None or not self._captured:
                await self._wait_for_change()
            self._serve()
        finally:
            self._takers -= 1
        return self._replies

    async def _run(self) -> None:
        try:
            await self._generate()
            await self._wait_for_taker()
            await self._capture()
        except asyncio.CancelledError:
            if self._error is None:  # not by `interrupt`: the event loop is closing
                raise
        except Exception as error:  # noqa: BLE001  -- raised again to all who wait for the call
            if self.over_at is None:
                self._error = error
                self._registry.counts["calls_failed"] += 1
                self._finish()

    async def _wait_for_taker(self) -> None:
        """Wait until somebody is there for the end; a client that reads slowly does not keep its lease alive."""
        self._generated = True
        if self._streamed:
            self._wake()
        if self._takers:
            return
        self._leave()
        while not self._takers:
            await self._wait_for_change()
        self._registry.leases.find_and_renew(self._claims)
        self._enter()

    def _enter(self) -> None:
        """Keep the lease alive from now on, and let `interrupt` reach the call."""
        self._registry.leases.touch(self._episode)
        self._episode.calls.add(self)

    def _leave(self) -> None:
        self._episode.calls.discard(self)
        self._registry.leases.touch(self._episode)

    async def _generate(self) -> None:
        self._registry.counts["calls"] += len(self._answers)
        if not self._trained:
            self._registry.counts["calls_untrained"] += len(self._answers)
        gate, emit = self._registry.gate, self._add_piece if self._streamed else None
        if len(self._answers) == 1:
            await self._answers[0].run(gate, emit)
            return
        tasks = [asyncio.create_task(answer.run(gate, emit)) for answer in self._answers]
        try:
            await asyncio.gather(*tasks)
        finally:  # one that fails takes the others with it
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _capture(self) -> None:
        """Write all answers, or none: a store that refuses leaves no trace."""
        self._nodes = [self._node(answer) for answer in self._answers]
        try:
            await self._registry.store.write(*(CallCaptured(self._episode.id, node) for node in self._nodes))
        except SwarmError:
            self._nodes = []
            raise
        self._captured = True
        self._wake()

    def _node(self, answer: AnswerGeneration) -> Node:
        return self._episode.tree.make_node(
            answer.prompt,
            answer.ids,
            answer.logprobs,
            answer.versions,
            text=answer.text,
            trained=self._trained,
            agent=self._agent,
            cut=answer.finish == "length",
        )

    def _serve(self) -> None:
        if self.served:
            return
        self.served = True
        self._replies = [answer.reply for answer in self._answers]
        if self._nodes and not self._episode.tree.nodes:
            self._registry.begin_quota.earn(self._episode.owner)
        for node, answer in zip(self._nodes, self._answers, strict=True):
            self._episode.tree.keep(answer.prompt, node, answer.message)
        self._finish()
        self._nodes, self._answers = [], []  # the reply is all that a call is remembered for

    def interrupt(self, error: SwarmError) -> None:
        """End the call now: who waits for it, or asks for it later, gets `error`."""
        if self.over_at is not None:
            return
        self._error = error
        self._registry.counts["calls_cancelled"] += 1
        if self._nodes:
            self._registry.store.note(*(CallWithdrawn(self._episode.id, node) for node in self._nodes))
            self._registry.counts["calls_withdrawn"] += 1
        self._finish()
        self._task.cancel()

    def _finish(self) -> None:
        self.over_at = asyncio.get_running_loop().time()
        if self._episode.kind == "train":
            self._registry.sampled_tokens += sum(answer.sampled for answer in self._answers)
        self._registry.counts["tokens_beyond_end"] += sum(answer.sampled - len(answer.ids) for answer in self._answers)
        self._leave()
        self._wake()

    def _add_piece(self, said: SampledPiece) -> None:
        self._pieces.append(said)
        self._wake()

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():  # a client that went away no longer waits
                watcher.set_result(None)

    async def _wait_for_change(self) -> None:
        """Wait for the next change; raise what the call failed with."""
        if self._error is None:
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            await watcher
        if self._error is not None:
            raise self._error


def _check_room(prompt: Prompt, plan: SamplingPlan, job: Job) -> None:
    asked, answer, most = len(prompt.prompt_ids), plan.sampling.max_tokens, job.max_context
    if asked + answer <= most:
        return
    full = isinstance(job.model, TinyModel) and most >= TINY_CONTEXT
    ways = [
        "shorten the messages",
        *(["ask for a smaller `max_tokens`"] if asked < most else []),
        "or train a model with more positions than a tiny one (`ajet swarm start --model`)" if full else
        "or give the job a larger `max_context` (`ajet swarm start --max-context N`)",
    ]  # fmt: skip
    raise ContextExceeded(  # begins as OpenAI's does: litellm and others know it by these words
        f"This model's maximum context length is {most} tokens (the job's `max_context`), and {asked + answer} were "
        f"requested: {asked} of prompt and {answer} of answer; {', '.join(ways)}",
        param="messages",
    )


def _hides_tools(tools: Sequence[Tool], prompt: Prompt) -> bool:
    """Tell whether a conversation begins whose chat template shows none of its tools: it has no word for them."""
    if prompt.parent is not None or not tools:
        return False
    return not any(tool["function"]["name"] in prompt.prompt_text for tool in tools)


KEPT_S = 10.0
"""Seconds for which a call can be found after it was over: SDKs wait up to eight before they ask again."""


class RetryCache:
    """The calls of one route. `clock` is the event loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[Hashable, list[Call]] = {}
        self._due: deque[tuple[float, Hashable, Call]] = deque()

    def __len__(self) -> int:
        return len(self._due)

    def find(self, key: Hashable) -> Call | None:
        calls = [call for call in self._calls.get(key, ()) if call.alive]
        return min(calls, key=_rank, default=None)

    def add(self, key: Hashable, call: Call) -> None:
        """Let the call be found, and forget those whose time is over."""
        now = self._clock()
        self._calls.setdefault(key, []).append(call)
        self._due.append((now + KEPT_S, key, call))
        while self._due[0][0] <= now:
            self._judge(now, *self._due.popleft()[1:])

    def _judge(self, now: float, key: Hashable, call: Call) -> None:
        due = (now if call.over_at is None else call.over_at) + KEPT_S
        if due > now:
            self._due.append((due, key, call))
            return
        calls = self._calls[key]
        calls.remove(call)
        if not calls:
            del self._calls[key]


def _rank(call: Call) -> int:
    return 0 if call.waiting else 2 if call.served else 1
