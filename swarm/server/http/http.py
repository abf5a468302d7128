"""What all routes share: reading headers and bodies, answering JSON, and OpenAI's error object for every error.

The body of a model call that cannot fit the context is refused by its length alone, if possible unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from swarm.errors import (
    ContextExceeded,
    EngineUnavailable,
    InvalidRequest,
    LeaseLost,
    NotFound,
    ServerFailed,
    StoreRefused,
    SwarmError,
    Throttled,
    wrong_value,
)

log = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
Tell = Callable[[SwarmError], bytes]
"""Returns an error's JSON body, in a protocol's own form."""


class ClientGone(Exception):
    """The client went away before its request was whole; nobody is left to answer."""


MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_BYTES, TOKEN_BYTES = 1 << 20, 64
"""A request may be so large, and so much larger for each token of the context: a token is 4 bytes of prose, 12 where
its characters are written as JSON's escapes, and what comes with it is no part of the prompt."""
_FINAL = (LeaseLost, ServerFailed, StoreRefused)
"""Errors that do not pass: the openai SDK is told not to retry them."""


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request header, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def authorization(scope: Scope, key_header: bytes | None = None) -> str | None:
    """Return the Authorization header; failing that, one made of the key that `key_header` carries."""
    found = header(scope, b"authorization")
    key = header(scope, key_header) if found is None and key_header is not None else None
    return found if key is None else f"Bearer {key}"


async def read_body(receive: Receive) -> bytes:
    """Return the request's body; InvalidRequest beyond MAX_BODY_BYTES, ClientGone if the client goes away."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        parts.append(event.get("body", b""))
        size, more = size + len(parts[-1]), event.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise InvalidRequest(f"expected a body of at most {MAX_BODY_BYTES} bytes, found more")
    return b"".join(parts)


async def whole_body(scope: Scope, receive: Receive, max_context: int) -> bytes:
    """Return the body of a model call; ContextExceeded, if possible unread, where so many tokens cannot hold it."""
    length = header(scope, b"content-length") or "0"
    _refuse_too_long(int(length) if length.isdecimal() else 0, max_context)
    body = await read_body(receive)
    _refuse_too_long(len(body), max_context)
    return body


def _refuse_too_long(body_bytes: int, max_context: int) -> None:
    most = min(MAX_BODY_BYTES, BODY_BYTES + TOKEN_BYTES * max_context)
    if body_bytes > most:
        raise ContextExceeded(
            f"This model's maximum context length is {max_context} tokens (the job's `max_context`): expected a body "
            f"of at most {most} bytes, found {body_bytes}; shorten the messages, or give the job a larger one",
            param="messages",
        )


def parsed(kind: type[M], body: bytes, read: Callable[[bytes], M] | None = None) -> M:
    """Return the body as a wire type, by `read` or its own reading; an empty body counts as `{}`.

    InvalidRequest names the wrong field.
    """
    try:
        return (read or kind.model_validate_json)(body or b"{}")
    except ValidationError as error:
        wrong = wrong_value(error)
        raise wrong if wrong.param else InvalidRequest(f"body: {wrong}") from None


def json_response(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response of ready JSON."""
    return Response(content, status, headers, "application/json")


def error_response(error: SwarmError, body: bytes | None = None) -> Response:
    """Return an error on the wire, by default in OpenAI's form, with Retry-After where trying again may help."""
    headers: dict[str, str] = {}
    if isinstance(error, Throttled | EngineUnavailable):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after or 1.0)))
    if isinstance(error, _FINAL):
        headers["x-should-retry"] = "false"
    return json_response(body or openai_error(error), error.status, headers)


def openai_error(error: SwarmError) -> bytes:
    """Return OpenAI's error object."""
    return to_json(error.to_wire())


async def on_swarm_error(_: Request, error: Exception) -> Response:
    """Answer an error of our own."""
    if not isinstance(error, SwarmError):
        raise error
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer a wrong route or method in the same form as all errors."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    where = f"{request.method} {request.url.path}"
    known = NotFound(f"there is no route {where}") if status == 404 else InvalidRequest(f"{where} is not allowed")
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return json_response(to_json(known.to_wire()), status, headers)


async def on_client_gone(_: Request, __: Exception) -> Response:
    """Answer nobody."""
    return Response(status_code=499)


async def on_any_error(request: Request, error: Exception, *, tell: Tell = openai_error) -> Response:
    """Answer a defect of the server: the client hears that it is one, the log has the rest."""
    log.error("event=defect route=%s error=%r", request.url.path, str(error), exc_info=error)
    defect = SwarmError("the server has a defect; its log says more")
    return error_response(defect, tell(defect))


class Presence:
    """Watches for the client going away, and cancels the task that works for it.

    The watcher reads from `receive`, so the body must have been read before.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.gone = False

    @contextlib.contextmanager
    def required(self) -> Iterator[None]:
        """Cancel the current task if the client goes away inside the block."""
        task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch(task))
        try:
            yield
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[object] | None) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if task is not None:
            task.cancel()
