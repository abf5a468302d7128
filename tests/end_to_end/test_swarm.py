"""A swarm server of one's own: started from the command line, and played as its page says."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AsyncSwarmClient, EpisodeResult, SwarmClient
from swarm.job import Job
from tests.end_to_end.factories import ajet, inherited

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "training.md"
pytestmark = pytest.mark.slow


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mine = inherited(AJET_HOME=str(tmp_path / "home"), PATH=path)
    yield mine
    ajet(mine, "swarm", "stop")


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return found


async def evaluated(home: Path, agent: Any) -> tuple[EpisodeResult, str]:
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
