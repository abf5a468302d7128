"""What the tests of the swarm make their servers, clients and episodes of."""

from __future__ import annotations

from typing import Any, Final

from swarm.client import Episode

HI: Final[list[Any]] = [{"role": "user", "content": "hi"}]


async def good(episode: Episode[Any]) -> float:
    """Call the model once, and play well."""
    await episode.chat(HI)
    return 1.0
