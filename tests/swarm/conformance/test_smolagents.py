"""Agents of smolagents, by base URL and key alone, in training episodes. They write their histories anew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.lazily import lazy
from tests.swarm.conformance.support import assert_trained_once, calls, drifts, roomy, saying, spoken, tree
from tests.swarm.server.support import MODEL, serving

smolagents = lazy("smolagents")


def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where
    """
    return f"{city}: sun"


def play(kind: str, lease: dict[str, Any]) -> Any:
    model = smolagents.OpenAIModel(MODEL, api_base=lease["base_url"], api_key=lease["api_key"])
    return getattr(smolagents, kind)(tools=[smolagents.tool(weather)], model=model, verbosity_level=0).run("hi")


async def test_a_tool_calling_agent_forces_tools_which_is_neutralised_and_counted(tmp_path: Path) -> None:
    turns = [calls("weather", city="Bonn"), calls("final_answer", answer="sunny")]
    async with serving(tmp_path, roomy(foreign_sampling="neutralise"), script=saying(*turns)) as served:
        lease = await served.begin()
        assert await asyncio.to_thread(play, "ToolCallingAgent", lease) == "sunny"
        assert served.server.training.rollout.counts["neutralised_tool_choice"] == 2
        # it sends its calls back as text: another history than the one served
        await assert_trained_once(served, lease, turns, start=1, fork=1)


async def test_a_code_agent_plays_in_an_episode_that_neutralises_nothing(tmp_path: Path) -> None:
    turns = [
        'Thought: look.\n<code>\nprint(weather("Bonn"))\n</code>',
        'Thought: done.\n<code>\nfinal_answer("sunny")\n</code>',
    ]
    async with serving(tmp_path, roomy(), script=saying(*turns)) as served:
        lease = await served.begin()
        assert await asyncio.to_thread(play, "CodeAgent", lease) == "sunny"
        # it adds to its history what it did with the answer: another history than the one served
        found = tree(served, lease)
        assert (spoken(found), drifts(found)) == (turns, {"start": 1, "fork": 1})  # through its stop string `</code>`
        assert (await served.end(lease)).status == 200
