"""What an endpoint's reply holds: the parts of a chat completion that are read, and the JSON object in a message.

Thinking, code fences and chatter around the object are tolerated; what is no object, one that is cut short, and several
of which one may be a draft, is `Unusable`, with the reason that goes back to the model.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from research.llm_planner.endpoint import short
from research.validation import describe

LONGEST_ANSWER = 50_000
_MOST_BRACES = 100
"""Places at which an object is looked for; chatter before it seldom holds more braces."""
_NAMES = r"(?:\w+:)?(?:think|thinking|thought|reasoning|start_thinking)"
_OPENS = re.compile(rf"(?:<|\[|◁|<\|){_NAMES}(?:\|>|>|\]|▷)", re.IGNORECASE)
_CLOSES = re.compile(
    rf"(?:(?:<|\[|◁|<\|)/{_NAMES}|<\|end_thinking)(?:\|>|>|\]|▷)|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
"""Marks around a model's thinking, of which its template may have written the first: of many families' templates."""


class Message(BaseModel):
    """What the model said."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Join the parts that some endpoints answer with; those of thinking are left out."""
        if not isinstance(value, list):
            return value
        parts = [part for part in value if isinstance(part, dict) and part.get("type") in ("text", "output_text")]
        return "".join(str(part.get("text") or "") for part in parts)


class Choice(BaseModel):
    """One answer, and why it ended."""

    message: Message
    finish_reason: str | None = None


class Usage(BaseModel):
    """Tokens, as the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @field_validator("*", mode="before")
    @classmethod
    def _uncounted(cls, value: Any) -> Any:
        return 0 if value is None else value


class ChatCompletion(BaseModel):
    """The part of a chat completion that is read."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None

    @classmethod
    def of(cls, body: str) -> ChatCompletion:
        """Return what a reply's body holds; raise Unusable for one that is no chat completion."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise Unusable(f"the endpoint's reply is no chat completion: {describe(error)}") from error


class Unusable(Exception):
    """An answer that is no acceptable action; the text says why to the model, `told` to a person."""

    def __init__(self, why: str, told: str | None = None) -> None:
        super().__init__(why)
        self.told = told or why


def json_object(answer: str) -> dict[str, Any]:
    """Return the one JSON object in what follows an answer's thinking; empty ones in chatter are none.

    Raises Unusable where there is none, where it is cut short, and where there are several: which is the draft?
    """
    text = _after_thinking(answer)[:LONGEST_ANSWER]
    found = _objects(text)
    meant = [value for value in found if value] or found[:1]
    if not meant:
        raise Unusable(f"expected one JSON object; found {short(answer)!r}")
    if any(value != meant[0] for value in meant):
        raise Unusable(f"expected one JSON object; found {len(meant)}: answer with the final one alone")
    return meant[0]


def _after_thinking(answer: str) -> str:
    """Return what an answer says after its thinking; raise Unusable for thinking that never ended."""
    closes = [mark.end() for mark in _CLOSES.finditer(answer)]
    text = answer[closes[-1] :] if closes else answer
    opens = _OPENS.search(text)
    if opens is None:
        return text
    before = text[: opens.start()]
    if "{" not in before:
        raise Unusable("expected an answer after the thinking; found thinking that does not end: think less")
    return before


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that stand in a text beside one another; raise Unusable for one that is cut short."""
    decoder, found, after = json.JSONDecoder(), list[dict[str, Any]](), 0
    for brace in itertools.islice(re.finditer("{", text), _MOST_BRACES):
        if brace.start() < after:
            continue
        try:
            value, after = decoder.raw_decode(text, brace.start())
        except json.JSONDecodeError as error:
            if _is_cut(error, text[brace.start() :]):
                raise Unusable("expected one JSON object; found one that is cut short: say less") from None
        except (ValueError, RecursionError):
            continue
        else:
            found += [value] if isinstance(value, dict) else []
    return found


def _is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """Return whether what began as an object ended before it was whole, and is not chatter in braces."""
    begins = re.match(r'\{\s*"', text) is not None
    return begins and (error.msg.startswith("Unterminated string") or error.pos >= len(error.doc.rstrip().rstrip("`")))
