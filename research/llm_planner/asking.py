"""The messages of one turn and how they are sent: with tools and a response format where the endpoint takes them.

An endpoint that refuses a request (400, 422) is asked with less: without tools first, then without a response format,
then with neither. What it took is kept for the rest of the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from research.llm_planner.completions import ChatCompletion, Choice, Message, Unusable, Usage
from research.llm_planner.endpoint import EndpointError, short
from research.llm_planner.looking import Looking
from research.llm_planner.patience import PatientEndpoint
from research.llm_planner.prompts import messages, response_format
from research.planner.digest import Digest
from research.planner.looks import NO_LOOKS

_REFUSALS: Final = (400, 422)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a request is made."""

    tools: bool
    format: bool


_WAYS: Final = (_Way(True, True), _Way(False, True), _Way(True, False), _Way(False, False))


class Asking:
    """A growing list of messages, sent to an endpoint as it takes them."""

    def __init__(self, line: PatientEndpoint, model: str, digest: Digest, looking: Looking) -> None:
        self._line = line
        self._model = model
        self._digest = digest
        self._looking = looking
        self._ways = [way for way in _WAYS if looking.offered or not way.tools]
        self._said: list[dict[str, Any]] = []
        self.usage = Usage()

    def add(self, more: Sequence[dict[str, Any]]) -> None:
        """Take further messages."""
        self._said = [*self._said, *more]

    def hear(self) -> Message:
        """Return what the model says next; raise Unusable for a reply that is no whole answer."""
        completion = ChatCompletion.of(self._body())
        if completion.usage is not None:
            self.usage = Usage(
                prompt_tokens=self.usage.prompt_tokens + completion.usage.prompt_tokens,
                completion_tokens=self.usage.completion_tokens + completion.usage.completion_tokens,
            )
        self._require_whole(completion.choices[0])
        return completion.choices[0].message

    def _require_whole(self, choice: Choice) -> None:
        """Raise Unusable for a reply that is a refusal, cut off, or a call of a tool that there is not."""
        message = choice.message
        if message.refusal:
            raise Unusable(f"the model refused: {short(message.refusal)}")
        if choice.finish_reason == "length":
            raise Unusable("the answer was cut off at the endpoint's token limit; be brief")
        is_look = message.tool_calls and self._looking.offered
        if not message.content and not is_look and (message.tool_calls or choice.finish_reason == "tool_calls"):
            raise Unusable(
                "expected a JSON object in the message's content; found a tool call, and there is no tool; write the "
                "object as the message itself"
            )

    @property
    def notes(self) -> list[str]:
        """What the endpoint did not take, in sentences."""
        way, looks = self._ways[0], bool(self._looking.offered)
        told = [] if way.format else ["The endpoint takes no response_format; the schema stood in the prompt only."]
        return told + (
            ["The endpoint takes no tools; looks were asked for in JSON."] if looks and not way.tools else []
        )

    def _body(self) -> str:
        """Return the endpoint's reply as text; what it refuses is left out from then on."""
        while True:
            try:
                return self._line.complete(self._request(self._ways[0]))
            except EndpointError as error:
                if error.status not in _REFUSALS or len(self._ways) == 1:
                    raise self._line.failed(error, self._model) from error
                self._ways.pop(0)

    def _request(self, way: _Way) -> Mapping[str, Any]:
        looks = self._digest.may_look if self._looking.offered else NO_LOOKS
        in_json = () if way.tools else self._looking.offered
        asked = messages(self._digest, looks, by_tools=way.tools)
        request: dict[str, Any] = {"model": self._model, "messages": [*asked, *self._said]}
        if way.tools:
            request |= {"tools": self._looking.tools()} | ({"tool_choice": "none"} if self._looking.over else {})
        return request | ({"response_format": response_format(self._digest, in_json)} if way.format else {})
