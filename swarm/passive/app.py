"""The front's HTTP: what applications ask for with their keys, and the administration with its own.

    POST   /v1/chat/completions          OpenAI's, streamed or not          (an application's key)
    GET    /v1/models                                                       (an application's key)
    POST   /v1/feedback                  {"response_id", "rating": "up" | "down", "choice": 0}
    POST   /v1/users/{user}/consent      {"given": true, "version": "2026-01"}; {"given": false} withdraws
    GET    /v1/users/{user}              what is held of a user
    DELETE /v1/users/{user}              delete it
    GET    /admin/status                                                    (the admin key)
    POST   /admin/applications           {"name"} -> {"name", "key"}; an older key of it is void
    DELETE /admin/applications/{name}
    DELETE /admin/applications/{name}/users/{user}
    GET    /health                                                          (no key)

An application sees its own users and replies alone. The end user of a chat request is its field `user`, or the header
`x-ajet-user`. Errors have OpenAI's form. No key, name or text of a user is logged.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from swarm.connections import Failures, peer_of
from swarm.errors import (
    BodyTooLarge,
    EngineUnavailable,
    InvalidKey,
    InvalidRequest,
    NotFound,
    SwarmError,
    Throttled,
    wrong_value,
)
from swarm.passive.chat import FrontReply, read
from swarm.passive.front import Front
from swarm.passive.identity import Secrets, key_hash, new_key
from swarm.passive.limits import RateLimit
from swarm.passive.records import Records

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 4 << 20
_MOST_NAME = 256
_OWN = (InvalidRequest, NotFound, Throttled)
"""Errors of the model's side that an application is told as they are."""
B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Consent(_Body):
    given: bool
    version: str | None = Field(default=None, min_length=1, max_length=128)


class _Feedback(_Body):
    response_id: str = Field(max_length=128)
    rating: Literal["up", "down"] = "up"
    choice: int = Field(default=0, ge=0, le=128)


class _Application(_Body):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")


class App:
    """The handlers, over a front and its records. A silent stream says every `keep_alive_s` seconds that it lives."""

    def __init__(
        self,
        front: Front,
        records: Records,
        secrets: Secrets,
        *,
        applications: RateLimit,
        users: RateLimit,
        keep_alive_s: float = 5.0,
    ) -> None:
        self._failures = Failures()
        self._front = front
        self._records = records
        self._secrets = secrets
        self._applications = applications
        self._users = users
        self._keep_alive_s = keep_alive_s

    def starlette(self) -> Starlette:
        """Return the application."""
        routes = [
            ("GET", "/health", self._health),
            ("POST", "/v1/chat/completions", self._chat),
            ("GET", "/v1/models", self._models),
            ("POST", "/v1/feedback", self._feedback),
            ("POST", "/v1/users/{user}/consent", self._consent),
            ("GET", "/v1/users/{user}", self._held),
            ("DELETE", "/v1/users/{user}", self._delete),
            ("GET", "/admin/status", self._status),
            ("POST", "/admin/applications", self._admit),
            ("DELETE", "/admin/applications/{name}", self._dismiss),
            ("DELETE", "/admin/applications/{name}/users/{user}", self._delete_for),
        ]
        return Starlette(
            routes=[Route(path, handler, methods=[method]) for method, path, handler in routes],
            exception_handlers={SwarmError: _on_error, HTTPException: _on_http, Exception: _on_defect},
        )

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        self._application(request)
        name = await _upstream(self._front.model())
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "ajet"}]})

    async def _chat(self, request: Request) -> Response:
        application = self._application(request)
        self._applications.take(application)
        ask = read(await _whole(request))
        named = request.headers.get("x-ajet-user") or ask.user
        user = None if named is None else self._pseudonym(application, named)
        if user is not None:
            self._users.take(user)
        answering = asyncio.ensure_future(_upstream(self._front.answer(ask, user)))
        if not ask.stream:
            reply = await asyncio.shield(answering)  # one that is under way is settled though nobody waits any more
            return JSONResponse(reply.whole(), headers=reply.headers)
        done, _ = await asyncio.wait({answering}, timeout=self._keep_alive_s)
        headers = answering.result().headers if done else {}
        content = self._streamed(answering, usage=ask.usage)
        return StreamingResponse(
            content, headers={**headers, "cache-control": "no-cache"}, media_type="text/event-stream"
        )

    async def _streamed(self, answering: asyncio.Future[FrontReply], *, usage: bool) -> AsyncIterator[bytes]:
        """Yield signs of life until the best answer is known, then that answer, or its error as the last event."""
        while not answering.done():
            yield b": the answers are compared\n\n"
            await asyncio.wait({answering}, timeout=self._keep_alive_s)
        error = answering.exception()
        if error is None:
            for chunk in answering.result().chunks(usage=usage):
                yield chunk
            return
        if not isinstance(error, SwarmError):
            log.error("event=defect error=%r", type(error).__name__, exc_info=error)
            error = SwarmError("the front has a defect; its log says more")
        yield b"data: " + json.dumps(error.to_wire()).encode() + b"\n\n"

    async def _feedback(self, request: Request) -> Response:
        application = self._application(request)
        self._applications.take(application)
        said = await _body(request, _Feedback)
        named = request.headers.get("x-ajet-user")
        owner = self._records.user_of(said.response_id)
        ours = owner is not None and self._records.application_of(owner) == application
        if not ours or (named is not None and self._pseudonym(application, named) != owner):
            return JSONResponse({"counted": False})  # of an untrained answer nothing is kept, its name neither
        return JSONResponse({"counted": self._front.feedback(said.response_id, said.rating, said.choice)})

    async def _consent(self, request: Request) -> Response:
        application = self._application(request)
        said = await _body(request, _Consent)
        if said.given and said.version is None:
            raise InvalidRequest("expected the version of the text that was agreed to, found none", param="version")
        user = self._pseudonym(application, request.path_params["user"])
        found = await self._front.consent(user, application, said.given, said.version)
        return JSONResponse({"given": found.given, "version": found.version, "at": found.at})

    async def _held(self, request: Request) -> Response:
        application = self._application(request)
        return JSONResponse(self._records.held(self._pseudonym(application, request.path_params["user"])))

    async def _delete(self, request: Request) -> Response:
        application = self._application(request)
        return JSONResponse(await self._front.delete(self._pseudonym(application, request.path_params["user"])))

    async def _status(self, request: Request) -> Response:
        self._require_admin(request)
        return JSONResponse(
            {
                "applications": self._records.applications(),
                "groups": self._front.groups,
                "episodes_to_erase": (left := self._records.number_to_erase()),
                "erasing_waits_for": self._front.erasing_waits_for if left else None,
                "counts": dict(self._records.counts()),
            }
        )

    async def _admit(self, request: Request) -> Response:
        self._require_admin(request)
        wanted, key = await _body(request, _Application), new_key()
        self._records.keep_application(wanted.name, key_hash(key))
        return JSONResponse({"name": wanted.name, "key": key})

    async def _dismiss(self, request: Request) -> Response:
        self._require_admin(request)
        self._records.drop_application(request.path_params["name"])
        return JSONResponse({"deleted": True})

    async def _delete_for(self, request: Request) -> Response:
        self._require_admin(request)
        user = self._pseudonym(request.path_params["name"], request.path_params["user"])
        return JSONResponse(await self._front.delete(user))

    def _application(self, request: Request) -> str:
        found = self._records.application(key_hash(_key(request)))
        if found is None:
            raise self._wrong_key(request, "none of this front's; have one made with `ajet passive key NAME`")
        return found

    def _require_admin(self, request: Request) -> None:
        if not hmac.compare_digest(key_hash(_key(request)), key_hash(self._secrets.admin)):
            raise self._wrong_key(request, "not the front's admin key")

    def _wrong_key(self, request: Request, why: str) -> SwarmError:
        """Count a wrong key, in memory: a stranger's is not worth a flush of the disk."""
        peer = peer_of(request.scope)
        self._records.wrong_keys += 1
        if (wait_s := self._failures.wait_s(peer)) > 0:
            return Throttled(f"too many wrong keys came from {peer}; wait {wait_s:.1f} s", retry_after=wait_s)
        self._failures.note(peer)
        return InvalidKey(f"the key is {why}")

    def _pseudonym(self, application: str, name: str) -> str:
        if len(name) > _MOST_NAME:
            raise InvalidRequest(f"expected a user's name of at most {_MOST_NAME} characters", param="user")
        return self._secrets.user(application, name)


def _key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise InvalidKey("expected a header `Authorization: Bearer KEY`, found none")
    return key.strip()


async def _upstream(work: Awaitable[T]) -> T:
    """Do what the server takes part in; what is wrong between front and server is no fault of an application."""
    try:
        return await work
    except (*_OWN, EngineUnavailable):
        raise
    except SwarmError as error:
        log.warning("event=server_refused code=%s reason=%r", error.code, error.message)
        raise EngineUnavailable("the model does not answer now; try again", retry_after=2.0) from error


async def _whole(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge(f"expected a body of at most {MAX_BODY_BYTES} bytes, found more")
        parts.append(part)
    return b"".join(parts)


async def _body(request: Request, kind: type[B]) -> B:
    try:
        return kind.model_validate_json(await _whole(request) or b"{}")
    except ValidationError as error:
        raise wrong_value(error) from None


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, SwarmError)
    headers = {}
    if isinstance(error, Throttled | EngineUnavailable):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after or 1.0)))
    return JSONResponse(error.to_wire(), error.status or 503, headers)


async def _on_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    told: dict[str, Any] = NotFound(f"there is no route {request.method} {request.url.path[:200]}").to_wire()
    return JSONResponse(told, status)


async def _on_defect(request: Request, error: Exception) -> Response:
    log.error("event=defect error=%r", type(error).__name__, exc_info=error)
    return JSONResponse(SwarmError("the front has a defect; its log says more").to_wire(), 500)
