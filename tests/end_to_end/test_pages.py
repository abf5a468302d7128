"""The command lines of README and docs, run as they are written, page by page, in the order of the page.

`typed` ends what would go on for hours. What cannot be had here is in `ELSEWHERE`, each with its reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from studies import EventLog
from swarm.backends.tiny_model import ensure_tiny
from swarm.client import AsyncSwarmClient, EpisodeResult, SwarmClient
from swarm.job import Job, TinyModel
from tests.end_to_end.factories import ajet, inherited
from tests.furnished import furnish
from tests.research.factories import make_study
from tests.swarm.models.folders import whole_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("SKILL", "agents", "environments", "metrics", "models", "prefect", "research", "swarm")
    ),
)
ELSEWHERE = {
    r"^make ": "what .ci/run runs",
    r"smollm2|^python tasks.py$": "a download of 270 MB",
    r"https://|^(trainer|laptop|player)\$": "another machine",
    r'research "\.\.\." --sandbox': "a topic",
    r"--planner llm|^wandb sync": "an account; `test_faults.py` and `tests/research/tracking` have stand-ins",
    r"--requirements": "packages of a registry",
    r"--allow|sandbox build": "a Docker Engine; `tests/sandboxes` has one",
    r"study deny": "another answer to one question",
    r"env remove": "the hash of an environment as this machine draws it",
    r"gymnasium:": "a package that is not pinned here; `tests/examples/test_other_packages.py`",
}
AGENT = """
async def agent(episode):
    await episode.chat([{"role": "user", "content": str(episode.task.data.get("question", "1+1"))}])
    return 0.5, False


play = agent
"""
JUDGE = "def reward(task, messages):\n    return float(messages[-1]['content'] == task['data']['answer'])\n"
FAKE = {"backend": "fake", "environment": "arith", "episodes_per_step": 8, "group_size": 4, "steps": 1000}
JOB = "ajet swarm stop 2>/dev/null || true\najet swarm start --job fake.json\n"
WAITED = 'for job in $(jobs -p); do wait "$job"; done'
BEFORE = {
    'ajet research "does a larger group size help?"': "ajet env init my_stock\n",
    "ajet client run my_agent/ --tasks tasks.json": JOB.replace("fake", "streams"),
    "ajet client run my_agent/ --restart": JOB,
    "ajet client env openai": "ajet swarm stop 2>/dev/null || true\ncp fake.json job.json\n",
    "ajet swarm export-model my-model": JOB.replace("fake", "job") + "ajet client run agent.py\n",
}
"""What a block needs that its page has not begun, by its first line."""


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    furnish(tmp_path / ".ajet", tmp_path_factory)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "my_agent").mkdir()
    for name in ("my_agent/agent.py", "agent.py"):
        (tmp_path / name).write_text(AGENT)
    (tmp_path / "my_sums").mkdir()
    (tmp_path / "my_sums" / "judge.py").write_text(JUDGE)
    sums = [{"id": f"q{n}", "data": {"question": f"{n}+1", "answer": f"{n + 1}"}} for n in range(1, 200)]
    (tmp_path / "tasks.json").write_text(json.dumps(sums))
    lines = [json.dumps({"id": one["id"], "prompt": f"{n}+1", "answer": f"{n + 1}"}) for n, one in enumerate(sums, 1)]
    (tmp_path / "my_sums" / "tasks.jsonl").write_text("\n".join(lines))
    streams = {"streams": {"default": 1, "math": 1}, "episodes_per_step": 1024}
    for name, more in {"fake": {}, "speaker": {}, "listener": {}, "streams": streams}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**FAKE, **more}))
    (tmp_path / "job.json").write_text('{"temperature": 0.9}')
    for name in ("mine", "theirs"):
        (tmp_path / "models").mkdir(exist_ok=True)
        config = whole_folder(tmp_path / "models" / name) / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "of": name}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AJET_HOME", str(tmp_path / ".ajet"))
        study = make_study(study="larger-group")
        study.whole()
        study.log.close()
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> Iterator[dict[str, str]]:
    (folder / "bin").mkdir()
    script = folder / "bin" / "ajet"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.end_to_end.typed "$@"\n')
    script.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mine = inherited(PATH=path, AJET_SANDBOX="process", WANDB_MODE="offline", PYTHONUNBUFFERED="1")
    yield mine
    ours = {**mine, "AJET_HOME": str(folder / ".ajet")}
    log = EventLog(f"sqlite:///{folder / '.ajet' / 'ajet.db'}")
    for study in log.studies():
        ajet(ours, "study", "stop", study)
    log.close()
    for name in json.loads(ajet(ours, "swarm", "list", "--json").stdout):
        ajet(ours, "swarm", "stop", *(["--server", name["name"]] if name["name"] else []))
    ajet(ours, "up", "--stop")


def blocks(page: str) -> list[str]:
    found = re.findall(r"^```(?:bash)?\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    shells = [block for block in found if re.match(r"ajet |python tasks", block)]
    return [
        "".join(f"{line}\n" for line in block.splitlines() if not any(re.search(odd, line) for odd in ELSEWHERE))
        for block in shells
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_as_they_are_written(page: str, folder: Path, environment: dict[str, str]) -> None:
    for block in filter(None, blocks(page)):
        before = next((said for first, said in BEFORE.items() if block.startswith(first)), "")
        lines = re.sub(r"\bID\b", "larger-group", block).replace("FOLDER", "exported")
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{before}{lines}{WAITED}"],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=1500,
        )  # fmt: skip
        assert ended.returncode == 0, f"{lines}\n{ended.stdout[-1000:]}\n{ended.stderr[-3000:]}"


def test_each_reason_why_a_line_is_not_run_is_that_of_a_line() -> None:
    lines = [line for page in PAGES for line in (ROOT / page).read_text().splitlines()]
    assert [odd for odd in ELSEWHERE if not any(re.search(odd, line) for line in lines)] == []


DOCUMENT = ROOT / "docs" / "training.md"


@pytest.fixture
def swarm_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mine = inherited(AJET_HOME=str(tmp_path / "home"), PATH=path)
    yield mine
    ajet(mine, "swarm", "stop")


def blocks_of(language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return found


async def evaluated(home: Path, agent: Any) -> tuple[EpisodeResult, str]:
    async with AsyncSwarmClient.from_home(home=home, role="client") as client:
        (played,) = await client.evaluate(agent, [types.SimpleNamespace(id="s", question="2+3", answer="5")])
        return played, (await client.episodes(1)).episodes[0].id


@pytest.mark.timeout(1200)  # a busy machine takes 500
def test_every_block_of_the_page_runs_as_written_and_its_program_learns(
    swarm_environment: dict[str, str], tmp_path: Path
) -> None:
    """The plays by hand come first: a job whose steps are done takes no more."""

    def ran(*command: str) -> str:
        ended = subprocess.run(
            command, cwd=tmp_path, env=swarm_environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    start, by_hand, look = blocks_of("bash")
    program, with_tools = blocks_of("python")
    ran("bash", "-euc", start)
    assert ran("bash", "-euc", by_hand).count('"state":"ended"') == Job().group_size
    with SwarmClient.from_home(home=tmp_path / "home", role="viewer") as client:
        assert client.status().collected_episodes == Job().group_size
    (tmp_path / "program.py").write_text(program)
    said = ran(sys.executable, "program.py")
    trained, before, after = map(float, re.findall(r"(?<=reward_mean=)[\d.]+|(?<=, )[\d.]+(?=[,)])", said)[-3:])
    assert (trained > 0.5, max(trained, after) > before + 0.1) == (True, True), said  # the last plays alone may dip
    module = types.ModuleType("documented")
    exec(with_tools, module.__dict__)
    played, newest = asyncio.run(evaluated(tmp_path / "home", module.agent))
    assert played.failed == ""
    ran("bash", "-euc", look.replace("EPISODE", newest))
    assert (tmp_path / "episodes.jsonl").stat().st_size > 1000


@pytest.mark.timeout(1200)
def test_a_script_of_trls_becomes_a_job_that_is_trained(swarm_environment: dict[str, str], tmp_path: Path) -> None:
    """Every block of the page, in its order; the script itself too where TRL is installed."""

    def ran(*command: str) -> str:
        ended = subprocess.run(
            command, cwd=tmp_path, env=swarm_environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    page = (ROOT / "docs" / "migrating.md").read_text()
    found = re.findall(r"^```(?:python|bash)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    script, imports, tasks, judge, check, training = found
    shutil.copytree(ensure_tiny(TinyModel(warm_start_steps=0), "arith", tmp_path), tmp_path / "models" / "mine")
    rows = [{"prompt": [{"role": "user", "content": f"{n}+1"}], "answer": f"{n + 1}"} for n in range(60)]
    (tmp_path / "train.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "train.py").write_text(script)
    if find_spec("trl") is not None:
        ran(sys.executable, "train.py")
    ran("bash", "-euc", imports)
    job = Job.model_validate_json((tmp_path / "job.json").read_text())
    assert (job.steps, job.episodes_per_step, job.group_size, job.learning_rate, job.max_tokens) == (2, 8, 4, 1e-4, 8)
    ran(sys.executable, "-c", tasks)
    (tmp_path / "mine" / "judge.py").write_text(judge)
    (name,) = set(re.findall(r"tasks@\w+", ran("bash", "-euc", check)))
    ran("bash", "-euc", re.sub(r"tasks@\w+", name, training))
    with SwarmClient.from_home(home=tmp_path / "home", role="viewer") as client:
        assert client.status().step == 2
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(written) >= 16
    assert {row["messages"][0]["role"] for row in written} == {"user"}
