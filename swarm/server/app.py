"""The server's one FastAPI application: routes and the form of errors. It has no state but the SwarmServer's."""

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

from swarm.errors import SwarmError
from swarm.server.control import control_routes
from swarm.server.core import SwarmServer
from swarm.server.counting import CountEndpoint
from swarm.server.dialects.chat import ChatDialect
from swarm.server.dialects.messages import MessagesDialect
from swarm.server.dialects.responses import ResponsesDialect
from swarm.server.endpoint import PATIENCE, Endpoint, Patience
from swarm.server.guard import Failures, Guard
from swarm.server.http import ClientGone, on_any_error, on_client_gone, on_http_error, on_swarm_error
from swarm.server.reading import reading_routes

_KEY_HEADER = b"x-api-key"
"""Where clients of Anthropic's protocol may carry their key."""
_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    SwarmError: on_swarm_error,
    HTTPException: on_http_error,
    ClientGone: on_client_gone,
}


def make_app(server: SwarmServer, patience: Patience = PATIENCE) -> FastAPI:
    """Return the application around a server; no documentation pages, which would answer without a key."""
    app = _App(title="ajet swarm server", openapi_url=None, redirect_slashes=False)
    failures = Failures()
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, on_any_error)
    for path, endpoint in _model_routes(server, patience):
        app.router.routes.append(Route(path, endpoint=endpoint, methods=["POST"]))
        guarded = Guard(ExceptionMiddleware(endpoint, _HANDLERS), server.keys, failures, endpoint.tell)
        app.lean[path] = ServerErrorMiddleware(guarded, partial(on_any_error, tell=endpoint.tell))
    app.include_router(control_routes(server))
    app.include_router(reading_routes(server, patience.keep_alive_s))
    app.add_middleware(Guard, keys=server.keys, failures=failures)
    return app


class _App(FastAPI):
    """Sends model calls past the framework's router and telemetry, which cost a few percent of such a call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lean: dict[str, ASGIApp] = {}
        """What answers a POST to a path, all by itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        lean = self.lean.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if lean is None:
            await super().__call__(scope, receive, send)
        else:
            await lean(scope, receive, send)


def _model_routes(server: SwarmServer, patience: Patience) -> tuple[tuple[str, Endpoint | CountEndpoint], ...]:
    """Return the routes that speak to the model, one for each dialect, and the one that counts what it would read."""
    return (
        ("/v1/chat/completions", Endpoint(server, ChatDialect(), patience)),
        ("/v1/responses", Endpoint(server, ResponsesDialect(), patience)),
        ("/v1/messages", Endpoint(server, MessagesDialect(), patience, key_header=_KEY_HEADER)),
        ("/v1/messages/count_tokens", CountEndpoint(server, _KEY_HEADER)),
    )
