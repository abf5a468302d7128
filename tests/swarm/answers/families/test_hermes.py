"""Hermes: thinking, words and calls as Qwen's templates write them."""

from __future__ import annotations

import pytest

from swarm.rendering.messages import Answer, Reasoning, ToolCall, Words
from swarm.rendering.reading import MAX_UNTERMINATED
from swarm.rendering.tagged import HermesFormat
from tests.swarm.answers.support import CALL, HERMES, TOOLS, read, read_parts

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
def test_thinking_words_and_calls_come_apart_without_the_templates_line_breaks(
    text: str, prompt: str, answer: Answer
) -> None:
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


def test_words_after_a_call_are_words() -> None:
    assert read_parts(HERMES, [f"{ONE}\n\nDone.\n"]) == [CALL, Words("\n\nDone.\n")]


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
