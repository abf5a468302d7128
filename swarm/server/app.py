"""The server's one FastAPI application: routes and the form of errors; it has no state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.dialects.chat import ChatDialect
from swarm.dialects.messages import MessagesDialect
from swarm.dialects.responses import ResponsesDialect
from swarm.errors import SwarmError
from swarm.server.connections import FailureLimiter
from swarm.server.http import KEY_HEADER, ClientGone, Guard, on_any_error, on_client_gone, on_http_error, on_swarm_error
from swarm.server.model_endpoint import STREAM_TIMEOUTS, CountEndpoint, ModelEndpoint, StreamTimeouts
from swarm.server.openapi import OPERATIONS, paths_of
from swarm.server.routes import control_handlers, make_route, reading_handlers
from swarm.server.service import SwarmServer

_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    SwarmError: on_swarm_error,
    HTTPException: on_http_error,
    ClientGone: on_client_gone,
}


def make_app(server: SwarmServer, timeouts: StreamTimeouts = STREAM_TIMEOUTS) -> FastAPI:
    """Return the application around a server; no documentation pages, which would answer without a key."""
    app = _App(title="ajet swarm server", openapi_url=None, redirect_slashes=False)
    failures = FailureLimiter()
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, on_any_error)
    handlers = {**control_handlers(server), **reading_handlers(server, timeouts.keep_alive_s)}
    endpoints = _model_endpoints(server, timeouts)
    for operation in OPERATIONS:
        if operation.name not in endpoints:
            app.router.routes.append(make_route(operation, handlers.pop(operation.name)))
            continue
        endpoint, key_header = endpoints[operation.name]
        guarded = Guard(ExceptionMiddleware(endpoint, _HANDLERS), server.keys, failures, endpoint.tell, key_header)
        lean = ServerErrorMiddleware(guarded, partial(on_any_error, tell=endpoint.tell))
        app.router.routes.append(Route(operation.path, endpoint=guarded, methods=[operation.method]))
        app.lean |= dict.fromkeys(paths_of(operation), lean)
    assert not handlers, f"no operation is named {[*handlers]}"
    app.add_middleware(Guard, keys=server.keys, failures=failures)
    return app


class _App(FastAPI):
    """Sends model calls past the framework's router and telemetry, which cost a few percent of such a call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lean: dict[str, ASGIApp] = {}
        """What answers a POST to a path, all by itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lean = self.lean.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if lean is None:
            await super().__call__(scope, receive, send)
        else:
            await lean(scope, receive, send)


def _model_endpoints(
    server: SwarmServer, timeouts: StreamTimeouts
) -> Mapping[str, tuple[ModelEndpoint | CountEndpoint, bytes | None]]:
    """Return what speaks to the model, by operation, each with the header that may carry its key beside the usual."""
    return {
        "chat": (ModelEndpoint(server, ChatDialect(), timeouts), None),
        "responses": (ModelEndpoint(server, ResponsesDialect(), timeouts), None),
        "messages": (ModelEndpoint(server, MessagesDialect(), timeouts), KEY_HEADER),
        "count_tokens": (CountEndpoint(server), KEY_HEADER),
    }
