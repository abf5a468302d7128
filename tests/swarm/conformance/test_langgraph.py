"""A LangGraph agent over langchain-openai, by base URL and key alone, in training episodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazy
from tests.swarm.conformance.support import (
    THOUGHT,
    assert_exact,
    assert_trained_once,
    calls,
    drifts,
    roomy,
    saying,
    tree,
)
from tests.swarm.server.support import MODEL, serving

langchain_openai = lazy("langchain_openai")
prebuilt = lazy("langgraph.prebuilt")
pytestmark = pytest.mark.filterwarnings("ignore:.*create_react_agent.*")
TURN = "let me see\n" + calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")


def weather(city: str) -> str:
    """Tells the weather."""
    return f"{city}: sun"


def agent(lease: dict[str, Any], **how: Any) -> Any:
    model = langchain_openai.ChatOpenAI(model=MODEL, base_url=lease["base_url"], api_key=lease["api_key"], **how)
    return prebuilt.create_react_agent(model, [weather])


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("thought", ["", THOUGHT], ids=["plain", "thinking"])
async def test_an_agent_over_responses_plays_without_a_fork(tmp_path: Path, streaming: bool, thought: str) -> None:
    async with serving(tmp_path, roomy(), script=saying(thought + TURN, "both sunny")) as served:
        lease = await served.begin()
        how = {"use_responses_api": True, "streaming": streaming}
        done = await agent(lease, **how).ainvoke({"messages": [("system", "be brief"), ("user", "hi")]})
        assert done["messages"][-1].text == "both sunny"
        await assert_trained_once(served, lease, [thought + TURN, "both sunny"], start=1, clean=1)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_an_agent_over_chat_plays_without_a_fork(tmp_path: Path, streaming: bool) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny", "welcome")) as served:
        lease = await served.begin()
        graph = agent(lease, streaming=streaming)
        done = await graph.ainvoke({"messages": [("user", "hi")]})
        assert [message.content for message in done["messages"][-3:]] == ["Bonn: sun", "Rome: sun", "both sunny"]
        done = await graph.ainvoke({"messages": [*done["messages"], ("user", "thanks")]})
        assert done["messages"][-1].content == "welcome"
        await assert_trained_once(served, lease, [TURN, "both sunny", "welcome"], start=1, clean=2)


async def test_thinking_that_the_framework_drops_over_chat_is_a_fork_trained_as_the_engine_saw_it(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, roomy(), script=saying(THOUGHT + TURN, "both sunny")) as served:
        lease = await served.begin()
        await agent(lease).ainvoke({"messages": [("user", "hi")]})
        await assert_trained_once(served, lease, [THOUGHT + TURN, "both sunny"], start=1, fork=1)


async def test_a_blocking_agent_plays(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        await asyncio.to_thread(agent(lease).invoke, {"messages": [("user", "hi")]})
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_agents_at_once_in_one_episode_keep_their_conversations_apart(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        graph = agent(lease)
        await asyncio.gather(*(graph.ainvoke({"messages": [("user", task)]}) for task in ("hi", "ho")))
        found = tree(served, lease)
        assert sorted(len(node.path()) for node in found.nodes) == [1, 1, 2, 2]
        assert drifts(found) == {"start": 2, "clean": 2}
        assert_exact(served, found)
