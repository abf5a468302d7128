"""One answer being sampled: through the gate, from the engine, and read piece by piece.

It promises that what is captured is what the engine sampled through the answer's end, and that its pieces joined are
its answer. The end is the model's own, the id that completes a stop string, or that of the one call an answer may make;
what an engine sampled beyond it, as it was fast, is counted and forgotten: neither kept, nor told, nor trained. So the
same ids give the same answer, however many come at once. It knows prompts and sampling, but no wire format, no retries
and no call tree: that a finished answer becomes a node is its call's business.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from swarm.answers import Answer, Piece, Reader, ToolCall, Words, chat_message, gathered, joined
from swarm.backends.protocols import (
    Backend,
    Chunk,
    Finish,
    GenerationRequest,
    GrammarRefused,
    Message,
    Renderer,
    RequestLost,
    RequestRefused,
    Tool,
)
from swarm.errors import EngineUnavailable, InvalidRequest
from swarm.server.calls.one_call import OneCall
from swarm.server.calls.sampling_plan import SamplingPlan
from swarm.server.calls.text import TextStream
from swarm.server.dialects import Reply, Token
from swarm.server.shared.gate import Gate
from swarm.timelines import Prompt


@dataclass(frozen=True, slots=True)
class SampledPiece:
    """A piece of answer number `choice`, with the ids sampled since the piece before and a tool call's id."""

    choice: int
    piece: Piece
    tokens: tuple[Token, ...] = ()
    call_id: str | None = None


Emit = Callable[[SampledPiece], None]


class AnswerGeneration:
    """Answer number `choice` of a call. Runs once; its fields are whole when `run` returns.

    `name` is unique and the same for a request that was sent again; tool calls are named after it.
    `session` is the episode's, for an engine that keeps what its calls share.
    """

    def __init__(
        self, backend: Backend, prompt: Prompt, plan: SamplingPlan, name: str, choice: int, session: str = ""
    ) -> None:
        self._backend = backend
        self.prompt = prompt
        self._plan = plan
        self._choice = choice
        self.name = name
        self._session = session
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish: Finish = "stop"
        self.sampled = 0
        """Ids the engine sampled, those beyond the answer's end too."""
        self.generating = False
        self._tops: list[tuple[tuple[int, float], ...]] = []
        self._said: list[SampledPiece] = []
        self._told = 0  # ids whose tokens went with a piece
        self._decode = _decoder(backend.renderer, plan.tools)
        self._one_call = (
            OneCall(self._reading, self._decode, backend.renderer.stop_ids) if plan.one_call and plan.tools else None
        )
        watched = plan.streamed or self._one_call is not None
        self._text = TextStream(self._decode, plan.stops, incremental=watched)
        self._reader = self._new_reader()
        self._emit: Emit | None = None
        self.answer = Answer()

    async def run(self, gate: Gate, emit: Emit | None = None) -> None:
        """Sample the whole answer; `emit` gets each piece that may be served."""
        self._emit = emit
        await gate.enter()
        self.generating = True
        try:
            await self._sample()
        finally:
            self.generating = False
            gate.leave()
        self._close()
        self.answer = gathered([said.piece for said in self._said])

    @property
    def text(self) -> str:
        """What the answer's ids decode to, stop string and all."""
        return self._text.decoded

    @property
    def message(self) -> Message:
        """Return the answer in the form in which chat clients send it back."""
        return chat_message(self.answer, self._call_ids)

    @property
    def reply(self) -> Reply:
        """What a dialect writes."""
        parent = self.prompt.parent
        prompt_tokens = len(self.prompt.prompt_ids)
        return Reply(
            answer=self.answer,
            call_ids=self._call_ids,
            finish=self.finish,
            stop=self._text.stopped_at,
            prompt_tokens=prompt_tokens,
            cached_tokens=prompt_tokens - len(self.prompt.context) if parent is not None else 0,
            sampled_tokens=len(self.ids),
            version=self.versions[-1],
            key=self.name,
            tokens=tuple(token for said in self._said for token in said.tokens),
        )

    @property
    def _call_ids(self) -> tuple[str, ...]:
        return tuple(said.call_id for said in self._said if said.call_id is not None)

    async def _sample(self) -> None:
        async with contextlib.aclosing(self._chunks()) as chunks:
            try:
                async for chunk in chunks:
                    self._take(chunk)
                    if self._over:
                        return
            except GrammarRefused as refusal:
                field = self._plan.guided_by
                raise InvalidRequest(
                    f"`{field}`: the engine cannot hold its answer to that form: {refusal}", param=field
                ) from None
            except RequestRefused as refusal:
                raise InvalidRequest(f"the engine refuses this call: {refusal}") from None
            except RequestLost as loss:
                raise EngineUnavailable(str(loss)) from None

    def _chunks(self) -> AsyncGenerator[Chunk, None]:
        request = GenerationRequest(self.name, self.prompt.prompt_ids, self._plan.sampling, self._session)
        generated = self._backend.engine.generate(request)
        return cast(AsyncGenerator[Chunk, None], generated)

    def _take(self, chunk: Chunk) -> None:
        """Take a chunk's ids: one by one where the answer may end before the last of them."""
        self.sampled += len(chunk.ids)
        step = 1 if self._plan.stops or self._one_call else max(len(chunk.ids), 1)
        pieces: list[Piece] = []
        for start in range(0, len(chunk.ids), step):
            pieces += self._keep(chunk, slice(start, start + step))
            if self._over:
                break
        else:
            self.finish = chunk.finish or self.finish
        self._tell(pieces)

    def _keep(self, chunk: Chunk, part: slice) -> Sequence[Piece]:
        """Keep a part of a chunk; return what is certain now."""
        ids = chunk.ids[part]
        self.ids += ids
        self.logprobs += chunk.logprobs[part]
        self.versions += [chunk.version] * len(ids)
        self._tops += chunk.top[part]
        return self._served(self._read(self._text.feed(ids)))

    @property
    def _over(self) -> bool:
        """Whatever the engine samples from now on is beyond the answer's end."""
        return self._text.stopped or (self._one_call is not None and self._one_call.goes_on(self.ids))

    def _close(self) -> None:
        """Nothing more comes: say the rest, and forget what is beyond the answer's end."""
        pieces = [*self._served(self._read(self._text.finish())), *self._served(self._reader.finish())]
        if self._text.stopped:  # a stop string may have waited for the rest of a character behind it
            self.finish = "stop"
        if self._one_call is not None and not self._one_call.ends_itself(self.ids):
            self._cut(self._one_call.length or 0)
        self._one_call = None  # what is kept is the answer, and all of it may be told
        self._tell(pieces)
        if self._plan.tokens and self._told < len(self.ids):
            self._say(Words(""))

    def _cut(self, length: int) -> None:
        for kept in (self.ids, self.logprobs, self.versions, self._tops):
            del kept[length:]
        self._text.cut(length)
        self.finish = "stop"

    def _read(self, text: str) -> Sequence[Piece]:
        return self._reader.feed(text) if text else ()

    def _served(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return pieces if self._one_call is None else self._one_call.take(self.ids, pieces)

    def _reading(self, ids: Sequence[int]) -> Sequence[Piece]:
        """Return what an answer of these ids would say."""
        reader = self._new_reader()
        return [*reader.feed(self._decode(ids)), *reader.finish()]

    def _new_reader(self) -> Reader:
        return self._backend.renderer.answers.reader(self.prompt.prompt_text, self._plan.tools)

    def _tell(self, pieces: Sequence[Piece]) -> None:
        for piece in joined(pieces):
            self._say(piece)

    def _say(self, piece: Piece) -> None:
        call_id = None
        if isinstance(piece, ToolCall):
            call_id = short_name(f"{self.name}/{len(self._call_ids)}")
        said = SampledPiece(self._choice, piece, self._tokens(), call_id)
        self._said.append(said)
        if self._emit is not None:
            self._emit(said)

    def _tokens(self) -> tuple[Token, ...]:
        """Return the tokens of the ids sampled since the last piece, where they are wanted."""
        if not self._plan.tokens:
            return ()
        known = None if self._one_call is None else self._one_call.length
        if self._one_call is not None and known is None and self._plan.stops:
            return ()  # of the text that is held back for a stop string some may end a call, and the rest be cut
        start, self._told = self._told, len(self.ids) if known is None else min(known, len(self.ids))
        return tuple(self._token(place) for place in range(start, self._told))

    def _token(self, place: int) -> Token:
        decode = self._backend.renderer.decode
        wanted = self._plan.sampling.top_logprobs
        top = self._tops[place][:wanted] if wanted else ()
        likeliest = tuple((decode([token], special=True), logprob) for token, logprob in top)
        return Token(decode([self.ids[place]], special=True), self.logprobs[place], likeliest)


def _decoder(renderer: Renderer, tools: Sequence[Tool]) -> Callable[[Sequence[int]], str]:
    """Return what decodes ids to the text the family's format reads, without the id that ends an answer."""
    if not renderer.answers.special(tools):
        return renderer.decode
    stops = frozenset(renderer.stop_ids)

    def decode(ids: Sequence[int]) -> str:
        return renderer.decode(ids[:-1] if ids and ids[-1] in stops else ids, special=True)

    return decode


def read_message(renderer: Renderer, prompt: str, ids: Sequence[int]) -> Message:
    """Return the answer to a prompt's text as a chat message, read as if tools had been offered: no record says which.

    So what is written as a call is one, offered or not, and an argument that its family writes without JSON is read by
    its looks: a number where it may be one. A stop string that was cut from what was served is part of the ids, and of
    this.
    """
    reader = renderer.answers.reader(prompt, _SOME_TOOL)
    answer = gathered([*reader.feed(_decoder(renderer, _SOME_TOOL)(ids)), *reader.finish()])
    return chat_message(answer, [f"call_{number}" for number in range(len(answer.tool_calls))])


_SOME_TOOL: tuple[Tool, ...] = ({"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}},)
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def short_name(text: str) -> str:
    """Return nine letters and digits made of `text`: what every family's template takes for a tool call's id."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    letters = []
    for _ in range(9):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)
