"""Side by side with the package `renderers`, which reads the same formats.

It reads ids of a whole answer, after the fact; here the same text is read as it streams.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.rendering.messages import Answer, AnswerFormat
from tests.swarm.rendering.support import GLM, HARMONY, HERMES, LLAMA3, TOOLS, XML, read

MARKS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|channel|>", "<|message|>", "<|constrain|>",
]  # fmt: skip
Parse = Callable[[str], Any]


@functools.cache
def parsers() -> dict[str, Parse]:
    """Return how `renderers` reads each format; what it needs is loaded by the first test."""
    from renderers import parsing  # type: ignore[import-untyped]
    from tokenizers import AddedToken

    from tests.swarm.backends.local.models import make_tokenizer

    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in MARKS], special_tokens=True)

    def parser(parse: Callable[..., Any], start: str = "", /, **named: Any) -> Parse:
        """Give a parser ids: `x="<mark>"` as `x_id`; anything else as it is."""
        ids = {
            f"{name}_id" if isinstance(value, str) else name: (
                int(tokenizer.convert_tokens_to_ids(value)) if isinstance(value, str) else value
            )
            for name, value in named.items()
        }
        return lambda text: parse(tokenizer, tokenizer.encode(start + text), **ids)

    stops: dict[str, Any] = {"stop_ids": {int(tokenizer.eos_token_id)}}
    think = {"think": "<think>", "think_end": "</think>"}
    call = {"tool_call": "<tool_call>", "tool_call_end": "</tool_call>"}
    arguments = {
        f"arg_{part}{end}": f"<{'/' * bool(end)}arg_{part}>" for part in ("key", "value") for end in ("", "_end")
    }
    headers = {name: f"<|{name}|>" for name in ("return", "call", "start", "end", "channel", "message", "constrain")}
    tools = {"tools": list(TOOLS)}
    return {
        "hermes": parser(parsing.parse_qwen3, reasoning_end="</think>", **stops, **call),
        "qwen-xml": parser(parsing.parse_qwen35, **stops, **tools, **think, **call),
        "glm": parser(parsing.parse_glm, **stops, **tools, **think, **call, **arguments),
        "llama3": parser(parsing.parse_llama_3, **stops),
        "harmony": parser(parsing.parse_gpt_oss, "<|start|>assistant", **headers),
    }


Given = Mapping[str, Any]


def _pairs(given: Given, pair: str) -> str:
    return "".join(pair.format(key, value) for key, value in given.items())


WRITE: dict[str, Callable[[Given], str]] = {
    "hermes": lambda given: f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(given)}}}\n</tool_call>',
    "qwen-xml": lambda given: (
        "<tool_call>\n<function=weather>\n"
        + _pairs(given, "<parameter={}>\n{}\n</parameter>\n")
        + "</function>\n</tool_call>"
    ),
    "glm": lambda given: (
        "<tool_call>weather\n" + _pairs(given, "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n") + "</tool_call>"
    ),
    "llama3": lambda given: f'{{"name": "weather", "parameters": {json.dumps(given)}}}',
    "harmony": lambda given: (
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json"
        f"<|message|>{json.dumps(given)}<|call|>"
    ),
}
words = st.text("abc .,5\n{}", max_size=10).map(str.strip).filter(lambda text: not text.startswith("{"))
arguments = st.fixed_dictionaries({"city": words.filter(bool)}, optional={"days": st.integers(-5, 10**6)})


def written(answers: AnswerFormat, said: str, thought: str, calls: list[Given]) -> str:
    made = [WRITE[answers.name](given) for given in calls]
    if answers is HARMONY:
        parts = [f"analysis<|message|>{thought}<|end|>"] * bool(thought) + [f"final<|message|>{said}<|end|>"]
        return "<|start|>assistant".join(f"<|channel|>{part}" for part in parts) + "".join(made)
    if answers is LLAMA3:
        return made[0] if made else said
    return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + "\n".join([*([said] * bool(said)), *made])


def theirs(answers: AnswerFormat, text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    from renderers.base import ToolCallParseStatus  # type: ignore[import-untyped]

    parsed = parsers()[answers.name](text)
    calls = [(call.name, call.arguments) for call in parsed.tool_calls if call.status is ToolCallParseStatus.OK]
    return parsed.content.strip(), (parsed.reasoning_content or "").strip(), calls


def ours(answer: Answer) -> tuple[str, str, list[tuple[str, Any]]]:
    calls = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
    return answer.content.strip(), answer.reasoning.strip(), calls


formats = pytest.mark.parametrize("answers", [HERMES, XML, GLM, LLAMA3, HARMONY], ids=lambda answers: answers.name)


@formats
@given(words, words, st.lists(arguments, max_size=3))
def test_answers_are_read_as_by_renderers(answers: AnswerFormat, said: str, thought: str, calls: list[Given]) -> None:
    text = written(answers, said, thought, calls)
    assert ours(read(answers, text, "<|start|>assistant")) == theirs(answers, text)


@formats
@given(words, words, st.lists(arguments, min_size=1, max_size=2), st.integers(0, 400))
def test_cut_answers_have_the_calls_that_renderers_finds(
    answers: AnswerFormat, said: str, thought: str, calls: list[Given], place: int
) -> None:
    """Harmony's end of a call is a stop id, which is no part of the text: only whole calls can be compared there."""
    text = written(answers, said, thought, calls)[:place]
    if answers is HARMONY and not text.endswith("<|call|>"):
        text = text[: text.rfind("<|call|>") + 8] if "<|call|>" in text else ""
    assert ours(read(answers, text, "<|start|>assistant"))[2] == theirs(answers, text)[2]
