"""One model call, from its prompt to the moment its reply is taken.

    generating -> generated -> captured -> served, and from each of them but the last: failed (`CallState`)

Nothing is written before a client is there to take the end of the reply; captured means that the store has all `n`
answers durably, or none; only served answers become nodes of the episode's tree, which are matched with later requests
and trained. So a reply that nobody took is never trained: after the capture a `CallWithdrawn` is noted, always before
the episode is closed.

A client that goes away cancels its call, unless a header announced that it sends requests again: then the call goes on
for `GRACE_S`, and the repeated request attaches to it (one generation, one node, one reply). Equal bodies that were not
sent again are calls of their own. No wire format is known here.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from swarm.backends.protocols import Backend
from swarm.calls.generation import AnswerGeneration, SampledPiece
from swarm.calls.prompts import PromptBuilder, SamplingPlan, sampling_plan, visible_tools
from swarm.dialects.base import CompletionRequest, Reply
from swarm.errors import ContextExceeded, EngineUnavailable, SwarmError
from swarm.job import TINY_CONTEXT, Job, TinyModel
from swarm.rollout.episodes import EpisodeRegistry, LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.rollout import Rollout
from swarm.store.changes import CallCaptured, CallWithdrawn
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


class CallState(Enum):
    """How far a call is; SERVED and FAILED are its ends."""

    GENERATING = "generating"
    GENERATED = "generated"
    """Nobody has taken its reply yet, and the store does not have it."""
    CAPTURED = "captured"
    SERVED = "served"
    FAILED = "failed"
    """It broke, or was given up."""


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
    ) -> None:
        _check_room(prompt, plan, registry.job)
        self.name = f"{episode.id}/{next(_numbers)}"
        self.reply_name = hashlib.blake2b(self.name.encode(), digest_size=12).hexdigest()
        self.created = int(time.time())
        self.prompt_tokens = len(prompt.prompt_ids)
        self.state = CallState.GENERATING
        self.over_at: float | None = None
        """When it came to its end, by the event loop's clock."""
        self._registry = registry
        self._episode = episode
        self._plan = plan
        self._agent = agent
        self._answers: Sequence[AnswerGeneration] = [
            AnswerGeneration(backend, prompt, plan.for_choice(choice), f"{self.name}.{choice}", choice, episode.id)
            for choice in range(n)
        ]
        self._pieces: list[SampledPiece] = []
        self._nodes: Sequence[Node] = ()
        self._replies: Sequence[Reply] = ()
        self._error: BaseException | None = None
        self._clients = 0
        self._takers = 0
        self._grace: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        """Done, and forgotten, at the next change."""
        self._enter()
        self._task = asyncio.create_task(self._run())

    @classmethod
    async def open(
        cls, inference: InferenceContext, claims: Claims, episode: LeasedEpisode, request: CompletionRequest, agent: str
    ) -> "Call":
        """Make the prompt and the sampling plan of what an open episode's `agent` asks, and start the call. Raises
        InvalidRequest for what cannot be honoured, and what the key's owner is told where its episode ends while the
        prompt is made."""
        rollout, tools = inference.rollout, visible_tools(request)
        playing = partial(rollout.renew_episode, claims)
        episode, prompt = await inference.prompts.build(episode, playing, request.messages, tools)
        shown = any(tool["function"]["name"] in prompt.prompt_text for tool in tools)
        hidden = ["tools"] if tools and prompt.parent is None and not shown else []
        for name in (*request.left_out, *hidden):  # the chat template has no word for it
            rollout.counts[f"left_out_{name}"] += 1
            if rollout.counts[f"left_out_{name}"] == 1:
                log.warning("event=left_out what=%s reason=no_model_here_can_be_given_it", name)
        plan = sampling_plan(request, episode.kind, rollout, inference.backend, prompt.prompt_text)
        plan = plan.limit_to_context(rollout.job, request.sampling.max_tokens, len(prompt.prompt_ids))
        return cls(rollout, inference.backend, episode, prompt, plan, n=request.n, agent=agent)

    @property
    def waiting(self) -> bool:
        """Nobody is there who could take its reply."""
        return self.over_at is None and not self._clients

    @property
    def generating(self) -> bool:
        return any(answer.generating for answer in self._answers)

    @contextlib.contextmanager
    def attach(self, *, comes_back: bool) -> Iterator[None]:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1
            if self.waiting:
                error = EngineUnavailable(f"nobody came back for call {self.name}; ask again")
                if comes_back:
                    self._grace = asyncio.get_running_loop().call_later(GRACE_S, self.interrupt, error)
                else:
                    self.interrupt(error)

    async def stream_pieces(self) -> AsyncIterator[Sequence[SampledPiece]]:
        """Yield all pieces, those from before too, as they come; raise what the call failed with."""
        heard = 0
        while True:
            pieces = self._pieces[heard:]
            heard += len(pieces)
            if pieces:
                yield pieces
            elif self.state in (CallState.GENERATING, CallState.FAILED):
                await self._wait_for_change()
            else:
                return

    async def replies(self) -> Sequence[Reply]:
        """Return the replies once they are captured; raise what the call failed with. They count as served from then
        on, so the caller must send them before it waits for anything else."""
        self._takers += 1
        try:
            self._wake()
            while self.state not in (CallState.CAPTURED, CallState.SERVED):
                await self._wait_for_change()
            if self.state is CallState.CAPTURED:
                self._replies = [answer.reply for answer in self._answers]
                if self._nodes and not self._episode.tree.nodes:
                    self._registry.begin_quota.earn(self._episode.owner)
                for node, answer in zip(self._nodes, self._answers, strict=True):
                    self._episode.tree.keep(answer.prompt, node, answer.message)
                self._finish(CallState.SERVED)
        finally:
            self._takers -= 1
        return self._replies

    async def _run(self) -> None:
        try:
            await self._generate()
            self._reach(CallState.GENERATED)
            if self._plan.streamed:
                self._wake()
            if not self._takers:  # a client that reads slowly does not keep its lease alive
                self._leave()
                while not self._takers:
                    await self._wait_for_change()
                claims = Claims("model", episode=self._episode.id, fencing_token=self._episode.fencing_token)
                self._registry.leases.find_and_renew(claims)
                self._enter()
            await self._capture()
        except asyncio.CancelledError:
            if self.state is not CallState.FAILED:  # not by `interrupt`: the event loop is closing
                raise
        except Exception as error:  # noqa: BLE001  -- raised again to all who wait for the call
            if self.over_at is None:
                self._registry.counts["calls_failed"] += 1
                self._finish(CallState.FAILED, error)

    async def _generate(self) -> None:
        self._registry.counts["calls"] += len(self._answers)
        if not self._plan.trained:
            self._registry.counts["calls_untrained"] += len(self._answers)
        gate, emit = self._registry.gate, self._add_piece if self._plan.streamed else None
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
        self._nodes = [
            self._episode.tree.make_node(
                answer.prompt,
                answer.ids,
                answer.logprobs,
                answer.versions,
                text=answer.text,
                trained=self._plan.trained,
                agent=self._agent,
                cut=answer.finish == "length",
            )
            for answer in self._answers
        ]
        try:
            await self._registry.store.write(*(CallCaptured(self._episode.id, node) for node in self._nodes))
        except SwarmError:
            self._nodes = ()
            raise
        self._reach(CallState.CAPTURED)
        self._wake()

    def _reach(self, state: CallState) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)  # who it was raised to before would be kept with it
        self.state = state

    def interrupt(self, error: SwarmError) -> None:
        if self.over_at is not None:
            return
        self._registry.counts["calls_cancelled"] += 1
        if self._nodes:
            self._registry.store.note(*(CallWithdrawn(self._episode.id, node) for node in self._nodes))
            self._registry.counts["calls_withdrawn"] += 1
        self._task.cancel()
        self._finish(CallState.FAILED, error)

    def _finish(self, state: CallState, error: BaseException | None = None) -> None:
        self.state, self._error, self.over_at = state, error, asyncio.get_running_loop().time()
        sampled = sum(answer.sampled for answer in self._answers)
        if self._episode.kind == "train":
            self._registry.sampled_tokens += sampled
        self._registry.counts["tokens_beyond_end"] += sampled - sum(len(answer.ids) for answer in self._answers)
        self._leave()
        self._wake()
        self._nodes = self._answers = ()
        del self._task, self._plan, self._episode  # the reply is all that a call is remembered for

    def _enter(self) -> None:
        self._registry.leases.touch(self._episode)
        self._episode.calls.add(self)

    def _leave(self) -> None:
        self._episode.calls.discard(self)
        self._registry.leases.touch(self._episode)

    def _add_piece(self, said: SampledPiece) -> None:
        self._pieces.append(said)
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():  # its task was cancelled
                waiting.set_result(None)
        self._waiting.clear()

    async def _wait_for_change(self) -> None:
        if self._error is None:
            change = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            await change
        if self._error is not None:
            raise self._error.with_traceback(None)


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


KEPT_S = 10.0
"""Seconds for which a call can be found after it was over: SDKs wait up to eight before they ask again."""
FORGOTTEN = 4
"""Calls forgotten with each that comes, so that nobody waits while all those of a busy time are."""


class RetryCache:
    """The calls of one route. `clock` is the event loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[Hashable, list[Call]] = {}
        self._due: deque[tuple[float, Hashable, Call]] = deque()

    def __len__(self) -> int:
        return len(self._due)

    def find(self, key: Hashable) -> Call | None:
        """Return a call that did not fail: first one without a client, last one that was served."""
        calls = [call for call in self._calls.get(key, ()) if call.state is not CallState.FAILED]
        return min(calls, key=lambda call: (call.state is CallState.SERVED, not call.waiting), default=None)

    def add(self, key: Hashable, call: Call) -> None:
        now = self._clock()
        self._calls.setdefault(key, []).append(call)
        self._due.append((now + KEPT_S, key, call))
        for _ in range(FORGOTTEN):
            if self._due[0][0] > now:
                return
            _, name, old = self._due.popleft()
            due = (now if old.over_at is None else old.over_at) + KEPT_S
            if due > now:
                self._due.append((due, name, old))
                continue
            self._calls[name].remove(old)
            if not self._calls[name]:
                del self._calls[name]
