"""What makes a route of an operation: its path, method and keys come from the table, its work from a handler.

The key is judged before the body is read. A lease token opens the routes of its own episode alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarm.errors import Forbidden
from swarm.server.http.guard import authorised
from swarm.server.http.http import json_response, parsed, read_body
from swarm.server.http.operations import Operation
from swarm.server.shared.keys import Claims

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Authorised:
    """A request whose key may make it; `claims` are None where none is needed."""

    request: Request
    claims: Claims | None

    async def body(self, kind: type[M], read: Callable[[bytes], M] | None = None) -> M:
        """Return the body as a wire type, by `read` or its own reading; InvalidRequest names a wrong field."""
        return parsed(kind, await read_body(self.request.receive), read)

    def query(self, kind: type[M]) -> M:
        """Return the query's parameters; InvalidRequest names one that is wrong or not known."""
        return parsed(kind, to_json(dict(self.request.query_params)))

    @property
    def holder(self) -> Claims:
        """What the lease token says."""
        assert self.claims is not None  # the table asks for a lease token
        return self.claims


Handler = Callable[[Authorised], Awaitable[BaseModel | Response]]
"""Does the work of an operation; a model that it returns is answered as JSON."""


def made_route(operation: Operation, handler: Handler) -> Route:
    """Return the route of an operation."""

    async def serve(request: Request) -> Response:
        answer = await handler(Authorised(request, _claims(request, operation)))
        return answer if isinstance(answer, Response) else json_response(answer.model_dump_json().encode())

    return Route(operation.path, serve, methods=[operation.method])


def _claims(request: Request, operation: Operation) -> Claims | None:
    if not operation.roles and not operation.uses:
        return None
    claims = authorised(request.scope, roles=operation.roles, uses=operation.uses)
    if claims.use == "lease" and claims.episode != request.path_params["episode_id"]:
        raise Forbidden(f"this lease token is for episode {claims.episode}, not for the one in the path")
    return claims
