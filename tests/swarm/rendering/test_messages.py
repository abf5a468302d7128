"""What must be true of every format, whatever the text and however it is cut: checked over pieces of all families."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.rendering.messages import Answer, AnswerFormat, Reasoning, ToolCall, Words
from tests.swarm.rendering.support import FORMATS, HARMONY, HERMES, TOOLS, read, read_parts


def test_thinking_streams_and_its_last_line_break_is_held() -> None:
    reader = HERMES.reader("<think>\n", TOOLS)
    assert [list(reader.feed(part)) for part in ("Hm", ".\n", "\n", "So\n</th", "ink>\n\n5")] == [
        [Reasoning("Hm")], [Reasoning(".")], [], [Reasoning("\n\nSo")], [Words("5")],
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [*range(900, 1000), 3000])
def test_arguments_of_any_depth_are_read_or_stay_in_the_words(depth: int) -> None:
    arguments = f'{{"a": {"[" * depth}"\\u00e9"{"]" * depth}}}'
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    assert read(HERMES, text) in (Answer("", "", (ToolCall("weather", arguments),)), Answer(text))


def test_marks_of_calls_are_words_where_there_are_no_tools() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    assert read(HERMES, text, tools=()) == Answer(text)


BITS = [
    "<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=f>", "<parameter=k>", "</parameter>",
    "</function>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>json",
    "analysis", "commentary", "final", "assistant", " to=functions.f", "<|python_tag|>", "```tool_code\n", "```json\n",
    "```", "f(a=1)", '{"name": "f", "arguments": {"a": "x"}}', '{"name": "f", "parameters": {}}', '{"a": 1}', '{"a": "',
    '"}', "[", "]", ";", ",", "f", "\n", "\n\n", " ", "<", "words", "é\U0001f600", "a < b",
]  # fmt: skip
PROMPTS = ["", "<|im_start|>assistant\n", "x<think>\n", "[THINK]", "<|start|>assistant", "<|channel|>final<|message|>"]
texts = st.lists(st.sampled_from(BITS) | st.text(max_size=3), max_size=14).map("".join)
formats = pytest.mark.parametrize("answers", FORMATS, ids=lambda answers: answers.name)


@formats
@given(texts, st.sampled_from(PROMPTS), st.lists(st.integers(0, 80), max_size=8), st.booleans())
def test_pieces_are_the_same_however_the_text_is_cut(
    answers: AnswerFormat, text: str, prompt: str, cuts: list[int], tools: bool
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(places)]
    given_tools = TOOLS if tools else ()
    whole = read_parts(answers, [text], prompt, given_tools)
    assert read_parts(answers, parts, prompt, given_tools) == whole
    assert read_parts(answers, list(text), prompt, given_tools) == whole


@formats
@given(texts, st.sampled_from(PROMPTS))
def test_a_call_has_a_name_and_a_json_object_for_arguments(answers: AnswerFormat, text: str, prompt: str) -> None:
    for call in read(answers, text, prompt).tool_calls:
        assert call.name
        assert isinstance(json.loads(call.arguments), dict)


@formats
@given(texts)
def test_what_is_neither_call_nor_mark_is_all_in_words_and_thinking(answers: AnswerFormat, text: str) -> None:
    pieces = read_parts(answers, [text])
    if answers is HARMONY or any(isinstance(piece, ToolCall) for piece in pieces):
        return  # these hold marks that are read, not said
    said = "".join(piece.text for piece in pieces if isinstance(piece, (Words, Reasoning)))
    for mark in ("<think>", "</think>", "[THINK]", "[/THINK]"):
        text, said = text.replace(mark, ""), said.replace(mark, "")
    assert "".join(said.split()) == "".join(text.split())


@pytest.mark.slow
def test_a_long_call_fed_by_the_character_is_not_read_again_each_time() -> None:
    """A reader that scanned its buffer at each feed would take some 10^10 steps here."""
    text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 200_000 + '"}}</tool_call>'
    assert len(read_parts(HERMES, text)) == 1
