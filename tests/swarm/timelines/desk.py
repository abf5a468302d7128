"""An agent and a model at one tree, for tests: calls are planned, sampled, read back into messages and kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.answers import gathered
from swarm.backends.protocols import Renderer
from swarm.timelines import Drift, Node, Tree
from tests.swarm.timelines.families import Call, Family

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass
class Served:
    """One call as the engine saw it, and the message that was served."""

    node: Node
    prompt: tuple[int, ...]
    message: dict[str, Any]

    @property
    def results(self) -> list[dict[str, Any]]:
        """A tool message for each call of a tool."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": f"{call['function']['name']} says {n}"}
            for n, call in enumerate(self.message["tool_calls"])
        ]


@dataclass
class Desk:
    """Serves one episode with a family's renderer. Each sampled token has its own log-prob, so it can be named."""

    family: Family
    renderer: Renderer
    tools: Sequence[Mapping[str, Any]] = ()
    calls: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = Tree(self.renderer)
        self._names = itertools.count(1)
        self._ids = itertools.count(1)

    def serve(
        self,
        messages: Sequence[Mapping[str, Any]],
        content: str = "",
        reasoning: str = "",
        calls: Sequence[Call] = (),
        *,
        keep: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        ids: Sequence[int] | None = None,
    ) -> Served:
        """Serve one call whose engine samples this answer (`keep`: only its first tokens; `ids`: these instead)."""
        told = self.tools if tools is None else tools
        plan = self.tree.plan(messages, told)
        sampled = list(ids or self.renderer.encode(self.family.write(content, reasoning, calls)))[:keep]
        answers = self.renderer.answers
        stop = sampled[-1] in self.renderer.stop_ids
        text = self.renderer.decode(sampled[:-1] if stop else sampled, special=answers.special)
        reader = answers.reader(plan.prompt_text, told)
        answer = gathered([*reader.feed(text), *reader.finish()])
        named = [
            {
                "id": f"call_{next(self._ids)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
        message = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if named:
            message["tool_calls"] = named  # type: ignore[assignment]
        logprobs = [-float(next(self._names)) for _ in sampled]
        node = self.tree.add(plan, sampled, logprobs, [len(self.calls)] * len(sampled), text=text, answer=message)
        served = Served(node, plan.prompt_ids, message)
        self.calls.append(served)
        return served

    @property
    def drift(self) -> list[Drift]:
        """The drift of each call."""
        return [served.node.drift for served in self.calls]
