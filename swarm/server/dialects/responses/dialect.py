"""OpenAI's Responses API on the wire: `POST /v1/responses`.

A request's items become the same messages the chat dialect would read, so that one episode may be played through
either; what is honoured and what is refused stands in `reading`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json

from swarm.errors import SwarmError
from swarm.server.dialects.base import Ask, Reply, StreamWriter
from swarm.server.dialects.naming import named_as
from swarm.server.dialects.responses.reading import parse
from swarm.server.dialects.responses.writing import ResponsesWriter, Status, output_items, response

_NAMES = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "include",
}


class ResponsesDialect:
    """Implements `Dialect`."""

    echoes = True

    def parse(self, body: bytes, model: str) -> Ask:
        """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
        return parse(body, model)

    def whole(self, name: str, model: str, ask: Ask, replies: Sequence[Reply]) -> bytes:
        """Return the whole response as JSON."""
        (reply,) = replies
        status: Status = "incomplete" if reply.finish == "length" else "completed"
        whole = response(name, model, ask, status, output_items(name, reply), reply)
        return to_json(whole, inf_nan_mode="null")  # what a client sent may hold a number too large for JSON

    def writer(self, name: str, model: str, ask: Ask, version: int, prompt_tokens: int) -> StreamWriter:
        """Return what writes the response as a stream."""
        return ResponsesWriter(name, model, ask)

    def error(self, error: SwarmError) -> bytes:
        """Return OpenAI's error object."""
        return to_json(named_as(error, _NAMES).to_wire())
