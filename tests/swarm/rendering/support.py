"""One of each format, and short ways to read an answer whole or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swarm.rendering.json_formats import FencedFormat, HarmonyFormat, Llama3Format, MistralFormat
from swarm.rendering.messages import Answer, AnswerFormat, Piece, Thinking, ToolCall, assemble_answer
from swarm.rendering.reading import join_pieces
from swarm.rendering.tagged import GlmFormat, HermesFormat, TaggedFormat, qwen_calls


def tool(name: str, properties: Mapping[str, Any], required: Sequence[str] = ()) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


WEATHER = tool("weather", {"city": {"type": "string"}, "days": {"type": "integer"}}, ["city"])
CLOCK = tool("clock", {})
TOOLS = (WEATHER, CLOCK)

HERMES = HermesFormat(thinks=True)
LLAMA3 = Llama3Format()
MISTRAL = MistralFormat(thinks=True, lists=False)
GLM = GlmFormat()
XML = TaggedFormat("qwen-xml", Thinking(), qwen_calls)
HARMONY = HarmonyFormat()
PYTHON = FencedFormat("tool_code")
JSON = FencedFormat("json")
THINK = TaggedFormat("think", Thinking())
FORMATS: tuple[AnswerFormat, ...] = (AnswerFormat(), HERMES, LLAMA3, MISTRAL, GLM, XML, HARMONY, PYTHON, JSON, THINK)


def read_parts(
    answers: AnswerFormat, parts: Iterable[str], prompt: str = "", tools: Sequence[Mapping[str, Any]] = TOOLS
) -> list[Piece]:
    reader = answers.reader(prompt, tools)
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return list(join_pieces([*pieces, *reader.finish()]))


def read(answers: AnswerFormat, text: str, prompt: str = "", tools: Sequence[Mapping[str, Any]] = TOOLS) -> Answer:
    return assemble_answer(read_parts(answers, [text], prompt, tools))


CALL = ToolCall("weather", '{"city": "Bonn"}')
