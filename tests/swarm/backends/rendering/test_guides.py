"""Guides: grammars are held to, wrong ones are refused, and special tokens stand where a grammar names their text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import AddedToken

from swarm.answers import AnswerFormat, ToolCall, gathered
from swarm.answers.families.mistral import MistralFormat
from swarm.answers.grammar.lark import json_answer
from swarm.backends.protocols import GrammarRefused
from swarm.backends.rendering.guides import Guide, Guides
from tests.swarm.answers.support import GLM, HERMES, LLAMA3, MISTRAL, TOOLS, tool
from tests.swarm.backends.local.models import make_tokenizer

MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<arg_key>", "</arg_key>",
         "<arg_value>", "</arg_value>"]  # fmt: skip
LISTS = MistralFormat(thinks=False, lists=True)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
JSON = f"start: %json {json.dumps(SCHEMA)}"


def tokenizer(marks: Sequence[str] = (), *, special: bool = False) -> Any:
    made = make_tokenizer()
    made.add_tokens([AddedToken(mark, special=special) for mark in marks], special_tokens=special)
    return made


def guides(hf: Any, vocabulary: int = 0) -> Guides:
    return Guides(lambda: hf.backend_tokenizer, [hf.eos_token_id], vocabulary or len(hf))


def takes(guide: Guide, ids: Sequence[int]) -> bool:
    """Return whether a guide lets all ids through, one after another."""
    for token in ids:
        if not guide.allowed()[token]:
            return False
        guide.accept(token)
    return True


def test_json_of_a_schema_is_let_through_and_may_end_only_when_it_is_whole() -> None:
    hf = tokenizer()
    whole = hf.encode('{"name": "é", "sizes": [1, 2]}')
    guide = guides(hf).guide(JSON)
    assert takes(guide, whole[:-1])
    assert not guide.allowed()[hf.eos_token_id]
    assert takes(guide, [whole[-1], hf.eos_token_id])


@pytest.mark.parametrize("text", ["[", '{"name": 5', '{"sizes": [1], "other"', "words"])
def test_json_of_no_schema_is_not_let_through(text: str) -> None:
    hf = tokenizer()
    assert not takes(guides(hf).guide(JSON), hf.encode(text))


@pytest.mark.parametrize(
    "grammar",
    ["", "start: missing", 'start: %json {"type": "nothing"}', 'start: <|no_such|> "x"', "start: /(/"],
)
def test_a_grammar_that_does_not_compile_is_refused_with_the_reason(grammar: str) -> None:
    with pytest.raises(GrammarRefused, match=r"cannot follow this grammar: ."):
        guides(tokenizer()).guide(grammar)


@pytest.mark.parametrize("numbers", [[123456789], [1e-9, 997, 499], [0.1234567]])
def test_multiples_that_would_take_for_ever_are_refused(numbers: list[float]) -> None:
    schema = {"allOf": [{"type": "number", "multipleOf": number} for number in numbers]}
    with pytest.raises(GrammarRefused, match="least common multiple"):
        guides(tokenizer()).guide(json_answer(schema))


def test_multiples_of_everyday_are_held() -> None:
    schema = {"type": "object", "properties": {str(n): {"type": "number", "multipleOf": n} for n in (0.01, 25, 1000)}}
    guides(tokenizer()).guide(json_answer(schema))


def test_a_tokenizer_that_cannot_be_read_is_a_refusal_too() -> None:
    class Strange:
        def get_vocab_size(self) -> int:
            return 3

        def to_str(self) -> str:
            return "{}"

    with pytest.raises(GrammarRefused, match="cannot read this model's tokenizer"):
        Guides(Strange, [0], 3).guide('start: "a"')


def test_the_mask_has_the_models_width_and_ids_beyond_the_tokenizer_never_come() -> None:
    hf = tokenizer()
    allowed = guides(hf, vocabulary=len(hf) + 13).guide("start: /(?s:.*)/").allowed()
    assert allowed.shape == (len(hf) + 13,)
    assert allowed.dtype is torch.bool
    assert not allowed[len(hf) :].any()
    assert allowed[hf.encode("a")[0]]


WRITINGS = [((), False), (MARKS, False), (MARKS, True)]
"""Marks a tokenizer knows, and whether as special tokens."""
ARGUMENTS = {"city": "Bonn", "days": 2}
CALLS = [
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}\n</tool_call>'),
    (LLAMA3, '{"name": "weather", "parameters": {"city": "Bonn", "days": 2}}'),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Bonn", "days": 2}'),
    (LISTS, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}]'),
    (GLM, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
          "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("marks", "special"), [((), False), (MARKS, False), (MARKS, True)], ids=["text", "added", "special"]
)
@pytest.mark.parametrize(("answers", "text"), CALLS, ids=["hermes", "llama3", "mistral", "mistral-list", "glm"])
def test_a_forced_call_is_the_familys_own_writing_whatever_the_tokenizer_makes_of_its_marks(
    answers: AnswerFormat, text: str, marks: Sequence[str], special: bool
) -> None:
    hf = tokenizer(marks, special=special)
    grammar = answers.grammar(TOOLS)
    assert grammar is not None
    made = guides(hf)
    ids = hf.encode(text)
    assert takes(made.guide(grammar), [*ids, hf.eos_token_id])
    assert not made.guide(grammar).allowed()[hf.eos_token_id]
    assert not takes(made.guide(grammar), hf.encode("Some words"))
    assert not takes(made.guide(grammar), hf.encode(text.replace("weather", "weather2")))
    assert not takes(made.guide(grammar), hf.encode(text.replace("2", "two")))
    reader = answers.reader("", TOOLS)
    read = gathered([*reader.feed(hf.decode(ids)), *reader.finish()])
    assert read.tool_calls == (ToolCall("weather", json.dumps(ARGUMENTS)),)


@pytest.mark.parametrize(("marks", "special"), WRITINGS, ids=["text", "added", "special"])
def test_a_thought_that_the_prompt_opened_goes_on_before_the_call(marks: Sequence[str], special: bool) -> None:
    hf = tokenizer(marks, special=special)
    grammar = HERMES.grammar(TOOLS, "<|im_start|>assistant\n<think>\n")
    assert grammar is not None
    thought = "Hm, a < b.\n</think>\n\n"
    assert takes(guides(hf).guide(grammar), [*hf.encode(thought + CALLS[0][1]), hf.eos_token_id])
    assert not takes(guides(hf).guide(grammar), hf.encode(f"{thought}5"))


@pytest.mark.parametrize(("marks", "special"), WRITINGS, ids=["text", "added", "special"])
def test_a_thought_that_the_prompt_opened_goes_on_before_json_too(marks: Sequence[str], special: bool) -> None:
    hf = tokenizer(marks, special=special)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    opened, plain = (json_answer(schema, HERMES.thinking(prompt)) for prompt in ("<think>\n", "assistant\n"))
    assert takes(guides(hf).guide(opened), hf.encode('Hm.</think>\n\n{"a": 5}'))
    assert takes(guides(hf).guide(plain), hf.encode('{"a": 5}'))
    assert not takes(guides(hf).guide(plain), hf.encode("Hm."))


def test_a_tools_optional_and_enumerated_arguments_are_held_to_in_glm() -> None:
    hf = tokenizer(MARKS, special=True)
    unit = tool("unit", {"of": {"type": "string", "enum": ["C", "F"]}, "n": {"type": "number"}}, ["of"])
    grammar = GLM.grammar([unit])
    assert grammar is not None
    call = "<tool_call>unit\n<arg_key>of</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
    assert takes(guides(hf).guide(grammar), hf.encode(call.format("F")))
    assert not takes(guides(hf).guide(grammar), hf.encode(call.format("K")))


def test_a_text_in_a_schema_is_not_taken_for_the_special_token_of_that_name() -> None:
    hf = tokenizer(MARKS, special=True)
    grammar = LLAMA3.grammar([tool("f", {"a": {"enum": ["<b>"]}}, ["a"])])
    assert grammar is not None
    assert takes(guides(hf).guide(grammar), hf.encode('{"name": "f", "parameters": {"a": "<b>"}}'))
