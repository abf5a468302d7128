"""Guided generation: a tiny random model writes what the grammar says, and its neighbours do not notice."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import AddedToken

from swarm.answers import AnswerFormat, ToolCall
from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.engine import LocalEngine
from swarm.backends.local.generating.generation import Generation, SampledToken
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import Chunk, GenerationRequest, GrammarRefused, Sampling
from swarm.backends.rendering.guides import Guide, Guides
from tests.swarm.answers.support import GLM, HERMES, LLAMA3, MISTRAL, tool
from tests.swarm.backends.local.models import make_model, make_tokenizer
from tests.swarm.server.support import eventually


class _Thing(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["a", "b"]
    name: str = Field(max_length=5)
    sizes: list[Annotated[int, Field(ge=0, le=99)]] = Field(max_length=3)


SCHEMA = _Thing.model_json_schema()
GRAMMAR = f"start: %json {json.dumps({**SCHEMA, 'x-guidance': {'whitespace_flexible': False}})}"
MARKS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<arg_key>", "</arg_key>", "<arg_value>"]
TOKENIZER = make_tokenizer()
TOKENIZER.add_tokens([AddedToken(mark, special=True) for mark in MARKS], special_tokens=True)
EOS = int(TOKENIZER.eos_token_id)
PROMPT = TOKENIZER.encode("JSON:")


class _Watched(Guides):
    """Guides that remember, weakly, what they made."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(lambda: TOKENIZER.backend_tokenizer, [EOS], vocabulary)
        self.made: list[weakref.ref[Guide]] = []

    def guide(self, grammar: str) -> Guide:
        guide = super().guide(grammar)
        self.made.append(weakref.ref(guide))
        return guide

    def alive(self) -> int:
        gc.collect()
        return sum(made() is not None for made in self.made)


@pytest.fixture
def guides() -> _Watched:
    return _Watched(len(TOKENIZER))


@pytest.fixture
async def engine(guides: _Watched) -> AsyncIterator[LocalEngine]:
    torch.set_num_threads(1)
    policy = Policy(make_model(vocabulary=len(TOKENIZER)))
    engine = LocalEngine(policy, Batcher(policy, slots=8, positions=128, seed=0), 128, guides=guides)
    await engine.start()
    yield engine
    await engine.stop()


def _sampling(seed: int, **others: Any) -> Sampling:
    return Sampling(max_tokens=100, stop_ids=(EOS,), seed=seed, **others)


async def _collect(engine: LocalEngine, prompt: Sequence[int], sampling: Sampling) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(GenerationRequest("r", prompt, sampling))]


def _answer(chunks: Sequence[Chunk]) -> tuple[list[int], list[float]]:
    return [i for chunk in chunks for i in chunk.ids], [value for chunk in chunks for value in chunk.logprobs]


async def test_every_guided_answer_parses_and_validates(engine: LocalEngine) -> None:
    assert engine.guided
    rules = [_sampling(seed, grammar=GRAMMAR, temperature=float(seed % 3)) for seed in range(24)]
    found = await asyncio.gather(*(_collect(engine, PROMPT, rule) for rule in rules))
    for chunks in found:
        ids, logprobs = _answer(chunks)
        assert chunks[-1].finish == "stop"
        assert ids[-1] == EOS
        _Thing.model_validate_json(TOKENIZER.decode(ids, skip_special_tokens=True))
        assert all(value > -100 for value in logprobs)


WEATHER = tool(
    "weather",
    {"city": {"type": "string", "enum": ["Bonn", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    ["city"],
)


@pytest.mark.parametrize("answers", [HERMES, LLAMA3, MISTRAL, GLM], ids=lambda answers: answers.name)
async def test_a_forced_model_calls_a_tool_whatever_its_family(engine: LocalEngine, answers: AnswerFormat) -> None:
    """`</arg_value>` is no special token here: a family's marks need not all be."""
    rules = [_sampling(seed, grammar=answers.grammar([WEATHER])) for seed in range(8)]
    for chunks in await asyncio.gather(*(_collect(engine, PROMPT, rule) for rule in rules)):
        ids, _ = _answer(chunks)
        reader = answers.reader("", [WEATHER])
        [call] = [*reader.feed(TOKENIZER.decode(ids[:-1])), *reader.finish()]
        assert isinstance(call, ToolCall)
        assert call.name == "weather"
        given = json.loads(call.arguments)
        assert given.pop("city") in ("Bonn", "Rome")
        assert given == {} or 1 <= given.pop("days") <= 9


async def test_a_guided_tokens_log_prob_is_that_of_the_masked_distribution(engine: LocalEngine) -> None:
    ids, logprobs = _answer(await _collect(engine, PROMPT, _sampling(1, grammar='start: "abc"')))
    assert TOKENIZER.decode(ids[:-1]) == "abc"
    assert logprobs == [0.0] * 4


def test_neighbours_of_a_guided_request_get_the_same_bits_as_without_its_guide(guides: _Watched) -> None:
    def served(guide: Guide | None) -> list[list[SampledToken]]:
        policy = Policy(make_model(vocabulary=len(TOKENIZER)))
        batcher = Batcher(policy, slots=8, positions=128, seed=0)
        guided = Generation(list(PROMPT), _sampling(9), guide)
        others = [Generation([seed, 5, 7], Sampling(max_tokens=100)) for seed in range(5)]
        for generation in (guided, *others):
            batcher.add(generation)
        for _ in range(20):
            batcher.step()
        assert guide is None or TOKENIZER.decode(guided.ids[len(PROMPT) :]).islower()
        return [generation.fresh for generation in others]

    assert served(guides.guide("start: /[a-z]{90}/")) == served(None)


async def test_a_grammar_that_does_not_compile_is_refused_before_any_chunk_and_the_engine_lives(
    engine: LocalEngine,
) -> None:
    with pytest.raises(GrammarRefused, match="cannot follow"):
        await _collect(engine, PROMPT, _sampling(0, grammar="start: nothing"))
    assert engine.failure() is None
    assert _answer(await _collect(engine, PROMPT, _sampling(0, grammar='start: "a"')))[0][-1] == EOS


async def test_a_grammar_that_gets_lost_on_the_way_ends_its_own_request_only(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(guide: Guide) -> None:
        raise GrammarRefused("the engine lost the grammar")

    monkeypatch.setattr(Guide, "allowed", lost)
    guided = _collect(engine, PROMPT, _sampling(0, grammar=GRAMMAR))
    plain = _collect(engine, PROMPT, _sampling(0))
    refused, answered = await asyncio.gather(guided, plain, return_exceptions=True)
    assert isinstance(refused, GrammarRefused)
    assert isinstance(answered, list)
    assert answered[-1].finish
    assert engine.failure() is None


async def test_finished_and_cancelled_requests_free_their_guides(engine: LocalEngine, guides: _Watched) -> None:
    await _collect(engine, PROMPT, _sampling(0, grammar=GRAMMAR))
    endless = 'start: /(?s:.*)/ "\\u0001\\u0002"'
    async with aclosing(engine.generate(GenerationRequest("r", PROMPT, _sampling(0, grammar=endless)))) as chunks:
        await anext(chunks)
    await eventually(guides.alive, lambda alive: alive == 0)
    assert len(guides.made) == 2
