"""Where a template's text goes on after a served answer.

The template is the only authority on what it writes: three renderings (what was asked, with its answer, with what
came after) tell how it writes the answer in a history, and what follows. Nothing is assumed about roles or marks but
that special tokens end an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.backends.protocols import Message, Renderer, Tool


@dataclass(frozen=True, slots=True)
class Joint:
    """A template's text, cut at the end of a served answer.

    answer: as the template writes it in a history, without its end mark. rest: all that follows, from the end mark
    on (where the template writes one) through the opening of the next answer. marked: it does write one.
    """

    answer: str
    rest: str
    marked: bool


def joint(
    renderer: Renderer, known: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], ends: Sequence[str]
) -> Joint | None:
    """Return where `known`, whose last message is a served answer, goes on with `new`.

    None where the template does not render the answer behind what was asked, changes `known` because of what
    follows, or leaves out something the answer says. `ends` are the texts that may end an answer.
    """
    asked = renderer.render(known[:-1], tools=tools, generation_prompt=True)
    answered = renderer.render(known, tools=tools, generation_prompt=False)
    going_on = renderer.render([*known, *new], tools=tools, generation_prompt=True)
    body, marked = without_mark(answered, ends)
    if not (body.startswith(asked) and going_on.startswith(body)):
        return None
    answer = body[len(asked) :]
    if not _says(answer, known[-1]):
        return None
    return Joint(answer, going_on[len(body) :], marked)


def without_mark(text: str, ends: Sequence[str]) -> tuple[str, bool]:
    """Return a rendering up to its last answer's end mark, and whether it has one."""
    bare = text.rstrip()
    mark = next((end for end in ends if bare.endswith(end)), None)
    return (text, False) if mark is None else (bare[: -len(mark)], True)


def _says(text: str, answer: Message) -> bool:
    """Tell whether `text` holds the words, the thinking and the tools of an answer, whatever its spaces."""
    squeezed = _without_spaces(text)
    said: list[Any] = [answer.get("content"), answer.get("reasoning_content")]
    said += [_name(call) for call in answer.get("tool_calls", ())]
    return all(_without_spaces(part) in squeezed for part in said if isinstance(part, str))


def _name(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _without_spaces(text: str) -> str:
    return "".join(text.split())
