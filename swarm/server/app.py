"""The server's one FastAPI application: routes and the form of errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.dialects.chat import ChatDialect
from swarm.dialects.messages import MessagesDialect
from swarm.dialects.responses import ResponsesDialect
from swarm.server.connections import FailureLimiter
from swarm.server.export import Exporter
from swarm.server.http import KEY_HEADER, REFUSALS, Guard, on_any_error
from swarm.server.inspection import Inspection
from swarm.server.model_endpoint import STREAM_TIMEOUTS, CountEndpoint, ModelEndpoint, StreamTimeouts
from swarm.server.routes import router
from swarm.server.service import SwarmServer


def make_app(server: SwarmServer, timeouts: StreamTimeouts = STREAM_TIMEOUTS) -> FastAPI:
    """Return the application around a server; no documentation pages, which would answer without a key."""
    app = _App(openapi_url=None, redirect_slashes=False)
    app.state.server = server
    app.state.exporter = Exporter(Inspection(server))
    app.state.keep_alive_s = timeouts.keep_alive_s
    for kind, handler in REFUSALS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, on_any_error)
    failures = FailureLimiter()
    app.add_middleware(Guard, keys=server.keys, failures=failures)
    app.router.routes += router.routes  # not included: that would match each request twice
    endpoints: tuple[tuple[str, ModelEndpoint | CountEndpoint], ...] = (
        ("/v1/chat/completions", ModelEndpoint(server, ChatDialect(), timeouts)),
        ("/v1/responses", ModelEndpoint(server, ResponsesDialect(), timeouts)),
        ("/v1/messages", ModelEndpoint(server, MessagesDialect(), timeouts)),
        ("/v1/messages/count_tokens", CountEndpoint(server)),
    )
    for path, endpoint in endpoints:
        anthropic = path.startswith("/v1/messages")
        key_header = KEY_HEADER if anthropic else None
        guarded = Guard(ExceptionMiddleware(endpoint, REFUSALS), server.keys, failures, endpoint.tell, key_header)
        app.router.routes.append(Route(path, endpoint=guarded, methods=["POST"]))
        app.lean[path] = ServerErrorMiddleware(guarded, partial(on_any_error, tell=endpoint.tell))
        if anthropic:  # its client may have been given a base URL with `/v1`
            app.lean[f"/v1{path}"] = app.lean[path]
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
