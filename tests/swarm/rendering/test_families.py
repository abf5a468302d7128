"""Each family is known by its template's marks, and what its models write is read back, broken and cut answers too."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.rendering.messages import Answer, AnswerFormat, Message, ToolCall, assemble_answer
from swarm.rendering.reading import MAX_UNTERMINATED
from swarm.rendering.renderer import detect
from swarm.rendering.tagged import HermesFormat
from tests.swarm.rendering.support import (
    CALL,
    GLM,
    HARMONY,
    HERMES,
    JSON,
    LLAMA3,
    MISTRAL,
    PYTHON,
    THINK,
    TOOLS,
    XML,
    read,
)
from tests.swarm.timelines.families import FAMILIES, Family

NOW = ToolCall("clock", "{}")
HERMES_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
HERMES_NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
OPENED_THOUGHT = "<|im_start|>assistant\n<think>\n"
UNTERMINATED = '<tool_call>{"name": "weather", "arguments": {"city": "' + "</tool_call>" * (MAX_UNTERMINATED + 5)
"""A mark that is repeated for ever inside a string."""

ONE, OTHER = '{"name": "weather", "parameters": {"city": "Bonn"}}', '{"name": "clock", "parameters": {}}'
MARK = '{"city": "[TOOL_CALLS]"}'
CUT = '[TOOL_CALLS]clock[ARGS]{"a'
START = "<|start|>assistant"
OPENED = "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>"
SPOKEN = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Bonn"}'
)


@pytest.mark.parametrize(
    ("answers", "prompt", "text", "expected"),
    [
        (HERMES, "", f"<think>\nHm.\n\nYes.\n</think>\n\nLet me see.\n{HERMES_CALL}\n{HERMES_NOW}",
         Answer("Let me see.", "Hm.\n\nYes.", (CALL, NOW))),
        (HERMES, OPENED_THOUGHT, "Hm.\n</think>\n\n5", Answer("5", "Hm.")),
        (HERMES, f"{OPENED_THOUGHT}\n</think>\n\n", "5", Answer("5")),
        (HERMES, "", "<think>\nHm, if </thi", Answer("", "Hm, if </thi")),
        *((HERMES, "", text, Answer(text)) for text in (
            'See.\n<tool_call>\n{"name": "wea', UNTERMINATED, f'{UNTERMINATED}"}}}}</tool_call>',
        )),
        (HERMES, "", f"See.\n\n{HERMES_CALL}", Answer("See.\n", "", (CALL,))),
        *((HERMES, "", f'<tool_call>{{"arguments": {own}, "name": "f"}}</tool_call>',
           Answer("", "", (ToolCall("f", own),))) for own in ('{"a": "a </tool_call> and a <tool_call>\\""}',
                      '{"b":1.0,  "a": "\\u00e9\\ud83d\\ude00", "a": [true , null]}')),
        *((HERMES, "", f"<tool_call>{body}</tool_call>\n{HERMES_CALL}",
           Answer(f"<tool_call>{body}</tool_call>", "", (CALL,))) for body in (
            "{}", "[]", "5", "", "weather", '{"name": "weather"}', '{"name": "", "arguments": {}}',
            '{"name": 5, "arguments": {}}', '{"name": "weather", "arguments": "x"}',
            '{"name": "weather", "arguments": {},}', '{"name": "weather", "arguments": {"a": NaN}}',
            '{"name": "weather", "arguments": {"a": "line\nbreak"}}', '{"name": "\\ud800", "arguments": {}}',
            '{"name": "weather", "arguments": {"a": ["\\ud83d"]}}',
            '{"name": "weather", "arguments": {}} and more', "[" * 5000,
        )),
        (HermesFormat(thinks=False), "", "<think>5</think>", Answer("<think>5</think>")),
        (LLAMA3, "", ONE, Answer("", "", (CALL,))),
        (LLAMA3, "", f"<|python_tag|>{ONE}; {OTHER}", Answer("", "", (CALL, NOW))),
        (LLAMA3, "", f'{{"type": "function", {ONE[1:]}', Answer("", "", (CALL,))),
        *((LLAMA3, "", text, Answer(text)) for text in (f"{ONE} is my answer", f"See: {ONE}", ONE[:-1])),
        *((MISTRAL, "", before + text, Answer(said, thought, (CALL, NOW)))
          for before, said, thought in (("", "", ""), (" See.", "See.", ""), ("[THINK]Hm.[/THINK]", "", "Hm."))
          for text in (
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bonn"}}, {"name": "clock", "arguments": {}}]',
            '[TOOL_CALLS]weather[ARGS]{"city": "Bonn"}[TOOL_CALLS]clock[ARGS]{}',
            '[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"city": "Bonn"}[TOOL_CALLS]clock[CALL_ID]d[ARGS]{}',
          )),
        (MISTRAL, "", f'[TOOL_CALLS]weather[ARGS]{{"city": "Bonn"}}{CUT}', Answer(CUT, "", (CALL,))),
        (MISTRAL, "", '[TOOL_CALLS][{"name": "clock"', Answer('[TOOL_CALLS][{"name": "clock"')),
        (MISTRAL, "", f"[TOOL_CALLS]weather[ARGS]{MARK}", Answer("", "", (ToolCall("weather", MARK),))),
        (MISTRAL, "", f'[TOOL_CALLS][{{"name": "weather", "arguments": {MARK}}}]',
         Answer("", "", (ToolCall("weather", MARK),))),
        *((GLM, "", f"<tool_call>{body}</tool_call>", Answer(f"<tool_call>{body}</tool_call>")) for body in (
            "", "  ", "weather stray", "weather<arg_key>a</arg_key>", "weather<arg_value>2</arg_value>",
        )),
        *((GLM, "", f"<tool_call>other<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>",
           Answer("", "", (ToolCall("other", f'{{"a": {as_json}}}'),))) for value, as_json in (  # of no known type
            ("[1,2]", "[1,2]"), ("null", "null"), ('"x"', '"\\"x\\""'), ("words", '"words"'), ("NaN", '"NaN"'),
            ("1, 2", '"1, 2"'), (" 5 ", "5"), ('["\\ud800"]', '"[\\"\\\\ud800\\"]"'),
        )),
        (GLM, "", "\nHello", Answer("Hello")),
        (GLM, "", "\n<think></think>\nHello", Answer("Hello")),
        *((HARMONY, START, SPOKEN + end, Answer("Let me see.", "Hm.", (CALL,))) for end in ("<|call|>", "")),
        (HARMONY, START, "<|channel|>final<|message|>5<|return|>", Answer("5")),
        (HARMONY, START, ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Bonn"}',
         Answer("", "", (CALL,))),
        (HARMONY, f"{OPENED}analysis<|message|>", "Hm.<|end|>", Answer("", "Hm.")),
        (HARMONY, f"{OPENED}final<|message|>", "5", Answer("5")),
        *((HARMONY, START, text, Answer(text)) for text in (
            '<|channel|>commentary to=functions.weather<|message|>{"city": "Bo',
            "<|channel|>commentary to=python<|message|>print(1)", "<|channel|>fin", "<|channel|>" + "x" * 400,
        )),
        (PYTHON, "", 'See.\n```tool_code\nweather(city="Bonn")\n```', Answer("See.", "", (CALL,))),
        (PYTHON, "", '```tool_code\n[weather(city="Bonn"), clock()]\n```', Answer("", "", (CALL, NOW))),
        (PYTHON, "", '```tool_code\nweather(city="a ``` b")\n```',
         Answer("", "", (ToolCall("weather", '{"city": "a ``` b"}'),))),
        (JSON, "", '```json\n{"name": "weather", "parameters": {"city": "Bonn"}}\n```', Answer("", "", (CALL,))),
        *((PYTHON, "", text, Answer(text)) for text in map("```tool_code\n{}\n```".format, (
            "weather('Bonn')", "weather(city=open('x'))", "x = 1", "weather(**a)", "weather(", "f(a=1e999)",
            "f(a='\\ud800')", "f(a={1, 2})", "f(a=" + "[" * 300,
        ))),
        (THINK, "", "<think>\nHm.\n</think>\n\n5", Answer("5", "Hm.")),
        (THINK, "<|Assistant|><think>\n", "Hm.\n</think>\n\n5", Answer("5", "Hm.")),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_calls_thinking_and_what_is_broken_or_cut_are_read_as_the_family_writes_them(
    answers: AnswerFormat, prompt: str, text: str, expected: Answer
) -> None:
    assert read(answers, text, prompt) == expected


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
    [(text, json.dumps(text, ensure_ascii=False)) for text in ("Bonn", "5", "true", '"q"', "</tool_call>", "é")],
)
def test_values_without_quotes_are_read_by_schema(answers: AnswerFormat, call: str, city: str, as_json: str) -> None:
    found = read(answers, f"\n<think>Hm.</think>\nSee.\n{call.format(city)}")
    assert found == Answer("See.", "Hm.", (ToolCall("weather", f'{{"city": {as_json}, "days": 2}}'),))


words = st.text('abc .,5\n<{"é', max_size=12).map(str.strip).filter(lambda text: not text.startswith("{"))
arguments = st.fixed_dictionaries({"city": words}, optional={"days": st.integers()})
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", "plain"),
        ("{% if '</think>' in content %}", "think"),
        ("<tool_call>\\n<function={{ name }}>", "qwen-xml"),
        ("<start_of_turn>```tool_code", "fenced"),
        ("<start_of_turn>```json", "fenced"),
        ("write ```json", "plain"),
        ("<|start_header_id|>{{ role }}<|end_header_id|>", "plain"),
        ("[INST]{{ content }}[/INST]", "plain"),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}[THINK]", "mistral"),
    ],
)
def test_marks_decide_and_nothing_else(template: str, name: str) -> None:
    assert detect(template).name == name


def _message(answer: Answer) -> Message:
    """Return an answer as an agent sends it back and a template takes it."""
    calls = [
        {"id": f"{n:09d}", "type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for n, call in enumerate(answer.tool_calls)
    ]
    told = {"content": answer.content, "reasoning_content": answer.reasoning, "tool_calls": calls}
    return {"role": "assistant", "content": "", **{name: value for name, value in told.items() if value}}


@families
@given(words, words, st.lists(arguments, max_size=2))
def test_what_a_familys_model_writes_is_read_back_and_rendered_as_it_was(
    family: Family, said: str, thought: str, given_arguments: list[Mapping[str, Any]]
) -> None:
    answers = detect(family.template)
    forced = answers.name != "plain"
    calls = [("weather", given) for given in given_arguments[: None if family.parallel else 1]] if forced else []
    thought = (thought or "Hm") if family.thinks else ""
    said = "" if calls and family.name in ("llama3", "mistral") else said  # these write either
    renderer = family.renderer()
    ids = renderer.encode(family.write(said, thought, calls))
    assert ids[-1] in renderer.stop_ids
    sampled = renderer.decode(ids[:-1], special=answers.special)
    asked: Message = {"role": "user", "content": "hi"}
    prompt = renderer.render([asked], tools=TOOLS if forced else (), generation_prompt=True)
    reader = answers.reader(prompt, TOOLS)
    read = assemble_answer([*reader.feed(sampled), *reader.finish()])
    assert [(call.name, json.loads(call.arguments)) for call in read.tool_calls] == calls
    assert read.content == said
    assert read.reasoning == thought
    answered = renderer.render([asked, _message(read)], tools=TOOLS if forced else (), generation_prompt=False)
    assert answered.startswith(prompt + sampled)
