"""What a chat template writes around an answer, found out by rendering short conversations with it.

The conversations have a probe word in them. Which special tokens the template writes after an answer, and whether it
takes calls and their ids as they come, is read from the rendered text; nothing depends on a model's name. Promises
nothing about templates that look at the words themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from swarm.backends.protocols import BackendError, Message, Tool

Render = Callable[[Sequence[Message], Sequence[Tool], bool], str]
Encode = Callable[[str], Sequence[int]]

_PROBE = "probe"
SHORT_ID = 9
"""Characters of the only tool-call ids that some templates (Mistral's) take."""
_USER: Message = {"role": "user", "content": "hi"}
_SAID: Message = {"role": "assistant", "content": _PROBE}
_TOOL: Tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


def closing_id(render: Render, encode: Encode, special: Collection[int]) -> int:
    """Return the id that follows an answer when the conversation goes on: its end mark, or the next role's opening.

    Raises BackendError if the template writes no special token there.
    """
    after = render([_USER, _SAID, _USER], (), True).rpartition(_PROBE)[2]
    found = next((token for token in encode(after) if token in special), None)
    if found is None:
        raise BackendError(
            f"expected the chat template to follow an assistant message with a special token, found {after!r}: "
            "mend the template"
        )
    return found


def end_ids(render: Render, encode: Encode, special: Collection[int]) -> Iterator[int]:
    """Yield the ids a model of this template ends its answers with: to words, then to a call of a tool.

    Where the template writes nothing after an answer, models end it by opening the next role.
    """
    for answer, result in ((_SAID, _USER), (_called(), _RESULT)):
        try:
            last = render([_USER, answer], (_TOOL,), False)
            going_on = render([_USER, answer, result], (_TOOL,), True)
        except BackendError:  # the template knows no tools
            continue
        if _PROBE not in last:
            continue
        written = [token for token in encode(last.rpartition(_PROBE)[2]) if token in special]
        if not written:
            behind = going_on[len(last) :] if going_on.startswith(last) else ""
            written = [token for token in encode(behind) if token in special][:1]
        yield from written[-1:]


def takes_call_ids(render: Render) -> bool:
    """Tell whether the template takes tool-call ids of any length (or knows no calls at all)."""
    try:
        render([_USER, _called(), _RESULT], (_TOOL,), True)
    except BackendError:
        return True
    named = "call_of_some_length"
    try:
        render([_USER, _called(named), {**_RESULT, "tool_call_id": named}], (_TOOL,), True)
    except BackendError:
        return False
    return True


def _called(named: str = "0" * SHORT_ID) -> dict[str, Any]:
    function: Mapping[str, Any] = {"name": "f", "arguments": {"x": _PROBE}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": named, "type": "function", "function": function}]}


_RESULT: Message = {"role": "tool", "content": "ok", "name": "f", "tool_call_id": "0" * SHORT_ID}
