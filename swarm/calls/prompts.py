"""The prompt and the sampling plan of a call.

A prompt is made in one piece on the event loop, as it reads the episode's call tree. Where the ids of a long text are
missing, the attempt is given up, the text is encoded in a thread, and the prompt is made anew of the episode as it then
is; meanwhile the call counts as in flight, so the lease lives. What cannot fit was refused before (`read_call_body`).

Sampling of a training episode is the job's, because the learner must recompute its log-probs (docs/protocols.md).
Evaluations get a seed of their own, so that they take no number that training draws. A forced tool call goes before a
response format.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swarm.backends.protocols import Backend, Sampling
from swarm.dialects.base import CompletionRequest, RequestedSampling, ToolChoice
from swarm.errors import InvalidRequest, SwarmError
from swarm.job import Job
from swarm.rendering.messages import BackendError, Message, Renderer, Tool
from swarm.rendering.reading import json_answer
from swarm.rollout.episodes import EpisodeRegistry, LeasedEpisode
from swarm.timelines import Prompt
from swarm.wire import EpisodeKind

LONG = 16_384
"""Characters of text from which it is encoded in a thread: some 10 to 20 ms of work."""
AT_ONCE = 2
"""Long texts that are encoded at the same time; the others wait for their turn."""


class PromptBuilder:
    """Makes prompts for one renderer; made and used on one event loop."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._encoding_slots = asyncio.Semaphore(AT_ONCE)

    async def build(
        self,
        episode: LeasedEpisode,
        again: Callable[[], LeasedEpisode],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[LeasedEpisode, Prompt]:
        """Return the episode and the prompt of a call; `again` returns the episode after a wait, or raises. Raises
        InvalidRequest for messages or tools the template refuses. Nothing is waited for between making the prompt that
        is returned and returning it."""
        known: dict[str, Sequence[int]] = {}

        def encode(text: str) -> Sequence[int]:
            if len(text) < LONG:
                return self._renderer.encode(text)
            if text not in known:
                raise _NotEncoded(text)
            return known[text]

        while True:
            try:
                return episode, episode.tree.prompt(messages, tools, encode)
            except _NotEncoded as long:
                (text,), encoding = long.args, _EncodingCall(episode)
                episode.calls.add(encoding)
                try:
                    async with self._encoding_slots:
                        known[text] = await asyncio.to_thread(self._renderer.encode, text)
                finally:
                    encoding.interrupt()
                episode = again()
            except BackendError as refusal:
                raise InvalidRequest(f"the chat template refuses these messages: {refusal}", param="messages") from None


@dataclass(eq=False)
class _EncodingCall:
    """A call of an episode, of which a text is being encoded; one that is interrupted finds its episode closed."""

    episode: LeasedEpisode
    generating = False

    def interrupt(self, _: SwarmError | None = None) -> None:
        self.episode.calls.discard(self)


class _NotEncoded(Exception):
    """The ids of a long text, its argument, are not known yet."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How an answer is sampled and read. stops: strings that end it. tools: what the model was shown. one_call: its
    first tool call ends it. streamed: pieces are wanted as they come. tokens: each sampled id is wanted with its text
    and log-prob. guided_by: the field that asked for the grammar. trained: what is sampled is learned."""

    sampling: Sampling
    stops: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    one_call: bool = False
    streamed: bool = False
    tokens: bool = False
    guided_by: str | None = None
    trained: bool = True

    def for_choice(self, choice: int) -> "SamplingPlan":
        seed = self.sampling.seed
        if choice == 0 or seed is None:
            return self
        return replace(self, sampling=replace(self.sampling, seed=(seed + choice) % 2**63))

    def limit_to_context(self, job: Job, asked: int | None, prompt: int) -> "SamplingPlan":
        left = max(1, job.max_context - prompt)
        if self.sampling.max_tokens <= left or (asked is not None and asked < job.max_tokens):
            return self
        return replace(self, sampling=replace(self.sampling, max_tokens=left))


def visible_tools(request: CompletionRequest) -> tuple[Tool, ...]:
    return () if request.tool_choice.mode == "none" else request.tools


def sampling_plan(
    request: CompletionRequest, kind: EpisodeKind, registry: EpisodeRegistry, backend: Backend, prompt: str
) -> SamplingPlan:
    """Return how to sample and read the answer to `prompt`; InvalidRequest names what cannot be honoured."""
    job, as_job, grammar, asked = registry.job, kind == "train" and request.train, None, request.sampling
    if as_job:
        foreign = {
            "temperature": asked.temperature is not None and abs(asked.temperature - job.temperature) > 1e-9,
            "top_p": asked.top_p is not None and asked.top_p < 1,
            "top_k": asked.top_k is not None and asked.top_k > 0,
            "tool_choice": request.tool_choice.mode == "required",
            "response_format": asked.json_schema is not None,
        }
        for field in (*(name for name, is_foreign in foreign.items() if is_foreign), *asked.others):
            if job.foreign_sampling != "neutralise":
                expected = f" (temperature {job.temperature:g})" if field == "temperature" else ""
                raise InvalidRequest(
                    f"a training episode samples as its job says{expected}, and `{field}` asks for something else; "
                    'leave it out, begin an eval episode, or set the job\'s `foreign_sampling` to "neutralise"',
                    param=field,
                )
            registry.counts[f"neutralised_{field}"] += 1
    else:
        for field in asked.others:
            raise InvalidRequest(f"`{field}` is not honoured by this server's engine; leave it out", param=field)
        grammar = _grammar(request, backend, prompt)
    return SamplingPlan(
        sampling=Sampling(
            **_sampling_fields(asked, job, as_job=as_job),
            stop_ids=backend.renderer.stop_ids,
            seed=registry.evaluation_seed() if kind == "eval" and asked.seed is None else asked.seed,
            top_logprobs=request.logprobs or 0,
            grammar=grammar,
        ),
        stops=asked.stop,
        tools=visible_tools(request),
        one_call=not request.parallel_tool_calls,
        streamed=request.stream,
        tokens=request.logprobs is not None,
        guided_by="tool_choice" if request.tool_choice.mode == "required" else "response_format",
        trained=request.train,
    )


def effective_sampling(request: CompletionRequest, kind: EpisodeKind, job: Job) -> CompletionRequest:
    """Return an ask that `sampling_plan` took, as it is answered: without what was neutralised, defaults filled in."""
    as_job, forced = kind == "train" and request.train, request.tool_choice.mode == "required"
    schema = None if as_job or forced else request.sampling.json_schema
    return replace(
        request,
        tool_choice=ToolChoice() if as_job and forced else request.tool_choice,
        sampling=replace(
            request.sampling, **_sampling_fields(request.sampling, job, as_job=as_job), json_schema=schema, others={}
        ),
    )


def _sampling_fields(requested: RequestedSampling, job: Job, *, as_job: bool) -> dict[str, Any]:
    given = None if as_job else requested.temperature
    return {
        "max_tokens": min(job.max_tokens, requested.max_tokens or job.max_tokens),
        "temperature": job.temperature if given is None else given,
        "top_p": 1.0 if as_job or requested.top_p is None else requested.top_p,
        "top_k": 0 if as_job else max(requested.top_k or 0, 0),
    }


def _grammar(request: CompletionRequest, backend: Backend, prompt: str) -> str | None:
    forced, schema = request.tool_choice.mode == "required", request.sampling.json_schema
    if not forced and schema is None:
        return None
    field, answers = "tool_choice" if forced else "response_format", backend.renderer.answers
    if not backend.engine.guided:
        raise InvalidRequest(f"`{field}`: this server's engine cannot guide its output; leave it out", param=field)
    if forced:
        name = request.tool_choice.name
        wanted = [tool for tool in request.tools if name is None or tool["function"]["name"] == name]
        if (grammar := answers.grammar(wanted, prompt)) is None:
            raise InvalidRequest("this model's tool calls cannot be forced; leave `tool_choice` out", param=field)
        return grammar
    if visible_tools(request):
        raise InvalidRequest(
            "`response_format` is not honoured beside tools the model may call; leave one of them out, or set "
            '`tool_choice` to "none" or "required"',
            param=field,
        )
    return json_answer(schema or {"type": "object"}, answers.thinking(prompt))
