"""`POST /v1/messages/count_tokens`: how many tokens the engine would read if this request were a call.

It promises the exact number, because the call itself is planned, and no trace: nothing is sampled, captured,
counted or trained. Renews the episode's lease, as any word from its owner does.
"""

from __future__ import annotations

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from swarm.errors import SwarmError
from swarm.server.core import SwarmServer
from swarm.server.dialects.messages import MessagesDialect
from swarm.server.dialects.messages_reading import parse_count
from swarm.server.http import authorization, error_response, json_response
from swarm.server.keys import Claims
from swarm.server.planning import whole_body
from swarm.server.policy import shown_tools


class CountEndpoint:
    """The ASGI application of the route."""

    def __init__(self, server: SwarmServer, key_header: bytes) -> None:
        self._server = server
        self._key_header = key_header
        self.tell = MessagesDialect().error
        """Returns an error's body as this route tells it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            claims = self._server.keys.authorise(authorization(scope, self._key_header), uses=("model",))
            body = await whole_body(scope, receive, self._server.training.job.max_context)
            tokens = await self._counted(claims, body)
            response = json_response(to_json({"input_tokens": tokens}))
        except SwarmError as error:
            response = error_response(error, self.tell(error))
        await response(scope, receive, send)

    async def _counted(self, claims: Claims, body: bytes) -> int:
        training = self._server.training
        training.rollout.playing(claims)
        ask = parse_count(body, training.backend.model_name)
        _, plan = await training.planner.plan(lambda: training.rollout.playing(claims), ask.messages, shown_tools(ask))
        return len(plan.prompt_ids)
