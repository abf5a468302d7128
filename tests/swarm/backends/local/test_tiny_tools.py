"""The tiny model's template shows tools and calls, reads them back, and says without them what it always said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template

from swarm.answers import ToolCall, gathered
from swarm.backends.rendering.renderer import HFRenderer
from swarm.backends.tiny.tokenizer import build_tokenizer
from swarm.timelines import CallTree, Drift

ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {}}}},
}
FIRST = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of version 0.1.0, which knew no tools."""
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()}),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def renderer() -> HFRenderer:
    return HFRenderer(build_tokenizer(["above 4 below 15", "pass"], 2048))


def test_without_tools_it_says_what_it_always_said(renderer: HFRenderer) -> None:
    @given(MESSAGES, st.booleans())
    def check(messages: list[dict[str, str]], opened: bool) -> None:
        before = Template(FIRST).render(messages=messages, add_generation_prompt=opened)
        assert renderer.render(messages, generation_prompt=opened) == before

    check()


def test_tools_are_shown_behind_the_system_prompt(renderer: HFRenderer) -> None:
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    shown = renderer.render([system, user], tools=[ADD], generation_prompt=True)
    assert shown.startswith("<|im_start|>system\nbe brief\n<tools>\n")
    assert json.dumps(ADD["function"]) in shown
    assert shown.count("<|im_start|>") == 3
    alone = renderer.render([user], tools=[ADD], generation_prompt=True)
    assert alone.startswith("<|im_start|>system\n<tools>\n")
    assert len(renderer.encode(alone)) < 250  # words it does not know are bytes, and its context is short


@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": "é\\"<x>\\n"}', "{}"])
@pytest.mark.parametrize("words", ["", "let me see"])
def test_a_conversation_with_calls_comes_back_as_it_was_served(
    renderer: HFRenderer, arguments: str, words: str
) -> None:
    tree, reader = CallTree(renderer), renderer.answers.reader("", [ADD])
    history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        prompt = tree.prompt(history, [ADD])
        call = f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'
        text = f"{words}\n{call}" if words else call
        reader = renderer.answers.reader(prompt.prompt_text, [ADD])
        read = gathered([*reader.feed(text), *reader.finish()])
        assert (read.content, read.tool_calls) == (words, (ToolCall("add", arguments),))
        sampled = [*renderer.encode(text), renderer.eos_id]
        function = {"name": "add", "arguments": arguments}
        calls = [{"id": "c", "type": "function", "function": function}]
        said = {"role": "assistant", "content": words, "tool_calls": calls}
        tree.add(prompt, sampled, [0.0] * len(sampled), [0] * len(sampled), text=text, answer=said)
        history += [said, {"role": "tool", "tool_call_id": "c", "content": "5"}]
    assert (tree.drift[Drift.START], tree.drift[Drift.CLEAN]) == (1, 2)
    assert len(tree.nodes[-1].path()) == 3
