"""Guides hold a model to a grammar: wrong ones are refused, marks are tokens or text, neighbours do not notice."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import AddedToken

from swarm.backends.local.batcher import Batcher, Generation, SampledToken
from swarm.backends.local.engine import LocalEngine
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Chunk, GenerationRequest, Sampling
from swarm.rendering.guides import Guide, Guides
from swarm.rendering.json_formats import MistralFormat
from swarm.rendering.messages import AnswerFormat, GrammarRefused, ToolCall, assemble_answer
from swarm.rendering.reading import json_answer
from tests.swarm.backends.local.models import make_model, make_tokenizer
from tests.swarm.rendering.support import GLM, HERMES, LLAMA3, MISTRAL, TOOLS, tool
from tests.swarm.server.support import eventually


class _Thing(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["a", "b"]
    name: str = Field(max_length=5)
    sizes: list[Annotated[int, Field(ge=0, le=99)]] = Field(max_length=3)


SCHEMA = _Thing.model_json_schema()
GRAMMAR = f"start: %json {json.dumps({**SCHEMA, 'x-guidance': {'whitespace_flexible': False}})}"
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<arg_key>", "</arg_key>",
         "<arg_value>", "</arg_value>"]  # fmt: skip


def tokenizer(marks: Sequence[str] = (), *, special: bool = False) -> Any:
    made = make_tokenizer()
    made.add_tokens([AddedToken(mark, special=special) for mark in marks], special_tokens=special)
    return made


TOKENIZER = tokenizer(MARKS, special=True)
EOS = int(TOKENIZER.eos_token_id)
PROMPT = TOKENIZER.encode("JSON:")


class _Watched(Guides):
    def __init__(self, vocabulary: int) -> None:
        super().__init__(TOKENIZER.backend_tokenizer, [EOS], vocabulary)
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


async def test_a_lost_grammar_ends_its_own_request_only(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(guide: Guide) -> None:
        raise GrammarRefused("it is lost")

    monkeypatch.setattr(Guide, "allowed_mask", lost)
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


LISTS = MistralFormat(thinks=False, lists=True)


def guides_of(hf: Any) -> Guides:
    return Guides(hf.backend_tokenizer, [hf.eos_token_id], len(hf))


def takes(guide: Guide, ids: Sequence[int]) -> bool:
    for token in ids:
        if not guide.allowed_mask()[token]:
            return False
        guide.accept(token)
    return True


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        *((grammar, "this grammar: .") for grammar in (
            "", "start: missing", 'start: %json {"type": "nothing"}', 'start: <|no_such|> "x"', "start: /(/")),
        *((json_answer({"allOf": [{"type": "number", "multipleOf": number} for number in numbers]}), "common multiple")
          for numbers in ([123456789], [1e-9, 997, 499], [0.1234567])),
    ],
)  # fmt: skip
def test_a_grammar_that_does_not_compile_or_would_take_for_ever_is_refused(grammar: str, said: str) -> None:
    with pytest.raises(GrammarRefused, match=said):
        guides_of(tokenizer()).guide(grammar)


def test_a_tokenizer_that_cannot_be_read_is_a_refusal_too() -> None:
    strange: Any = SimpleNamespace(get_vocab_size=lambda: 3, to_str=lambda: "{}")
    with pytest.raises(GrammarRefused, match="model's tokenizer"):
        Guides(strange, [0], 3).guide('start: "a"')


writings = pytest.mark.parametrize(
    ("marks", "special"), [((), False), (MARKS, False), (MARKS, True)], ids=["text", "added", "special"]
)
CALLS = [
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}\n</tool_call>'),
    (LLAMA3, '{"name": "weather", "parameters": {"city": "Bonn", "days": 2}}'),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Bonn", "days": 2}'),
    (LISTS, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}]'),
    (GLM, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
          "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"),
]  # fmt: skip


@writings
@pytest.mark.parametrize(("answers", "text"), CALLS, ids=["hermes", "llama3", "mistral", "mistral-list", "glm"])
def test_a_forced_call_is_the_familys_own_writing_whatever_the_tokenizer_makes_of_its_marks(
    answers: AnswerFormat, text: str, marks: Sequence[str], special: bool
) -> None:
    hf = tokenizer(marks, special=special)
    grammar = answers.grammar(TOOLS)
    assert grammar is not None
    made = guides_of(hf)
    ids = hf.encode(text)
    assert takes(made.guide(grammar), [*ids, hf.eos_token_id])
    assert not made.guide(grammar).allowed_mask()[hf.eos_token_id]
    assert not takes(made.guide(grammar), hf.encode("Some words"))
    assert not takes(made.guide(grammar), hf.encode(text.replace("weather", "weather2")))
    assert not takes(made.guide(grammar), hf.encode(text.replace("2", "two")))
    reader = answers.reader("", TOOLS)
    read = assemble_answer([*reader.feed(hf.decode(ids)), *reader.finish()])
    assert read.tool_calls == (ToolCall("weather", json.dumps({"city": "Bonn", "days": 2})),)


@writings
def test_a_thought_that_the_prompt_opened_goes_on_before_the_call_or_json(marks: Sequence[str], special: bool) -> None:
    hf = tokenizer(marks, special=special)
    grammar = HERMES.grammar(TOOLS, "<|im_start|>assistant\n<think>\n")
    assert grammar is not None
    thought = "Hm, a < b.\n</think>\n\n"
    assert takes(guides_of(hf).guide(grammar), [*hf.encode(thought + CALLS[0][1]), hf.eos_token_id])
    assert not takes(guides_of(hf).guide(grammar), hf.encode(f"{thought}5"))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    opened, plain = (json_answer(schema, HERMES.thinking(prompt)) for prompt in ("<think>\n", "assistant\n"))
    assert takes(guides_of(hf).guide(opened), hf.encode('Hm.</think>\n\n{"a": 5}'))
    assert takes(guides_of(hf).guide(plain), hf.encode('{"a": 5}'))
    assert not takes(guides_of(hf).guide(plain), hf.encode("Hm."))


def test_a_text_in_a_schema_is_not_taken_for_the_special_token_of_that_name() -> None:
    hf = tokenizer(MARKS, special=True)
    grammar = LLAMA3.grammar([tool("f", {"a": {"enum": ["<b>"]}}, ["a"])])
    assert grammar is not None
    assert takes(guides_of(hf).guide(grammar), hf.encode('{"name": "f", "parameters": {"a": "<b>"}}'))
