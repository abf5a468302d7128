"""The server's one FastAPI application: routes and the form of errors. It has no state but the SwarmServer's."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from swarm.errors import SwarmError
from swarm.server.control import control_routes
from swarm.server.core import SwarmServer
from swarm.server.counting import CountEndpoint
from swarm.server.dialects.chat import ChatDialect
from swarm.server.dialects.messages import MessagesDialect
from swarm.server.dialects.responses import ResponsesDialect
from swarm.server.endpoint import PATIENCE, Endpoint, Patience
from swarm.server.guard import Guard
from swarm.server.http import ClientGone, on_any_error, on_client_gone, on_http_error, on_swarm_error
from swarm.server.reading import reading_routes

_KEY_HEADER = b"x-api-key"
"""Where clients of Anthropic's protocol may carry their key."""


def make_app(server: SwarmServer, patience: Patience = PATIENCE) -> FastAPI:
    """Return the application around a server; no documentation pages, which would answer without a key."""
    app = FastAPI(title="ajet swarm server", openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(SwarmError, on_swarm_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(Exception, on_any_error)
    for path, endpoint in _model_routes(server, patience):
        app.router.routes.append(Route(path, endpoint=endpoint, methods=["POST"]))
    app.include_router(control_routes(server))
    app.include_router(reading_routes(server))
    app.add_middleware(Guard, keys=server.keys)
    return app


def _model_routes(server: SwarmServer, patience: Patience) -> tuple[tuple[str, ASGIApp], ...]:
    """Return the routes that speak to the model, one for each dialect, and the one that counts what it would read."""
    return (
        ("/v1/chat/completions", Endpoint(server, ChatDialect(), patience)),
        ("/v1/responses", Endpoint(server, ResponsesDialect(), patience)),
        ("/v1/messages", Endpoint(server, MessagesDialect(), patience, key_header=_KEY_HEADER)),
        ("/v1/messages/count_tokens", CountEndpoint(server, _KEY_HEADER)),
    )
