"""Detection by a template's marks, and reading back what each family's models write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.rendering.messages import Answer, Message, assemble_answer
from swarm.rendering.renderer import detect
from tests.swarm.rendering.support import TOOLS
from tests.swarm.timelines.families import FAMILIES, Family

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
