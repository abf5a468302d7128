"""Message, Tool, Renderer protocol, Reader, AnswerFormat, BackendError.

A format reads the text of an answer (never ids) and gives it back in pieces, the same however it is cut into feeds; a
tool call comes whole or not at all; what only looks like a tool call stays in the words: nothing sampled is hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Words:
    """More of what is said to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what is thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool; `arguments` is the text the model wrote for them: a JSON object."""

    name: str
    arguments: str


Piece = Words | Reasoning | ToolCall


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `content` and `reasoning` are the joined pieces."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around thinking."""

    open: str = "<think>"
    close: str = "</think>"


class Reader:
    """Reads one answer as it comes; this one takes all of it as words."""

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; return the pieces that are certain now."""
        return (Words(text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        """Return what was held back: the answer is over, whole or cut."""
        return ()


class AnswerFormat:
    """How one family writes its answers; this one knows neither thinking nor tools, others say what they have."""

    name = "plain"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return whether its marks, with these tools, may be special: ids (not the stop id) are decoded with them."""
        return False

    def thinking(self, prompt: str) -> Thinking | None:
        """Return the marks of the thought that `prompt` opened and the answer goes on with, None if it did not."""
        return None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`, whose end tells of opened thinking; no `tools`, no calls."""
        return Reader()

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return the Lark grammar (as llguidance reads it) of an answer to `prompt` that must call one of `tools`: one
        call, after the rest of the thought where `prompt` opened one. None where this family's calls cannot be forced.
        A rule that is nothing but a mark (`open: "<tool_call>"`) means the special token of that text."""
        return None


def assemble_answer(pieces: Sequence[Piece]) -> Answer:
    return Answer(
        content="".join(piece.text for piece in pieces if isinstance(piece, Words)),
        reasoning="".join(piece.text for piece in pieces if isinstance(piece, Reasoning)),
        tool_calls=tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
    )


def chat_message(answer: Answer, call_ids: Sequence[str]) -> dict[str, object]:
    """Return an answer in the form in which chat clients send it back; `call_ids` name its tool calls."""
    message: dict[str, object] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [*map(chat_call, call_ids, answer.tool_calls)]
    return message


def chat_call(call_id: str, call: ToolCall) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


Message = Mapping[str, Any]
"""A chat message in OpenAI's form: role, content, `reasoning_content` and tool fields where there are any."""

Tool = Mapping[str, Any]
"""A function tool in OpenAI's form: {"type": "function", "function": {"name", "description", "parameters"}}."""


class BackendError(Exception):
    """A backend could not be made or broke; the message says what was expected, found, and what to do."""


def load_error(what: str, error: Exception) -> BackendError:
    """Return the error of a model or tokenizer that does not load; transformers' own advice would be to trust it."""
    if "trust_remote_code" in str(error):
        return BackendError(
            f"{what} does not load: it brings code of its own (auto_map), which is never run here; take a model of an "
            "architecture that transformers has itself"
        )
    return BackendError(f"{what} does not load: {error}")


class RequestRefused(BackendError):
    """An engine cannot serve this request, nor the same again; the request is wrong, not the engine."""


class GrammarRefused(RequestRefused):
    """An engine cannot follow a request's grammar."""


class Renderer(Protocol):
    """Turns messages into text and text into ids, by the model's own chat template and tokenizer."""

    @property
    def eos_id(self) -> int:
        """Id that closes a cut answer in a history; the next user's opening where a template closes none."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end a sampled answer (some families end a tool call with another one, or close histories so)."""

    @property
    def answers(self) -> AnswerFormat: ...

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        """Return the chat template's text; raise BackendError for messages or tools the template refuses."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, special tokens recognised, nothing added at either end."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`; special tokens are left out unless `special`."""
