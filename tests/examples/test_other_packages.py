"""The examples on environments of other packages, and of a framework's agent, at small size."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from swarm.environments import Task, said
from swarm.environments.adapters import adapt
from swarm.environments.building import SPLITS, draw
from swarm.environments.custom import CodeSource
from swarm.environments.loading import load_source
from swarm.environments.play import agent_of, judge_outcome
from tests.swarm.clients.packages import ADAPTED

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def adapted_packages() -> Iterator[None]:
    folder = str(ADAPTED.there())
    sys.path.append(folder)
    yield
    sys.path.remove(folder)


@pytest.mark.usefixtures("adapted_packages")
@pytest.mark.parametrize(
    ("name", "answer"), [("frozen_lake", "down"), ("reasoning_gym_mix", "<answer>4</answer>"), ("textarena_game", "hm")]
)
def test_the_address_of_an_example_gives_tasks_that_are_played_to_their_end(name: str, answer: str) -> None:
    words = shlex.split((EXAMPLES / name / "study.sh").read_text(), comments=True)
    address = words[words.index("--env") + 1]
    environment = adapt(re.sub(r"tasks=\d+", "tasks=16", address))
    _, drawn = draw(environment, b"secret")
    assert all(drawn[split] for split in SPLITS)
    game = environment.game(drawn["hidden"][0])
    assert game.opening()
    assert any(game.answer(said(answer)) == [] for _ in range(20))
    outcome = judge_outcome(environment, game.outcome())
    assert outcome.success in (True, False)


@pytest.mark.slow
async def test_a_framework_s_agent_plays_with_its_tool_and_is_judged_by_the_environment() -> None:
    environment = load_source(CodeSource(kind="folder", place="environment.py"), EXAMPLES / "framework_agent")
    asked: list[dict[str, Any]] = []

    def buyer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        told = [message["content"] for message in asked[-1]["messages"] if message["role"] == "tool"]
        calls = [
            {"id": thing, "type": "function", "function": {"name": "price", "arguments": json.dumps({"thing": thing})}}
            for thing in ("fig", "plum")
        ]
        message = {"role": "assistant", "content": str(sum(map(int, told)))} if told else {
            "role": "assistant", "content": None, "tool_calls": calls,
        }  # fmt: skip
        choice = {"index": 0, "finish_reason": "stop" if told else "tool_calls", "message": message}
        return httpx.Response(
            200, json={"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        )

    from openai import AsyncOpenAI

    client = AsyncOpenAI(
        api_key="none", base_url="http://policy/v1", http_client=httpx.AsyncClient(transport=httpx.MockTransport(buyer))
    )
    episode: Any = SimpleNamespace(task=Task("prices-1", {"fig": 3, "plum": 4}), model="policy", openai=lambda: client)
    outcome = await agent_of(environment)(episode)
    assert (len(asked), outcome.reward, outcome.success) == (2, 1.0, True)
