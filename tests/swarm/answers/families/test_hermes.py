"""Hermes: thinking, words and calls as Qwen's templates write them."""

from __future__ import annotations

import pytest

from swarm.answers import Answer, Reasoning, ToolCall, Words
from swarm.answers.families.hermes import HermesFormat
from swarm.answers.grammar.objects import MAX_UNTERMINATED
from tests.swarm.answers.support import CALL, HERMES, TOOLS, read, read_parts

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def test_thinking_words_and_calls_come_apart_without_the_templates_line_breaks() -> None:
    text = f"<think>\nHm.\n\nYes.\n</think>\n\nLet me see.\n{ONE}\n{TWO}"
    assert read(HERMES, text) == Answer("Let me see.", "Hm.\n\nYes.", (CALL, ToolCall("clock", "{}")))


def test_a_template_that_opened_thinking_is_heard() -> None:
    assert read(HERMES, "Hm.\n</think>\n\n5", prompt="<|im_start|>assistant\n<think>\n") == Answer("5", "Hm.")


def test_a_template_that_closed_thinking_at_once_is_heard_too() -> None:
    assert read(HERMES, "5", prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n") == Answer("5")


def test_thinking_that_was_cut_is_thinking() -> None:
    assert read(HERMES, "<think>\nHm, if </thi") == Answer("", "Hm, if </thi")


def test_thinking_streams_and_its_last_line_break_is_held() -> None:
    reader = HERMES.reader("<think>\n", TOOLS)
    assert [list(reader.feed(part)) for part in ("Hm", ".\n", "\n", "So\n</th", "ink>\n\n5")] == [
        [Reasoning("Hm")], [Reasoning(".")], [], [Reasoning("\n\nSo")], [Words("5")],
    ]  # fmt: skip


def test_a_call_that_was_cut_is_words() -> None:
    assert read(HERMES, 'See.\n<tool_call>\n{"name": "wea') == Answer('See.\n<tool_call>\n{"name": "wea')


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


def test_only_the_templates_own_line_break_before_a_call_goes() -> None:
    assert read(HERMES, f"See.\n\n{ONE}").content == "See.\n"


def test_a_model_that_does_not_think_may_write_the_marks() -> None:
    assert read(HermesFormat(thinks=False), "<think>5</think>") == Answer("<think>5</think>")


def test_without_tools_the_marks_are_words() -> None:
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
