"""`ajet client run` and `debug` beside a server in a thread: what is played, and how it ends."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from research.agents.launch import AgentPlacement
from research.agents.request import AgentRequest, RunOptions
from research.agents.run import AgentResult
from research.cli.client import report_end
from sandboxes import Exit
from swarm.client import NamedTask, SwarmClient
from swarm.errors import SwarmError
from tests.golden import assert_golden
from tests.research.cli.clients.conftest import PATIENCE_S, Load, make_agent, make_tasks, running
from tests.research.cli.conftest import Ajet, client_of, server_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
OPENAI_AGENT = """
import os
from openai import OpenAI

def agent(episode):
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        question = [{"role": "user", "content": episode.task.data["question"]}]
        answer = client.chat.completions.create(model=episode.model, messages=question)
    return float(os.environ["WORTH"]), bool(answer.choices[0].message.content)
"""
AGENT = """
async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    return 0.5
"""


@pytest.mark.parametrize("kind", ["process", "docker"])
def test_an_agent_with_openais_sdk_trains_to_the_last_step(
    ajet: Ajet, home: Path, tmp_path: Path, load: Load, control: SwarmClient, request: pytest.FixtureRequest, kind: str
) -> None:
    text = OPENAI_AGENT
    if kind == "docker":
        request.getfixturevalue("contained")
        inside = "assert os.environ['AJET_TOKEN'] == 'sandbox' and episode.base_url == 'http://127.0.0.1:8000/v1'"
        text = text.replace("    with", f"    {inside}\n    with")
    load()
    asked = ["client", "run", make_agent(tmp_path, text), "--tasks", make_tasks(tmp_path), "--concurrency", "2"]
    found = ajet(*asked, "--sandbox", kind, "--env", "WORTH=0.25", "--json").data
    result = found["result"]
    assert (result["episodes"], result["reward_mean"], result["success_mean"], result["dropped"]) == (8, 0.25, 1.0, {})
    assert (found["sandbox"], found["exit"]) == (kind, {"reason": "finished", "code": 0})
    assert (found["refused"], found["server"]) == ({}, server_of(home).url)
    assert list((home / "clients").glob("*")) == []
    assert control.status().finished


def documented() -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "agents.md").read_text(), re.DOTALL)
    return [block for block in blocks if "def agent(episode)" in block]


@pytest.mark.parametrize("text", documented(), ids=["with an SDK", "without"])
def test_the_agents_of_the_documentation_play(ajet: Ajet, tmp_path: Path, load: Load, text: str) -> None:
    load()
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"id": "q", "data": {"question": "1+1", "answer": "2"}}]))
    played = ajet("client", "run", make_agent(tmp_path, text), "--tasks", str(tasks), "--json").data
    assert played["result"]["dropped"] == {}


def test_an_evaluation_trains_nothing(ajet: Ajet, tmp_path: Path, load: Load, control: SwarmClient) -> None:
    load()
    asked = ["client", "run", make_agent(tmp_path, AGENT), "--tasks", make_tasks(tmp_path), "--eval"]
    played = ajet(*asked, "--episodes", "3", "--json").data["result"]
    assert [(episode["reward"], episode["success"]) for episode in played["episodes"]] == [(0.5, None)] * 3
    assert (played["policy_version"], control.status().collected_episodes) == (0, 0)


def test_the_environments_own_agent_plays_a_job_to_its_end_which_may_be_evaluated_then(ajet: Ajet, load: Load) -> None:
    load()
    asked = ["client", "run", "--concurrency", "4"]
    ended = ajet(*asked)
    assert (ended.code, ended.out.startswith("trained        8 episodes,")) == (0, True), ended.err
    assert "nothing is isolated" in ended.err
    ajet(*asked).refused("2 steps are done")
    assert ajet(*asked, "--eval", "--episodes", "3").code == 0


def test_evaluations_are_played_as_training_waits(ajet: Ajet, home: Path, load: Load, control: SwarmClient) -> None:
    load(steps=4, eval_every=2, evaluation_episodes=5)

    def train() -> None:
        with client_of(home) as own:
            for number in itertools.count():
                if own.status().finished:
                    return
                with suppress(SwarmError):  # a step, or an evaluation, is on its way
                    episode = own.begin(NamedTask(f"t{number // 2}"), wait_s=1.0)
                    episode.chat([{"role": "user", "content": "hi"}])
                    episode.end(float(number % 2))

    beside = threading.Thread(target=train)
    beside.start()
    ended = ajet("client", "run", "--evaluations", "--json")
    beside.join()
    evaluations = ended.data["result"]["evaluations"]
    assert [(one["policy_version"], len(one["episodes"])) for one in evaluations] == [(2, 5), (4, 5)]
    assert {one["split"] for one in evaluations} == {"search"}  # hidden tasks are for verdicts
    means = {one["policy_version"]: sum(play["success"] for play in one["episodes"]) / 5 for one in evaluations}
    best, kept = control.status().best, control.checkpoints()
    assert best is not None
    assert (best.success, best.success, best.episodes) == (means[best.step], max(means.values()), 5)
    assert kept.best == best
    assert best.step in {one.step for one in kept.checkpoints}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import no_such_package_here\n", 2, ("'no_such_package_here'", "--requirements")),
        ("def agent(episode, tools):\n    return 1\n", 2, ("agent(episode)", "agent(episode, tools)")),
        ("def agent(episode):\n    raise ValueError('no idea')\n", 3, ("ValueError: no idea", "agent.py, line 2")),
        ("async def agent(episode):\n    await episode.chat([{'role': 'user', 'content': 'x'}])\n", 2, ("(None)",)),
    ],
    ids=["package", "signature", "raises", "type"],
)
def test_an_agent_that_cannot_be_played_ends_with_its_reason(
    ajet: Ajet, tmp_path: Path, load: Load, control: SwarmClient, text: str, code: int, words: tuple[str, ...]
) -> None:
    load()
    again = () if code == 3 else ("--restart", "--concurrency", "1")  # bad input is not tried again
    ended = ajet("client", "run", make_agent(tmp_path, text), *again)
    assert (ended.code, [word for word in words if word not in ended.err]) == (code, []), ended.err
    assert "ajet: restart" not in ended.err
    assert control.status().collected_episodes == 0


WRONG = (
    "--stream ''", "--environment chess", "--tasks missing.json", "--sandbox jail", "--allow example.com:443",
    "--requirements r.txt", "--memory 2g", "--env NAME", "--env PYTHONPATH=x", "--evaluations",
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_go_with_the_job_or_a_process_is_refused(
    ajet: Ajet, tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    load()
    monkeypatch.chdir(tmp_path)
    assert_golden(ajet("client", "run", *wrong.replace("''", "").split(" ")).refused())


def make_result(exit: Exit, action: str = "play", result: Any = None, **fields: Any) -> AgentResult:
    request = AgentRequest(RunOptions(evaluate=action == "evaluate"), None, (), time_limit_s=60.0)
    run = SimpleNamespace(request=request, place=AgentPlacement(Path("/run"), {}))
    given = {"exit": exit, "run": run, "result": result, "refused": {}, "status": None, **fields}
    return AgentResult(**cast(Any, given))


@pytest.mark.parametrize(
    ("ended", "code", "word"),
    [
        (make_result(Exit("finished", 0)), 0, ""),
        (make_result(Exit("finished", 0), status=SimpleNamespace(finished=False)), 1, "run it again"),
        (make_result(Exit("finished", 0), "evaluate", status=SimpleNamespace(finished=False)), 0, ""),
        (make_result(Exit("error", 2)), 2, ""), (make_result(Exit("error", 3)), 3, ""),
        (make_result(Exit("error", 7)), 1, "exit code 7"), (make_result(Exit("out_of_memory", None)), 1, "1024 MiB"),
        (make_result(Exit("timeout", None)), 1, "60 s"), (make_result(Exit("killed", None)), 1, "from outside"),
        (make_result(Exit("lost", None)), 1, "container is gone"),
    ],
)  # fmt: skip
def test_how_it_ended_is_the_exit_code(
    ended: AgentResult, code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, told = report_end(ended), capsys.readouterr().err
    assert (found, word in told, bool(told)) == (code, True, bool(word))


def test_on_a_full_disk_only_who_plays_goes_on(home: Path, load: Load, control: SwarmClient, tmp_path: Path) -> None:
    load()
    agent, server = make_agent(tmp_path, AGENT), server_of(home)
    full: dict[str, Any] = {
        "capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False,
        "env": {**os.environ, "AJET_SERVER": server.url, "AJET_TOKEN": server.client_token},
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)), "cwd": ROOT,
    }  # fmt: skip
    refused = subprocess.run([sys.executable, "-m", "research", "client", "run", agent, "--sandbox", "process"], **full)
    assert (refused.returncode in (1, 2, 3), refused.stderr.count("\n")) == (True, 1), refused.stderr
    assert "can be written" in refused.stderr
    playing = [sys.executable, "-m", "swarm.environments", "play", "--server", server.url, "--environment", "arith"]
    played = subprocess.run([*playing, "--agent", f"{agent}/agent.py"], **full)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["episodes"] == 8
    assert control.status().finished


STOPPING = """
async def agent(episode):
    reply = await episode.chat([{"role": "user", "content": "hi"}])
    breakpoint()
    await episode.chat([{"role": "user", "content": "again"}])
    return 0.5, True
"""


def test_a_breakpoint_stops_while_the_lease_lives(home: Path, load: Load, control: SwarmClient, tmp_path: Path) -> None:
    load(lease_ttl_s=3.0)
    with running(home, "debug", make_agent(tmp_path, STOPPING), "--task", "arith-1-3", stdin=subprocess.PIPE) as client:
        client.until(lambda: [one for one in control.episodes().episodes if one.calls == 1])
        out = client.ended(0, "import time\ntime.sleep(4)\np reply.content\nc\n")
    for shown in ("task arith-1-3", "call 1", "user: hi", "  -> ", "(Pdb)", "call 2", "0.5, solved", "time  "):
        assert shown in out
    (episode,) = control.episodes().episodes
    assert (episode.kind, episode.state, episode.reason, episode.calls) == ("eval", "aborted", "debugged", 2)
    assert control.status().collected_episodes == 0
