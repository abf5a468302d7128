"""The environments as processes, against a served fake backend: they train to the last step, evaluate, and let go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from swarm.environments import get_environment
from swarm.environments.evaluate import rounds
from tests.swarm.server.support import Served, eventually, job, serving

DEADLINE_S = 60.0


async def started(*arguments: str, token: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm.environments", *arguments,
        env={**os.environ, "AJET_TOKEN": token}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def command(*arguments: str, token: str) -> tuple[int | None, str, str]:
    return await ended(await started(*arguments, token=token))


def client_token(served: Served) -> str:
    return served.server.keys.role("client")


@pytest.mark.parametrize("environment", ["guess", "arith"])
async def test_play_trains_to_the_last_step_and_sums_up_in_one_line(environment: str, tmp_path: Path) -> None:
    async with serving(tmp_path, job(environment=environment, episodes_per_step=8)) as served:
        asked = ["play", "--environment", environment, "--server", served.url, "--concurrency", "4"]
        code, out, err = await command(*asked, token=client_token(served))
        status = await served.status()
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert json.loads(line)["episodes"] == 16
    assert (status["finished"], status["step"]) == (True, 2)


async def test_evaluate_writes_what_every_hidden_episode_was_worth(tmp_path: Path) -> None:
    out = tmp_path / "out" / "hidden.json"
    out.parent.mkdir()
    hidden = {task.id for task in get_environment("guess").tasks("hidden")}
    async with serving(tmp_path) as served:
        asked = ["evaluate", "--environment", "guess", "--server", served.url, "--out", str(out), "--episodes", "250"]
        code, _, err = await command(*asked, token=client_token(served))
        status = await served.status()
    assert (code, err) == (0, "")
    found = json.loads(out.read_text())
    assert (found["environment"], found["split"], found["policy_version"]) == ("guess", "hidden", 0)
    assert len({(episode["task_id"], episode["sample"]) for episode in found["episodes"]}) == 250
    assert {episode["task_id"] for episode in found["episodes"]} == hidden
    assert all(episode["success"] == (episode["reward"] == 1.0) for episode in found["episodes"])
    assert 0 < sum(episode["success"] for episode in found["episodes"]) < 250
    assert status["collected_episodes"] == 0, "evaluation episodes are never trained on"
    assert os.listdir(tmp_path / "out") == [out.name], "no draft is left"


def test_the_seed_alone_decides_what_is_evaluated() -> None:
    tasks = get_environment("arith").tasks("hidden")
    assert rounds(tasks, 500, 1) == rounds(tasks, 500, 1)
    assert rounds(tasks, 500, 1) != rounds(tasks, 500, 2)


def test_tasks_are_evaluated_equally_often_give_or_take_one() -> None:
    tasks = get_environment("arith").tasks("hidden")
    played = Counter(task.id for part in rounds(tasks, 2 * len(tasks) + 3, 0) for task in part)
    assert sorted(played.values()) == [2] * (len(tasks) - 3) + [3] * 3


async def test_a_wrong_token_ends_with_code_3_in_one_line(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        code, _, err = await command("play", "--environment", "guess", "--server", served.url, token="forged")
    assert (code, err.count("\n")) == (3, 1)


async def test_a_server_that_fails_midway_ends_the_player_with_its_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, job(steps=1000)) as served:
        served.backend.learner.fail_next = "loss is NaN"
        code, _, err = await command(
            "play", "--environment", "guess", "--server", served.url, token=client_token(served)
        )
    assert (code, err.count("\n")) == (3, 1)
    assert "loss is NaN" in err


async def test_an_interrupted_player_gives_its_episodes_up(tmp_path: Path) -> None:
    """Those it knows of, at once; a lease granted while it was leaving runs out by itself."""
    async with serving(tmp_path, job(steps=100_000, lease_ttl_s=2.0)) as served:
        player = await started("play", "--environment", "guess", "--server", served.url, token=client_token(served))
        await eventually(lambda: served.server.training.step, lambda step: step > 3)
        served.backend.engine.hold()  # so that some play: an episode that is being ended is not given up
        await eventually(lambda: served.backend.engine.active, lambda calls: calls > 0)
        player.send_signal(signal.SIGINT)
        code, _, err = await ended(player)
        assert (code, err.count("\n")) == (130, 1), err
        rollout = served.server.training.rollout
        await eventually(lambda: rollout.counts["aborted"], lambda count: count > 0)
        await eventually(lambda: len(rollout.leases), lambda count: count == 0)
