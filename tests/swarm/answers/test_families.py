"""The other families: their calls, their thinking, and what happens to answers that are broken or cut."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.answers import Answer, AnswerFormat, ToolCall, Words
from tests.swarm.answers.support import (
    CALL,
    CLOCK,
    GLM,
    HARMONY,
    JSON,
    LLAMA3,
    MISTRAL,
    PYTHON,
    THINK,
    TOOLS,
    WEATHER,
    XML,
    read,
    read_parts,
)

NOW = ToolCall("clock", "{}")


def test_llama_calls_are_the_whole_answer() -> None:
    one, two = '{"name": "weather", "parameters": {"city": "Bonn"}}', '{"name": "clock", "parameters": {}}'
    assert read(LLAMA3, one).tool_calls == (CALL,)
    assert read(LLAMA3, f"<|python_tag|>{one}; {two}").tool_calls == (CALL, NOW)
    assert read(LLAMA3, f'{{"type": "function", {one[1:]}').tool_calls == (CALL,)
    assert read(LLAMA3, f"{one} is my answer") == Answer(f"{one} is my answer")
    assert read(LLAMA3, f"See: {one}") == Answer(f"See: {one}")
    assert read(LLAMA3, one[:-1]) == Answer(one[:-1])


def test_llama_json_that_is_no_call_streams() -> None:
    reader = LLAMA3.reader("", TOOLS)
    assert reader.feed('{"na') == ()
    assert reader.feed('rrow": 1') == (Words('{"narrow": 1'),)
    assert reader.feed("}") == (Words("}"),)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bonn"}}, {"name": "clock", "arguments": {}}]',
        '[TOOL_CALLS]weather[ARGS]{"city": "Bonn"}[TOOL_CALLS]clock[ARGS]{}',
        '[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"city": "Bonn"}[TOOL_CALLS]clock[CALL_ID]d[ARGS]{}',
    ],
)
def test_mistral_calls_of_every_version_are_read(text: str) -> None:
    assert read(MISTRAL, text) == Answer("", "", (CALL, NOW))
    assert read(MISTRAL, f" Let me see.{text}") == Answer("Let me see.", "", (CALL, NOW))
    assert read(MISTRAL, f"[THINK]Hm.[/THINK]{text}") == Answer("", "Hm.", (CALL, NOW))


def test_a_mistral_call_that_was_cut_is_words_but_those_before_it_are_calls() -> None:
    cut = '[TOOL_CALLS]clock[ARGS]{"a'
    assert read(MISTRAL, f'[TOOL_CALLS]weather[ARGS]{{"city": "Bonn"}}{cut}') == Answer(cut, "", (CALL,))
    assert read(MISTRAL, '[TOOL_CALLS][{"name": "clock"').content == '[TOOL_CALLS][{"name": "clock"'


def test_a_mistral_argument_may_hold_the_mark() -> None:
    given = '{"city": "[TOOL_CALLS]"}'
    assert read(MISTRAL, f"[TOOL_CALLS]weather[ARGS]{given}").tool_calls == (ToolCall("weather", given),)
    old = f'[TOOL_CALLS][{{"name": "weather", "arguments": {given}}}]'
    assert read(MISTRAL, old).tool_calls == (ToolCall("weather", given),)


GLM_CALL = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{}</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
XML_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n{}\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize(("answers", "call"), [(GLM, GLM_CALL), (XML, XML_CALL)])
@pytest.mark.parametrize(
    ("city", "as_json"),
    [
        ("Bonn", '"Bonn"'),
        ("5", '"5"'),
        ("true", '"true"'),
        ('"q"', '"\\"q\\""'),
        ("</tool_call>", '"</tool_call>"'),
        ("é", '"é"'),
    ],
)
def test_values_without_quotes_are_read_by_the_tools_schema(
    answers: AnswerFormat, call: str, city: str, as_json: str
) -> None:
    found = read(answers, f"\n<think>Hm.</think>\nSee.\n{call.format(city)}")
    assert found == Answer("See.", "Hm.", (ToolCall("weather", f'{{"city": {as_json}, "days": 2}}'),))


def test_values_of_no_known_type_are_json_if_they_can_be() -> None:
    text = "<tool_call>other<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>"
    for value, as_json in (
        ("[1,2]", "[1,2]"),
        ("null", "null"),
        ('"x"', '"\\"x\\""'),
        ("words", '"words"'),
        ("NaN", '"NaN"'),
        ("1, 2", '"1, 2"'),
        (" 5 ", "5"),
        ('["\\ud800"]', '"[\\"\\\\ud800\\"]"'),
    ):
        assert read(GLM, text.format(value)).tool_calls == (ToolCall("other", f'{{"a": {as_json}}}'),)


@pytest.mark.parametrize(
    "body", ["", "  ", "weather stray", "weather<arg_key>a</arg_key>", "weather<arg_value>2</arg_value>"]
)
def test_glm_calls_that_cannot_be_read_stay_words(body: str) -> None:
    assert read(GLM, f"<tool_call>{body}</tool_call>") == Answer(f"<tool_call>{body}</tool_call>")


def test_a_schema_that_says_nothing_of_an_argument_is_no_obstacle() -> None:
    vaguely: tuple[Any, ...] = (None, {"a": True}, {"a": {}})
    for given_properties in vaguely:
        vague = {"function": {"name": "f", "parameters": {"type": "object", "properties": given_properties}}}
        text = "<tool_call>f<arg_key>a</arg_key><arg_value>5</arg_value></tool_call>"
        assert read(GLM, text, tools=[vague]).tool_calls == (ToolCall("f", '{"a": 5}'),)
        assert GLM.grammar([vague])


def test_glm_words_lose_the_line_break_their_template_writes() -> None:
    assert read(GLM, "\nHello") == Answer("Hello")
    assert read(GLM, "\n<think></think>\nHello") == Answer("Hello")


def test_harmony_channels_are_thinking_words_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Bonn"}'
    )
    for end in ("<|call|>", ""):
        assert read(HARMONY, text + end, "<|start|>assistant") == Answer("Let me see.", "Hm.", (CALL,))
    assert read(HARMONY, "<|channel|>final<|message|>5<|return|>", "<|start|>assistant") == Answer("5")


def test_a_harmony_recipient_may_stand_in_the_role() -> None:
    text = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Bonn"}'
    assert read(HARMONY, text, "<|start|>assistant").tool_calls == (CALL,)


def test_a_harmony_channel_may_be_opened_by_the_prompt() -> None:
    prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>"
    assert read(HARMONY, "Hm.<|end|>", f"{prompt}analysis<|message|>") == Answer("", "Hm.")
    assert read(HARMONY, "5", f"{prompt}final<|message|>") == Answer("5")


def test_harmony_messages_for_nobody_here_and_cut_calls_are_words() -> None:
    for text in (
        '<|channel|>commentary to=functions.weather<|message|>{"city": "Bo',
        "<|channel|>commentary to=python<|message|>print(1)",
        "<|channel|>fin",
        "<|channel|>" + "x" * 400,
    ):
        assert read(HARMONY, text, "<|start|>assistant") == Answer(text)


def test_fenced_calls_are_python_or_json_and_nothing_is_run() -> None:
    assert read(PYTHON, 'See.\n```tool_code\nweather(city="Bonn")\n```') == Answer("See.", "", (CALL,))
    assert read(PYTHON, '```tool_code\n[weather(city="Bonn"), clock()]\n```').tool_calls == (CALL, NOW)
    assert read(PYTHON, '```tool_code\nweather(city="a ``` b")\n```').tool_calls[0].arguments == '{"city": "a ``` b"}'
    assert read(JSON, '```json\n{"name": "weather", "parameters": {"city": "Bonn"}}\n```').tool_calls == (CALL,)
    for code in (
        "weather('Bonn')",
        "weather(city=open('x'))",
        "x = 1",
        "weather(**a)",
        "weather(",
        "f(a=1e999)",
        "f(a='\\ud800')",
        "f(a={1, 2})",
        "f(a=" + "[" * 300,
    ):
        text = f"```tool_code\n{code}\n```"
        assert read(PYTHON, text) == Answer(text)


def test_thinking_without_tools_is_read() -> None:
    assert read(THINK, "<think>\nHm.\n</think>\n\n5") == Answer("5", "Hm.")
    assert read(THINK, "Hm.\n</think>\n\n5", "<|Assistant|><think>\n", tools=(WEATHER, CLOCK)) == Answer("5", "Hm.")
    assert read_parts(THINK, ["<think>", "\n\n"]) == []
