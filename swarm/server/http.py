"""What all routes share: headers, bodies, error objects, and limits before any route.

A model call that cannot fit the context is refused by its body's length, if possible unread. A peer address may fail
FAILURES times at once and once more every REFILL_S seconds; beyond that it gets 429 with Retry-After, its key unread. A
valid signed key passes all the same, since nobody can guess one, so a neighbour behind the same address never keeps an
honest client out. The operator's own admin token may be weaker and waits like any guess. Memory is constant: MOST_PEERS
addresses (an IPv6 /64 is one), the longest quiet forgotten first.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm import errors
from swarm.rollout.keys import Claims, Keys, Role, Use, describe_claims
from swarm.server.connections import CYCLE, GONE, FailureLimiter, peer_of

log = logging.getLogger(__name__)
Tell = Callable[[errors.SwarmError], bytes]
"""Returns an error's JSON body, in a protocol's own form."""


MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_BYTES, TOKEN_BYTES = 1 << 20, 64
"""A request may be so large, and so much larger for each token of the context: a token is 4 bytes of prose, 12 where
its characters are written as JSON's escapes, and what comes with it is no part of the prompt."""
_FINAL = (errors.LeaseLost, errors.ServerFailed, errors.StoreRefused)
"""Errors that do not pass: the openai SDK is told not to retry them."""


def header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def authorization(scope: Scope, key_header: bytes | None = None) -> str | None:
    """Return the Authorization header; failing that, one made of the key that `key_header` carries."""
    found = header(scope, b"authorization")
    key = header(scope, key_header) if found is None and key_header is not None else None
    return found if key is None else f"Bearer {key}"


async def read_call_body(scope: Scope, receive: Receive, max_context: int) -> bytes:
    """Return the body of a model call; ContextExceeded, if possible unread, where so many tokens cannot hold it."""
    most, body = min(MAX_BODY_BYTES, BODY_BYTES + TOKEN_BYTES * max_context), b""
    length = header(scope, b"content-length") or "0"
    size = int(length) if length.isdecimal() else 0
    if size <= most:
        body = await Request(scope, receive).body()
        size = len(body)
    if size > most:
        raise errors.ContextExceeded(
            f"This model's maximum context length is {max_context} tokens (the job's `max_context`): expected a body "
            f"of at most {most} bytes, found {size}; shorten the messages, or give the job a larger one",
            param="messages",
        )
    return body


def json_response(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, "application/json")


async def send_json(scope: Scope, content: bytes) -> None:
    """Send a whole answer in one segment, past the checks of headers that are ours."""
    cycle = scope[CYCLE]
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    more = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    end = b"" if cycle.keep_alive else b"connection: close\r\n"
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(_HEAD % (more, len(content), end) + content)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


_HEAD = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: application/json\r\n%b\r\n"


def error_response(error: errors.SwarmError, body: bytes | None = None) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, errors.Throttled | errors.EngineUnavailable):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after or 1.0)))
    if isinstance(error, _FINAL):
        headers["x-should-retry"] = "false"
    return json_response(body or openai_error(error), error.status, headers)


def openai_error(error: errors.SwarmError) -> bytes:
    return to_json(error.to_wire())


async def on_refusal(request: Request, error: Exception) -> Response:
    """Answer what is refused: by a route, by FastAPI (in one line that names the field), or by the router."""
    if isinstance(error, errors.SwarmError):
        return error_response(error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place, *field = first["loc"]
        wrong = errors.describe_invalid({**first, "loc": field})
        return error_response(wrong if field else errors.InvalidRequest(f"{place}: {wrong}"))
    if isinstance(error, HTTPException):
        where = f"{request.method} {request.url.path}"
        known: errors.SwarmError = errors.InvalidRequest(f"{where} is not allowed")
        if error.status_code == 404:
            known = errors.NotFound(f"there is no route {where}")
        return json_response(openai_error(known), error.status_code, dict(error.headers or {}))
    return Response(status_code=499)


REFUSALS: Mapping[Any, Any] = dict.fromkeys(
    (errors.SwarmError, RequestValidationError, HTTPException, ClientDisconnect), on_refusal
)
"""The handler of each kind of refusal."""


async def on_any_error(request: Request, error: Exception, *, tell: Tell = openai_error) -> Response:
    """Answer a defect of the server: the client hears that it is one, the log has the rest."""
    log.error("event=defect route=%s error=%r", request.url.path, str(error), exc_info=error)
    defect = errors.SwarmError("the server has a defect; its log says more")
    return error_response(defect, tell(defect))


@contextlib.contextmanager
def cancel_on_disconnect(scope: Scope) -> Iterator[None]:
    """Cancel the current task if the client goes away inside the block, which then raises ClientDisconnect. The body
    must have been read before."""
    cycle, task = scope[CYCLE], asyncio.current_task()
    if cycle.disconnected or task is None:
        raise ClientDisconnect
    cycle.flow.resume_reading()  # after a long body: nothing is heard of a connection that is not read
    cycle.scope[GONE] = task.cancel
    try:
        yield
    except asyncio.CancelledError:
        if cycle.disconnected:
            raise ClientDisconnect from None
        raise
    finally:
        cycle.scope.pop(GONE, None)


MAX_CONTROL_BYTES = 1024 * 1024
"""Most bytes of a control-plane body: a job is a few kilobytes. Task lists may be as large as conversations."""
KEY_HEADER = b"x-api-key"
"""Where clients of Anthropic's protocol carry their key."""
_KEY = "ajet.key"
"""Where a request's scope has what its key says."""
_JSON = TypeAdapter[Any](Any)


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI middleware around the whole application, or a route of it that tells of errors in its own form. It reads the
    key of a request, once; `authorize` returns what it says. `key_header` may carry the key in place of a Bearer
    token."""

    app: ASGIApp
    keys: Keys
    failures: FailureLimiter
    tell: Tell = openai_error
    key_header: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, length = scope["path"], header(scope, b"content-length") or "0"
        # conversations and task lists are long, other bodies are not
        most = MAX_BODY_BYTES if path.startswith("/v1/") or path == "/streams/tasks" else MAX_CONTROL_BYTES
        refusal: errors.SwarmError | None = None
        if length.isdecimal() and int(length) > most:
            refusal = errors.BodyTooLarge(f"expected a body of at most {most} bytes, found more")
        elif not self._read_key(scope):
            peer = peer_of(scope)
            refusal = None if path == "/health" else self.failures.find_refusal(peer)
            answer = send

            async def send(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] == 401:
                    self.failures.note(peer)
                await answer(message)

        if refusal is not None:
            await error_response(refusal, self.tell(refusal))(scope, receive, send)
            return
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise errors.BodyTooLarge(f"expected a body of at most {most} bytes, found more")
            return message

        chunked = header(scope, b"transfer-encoding") is not None
        try:
            await self.app(scope, receive_limited if chunked else receive, send)
        except ClientDisconnect:
            return
        except errors.SwarmError as error:
            await error_response(error, self.tell(error))(scope, receive, send)
        except Exception as error:  # noqa: BLE001  -- it is logged, and told
            told = await on_any_error(Request(scope), error, tell=self.tell)
            if scope[CYCLE].response_started:
                scope[CYCLE].transport.close()
            else:
                await told(scope, receive, send)

    def _read_key(self, scope: Scope) -> bool:
        """Keep with the request what its key says, or why it is refused; return whether one that it carries was signed
        here, though its route takes none there: an SDK sends its key's header to all routes."""
        try:
            scope[_KEY] = claims = self.keys.read_header(authorization(scope, self.key_header))
            if claims.signed:
                return True
        except errors.InvalidKey as refusal:
            scope[_KEY] = refusal.message
        key = header(scope, KEY_HEADER)
        with contextlib.suppress(errors.InvalidKey):
            return key is not None and self.keys.read_header(f"Bearer {key}").signed
        return False


def authorize(scope: Scope, *, roles: tuple[Role, ...] = (), uses: tuple[Use, ...] = ()) -> Claims:
    """Return what the key of a guarded request says; raise InvalidKey (401), or Forbidden (403) for a wrong kind."""
    found: Claims | str = scope[_KEY]
    if isinstance(found, str):
        raise errors.InvalidKey(found)
    if found.use in uses or found.role in roles:
        return found
    wanted = " or ".join([*(f"a {use} key" for use in uses), *(f"the {role} role" for role in roles)])
    raise errors.Forbidden(f"this call needs {wanted}; found {describe_claims(found)}")


class ErrorObject(BaseModel):
    """What every refusal says."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")

    message: str
    """expected, found, and what to do"""
    type: str
    code: str
    """the error by name: the protocol"""
    param: str | None
    """the field that is wrong"""


class Error(BaseModel):
    """A refusal on the wire (`SwarmError.to_wire`)."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorObject


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Error} for status in statuses}


class Permission:
    """A dependency: lets in keys of these roles and uses. A lease token opens the routes of its own episode alone."""

    def __init__(self, *roles: Role, uses: tuple[Use, ...] = ()) -> None:
        self._roles = roles
        self._uses = uses
        self.security = [*([{"role": [*roles]}] if roles else []), *({use: list[str]()} for use in uses)]
        """As OpenAPI has it."""

    async def __call__(self, request: Request) -> Claims:
        claims = authorize(request.scope, roles=self._roles, uses=self._uses)
        if claims.use == "lease" and claims.episode != request.path_params.get("episode_id", claims.episode):
            raise errors.Forbidden(f"this lease token is for episode {claims.episode}, not for the one in the path")
        return claims


class ControlRoute(APIRoute):
    """A route that judges the key before it reads a body, and takes any body as JSON, an empty one as `{}`. One that
    has parameters of the query takes no others."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._permissions = [one.call for one in self.dependant.dependencies if isinstance(one.call, Permission)]
        self._queries = {one.alias for one in get_flat_params(self.dependant) if self.dependant.query_params}
        declared = {one.name for one in self.dependant.path_params}
        undeclared = [name for name in self.param_convertors if name not in declared]
        self.openapi_extra = {
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in undeclared
            ]
        }
        for permission in self._permissions:
            self.openapi_extra["security"] = permission.security

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def serve(request: Request) -> Response:
            for permission in self._permissions:
                await permission(request)
            for name, value in request.query_params.items() if self._queries else ():
                if name not in self._queries:
                    raise errors.describe_invalid({"loc": [name], "type": "extra_forbidden", "msg": "", "input": value})
            if self.body_field is not None:
                request = _JsonRequest(request, await request.body())
            return await answer(request)

        return serve


class _JsonRequest(Request):
    """A request whose body was read, as JSON whatever type it was sent as: FastAPI would refuse curl's."""

    def __init__(self, request: Request, content: bytes) -> None:
        headers = [item for item in request.scope["headers"] if item[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._body = content or b"{}"
        try:
            self._json = _JSON.validate_json(self._body)
        except ValidationError as error:
            raise errors.InvalidRequest(f"body: {errors.to_invalid_request(error)}") from None
