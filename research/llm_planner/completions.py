"""What an endpoint's reply holds: the parts of a chat completion that are read, and the JSON object in a message.

Thinking, code fences and chatter around the object are tolerated; what is no object is `Unusable`, with the reason that
goes back to the model.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from research.llm_planner.endpoint import short
from research.validation import describe

LONGEST_ANSWER = 50_000
_MOST_BRACES = 100
"""Places at which an object is looked for; chatter before it seldom holds more braces."""
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


class Message(BaseModel):
    """What the model said."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class Choice(BaseModel):
    """One answer, and why it ended."""

    message: Message
    finish_reason: str | None = None


class Usage(BaseModel):
    """Tokens, as the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


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
    """Return the first JSON object in an answer: thinking, code fences and chatter around it are tolerated."""
    text = _THINKING.sub("", answer)[:LONGEST_ANSWER]
    decoder = json.JSONDecoder()
    for brace in itertools.islice(re.finditer("{", text), _MOST_BRACES):
        try:
            value, _ = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    raise Unusable(f"expected one JSON object; found {short(answer)!r}")
