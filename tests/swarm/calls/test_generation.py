"""What is captured is what was sampled, what is served is the same however it was cut, and retries find their call."""

from __future__ import annotations

import asyncio
import itertools
import string
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.backends.fake import FakeBackend, FakeRenderer, fake_logprob, fake_top
from swarm.backends.protocols import Chunk, Finish, GenerationRequest, Sampling
from swarm.calls.call import KEPT_S, Call, CallState, RetryCache
from swarm.calls.generation import AnswerGeneration, SampledPiece, TextStream, short_name
from swarm.calls.prompts import SamplingPlan
from swarm.rendering.json_formats import Llama3Format, MistralFormat
from swarm.rendering.messages import AnswerFormat, ToolCall, assemble_answer
from swarm.rendering.tagged import HermesFormat
from swarm.rollout.state import GenerationGate
from swarm.timelines import CallTree
from tests.swarm.server.agents import ADD, called
from tests.swarm.server.support import Clock, job


@given(st.lists(st.text(max_size=20), unique=True, max_size=50))
def test_short_names_are_nine_letters_and_digits_and_differ(texts: list[str]) -> None:
    names = [short_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(len(name) == 9 and set(name) <= set(string.ascii_letters + string.digits) for name in names)
    assert names == [short_name(text) for text in texts]


decode = FakeRenderer().decode


def fed(ids: list[int], size: int, stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(decode, stops, incremental=True)
    pieces = []
    for start in range(0, len(ids), size):
        pieces.append(stream.feed(ids[start : start + size]))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream


@given(st.lists(st.sampled_from([*"a🙂漢é".encode(), 0x80, 0xFF]), max_size=80), st.integers(1, 30))
def test_broken_bytes_stream_as_they_decode_in_the_end(raw: list[int], size: int) -> None:
    pieces, _ = fed(raw, size)
    assert "".join(pieces) == bytes(raw).decode(errors="replace")


def test_what_stays_broken_streams_at_the_cost_of_what_is_new() -> None:
    decoded = 0

    def counting(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    stream = TextStream(counting, incremental=True)
    for _ in range(1000):
        stream.feed([0x80])
    assert len(stream.served) > 1000 - 2 * 16
    assert decoded < 1000 * 100


def test_a_stream_keeps_characters_that_some_tokenizers_break_afterwards() -> None:
    def fallback(ids: Sequence[int]) -> str:
        try:
            return bytes(ids).decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(ids)

    stream = TextStream(fallback, incremental=True)
    assert [stream.feed([0xC3]), stream.feed([0xA9]), stream.feed([0xFF]), stream.finish()] == [
        "", "é", "", "\ufffd\ufffd",
    ]  # fmt: skip
    assert fallback([0xC3, 0xA9, 0xFF]) == "\ufffd" * 3


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(1, 6),
)
def test_nothing_of_a_stop_string_is_served(text: str, stops: list[str], size: int) -> None:
    pieces, stream = fed([*text.encode()], size, tuple(stops))
    assert "".join(pieces) == stream.served
    seen = next((text[:n] for n in range(len(text) + 1) if any(stop in text[:n] for stop in stops)), text)
    assert stream.decoded == seen
    assert stream.served == seen[: min((seen.find(stop) for stop in stops if stop in seen), default=len(seen))]
    assert stream.stopped == any(stop in text for stop in stops)
    assert stream.stopped_at is None or seen[len(stream.served) :].startswith(stream.stopped_at)
    assert not any(stop in stream.served for stop in stops)


@dataclass(eq=False)
class Standing:
    waiting: bool = False
    state: CallState = CallState.GENERATING
    over_at: float | None = None


def add(retries: RetryCache, key: str, call: Standing) -> Standing:
    retries.add(key, cast(Call, call))
    return call


def test_one_that_goes_on_is_found_before_one_that_was_served() -> None:
    retries = RetryCache(Clock())
    add(retries, "k", Standing(state=CallState.SERVED, over_at=1000.0))
    goes_on: Any = add(retries, "k", Standing())
    assert retries.find("k") is goes_on


@given(lasting=st.lists(st.floats(0, 3 * KEPT_S), max_size=30))
def test_nothing_is_remembered_for_ever(lasting: list[float]) -> None:
    clock = Clock()
    retries = RetryCache(clock)
    for number, seconds in enumerate(lasting):
        add(retries, str(number % 3), Standing(state=CallState.SERVED, over_at=clock.now + seconds))
        clock.now += 1.0
    for _ in range(len(lasting) + 2):  # a few are forgotten each time
        clock.now += 5 * KEPT_S
        add(retries, "last", Standing(state=CallState.SERVED, over_at=clock.now))
    assert len(retries) == 1
    assert all(retries.find(str(number)) is None for number in range(3))


END = 0
"""The id that ends an answer; id n + 1 is the n-th of an answer's tokens."""


class Spelled(FakeRenderer):
    """Decodes ids to the bytes they stand for: a token may be any piece of text, and end inside a character."""

    stop_ids = (END,)

    def __init__(self, tokens: Sequence[bytes], answers: AnswerFormat) -> None:
        self._tokens = tokens
        self.answers = answers

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        known = {END: b"<end>" * special, **dict(enumerate(self._tokens, start=1))}
        return b"".join(known.get(token, b"") for token in ids).decode(errors="replace")


class Chunked:
    """Yields the answer's ids in chunks that end at these places; version n serves id n."""

    guided = False

    def __init__(self, ids: Sequence[int], ends: Sequence[int]) -> None:
        self._ids = ids
        self._ends = [*sorted({end for end in ends if 0 < end < len(ids)}), len(ids)]

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        start = 0
        finish: Finish = "stop" if self._ids[-1] == END else "length"
        for end in self._ends:
            part = tuple(self._ids[start:end])
            top = tuple(fake_top(token, request.sampling.top_logprobs) for token in part)
            yield Chunk(part, tuple(map(fake_logprob, part)), 3, finish if end == len(self._ids) else None, top)
            start = end


def generated(
    tokens: Sequence[bytes],
    ends: Sequence[int],
    plan: SamplingPlan,
    *,
    whole: bool = True,
    answers: AnswerFormat | None = None,
) -> AnswerGeneration:
    """Return the answer to `hi` whose tokens come in chunks that end at these places; `whole`: it ends itself."""
    backend = FakeBackend(job())
    backend.renderer = Spelled(tokens, answers or HermesFormat(thinks=False))
    ids = [*range(1, len(tokens) + 1), *([END] if whole else [])]
    backend.engine = Chunked(ids, ends)  # type: ignore[assignment]
    prompt = CallTree(FakeRenderer()).prompt([{"role": "user", "content": "hi"}], plan.tools)
    found = AnswerGeneration(backend, prompt, plan, "e/1.0", 0)
    gate = GenerationGate()
    gate.open()
    heard: list[SampledPiece] = []
    asyncio.run(found.run(gate, heard.append if plan.streamed else None))
    assert not plan.streamed or assemble_answer([said.piece for said in heard]) == found.answer
    return found


def told(found: AnswerGeneration) -> dict[str, Any]:
    reply = found.reply
    assert len(found.ids) == len(found.logprobs) == len(found.versions) == reply.sampled_tokens
    assert found.logprobs == list(map(fake_logprob, found.ids))
    assert [token.logprob for token in reply.tokens] in ([], found.logprobs)
    return {
        "sampled": tuple(found.ids), "text": found.text, "answer": found.answer, "finish": reply.finish,
        "stop": reply.stop, "calls": reply.call_ids, "tokens": reply.tokens,
    }  # fmt: skip


def sampling_plan(stops: tuple[str, ...] = (), *, streamed: bool = False, one_call: bool = False) -> SamplingPlan:
    sampling = Sampling(max_tokens=10_000, stop_ids=(END,), top_logprobs=2)
    return SamplingPlan(sampling, stops, tools=(ADD,), one_call=one_call, streamed=streamed, tokens=True)


TEXT = st.lists(
    st.sampled_from([
        "a", "b", "ab", "stop", "sto", "p", " ", "\n", "é", "🙂", called(a=1), called(a=2), "<tool_call>", "<think>\n",
        "\n</think>\n\n",
    ]),
    max_size=8,
)  # fmt: skip


@st.composite
def spellings(draw: st.DrawFn) -> list[bytes]:
    raw = "".join(draw(TEXT)).encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(len(raw) - 1, 1)), max_size=12)))
    places = [0, *(cut for cut in cuts if cut < len(raw)), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(places) if start < end]


ENDS = st.lists(st.integers(1, 40), max_size=12)
HOW = st.fixed_dictionaries(
    {"whole": st.booleans(), "answers": st.sampled_from([HermesFormat(thinks=True), HermesFormat(thinks=False)])}
)
STOPS = st.sampled_from([(), ("stop",), ("b",), ("ab", "b"), ("sto", "stop"), ("🙂",), ("<tool_call>",)])


@given(spellings(), ENDS, STOPS, st.booleans(), st.booleans(), HOW)
@example(
    [b"a", b"a" + called(a=1).encode(), b"a"], [], ("stop",), False, True,
    {"whole": False, "answers": HermesFormat(thinks=False)},
)  # fmt: skip
def test_the_same_ids_are_the_same_answer_in_whatever_chunks_they_come(
    tokens: list[bytes], ends: list[int], stops: tuple[str, ...], streamed: bool, one_call: bool, how: dict[str, Any]
) -> None:
    if not tokens and not how["whole"]:
        return
    alone = told(generated(tokens, range(100), sampling_plan(stops, one_call=one_call), **how))
    chunked = told(generated(tokens, ends, sampling_plan(stops, one_call=one_call, streamed=streamed), **how))
    assert {**chunked, "tokens": ()} == {**alone, "tokens": ()}
    assert [token.text for token in chunked["tokens"]] == [token.text for token in alone["tokens"]]


@given(spellings(), ENDS, STOPS.filter(bool))
def test_the_last_id_of_a_stopped_answer_completes_the_stop_string(
    tokens: list[bytes], ends: list[int], stops: tuple[str, ...]
) -> None:
    found = generated(tokens, ends, sampling_plan(stops))
    texts = [b"".join(tokens[:n]).decode(errors="ignore") for n in range(len(tokens) + 1)]
    through = next((n for n, text in enumerate(texts) if any(stop in text for stop in stops)), None)
    if through is None:
        assert found.ids == [*range(1, len(tokens) + 1), END]
    else:
        assert found.ids == [*range(1, through + 1)]
        assert (found.finish, found.reply.stop in stops) == ("stop", True)
        assert found.sampled >= through


NEW, LISTED = MistralFormat(thinks=False, lists=False), MistralFormat(thinks=False, lists=True)
ONE, OTHER = (f'{{"name": "add", "arguments": {{"a": {number}}}}}' for number in (1, 2))
FAMILIES = {
    "hermes": (HermesFormat(thinks=False), [called(a=1)], ["\n", called(a=2)]),
    "mistral": (NEW, ["[TOOL_CALLS]", "add[ARGS]", '{"a": 1}'], ["[TOOL_CALLS]", "add[ARGS]", '{"a": 2}']),
    "mistral-lists": (LISTED, ["[TOOL_CALLS]", "[", ONE], [", ", OTHER, "]"]),
    "llama3": (Llama3Format(), [ONE[:5], ONE[5:]], ["; ", OTHER]),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ends", [(), (2,), range(20)], ids=["at-once", "in-two", "one-by-one"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_may_call_once_ends_with_its_first_call(
    family: str, ends: Sequence[int], streamed: bool
) -> None:
    answers, first, more = FAMILIES[family]
    tokens = [text.encode() for text in [*first, *more]]
    found = generated(tokens, ends, sampling_plan(one_call=True, streamed=streamed), answers=answers)
    assert found.answer.tool_calls == (ToolCall("add", '{"a": 1}'),)
    assert found.ids == [*range(1, len(first) + 1)]
    assert (found.finish, len(found.reply.call_ids), len(found.reply.tokens)) == ("stop", 1, len(first))


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_ends_inside_a_character_behind_a_stop_string_was_stopped_by_it(streamed: bool) -> None:
    tokens = [b"a ", b"stop", "🙂".encode()[:2]]
    found = generated(tokens, (), sampling_plan(("stop",), streamed=streamed), whole=False)
    assert (found.answer.content, found.finish, found.reply.stop, found.ids) == ("a ", "stop", "stop", [1, 2])
