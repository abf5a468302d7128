"""One answer being sampled: through the gate, from the engine, read piece by piece.

What is captured is what the engine sampled through the answer's end: the model's own, the id that completes a stop
string, or that of the one call an answer may make. What was sampled beyond is counted and forgotten, so the same ids
give the same answer, however many come at once. An answer that may call one tool and goes on after the call is cut
behind the id that completes it; families that write several calls as one unreadable block keep the block.

Pieces joined are `served`; none ends inside a character, and nothing of a stop string or after it is served. Piece by
piece equals whole, except that byte-fallback tokenizers may turn a broken run into U+FFFD after parts of it went out.
"""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from swarm.backends.protocols import Backend, Chunk, Finish, GenerationRequest, RequestLost
from swarm.calls.prompts import SamplingPlan
from swarm.dialects.base import Reply, Token
from swarm.errors import EngineUnavailable, InvalidRequest
from swarm.rendering import messages
from swarm.rendering.reading import join_pieces
from swarm.rollout.state import GenerationGate
from swarm.timelines import Prompt

Read = Callable[[Sequence[int]], Sequence[messages.Piece]]
"""Returns what an answer says that consists of these ids."""
Decode = Callable[[Sequence[int]], str]
_CLOSING = frozenset("}])>")


class SingleToolCall:
    """Watches one answer. Give it all ids so far with the pieces that the last one made certain."""

    def __init__(self, read: Read, decode: Decode, stop_ids: Sequence[int]) -> None:
        self._read = read
        self._decode = decode
        self._stops = frozenset(stop_ids)
        self.length: int | None = None
        """Ids through the end of the first call; None while there is none."""

    def take(self, ids: Sequence[int], pieces: Sequence[messages.Piece]) -> Sequence[messages.Piece]:
        if self.length is not None:
            return ()
        first = next((place for place, piece in enumerate(pieces) if isinstance(piece, messages.ToolCall)), None)
        if first is None:
            return pieces
        if sum(isinstance(piece, messages.ToolCall) for piece in pieces) == 1:
            self.length = len(ids)  # the fewest ids from whose reading the call does not fall out
            while self._has_call(ids[: self.length - 1]):
                self.length -= 1
        else:  # more than one became certain at once: the fewest ids that say one
            ends = (n for n in range(1, len(ids)) if not _CLOSING.isdisjoint(self._decode(ids[n - 1 : n])))
            self.length = next((n for n in ends if self._has_call(ids[:n])), len(ids))
        return pieces[: first + 1]

    def continues(self, ids: Sequence[int]) -> bool:
        if self.length is None:
            return False
        rest = ids[self.length :]
        return bool(self._decode(rest[:-1] if rest and rest[-1] in self._stops else rest).strip())

    def ends_itself(self, ids: Sequence[int]) -> bool:
        return self.length is None or (ids[-1] in self._stops and not self.continues(ids))

    def _has_call(self, ids: Sequence[int]) -> bool:
        return any(isinstance(piece, messages.ToolCall) for piece in self._read(ids))


_BROKEN = "\ufffd"
_LONGEST = 4
"""Ids of one character, at most: it has no more bytes."""
_PATIENCE = 16
"""Ids that are waited for while the text ends inside a character: more than that, and they are not for its bytes."""


class TextStream:
    """Feed it ids. It decodes as they come if it must (`incremental`, or stop strings), else once at the end."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), *, incremental: bool = False
    ) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._eager = incremental or bool(stops)
        self._held = max((len(stop) for stop in stops), default=1) - 1
        self._ids: list[int] = []
        self._start = 0  # ids before it are decoded for good; those up to `_stable` are context for the rest
        self._stable = 0
        self._text = ""
        self._waiting = ""  # whole characters before one that is not whole yet
        self._given = 0
        self._cut = False
        self.stopped_at: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stopped_at is not None

    @property
    def served(self) -> str:
        return self._text[: self._given]

    @property
    def decoded(self) -> str:
        """The text of the answer's ids, stop string and all; whole after `finish`."""
        return self._decode(self._ids) if self.stopped or self._cut else self.served

    def feed(self, ids: Sequence[int]) -> str:
        if self._eager:
            return "".join([self._next(token) for token in ids])
        self._ids += ids
        return ""

    def cut(self, length: int) -> None:
        self._ids, self._cut, self.stopped_at = self._ids[:length], True, None

    def finish(self) -> str:
        if self.stopped or self._cut:
            return ""
        if self._eager:
            self._advance(final=True)
        else:
            self._text = self._decode(self._ids)
        return self._release(len(self._text))

    def _next(self, token: int) -> str:
        if self.stopped:
            return ""
        self._ids.append(token)
        self._advance(final=False)
        return self._release(len(self._text) - self._held)

    def _advance(self, *, final: bool) -> None:
        """Decode the new ids together with the few before them, which some tokenizers need for their spaces. Ids
        through `end` end with a whole character, or with one that stays broken."""
        before = self._decode(self._ids[self._start : self._stable])
        text = self._decode(self._ids[self._start :])
        end = len(self._ids)
        if not final and text.endswith(_BROKEN):
            if end - self._stable <= _PATIENCE:
                self._waiting = text[len(before) :].rstrip(_BROKEN)
                return
            places = range(end - 2 * _LONGEST, end - _LONGEST)
            cuts = [(place, self._decode(self._ids[self._start : place])) for place in places]
            end, text = next((cut for cut in cuts if not cut[1].endswith(_BROKEN)), cuts[0])
        self._waiting = ""
        if len(text) > len(before):
            self._text += text[len(before) :]
            self._start, self._stable = self._stable, end

    def _release(self, most: int) -> str:
        text = self._text + self._waiting
        stops = [(place, stop) for stop in self._stops if (place := text.find(stop, self._given)) >= 0]
        if stops:
            self._text = text
            most, self.stopped_at = min(stops)
        piece = self._text[self._given : max(most, self._given)]
        self._given += len(piece)
        return piece


@dataclass(frozen=True, slots=True)
class SampledPiece:
    """A piece of answer number `choice`, with the ids sampled since the piece before and a tool call's id."""

    choice: int
    piece: messages.Piece
    tokens: tuple[Token, ...] = ()
    call_id: str | None = None


Emit = Callable[[SampledPiece], None]


class AnswerGeneration:
    """Answer number `choice` of a call. Runs once; its fields are whole when `run` returns. `name` is unique and the
    same for a request that was sent again; tool calls are named after it. `session` is the episode's, for an engine
    that keeps what its calls share."""

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
        self._pieces: list[SampledPiece] = []
        self._told = 0  # ids whose tokens went with a piece
        self._decode = _make_decoder(backend.renderer, plan.tools)
        single = plan.one_call and plan.tools
        self._one_call = SingleToolCall(self._read_ids, self._decode, backend.renderer.stop_ids) if single else None
        watched = plan.streamed or self._one_call is not None
        self._text = TextStream(self._decode, plan.stops, incremental=watched)
        self._reader = self._new_reader()
        self._emit: Emit | None = None
        self.answer = messages.Answer()

    async def run(self, gate: GenerationGate, emit: Emit | None = None) -> None:
        self._emit = emit
        await gate.enter()
        self.generating = True
        try:
            await self._sample()
        finally:
            self.generating = False
            gate.leave()
        pieces = [*self._limit(self._read(self._text.finish())), *self._limit(self._reader.finish())]
        if self._text.stopped:  # a stop string may have waited for the rest of a character behind it
            self.finish = "stop"
        if self._one_call is not None and not self._one_call.ends_itself(self.ids):
            length = self._one_call.length or 0
            for values in (self.ids, self.logprobs, self.versions, self._tops):
                del values[length:]
            self._text.cut(length)
            self.finish = "stop"
        self._one_call = None  # what is kept is the answer, and all of it may be told
        self._emit_pieces(join_pieces(pieces))
        if self._plan.tokens and self._told < len(self.ids):
            self._emit_pieces([messages.Words("")])
        self.answer = messages.assemble_answer([sample.piece for sample in self._pieces])

    @property
    def text(self) -> str:
        return self._text.decoded

    @property
    def message(self) -> messages.Message:
        return messages.chat_message(self.answer, self._call_ids)

    @property
    def reply(self) -> Reply:
        parent = self.prompt.parent
        prompt_tokens = len(self.prompt.prompt_ids)
        return Reply(
            answer=self.answer, call_ids=self._call_ids, finish=self.finish, stop=self._text.stopped_at,
            prompt_tokens=prompt_tokens,
            cached_tokens=prompt_tokens - len(self.prompt.context) if parent is not None else 0,
            sampled_tokens=len(self.ids), version=self.versions[-1], key=self.name,
            tokens=tuple(token for said in self._pieces for token in said.tokens),
        )  # fmt: skip

    @property
    def _call_ids(self) -> tuple[str, ...]:
        return tuple(said.call_id for said in self._pieces if said.call_id is not None)

    async def _sample(self) -> None:
        request = GenerationRequest(self.name, self.prompt.prompt_ids, self._plan.sampling, self._session)
        generated = cast(AsyncGenerator[Chunk, None], self._backend.engine.generate(request))
        async with contextlib.aclosing(generated) as chunks:
            try:
                async for chunk in chunks:
                    self._take(chunk)
                    if self._over:
                        return
            except messages.GrammarRefused as refusal:
                field = self._plan.guided_by
                raise InvalidRequest(
                    f"`{field}`: the engine cannot hold its answer to that form: {refusal}", param=field
                ) from None
            except messages.RequestRefused as refusal:
                raise InvalidRequest(f"the engine refuses this call: {refusal}") from None
            except RequestLost as loss:
                raise EngineUnavailable(str(loss)) from None

    def _take(self, chunk: Chunk) -> None:
        self.sampled += len(chunk.ids)
        step = 1 if self._plan.stops or self._one_call else max(len(chunk.ids), 1)
        pieces: list[messages.Piece] = []
        for start in range(0, len(chunk.ids), step):
            part = slice(start, start + step)
            ids = chunk.ids[part]
            self.ids += ids
            self.logprobs += chunk.logprobs[part]
            self.versions += [chunk.version] * len(ids)
            self._tops += chunk.top[part]
            pieces += self._limit(self._read(self._text.feed(ids)))
            if self._over:
                break
        else:
            self.finish = chunk.finish or self.finish
        self._emit_pieces(join_pieces(pieces))

    @property
    def _over(self) -> bool:
        """Whatever the engine samples from now on is beyond the answer's end."""
        return self._text.stopped or (self._one_call is not None and self._one_call.continues(self.ids))

    def _read(self, text: str) -> Sequence[messages.Piece]:
        return self._reader.feed(text) if text else ()

    def _limit(self, pieces: Sequence[messages.Piece]) -> Sequence[messages.Piece]:
        return pieces if self._one_call is None else self._one_call.take(self.ids, pieces)

    def _read_ids(self, ids: Sequence[int]) -> Sequence[messages.Piece]:
        reader = self._new_reader()
        return [*reader.feed(self._decode(ids)), *reader.finish()]

    def _new_reader(self) -> messages.Reader:
        return self._backend.renderer.answers.reader(self.prompt.prompt_text, self._plan.tools)

    def _emit_pieces(self, pieces: Iterable[messages.Piece]) -> None:
        for piece in pieces:
            call_id = short_name(f"{self.name}/{len(self._call_ids)}") if isinstance(piece, messages.ToolCall) else None
            said = SampledPiece(self._choice, piece, self._next_tokens(), call_id)
            self._pieces.append(said)
            if self._emit is not None:
                self._emit(said)

    def _next_tokens(self) -> tuple[Token, ...]:
        if not self._plan.tokens:
            return ()
        known = None if self._one_call is None else self._one_call.length
        if self._one_call is not None and known is None and self._plan.stops:
            return ()  # of the text that is held back for a stop string some may end a call, and the rest be cut
        start, self._told = self._told, len(self.ids) if known is None else min(known, len(self.ids))
        decode, wanted = partial(self._backend.renderer.decode, special=True), self._plan.sampling.top_logprobs
        return tuple(
            Token(
                decode([self.ids[place]]),
                self.logprobs[place],
                tuple((decode([token]), logprob) for token, logprob in self._tops[place][:wanted]) if wanted else (),
            )
            for place in range(start, self._told)
        )


def _make_decoder(renderer: messages.Renderer, tools: Sequence[messages.Tool]) -> Callable[[Sequence[int]], str]:
    if not renderer.answers.special(tools):
        return renderer.decode
    stops = frozenset(renderer.stop_ids)

    def decode(ids: Sequence[int]) -> str:
        return renderer.decode(ids[:-1] if ids and ids[-1] in stops else ids, special=True)

    return decode


def short_name(text: str) -> str:
    """Return nine letters and digits made of `text`: what every family's template takes for a tool call's id."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()[:9]
