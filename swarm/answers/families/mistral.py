"""The Mistral formats: `[TOOL_CALLS]` before a JSON list of calls (to v7), or before each call as `name[ARGS]{...}`.

A call has no closing mark: it ends where the next one begins or the answer does. So does a list of whole calls, whether
its bracket is closed or was cut. `[CALL_ID]`, which some versions write between name and arguments, is chosen by the
client here and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.families.tagged import Calls, TaggedFormat
from swarm.answers.grammar.answer import Thinking, ToolCall
from swarm.answers.grammar.lark import grammar, json_calls, json_of, literal
from swarm.answers.grammar.objects import call_of, listed, members
from swarm.answers.grammar.schemas import parameters

_ARGUMENTS = "[ARGS]"


class _MistralCalls:
    open = "[TOOL_CALLS]"
    close = ""
    blank = ""

    def read(self, body: str) -> Sequence[ToolCall] | None:
        inner = body.strip()
        return _old(inner) if inner.startswith(("[", "{")) else _new(inner)


def _old(body: str) -> Sequence[ToolCall] | None:
    if not body.startswith("["):
        return None
    texts = listed(body[1:-1] if body.endswith("]") else body[1:])
    calls = [call_of(text) for text in texts or ()]
    found = [call for call in calls if call is not None]
    return found if len(found) == len(calls) else None


def _new(body: str) -> Sequence[ToolCall] | None:
    head, mark, arguments = body.partition(_ARGUMENTS)
    name = head.partition("[CALL_ID]")[0].strip()
    given = arguments.strip()
    if not name or not mark or members(given) is None:
        return None
    return [ToolCall(name, given)]


class MistralFormat(TaggedFormat):
    """Implements `AnswerFormat`; the template puts a space before words.

    It `thinks` where it knows `[THINK]`, and writes calls as one list (`lists`) where it does not know `[ARGS]`.
    """

    name = "mistral"

    def __init__(self, *, thinks: bool, lists: bool) -> None:
        super().__init__(Thinking("[THINK]", "[/THINK]") if thinks else None, leading=" ")
        self._lists = lists

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        """Return how calls are written."""
        return _MistralCalls()

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return the grammar of one call, in the version the template writes."""
        choice, rules = self._listed(tools) if self._lists else self._named(tools)
        rules["open"] = literal(_MistralCalls.open)
        return grammar(f"open ({choice})", rules, self.thinking(prompt))

    def _listed(self, tools: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
        return json_calls(tools, '[{"name": "', '", "arguments": ', "}]")

    def _named(self, tools: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
        rules = {"arguments": literal(_ARGUMENTS)}
        for number, (name, schema) in enumerate(parameters(tools).items()):
            rules[f"call_{number}"] = f"{literal(name)} arguments args_{number}"
            rules[f"args_{number}"] = json_of(schema)
        return " | ".join(name for name in rules if name.startswith("call_")), rules
