"""Anthropic's Messages API on the wire: `POST /v1/messages`.

A request's turns become the same messages the chat dialect would read, so that one episode may be played through
either; what is honoured and what is refused stands in `reading`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json

from swarm.errors import SwarmError
from swarm.server.dialects.base import Ask, Reply, StreamWriter
from swarm.server.dialects.messages.reading import parse
from swarm.server.dialects.messages.writing import MessagesWriter, error_object, message
from swarm.server.dialects.naming import named_as

_NAMES = {"response_format": "output_config.format"}


class MessagesDialect:
    """Implements `Dialect`."""

    echoes = False

    def parse(self, body: bytes, model: str) -> Ask:
        """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
        return parse(body, model)

    def whole(self, name: str, model: str, ask: Ask, replies: Sequence[Reply]) -> bytes:
        """Return the whole message as JSON."""
        (reply,) = replies
        return message(name, model, reply, omitted=ask.echo["omitted"])

    def writer(self, name: str, model: str, ask: Ask, version: int, prompt_tokens: int) -> StreamWriter:
        """Return what writes the message as a stream."""
        return MessagesWriter(name, model, prompt_tokens, omitted=ask.echo["omitted"])

    def error(self, error: SwarmError) -> bytes:
        """Return an error in Anthropic's form."""
        return to_json(error_object(named_as(error, _NAMES)))
