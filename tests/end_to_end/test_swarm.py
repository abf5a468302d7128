"""A swarm server of one's own: started from the command line, played by curl and by the openai SDK as it is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AsyncSwarmClient, EpisodeResult, NamedTask, SwarmClient
from swarm.job import Job, TinyModel
from tests.end_to_end.factories import ajet, inherited
from tests.lazily import lazy

sdk = lazy("openai")
ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "training.md"
pytestmark = pytest.mark.slow


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An installation of its own with `ajet` and this Python first on the path; its server is stopped at the end."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mine = inherited(AJET_HOME=str(tmp_path / "home"), PATH=path)
    yield mine
    ajet(mine, "swarm", "stop")


def small_job(steps: int = Job().steps) -> Job:
    return Job(environment="arith", model=TinyModel(warm_start_steps=5), steps=steps)


def started(environment: dict[str, str], tmp_path: Path, steps: int = Job().steps) -> tuple[str, dict[str, str]]:
    """Start a server with a small real model; return its address and its tokens."""
    path = tmp_path / "job.json"
    path.write_text(small_job(steps).model_dump_json())
    ended = ajet(environment, "swarm", "start", "--job", str(path), "--port", "0", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["status"]["state"] == "ROLLING"
    return found["url"], json.loads(Path(found["tokens"]).read_text())


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return found


async def evaluated(home: Path, agent: Any) -> tuple[EpisodeResult, str]:
    """Let the agent play a sum; return how, and the episode's id."""
    async with AsyncSwarmClient.from_home(home=home, role="client") as client:
        (played,) = await client.evaluate(agent, [types.SimpleNamespace(id="s", question="2+3", answer="5")])
        return played, (await client.episodes(1)).episodes[0].id


@pytest.mark.timeout(1200)  # a busy machine takes 500
def test_every_block_of_the_page_runs_as_written_and_its_program_learns(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The plays by hand come first: a job whose steps are done takes no more."""

    def ran(*command: str) -> str:
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    start, by_hand, look = blocks("bash")
    program, with_tools = blocks("python")
    ran("bash", "-euc", start)
    assert ran("bash", "-euc", by_hand).count('"state":"ended"') == Job().group_size
    with SwarmClient.from_home(home=tmp_path / "home", role="viewer") as client:
        assert client.status().collected_episodes == Job().group_size
    (tmp_path / "program.py").write_text(program)
    said = ran(sys.executable, "program.py")
    before, after = map(float, re.findall(r"[\d.]+", said)[-2:])
    assert after > before + 0.2, said
    module = types.ModuleType("documented")
    exec(with_tools, module.__dict__)
    played, newest = asyncio.run(evaluated(tmp_path / "home", module.agent))
    assert played.failed == ""
    ran("bash", "-euc", look.replace("EPISODE", newest))
    assert (tmp_path / "calls.parquet").stat().st_size > 1000


def test_the_openai_sdk_plays_an_episode(environment: dict[str, str], tmp_path: Path) -> None:
    url, tokens = started(environment, tmp_path)
    with SwarmClient(url, tokens["client"]) as client:
        episode = client.begin(NamedTask("sum"), kind="eval")
        with sdk.OpenAI(base_url=episode.base_url, api_key=episode.api_key) as openai:
            assert episode.model in [model.id for model in openai.models.list()]
            completion = openai.chat.completions.create(
                model=episode.model, messages=[{"role": "user", "content": "1 + 2"}], max_tokens=4
            )
        assert completion.choices[0].finish_reason in {"stop", "length"}
        assert completion.usage is not None
        assert 1 <= completion.usage.completion_tokens <= 4
        assert episode.end(0.0).state == "ended"


def test_a_server_is_found_again_shown_and_stopped(environment: dict[str, str], tmp_path: Path) -> None:
    url, _ = started(environment, tmp_path)
    assert json.loads(ajet(environment, "swarm", "start", "--json").stdout)["url"] == url
    shown = ajet(environment, "swarm", "status")
    assert "ROLLING" in shown.stdout
    assert json.loads(ajet(environment, "swarm", "status", "--json").stdout)["steps"] == Job().steps
    other = ajet(environment, "swarm", "start", "--environment", "guess")
    assert other.returncode == 2
    assert "trains job" in other.stderr
    assert ajet(environment, "swarm", "stop").returncode == 0
    assert ajet(environment, "swarm", "status").returncode == 2


def test_a_server_that_was_stopped_takes_its_job_up_again_and_says_when_another_begins(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def start(**fields: int) -> dict[str, Any]:
        path = tmp_path / "job.json"
        small = {"backend": "fake", "episodes_per_step": 2, "group_size": 2, "checkpoint_every": 1}
        path.write_text(json.dumps({**small, **fields}))
        ended = ajet(environment, "swarm", "start", "--port", "0", "--json", *(["--job", str(path)] if fields else []))
        assert ended.returncode == 0, ended.stderr
        return dict(json.loads(ended.stdout))

    def client(found: dict[str, Any]) -> SwarmClient:
        return SwarmClient(found["url"], json.loads(Path(found["tokens"]).read_text())["admin"])

    with client(start(steps=3)) as first:
        for _ in range(2):
            episode = first.begin(NamedTask("sum"), wait_s=60)
            episode.chat([{"role": "user", "content": "1 + 2"}])
            episode.end(1.0)
        while (status := first.status()).step < 1 or status.state != "ROLLING":
            assert status.state != "FAILED", status.reason
    assert ajet(environment, "swarm", "stop").returncode == 0
    with client(start()) as again:
        while (status := again.status()).state != "ROLLING":
            assert status.state in ("OFFLINE", "BOOTING"), status.reason
        assert (status.step, status.steps, status.fresh_start) == (1, 3, None)
    assert ajet(environment, "swarm", "stop").returncode == 0
    longer = start(steps=5)["status"]
    assert (longer["step"], longer["steps"], longer["fresh_start"]) == (1, 5, None)
    assert ajet(environment, "swarm", "stop").returncode == 0
    other = start(steps=5, seed=1)["status"]
    assert other["step"] == 0
    assert "(step 1; seed 1, not 0)" in other["fresh_start"]
    assert "seed 1, not 0" in ajet(environment, "swarm", "status").stdout.replace("\n", " ")
