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
from swarm.environments.playing.evaluate import MOST_CHARACTERS, MOST_MESSAGES, Transcripts, rounds
from swarm.environments.tasks_file import read_tasks
from tests.swarm.server.support import Served, eventually, job, serving

DEADLINE_S = 180.0


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


async def test_evaluate_during_plays_whenever_training_waits_and_writes_all_of_it_into_one_file(tmp_path: Path) -> None:
    out = tmp_path / "during.json"
    wanted = job(steps=3, episodes_per_step=8, evaluate_after=(1, 2), evaluation_episodes=5)
    async with serving(tmp_path, wanted) as served:
        common = ["--environment", "guess", "--server", served.url]
        size = ["--out", str(out), "--episodes", "5", "--during", "--seed", "7"]
        evaluator = await started("evaluate", *common, *size, token=client_token(served))
        played, (code, said, err) = await asyncio.gather(
            command("play", *common, token=client_token(served)), ended(evaluator)
        )
    assert (played[0], code, err) == (0, 0, "")
    assert json.loads(said) == {"evaluations": 2}
    found = json.loads(out.read_text())["evaluations"]
    assert [each["policy_version"] for each in found] == [1, 2]
    tasks = get_environment("guess").tasks("hidden")
    for each in found:
        (chosen,) = rounds(tasks, 5, 7 + each["policy_version"])
        assert [episode["task_id"] for episode in each["episodes"]] == [task.id for task in chosen]


async def test_evaluate_during_refuses_another_size_than_training_waits_for_and_a_file_of_something_else(
    tmp_path: Path,
) -> None:
    out = tmp_path / "during.json"
    wanted = job(episodes_per_step=8, evaluate_after=(1,), evaluation_episodes=5)
    async with serving(tmp_path, wanted) as served:
        common = ["--environment", "guess", "--server", served.url]
        size = ["--out", str(out), "--episodes", "4", "--during"]
        player = await started("play", *common, token=client_token(served))
        code, _, err = await command("evaluate", *common, *size, token=client_token(served))
        assert (code, err.count("\n")) == (3, 1)
        assert "waits for 4 evaluation episodes of version 1; found one that waits for 5" in err
        out.write_text('{"evaluations": 3}')
        code, _, err = await command("evaluate", *common, *size, token=client_token(served))
        assert (code, err.count("\n")) == (3, 1)
        assert out.read_text() == '{"evaluations": 3}'
        player.terminate()
        await ended(player)


async def test_the_same_plays_are_written_down_before_and_after_where_that_is_asked_for(tmp_path: Path) -> None:
    kept = []
    async with serving(tmp_path) as served:
        for name in ("before", "after"):
            out = tmp_path / f"{name}.json"
            asked = ["evaluate", "--environment", "guess", "--server", served.url, "--out", str(out), "--episodes", "8"]
            await command(*asked, "--transcripts", "2", token=client_token(served))
            kept.append(json.loads(out.read_text())["transcripts"])
    before, after = kept
    assert [play["task_id"] for play in before] == [play["task_id"] for play in after]
    assert len(before) == 2
    for play in (*before, *after):
        assert [message["role"] for message in play["messages"]][-1] == "assistant"


def test_a_play_is_kept_within_bounds() -> None:
    task = get_environment("guess").tasks("hidden")[0]
    plays = Transcripts([task.id, "never played"])
    plays.record(task, [{"role": "user", "content": "x" * 9000}] * 50)
    plays.record(task, [{"role": "user", "content": "a second play"}])
    (kept,) = plays.kept()
    assert len(kept["messages"]) == MOST_MESSAGES
    assert len(kept["messages"][0]["content"]) == MOST_CHARACTERS


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


@pytest.mark.parametrize("signalled", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_player_gives_its_episodes_up(tmp_path: Path, signalled: signal.Signals) -> None:
    """Those it knows of, at once; a lease granted while it was leaving runs out by itself."""
    async with serving(tmp_path, job(steps=100_000, lease_ttl_s=2.0)) as served:
        player = await started("play", "--environment", "guess", "--server", served.url, token=client_token(served))
        await eventually(lambda: served.server.training.step, lambda step: step > 3)
        served.backend.engine.hold()  # so that some play: an episode that is being ended is not given up
        await eventually(lambda: served.backend.engine.active, lambda calls: calls > 0)
        player.send_signal(signalled)
        code, _, err = await ended(player)
        assert (code, err.count("\n")) == (130, 1), err
        rollout = served.server.training.rollout
        await eventually(lambda: rollout.counts["aborted"], lambda count: count > 0)
        await eventually(lambda: len(rollout.leases), lambda count: count == 0)


OPENAI_AGENT = """
from openai import OpenAI

def agent(episode):
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": episode.task.data["question"]}]
        answer = client.chat.completions.create(model=episode.model, messages=messages)
        again = episode.chat([*messages, {"role": "assistant", "content": answer.choices[0].message.content},
                              {"role": "user", "content": "sure?"}])
    return len(again.content) / 100, True
"""
ASYNC_AGENT = """
async def agent(episode):
    reply = await episode.chat([{"role": "user", "content": episode.task.data["question"]}])
    return float(len(reply.content) > 0)
"""


def tasks_file(folder: Path, tasks: list[dict[str, object]]) -> str:
    path = folder / "tasks.json"
    path.write_text(json.dumps(tasks))
    return str(path)


def code_file(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("text", [OPENAI_AGENT, ASYNC_AGENT], ids=["plain, with OpenAI's SDK", "async"])
async def test_an_agent_of_ones_own_trains_on_tasks_of_its_own(tmp_path: Path, text: str) -> None:
    asked = ["--agent", code_file(tmp_path, text), "--concurrency", "4"]
    asked += ["--tasks", tasks_file(tmp_path, [{"id": f"q{n}", "data": {"question": f"{n}?"}} for n in range(3)])]
    async with serving(tmp_path / "server") as served:
        code, out, err = await command("play", "--server", served.url, *asked, token=client_token(served))
        status = await served.status()
    assert (code, err) == (0, "")
    assert json.loads(out)["dropped"] == {}
    assert (status["finished"], status["step"]) == (True, 2)


async def test_a_reward_from_a_file_is_what_is_trained_on_and_success_stays_the_games(tmp_path: Path) -> None:
    """The function sees the conversation up to the policy's last answer, and the tasks that were asked for only."""
    reward = code_file(
        tmp_path,
        "def reward(task, messages, outcome):\n"
        "    assert messages[-1]['role'] == 'assistant' and messages[0]['role'] == 'user'\n"
        "    assert task['id'] in ('one', 'two') and outcome['success'] in (True, False)\n"
        "    return 7.0\n",
    )
    tasks = tasks_file(tmp_path, [{"id": name, "data": {"low": 1, "high": 3, "secret": 2}} for name in ("one", "two")])
    asked = ["play", "--environment", "guess", "--reward", reward, "--tasks", tasks, "--stream", "default"]
    async with serving(tmp_path / "server") as served:
        code, out, err = await command(*asked, "--server", served.url, token=client_token(served))
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert (summary["reward_mean"], summary["dropped"]) == (7.0, {})
    assert 0.0 <= summary["success_mean"] < 1.0


@pytest.mark.parametrize(
    ("text", "expected", "ended"),
    [
        ("def reward(task, messages, outcome):\n    return float('nan')\n", "finite number, found nan", 2),
        (
            "import threading\ndef reward(task, messages, outcome):\n    threading.Event().wait()\n",
            "have not returned yet",
            3,
        ),
        ("import sys\ndef reward(task, messages, outcome):\n    sys.exit(0)\n", "SystemExit", 3),
    ],
    ids=["NaN", "endless", "exit"],
)
async def test_a_reward_that_never_judges_ends_the_player_with_the_reason(
    tmp_path: Path, text: str, expected: str, ended: int
) -> None:
    """Each play of it fails, an endless one after the play's time; none is trained on, and not all are waited for.

    One that can never be trained on is bad input.
    """
    asked = ["play", "--environment", "arith", "--reward", code_file(tmp_path, text), "--concurrency", "4"]
    async with serving(tmp_path / "server", job(environment="arith")) as served:
        asked += ["--server", served.url, "--timeout", "0.5"]
        code, out, err = await command(*asked, token=client_token(served))
        status = await served.status()
    assert (code, out) == (ended, ""), err
    assert expected in err.splitlines()[-1]
    assert status["collected_episodes"] == 0


async def test_the_first_failures_of_an_agent_are_told_with_their_place(tmp_path: Path) -> None:
    agent = code_file(tmp_path, "def agent(episode):\n    return episode.task.data['missing']\n")
    tasks = tasks_file(tmp_path, [{"id": "q1"}])
    async with serving(tmp_path / "server") as served:
        asked = ["play", "--agent", agent, "--tasks", tasks, "--server", served.url, "--concurrency", "4"]
        code, _, err = await command(*asked, token=client_token(served))
    lines = err.splitlines()
    assert code == 3
    assert lines[0] == "a play of q1 failed: KeyError: 'missing' (mine.py, line 2)"
    assert len(lines) == 6, "five failures and the end"
    assert "KeyError" in lines[-1]


async def test_evaluate_plays_the_tasks_of_a_file_only_chosen_by_the_seed(tmp_path: Path) -> None:
    chosen = [{"id": task.id, "data": dict(task.data)} for task in get_environment("guess").tasks("hidden")[:7]]
    out = tmp_path / "hidden.json"
    asked = ["evaluate", "--environment", "guess", "--tasks", tasks_file(tmp_path, chosen), "--out", str(out)]
    async with serving(tmp_path / "server") as served:
        asked += ["--server", served.url, "--episodes", "17", "--seed", "3"]
        code, said, err = await command(*asked, token=client_token(served))
    assert (code, err) == (0, "")
    found = json.loads(out.read_text())
    assert (found["environment"], found["split"], found["policy_version"]) == ("guess", "hidden", 0)
    played = [(episode["task_id"], episode["sample"]) for episode in found["episodes"]]
    tasks = read_tasks(tmp_path / "tasks.json")
    expected = [(task.id, number) for number, part in enumerate(rounds(tasks, 17, 3)) for task in part]
    assert sorted(played) == sorted(expected)
    assert json.loads(said)["episodes"] == 17


async def test_evaluate_takes_an_agent_of_ones_own(tmp_path: Path) -> None:
    tasks = tasks_file(tmp_path, [{"id": f"q{n}", "data": {"question": f"{n}?"}} for n in range(3)])
    out = tmp_path / "mine.json"
    asked = ["evaluate", "--agent", code_file(tmp_path, ASYNC_AGENT), "--tasks", tasks, "--out", str(out)]
    async with serving(tmp_path / "server") as served:
        code, _, err = await command(*asked, "--server", served.url, "--episodes", "3", token=client_token(served))
    assert (code, err) == (0, "")
    assert json.loads(out.read_text())["environment"] is None
