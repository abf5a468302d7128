"""Tools for the fake model: how it writes them, and a script that calls them.

It writes as Hermes models do, so that `swarm.answers.families.hermes` reads it back; a history only ever grows.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.grammar.schemas import parameters, properties
from swarm.backends.protocols import BackendError, Message, Tool

_TOOLS = "<|tools|>"
_role = re.compile(r"<\|(\w+)\|>")
_DEEPEST = 8
"""Levels of a schema below which an example stays empty."""


def written_tools(tools: Sequence[Tool]) -> str:
    """Return the text that shows a prompt's tools."""
    return _TOOLS + json.dumps(list(tools), ensure_ascii=False)


def written(message: Message) -> str:
    """Return a message's text: thinking, words and calls; raise BackendError for content that is no text."""
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str):
        return content
    calls = message.get("tool_calls") or ()
    thought = message.get("reasoning_content")
    if content is None and (calls or thought):
        content = ""
    if not isinstance(content, str):
        raise BackendError(f"expected text content, found {type(content).__name__}")
    text = f"<think>\n{thought}\n</think>\n\n{content}" if thought else content
    for number, call in enumerate(calls):
        text += ("\n" if content or number else "") + _call(call["function"])
    return text


def _call(function: Mapping[str, Any]) -> str:
    given = function["arguments"]
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


def tool_script(prompt: str, rng: random.Random) -> str:
    """Call the prompt's first tool with arguments of its schema; once it has answered, say what it answered."""
    roles = _role.findall(prompt)
    if roles[-2:-1] == ["tool"]:
        answered = prompt.rpartition("<|tool|>")[2].rpartition("<|assistant|>")[0].strip()
        return f"The tool answered: {answered}"
    if not prompt.startswith(_TOOLS):
        return "There is no tool to call."
    tools = json.JSONDecoder().raw_decode(prompt, len(_TOOLS))[0]
    name, schema = next(iter(parameters(tools).items()))
    return _call({"name": name, "arguments": example(schema, rng)})


def example(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """Return a value of a JSON schema of the kinds that tools use."""
    return _example(schema, schema, rng, _DEEPEST)


def _example(schema: Mapping[str, Any], root: Mapping[str, Any], rng: random.Random, depth: int) -> Any:
    if "$ref" in schema and depth:
        kept = root.get("$defs", root.get("definitions", {}))
        return _example(kept[schema["$ref"].rpartition("/")[2]], root, rng, depth - 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return _example(branches[0], root, rng, depth)
    kind = schema.get("type", "object")
    if kind == "object":
        fields = properties(schema) if depth else {}
        return {name: _example(field, root, rng, depth - 1) for name, field in fields.items()}
    if kind == "array":
        return [_example(schema.get("items", {"type": "string"}), root, rng, depth - 1)] if depth else []
    return _scalar(kind[0] if isinstance(kind, list) else kind, schema, rng)


def _scalar(kind: str, schema: Mapping[str, Any], rng: random.Random) -> Any:
    if kind in ("integer", "number"):
        least = int(schema.get("minimum", 1))
        return rng.randint(least, max(least, int(schema.get("maximum", least + 8))))
    return {"boolean": True, "null": None}.get(kind, "Bonn")
