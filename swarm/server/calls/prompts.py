"""Who makes the prompt of a call: the builder, which lets no long prompt hold up the calls of others.

Long texts are encoded in threads. What cannot fit the context was refused before it was read (`whole_body`).

A prompt is made in one piece, on the event loop, since it reads the episode's call tree. Where it needs the ids of a
long text, the attempt is given up, the text is encoded in a thread, and the prompt is made anew: of the episode as it
is then, with the ids at hand. Meanwhile the call counts as in flight, so that the episode's lease lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swarm.backends.protocols import BackendError, Message, Renderer, Tool
from swarm.errors import InvalidRequest, SwarmError
from swarm.server.episodes.episodes import LeasedEpisode
from swarm.timelines import Prompt

LONG = 16_384
"""Characters of text from which it is encoded in a thread: some 10 to 20 ms of work."""
AT_ONCE = 2
"""Long texts that are encoded at the same time; the others wait for their turn."""


class PromptBuilder:
    """Makes prompts for one renderer; made and used on one event loop."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def build(
        self,
        episode: LeasedEpisode,
        again: Callable[[], LeasedEpisode],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[LeasedEpisode, Prompt]:
        """Return the episode and the prompt of a call; `again` returns the episode after a wait, or raises.

        Raises InvalidRequest for messages or tools the template refuses. Nothing is waited for between making the
        prompt that is returned and returning it.
        """
        known: dict[str, Sequence[int]] = {}

        def encode(text: str) -> Sequence[int]:
            if len(text) < LONG:
                return self._renderer.encode(text)
            if text not in known:
                raise _Unknown(text)
            return known[text]

        while True:
            try:
                return episode, episode.tree.prompt(messages, tools, encode)
            except _Unknown as long:
                with _InFlight(episode):
                    async with self._turn:
                        known[long.text] = await asyncio.to_thread(self._renderer.encode, long.text)
                episode = again()
            except BackendError as refusal:
                raise InvalidRequest(f"the chat template refuses these messages: {refusal}", param="messages") from None


class _InFlight:
    """A call of an episode, of which a text is being encoded; one that is interrupted finds its episode closed."""

    generating = False

    def __init__(self, episode: LeasedEpisode) -> None:
        self._calls = episode.calls

    def __enter__(self) -> None:
        self._calls.add(self)

    def __exit__(self, *_: object) -> None:
        self._calls.discard(self)

    def interrupt(self, _: SwarmError) -> None:
        """Hold the episode up no more."""
        self._calls.discard(self)


class _Unknown(Exception):
    """A prompt needs the ids of a text."""

    def __init__(self, text: str) -> None:
        super().__init__("the ids of a long text are not known yet")
        self.text = text
