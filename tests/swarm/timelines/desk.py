"""An agent and a model at one tree, for tests: calls are planned, sampled, read back into messages and kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.rendering.messages import Renderer, assemble_answer
from swarm.timelines import CallTree, Drift, Node, Prompt
from tests.swarm.timelines.families import Call, Family

Tools = Sequence[Mapping[str, Any]]


def function(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": f"Tell the {name}.", "parameters": schema}}


WEATHER = function("weather", city="string", days="integer")
CLOCK = function("clock")


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass
class Served:
    """One call: its node, what the engine was shown, and the message that was served."""

    node: Node
    prompt: tuple[int, ...]
    message: dict[str, Any]

    @property
    def results(self) -> list[dict[str, Any]]:
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": f"{call['function']['name']} says {n}"}
            for n, call in enumerate(self.message.get("tool_calls", ()))
        ]


@dataclass
class Desk:
    """Serves one episode with a family's renderer. Each sampled token has its own log-prob, so it can be named."""

    family: Family
    renderer: Renderer
    tools: Tools = ()
    names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    calls: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = CallTree(self.renderer)
        self._call_ids = itertools.count(1)

    def serve(
        self,
        messages: Sequence[Mapping[str, Any]],
        content: str = "",
        reasoning: str = "",
        calls: Sequence[Call] = (),
        *,
        keep: int | None = None,
        tools: Tools | None = None,
    ) -> Served:
        told = self.tools if tools is None else tools
        plan = self.tree.prompt(messages, told)
        return self.answer(plan, self.sampled(plan, content, reasoning, calls)[:keep], told)

    def sampled(self, plan: Prompt, content: str, reasoning: str = "", calls: Sequence[Call] = ()) -> list[int]:
        written = self.family.write(content, reasoning, calls)
        opening, whole = (self.renderer.encode(plan.prompt_text + text) for text in ("", written))
        return whole[len(opening) :] if whole[: len(opening)] == opening else self.renderer.encode(written)

    def answer(self, plan: Prompt, sampled: Sequence[int], tools: Tools = ()) -> Served:
        text, message = self._read(plan, sampled, tools)
        logprobs = [-float(next(self.names)) for _ in sampled]
        node = self.tree.make_node(plan, sampled, logprobs, [len(self.calls)] * len(sampled), text=text)
        self.tree.keep(plan, node, message)
        self.calls.append(Served(node, tuple(plan.prompt_ids), message))
        return self.calls[-1]

    def _read(self, plan: Prompt, sampled: Sequence[int], tools: Tools) -> tuple[str, dict[str, Any]]:
        answers = self.renderer.answers
        ended = bool(sampled) and sampled[-1] in self.renderer.stop_ids
        text = self.renderer.decode(sampled[:-1] if ended else sampled, special=answers.special)
        reader = answers.reader(plan.prompt_text, tools)
        answer = assemble_answer([*reader.feed(text), *reader.finish()])
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
            message["tool_calls"] = [
                {"id": f"call_{next(self._call_ids)}", "type": "function", "function": named} for named in functions
            ]
        return text, message

    @property
    def drift(self) -> list[Drift]:
        return [served.node.drift for served in self.calls]
