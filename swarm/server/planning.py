"""Plans of calls: no prompt holds up the calls of others, however long it is.

What cannot fit the context is refused by its length alone, before it is read. Of the rest, long texts are encoded in
threads.

A plan is made at once, in one piece, on the event loop, since it reads the episode's tree. Where it needs the ids of a
long text it is given up, the text is encoded beside the loop, and the plan is made anew: of the episode as it is then,
with the ids at hand. Meanwhile the call is in flight, as far as its episode's lease goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope

from swarm.backends.protocols import BackendError, Message, Renderer, Tool
from swarm.errors import ContextExceeded, InvalidRequest, SwarmError
from swarm.server.episodes import Episode
from swarm.server.http import MAX_BODY_BYTES, header, read_body
from swarm.timelines import Plan

BODY_BYTES, TOKEN_BYTES = 1 << 20, 64
"""A request may be so large, and so much larger for each token of the context: a token is 4 bytes of prose, 12 where
its characters are written as JSON's escapes, and what comes with it is no part of the prompt."""
LONG = 16_384
"""Characters of text from which it is encoded in a thread: some 10 to 20 ms of work."""
AT_ONCE = 2
"""Long texts that are encoded at the same time; the others wait for their turn."""


class Planner:
    """Plans calls for one renderer; made and used on one event loop."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def plan(
        self, episode: Callable[[], Episode], messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[Episode, Plan]:
        """Return the episode and the prompt of a call; `episode` returns it, or raises, each time a plan is made.

        Raises InvalidRequest for messages or tools the template refuses. Nothing is waited for between making the
        plan that is returned and returning it.
        """
        known: dict[str, Sequence[int]] = {}

        def encode(text: str) -> Sequence[int]:
            if len(text) < LONG:
                return self._renderer.encode(text)
            if text not in known:
                raise _Unknown(text)
            return known[text]

        while True:
            present = episode()
            try:
                return present, present.tree.plan(messages, tools, encode)
            except _Unknown as long:
                with _InFlight(present):
                    async with self._turn:
                        known[long.text] = await asyncio.to_thread(self._renderer.encode, long.text)
            except BackendError as refusal:
                raise InvalidRequest(f"the chat template refuses these messages: {refusal}", param="messages") from None


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
            f"expected a request of at most {most} bytes, as its context is {max_context} tokens, found {body_bytes}; "
            "shorten the messages",
            param="messages",
        )


class _InFlight:
    """A call of an episode, of which a text is being encoded; one that is interrupted finds its episode closed."""

    generating = False

    def __init__(self, episode: Episode) -> None:
        self._calls = episode.calls

    def __enter__(self) -> None:
        self._calls.add(self)

    def __exit__(self, *_: object) -> None:
        self._calls.discard(self)

    def interrupt(self, _: SwarmError) -> None:
        """Hold the episode up no more."""
        self._calls.discard(self)


class _Unknown(Exception):
    """A plan needs the ids of a text."""

    def __init__(self, text: str) -> None:
        super().__init__("the ids of a long text are not known yet")
        self.text = text
