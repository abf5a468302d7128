"""`POST /v1/messages/count_tokens`: how many tokens the engine would read if this request were a call.

It promises the exact number, because the very prompt of such a call is made, and no trace: nothing is sampled,
captured, counted or trained. Renews the episode's lease, as any word from its owner does.
"""

from __future__ import annotations

from functools import partial

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from swarm.errors import SwarmError
from swarm.server.calls.sampling_plan import shown_tools
from swarm.server.dialects.messages.dialect import MessagesDialect
from swarm.server.dialects.messages.reading import parse_count
from swarm.server.http.guard import authorised
from swarm.server.http.http import error_response, json_response, whole_body
from swarm.server.service.core import SwarmServer
from swarm.server.shared.keys import Claims


class CountEndpoint:
    """The ASGI application of the route."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server
        self.tell = MessagesDialect().error
        """Returns an error's body as this route tells it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            claims = authorised(scope, uses=("model",))
            body = await whole_body(scope, receive, self._server.training.job.max_context)
            tokens = await self._counted(claims, body)
            response = json_response(to_json({"input_tokens": tokens}))
        except SwarmError as error:
            response = error_response(error, self.tell(error))
        await response(scope, receive, send)

    async def _counted(self, claims: Claims, body: bytes) -> int:
        training = self._server.training
        playing = partial(training.rollout.playing, claims)
        episode = playing()
        ask = parse_count(body, training.backend.model_name)
        _, prompt = await training.serving.prompts.build(episode, playing, ask.messages, shown_tools(ask))
        return len(prompt.prompt_ids)
