"""Tests of messages."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.rendering.messages import Answer, AnswerFormat, Reasoning, ToolCall, Words
from swarm.rendering.reading import MAX_UNTERMINATED
from swarm.rendering.tagged import HermesFormat
from tests.swarm.rendering.support import CALL, FORMATS, HARMONY, HERMES, TOOLS, read, read_parts

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "prompt", "answer"),
    [
        (f"<think>\nHm.\n\nYes.\n</think>\n\nLet me see.\n{ONE}\n{TWO}", "",
         Answer("Let me see.", "Hm.\n\nYes.", (CALL, ToolCall("clock", "{}")))),
        ("Hm.\n</think>\n\n5", "<|im_start|>assistant\n<think>\n", Answer("5", "Hm.")),
        ("5", "<|im_start|>assistant\n<think>\n\n</think>\n\n", Answer("5")),
        ("<think>\nHm, if </thi", "", Answer("", "Hm, if </thi")),
        ('See.\n<tool_call>\n{"name": "wea', "", Answer('See.\n<tool_call>\n{"name": "wea')),
        (f"See.\n\n{ONE}", "", Answer("See.\n", "", (CALL,))),
    ],
    ids=["whole", "opened by the template", "closed by the template", "thinking cut", "call cut", "line breaks"],
)  # fmt: skip
def test_thinking_words_and_calls_come_apart_without_template_breaks(text: str, prompt: str, answer: Answer) -> None:
    assert read(HERMES, text, prompt) == answer


def test_thinking_streams_and_its_last_line_break_is_held() -> None:
    reader = HERMES.reader("<think>\n", TOOLS)
    assert [list(reader.feed(part)) for part in ("Hm", ".\n", "\n", "So\n</th", "ink>\n\n5")] == [
        [Reasoning("Hm")], [Reasoning(".")], [], [Reasoning("\n\nSo")], [Words("5")],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        "{}", "[]", "5", "", "weather", '{"name": "weather"}', '{"name": "", "arguments": {}}',
        '{"name": 5, "arguments": {}}', '{"name": "weather", "arguments": "x"}',
        '{"name": "weather", "arguments": {},}',
        '{"name": "weather", "arguments": {"a": NaN}}', '{"name": "weather", "arguments": {"a": "line\nbreak"}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "weather", "arguments": {"a": ["\\ud83d"]}}',
        '{"name": "weather", "arguments": {}} and more', "[" * 5000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_stays_in_the_words_and_the_next_call_is_read(body: str) -> None:
    broken = f"<tool_call>{body}</tool_call>"
    assert read(HERMES, f"{broken}\n{ONE}") == Answer(broken, "", (CALL,))


def test_a_mark_inside_an_argument_does_not_end_the_call() -> None:
    arguments = '{"city": "a </tool_call> and a <tool_call>\\""}'
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    assert read_parts(HERMES, text) == [ToolCall("weather", arguments)]


def test_arguments_keep_the_models_own_writing() -> None:
    arguments = '{"b":1.0,  "a": "\\u00e9\\ud83d\\ude00", "a": [true , null]}'
    text = f'<tool_call>\n{{"arguments": {arguments}, "name": "weather"}}\n</tool_call>'
    assert read(HERMES, text).tool_calls == (ToolCall("weather", arguments),)


def test_marks_are_words_of_a_model_that_does_not_think_and_without_tools() -> None:
    assert read(HermesFormat(thinks=False), "<think>5</think>") == Answer("<think>5</think>")
    assert read(HERMES, ONE, tools=()) == Answer(ONE)


@pytest.mark.parametrize("depth", [*range(900, 1000), 3000])
def test_arguments_of_any_depth_are_read_or_stay_in_the_words(depth: int) -> None:
    arguments = f'{{"a": {"[" * depth}"\\u00e9"{"]" * depth}}}'
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    assert read(HERMES, text) in (Answer("", "", (ToolCall("weather", arguments),)), Answer(text))


def test_a_mark_that_is_repeated_for_ever_inside_a_string_makes_words() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "' + "</tool_call>" * (MAX_UNTERMINATED + 5)
    assert read(HERMES, text) == Answer(text)
    assert read(HERMES, f'{text}"}}}}</tool_call>') == Answer(f'{text}"}}}}</tool_call>')


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
