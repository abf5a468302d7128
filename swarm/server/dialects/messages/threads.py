"""Anthropic's message threads (beta), which this server does not keep: it is told so in the protocol's own words.

A client that offers to let the server hold the conversation (the SDK's tool runner does) sends `thread`, and after an
answer only what is new. So the field cannot be passed over. It is refused with the reason that such a client knows,
whereupon it sends the whole conversation, without a thread, from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swarm.errors import InvalidRequest
from swarm.server.dialects.reading import Fields


class NoThreads(InvalidRequest):
    """A request that wants its conversation held here; `details` says in the protocol's words what is the matter."""

    def __init__(self, error_code: str) -> None:
        super().__init__(
            "thread: this server holds no conversations; send the whole one as `messages`, without `thread`",
            param="thread",
        )
        self.details: Mapping[str, Any] = {"type": "invalid_request_error", "error_code": error_code}


def refuse_thread(fields: Fields) -> None:
    """Raise NoThreads where a request has a thread: one to be made, or one that was made elsewhere."""
    thread = fields.inner("thread")
    if thread is None:
        return
    if thread.choice("type", ("create", "continue")) == "continue":
        raise NoThreads("thread_not_found")
    raise NoThreads("thread_unsupported_request")
