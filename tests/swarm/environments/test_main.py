"""The environments as processes, against a served fake backend: they train to the last step, evaluate, and let go.

`main` runs in a thread here; what a signal or an endless thread ends is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AsyncSwarmClient, NamedTask
from swarm.environments import __main__ as process
from swarm.environments import get_environment
from swarm.environments.play import rounds
from tests.golden import assert_golden
from tests.swarm.factories import good
from tests.swarm.server.support import Served, eventually, job, serving

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"
Ended = tuple[int, str, str]
"""Exit code, standard output and error."""


@pytest.fixture(autouse=True)
def in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `main` run beside a server, and forget what it imported."""

    async def unheard(work: Awaitable[None]) -> None:
        await work

    monkeypatch.setattr(process, "_cancel_on_sigterm", unheard)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def main(*arguments: str, token: str = "t") -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.argv", ["swarm.environments", *arguments])
        patch.setenv("AJET_TOKEN", token)
        try:
            code = process.main()
        except SystemExit as refusal:  # argparse's way out
            code = int(refusal.code or 0)
    return code, out.getvalue(), err.getvalue()


def words(served: Served, *arguments: str) -> list[str]:
    action, *options = arguments
    return [action, "--server", served.url, *options]


async def run(served: Served, *arguments: str) -> Ended:
    token = served.server.keys.role_key("client")
    return await asyncio.to_thread(main, *words(served, *arguments), token=token)


@contextlib.asynccontextmanager
async def started(served: Served, *arguments: str) -> Any:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm.environments", *words(served, *arguments),
        env={**os.environ, "AJET_TOKEN": served.server.keys.role_key("client")},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def tasks_file(folder: Path, *tasks: dict[str, Any]) -> str:
    (folder / "tasks.json").write_text(json.dumps(tasks))
    return str(folder / "tasks.json")


def code_file(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return str(folder / "mine.py")


QUESTIONS = [{"id": f"q{n}", "data": {"question": f"{n}?"}} for n in range(3)]


async def test_evaluate_writes_what_every_hidden_episode_was_worth(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "out" / "hidden.json"
    out.parent.mkdir()
    hidden = {task.id for task in get_environment("guess").tasks("hidden")}
    asked = ("evaluate", "--environment", "guess", "--out", str(out), "--episodes", "250", "--transcripts", "2")
    code, _, err = await run(served, *asked)
    status = await served.status()
    assert (code, err) == (0, "")
    found = json.loads(out.read_text())
    assert (found["environment"], found["split"], found["policy_version"]) == ("guess", "hidden", 0)
    assert len({(episode["task_id"], episode["sample"]) for episode in found["episodes"]}) == 250
    assert {episode["task_id"] for episode in found["episodes"]} == hidden
    assert all(episode["success"] == (episode["reward"] == 1.0) for episode in found["episodes"])
    assert 0 < sum(episode["success"] for episode in found["episodes"]) < 250
    assert [play["messages"][-1]["role"] for play in found["transcripts"]] == ["assistant"] * 2
    assert status["collected_episodes"] == 0
    assert os.listdir(tmp_path / "out") == [out.name]


async def test_of_search_tasks_failed_and_solved_plays_are_kept_alike(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "search.json"
    asked = ("evaluate", "--environment", "guess", "--out", str(out), "--split", "search", "--transcripts", "8")
    code, _, err = await run(served, *asked, "--episodes", "100")
    assert (code, err) == (0, "")
    found = json.loads(out.read_text())
    solved = {episode["task_id"]: episode["success"] for episode in found["episodes"] if episode["sample"] == 0}
    assert Counter(solved[play["task_id"]] for play in found["transcripts"]) == {False: 4, True: 4}


async def test_evaluate_during_plays_whenever_training_waits_and_writes_all_of_it_into_one_file(tmp_path: Path) -> None:
    out = tmp_path / "during.json"
    wanted = job(steps=3, episodes_per_step=8, evaluate_after=(1, 2), evaluation_episodes=5)
    common = ("evaluate", "--environment", "guess", "--out", str(out), "--during", "--seed", "7", "--episodes")
    async with serving(tmp_path, wanted) as served, AsyncSwarmClient(served.url, served.admin) as client:
        playing = asyncio.create_task(client.rollout(good, [NamedTask("a"), NamedTask("b")]))
        code, _, err = await run(served, *common, "4")
        assert (code, err.count("\n")) == (3, 1)
        assert_golden(err)
        out.write_text('{"evaluations": 3}')
        code, _, err = await run(served, *common, "5")
        assert (code, err.count("\n"), out.read_text()) == (3, 1, '{"evaluations": 3}')
        out.unlink()
        code, summary, err = await run(served, *common, "5")
        await playing
    assert (code, err) == (0, "")
    assert json.loads(summary) == {"evaluations": 2}
    found = json.loads(out.read_text())["evaluations"]
    assert [each["policy_version"] for each in found] == [1, 2]
    for each in found:
        (chosen,) = rounds(get_environment("guess").tasks("hidden"), 5, 7 + each["policy_version"])
        assert [episode["task_id"] for episode in each["episodes"]] == [task.id for task in chosen]


@pytest.mark.parametrize("signalled", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_player_gives_its_episodes_up(tmp_path: Path, signalled: signal.Signals) -> None:
    """Those it knows of, at once; a lease granted while it was leaving runs out by itself."""
    async with (
        serving(tmp_path, job(steps=100_000, lease_ttl_s=2.0)) as served,
        started(served, "play", "--environment", "guess") as player,
    ):
        await eventually(lambda: served.server.training.step, lambda step: step > 3)
        served.backend.engine.hold()  # so that some play: an episode that is being ended is not given up
        await eventually(lambda: served.backend.engine.active, lambda calls: calls > 0)
        player.send_signal(signalled)
        _, err = await player.communicate()
        assert (player.returncode, err.count(b"\n")) == (130, 1), err
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


@pytest.mark.parametrize("text", [OPENAI_AGENT, ASYNC_AGENT], ids=["plain, with OpenAI's SDK", "async"])
async def test_an_agent_of_ones_own_trains_and_is_evaluated_on_tasks_of_its_own(tmp_path: Path, text: str) -> None:
    own = ("--agent", code_file(tmp_path, text), "--tasks", tasks_file(tmp_path, *QUESTIONS), "--concurrency", "4")
    async with serving(tmp_path / "server") as served:
        code, out, err = await run(served, "play", *own)
        status = await served.status()
        assert (code, err) == (0, "")
        assert json.loads(out)["dropped"] == {}
        assert (status["finished"], status["step"]) == (True, 2)
        code, _, err = await run(served, "evaluate", *own, "--out", str(tmp_path / "mine.json"), "--episodes", "3")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "mine.json").read_text())["environment"] is None


async def test_a_reward_from_a_file_is_what_is_trained_on_and_success_stays_the_games(tmp_path: Path) -> None:
    """The function sees the conversation up to the policy's last answer, and the tasks that were asked for only."""
    reward = code_file(
        tmp_path,
        "def reward(task, messages, outcome):\n"
        "    assert messages[-1]['role'] == 'assistant' and messages[0]['role'] == 'user'\n"
        "    assert task['id'] in ('one', 'two') and outcome['success'] in (True, False)\n"
        "    return 7.0\n",
    )
    tasks = tasks_file(tmp_path, *({"id": name, "data": {"low": 1, "high": 3, "secret": 2}} for name in ("one", "two")))
    asked = ("play", "--environment", "guess", "--reward", reward, "--tasks", tasks, "--stream", "default")
    async with serving(tmp_path / "server") as served:
        code, out, err = await run(served, *asked)
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert (summary["reward_mean"], summary["dropped"]) == (7.0, {})
    assert 0.0 <= summary["success_mean"] < 1.0


@pytest.mark.parametrize(("body", "expected", "ended"), [
    ("return float('nan')", "found nan", 2), ("__import__('sys').exit(0)", "SystemExit", 3),
])  # fmt: skip
async def test_a_reward_that_never_judges_ends_the_player_with_the_reason(
    tmp_path: Path, body: str, expected: str, ended: int
) -> None:
    """Each play of it fails; none is trained on. One that can never be trained on is bad input."""
    reward = code_file(tmp_path, f"def reward(task, messages, outcome):\n    {body}\n")
    async with serving(tmp_path / "server", job(environment="arith")) as served:
        asked = ("play", "--environment", "arith", "--reward", reward, "--concurrency", "4")
        code, out, err = await run(served, *asked)
        status = await served.status()
    assert (code, out) == (ended, ""), err
    assert expected in err.splitlines()[-1]
    assert status["collected_episodes"] == 0


async def test_the_first_failures_of_an_agent_are_told_with_their_place(tmp_path: Path) -> None:
    agent = code_file(tmp_path, "def agent(episode):\n    return episode.task.data['missing']\n")
    async with serving(tmp_path / "server") as served:
        own = ("--agent", agent, "--tasks", tasks_file(tmp_path, {"id": "q1"}), "--concurrency", "4")
        code, _, err = await run(served, "play", *own)
    lines = err.splitlines()
    assert code == 3
    assert all(part in lines[0] for part in ("q1", "KeyError: 'missing'", "(mine.py, line 2)"))
    assert len(lines) == 6
    assert "KeyError" in lines[-1]


@pytest.mark.parametrize(("asked", "named"), [
    ("play", ["--environment"]), ("play --environment chess", ["guess"]), ("play --agent agent.py", ["--tasks"]),
    ("play --environment guess --agent missing.py", ["no such file"]),
    ("play --environment guess --agent a.py --reward b.py", ["--agent or --reward"]),
    ("play --environment guess --reward missing.py", ["no such file"]),
    ("play --environment guess --tasks missing.json", ["missing.json"]),
    ("play --environment guess --timeout 0", ["above 0"]),
    ("play --environment guess --concurrency 0", ["--concurrency", "0"]),
    *((f"evaluate --environment guess --out OUT --episodes {value}", ["--episodes", value])
      for value in ("0", "-5", "many")),
])  # fmt: skip
def test_what_cannot_be_played_is_refused_with_code_2(tmp_path: Path, asked: str, named: list[str]) -> None:
    code, _, err = main(*asked.replace("OUT", str(tmp_path / "out.json")).split(), "--server", NOBODY)
    assert code == 2
    assert all(name in err.splitlines()[-1] for name in named)


@pytest.mark.parametrize(("options", "expected"), [((), 3), (("--unchanged",), 2)])
def test_files_that_change_while_they_are_loaded_are_refused_if_asked(
    tmp_path: Path, options: tuple[str, ...], expected: int
) -> None:
    text = "from pathlib import Path\nPath(__file__).with_name('notes.md').write_text('begun')\n" + ASYNC_AGENT
    own = ("--agent", code_file(tmp_path, text), "--tasks", tasks_file(tmp_path, *QUESTIONS))
    code, _, err = main("play", *own, *options, "--server", NOBODY)
    assert (code, "saved meanwhile" in err) == (expected, expected == 2)


def test_no_token_is_bad_input_and_a_server_that_is_not_there_is_lost() -> None:
    code, _, err = main("play", "--environment", "guess", "--server", NOBODY, token="")
    assert (code, "AJET_TOKEN" in err) == (2, True)
    code, _, err = main("play", "--environment", "guess", "--server", NOBODY)
    assert (code, err.count("\n"), NOBODY in err) == (3, 1, True)


EXAMPLES = Path(__file__).parents[2] / "examples" / "slots"


async def test_code_in_every_slot_of_the_client_trains_together(tmp_path: Path) -> None:
    """The weights leave a task out, the prompt is what the policy reads, the agent plays twice, a reward judges it."""
    code = {
        "task_weights": "def task_weights(history):\n    assert all(len(h['rewards']) < 65 for h in history)\n"
                        "    return [float(h['id'] == 'one') for h in history]\n",
        "agent": "async def agent(episode, game):\n    messages = game.opening()\n"
                 "    reply = await episode.chat([{'role': 'user', 'content': 'between 2 and 2'}])\n"
                 "    said = {'role': 'assistant', 'content': reply.content}\n    game.answer(said)\n"
                 "    return [*messages, said]\n",
        "reward": "def reward(task, messages, outcome):\n    return len(messages) + outcome['success']\n",
    }  # fmt: skip
    for name, text in code.items():
        (tmp_path / f"{name}.py").write_text(text)
    slots = [word for name in code for word in ("--slot", f"{name}={tmp_path / name}.py")]
    tasks = tasks_file(tmp_path, *({"id": name, "data": {"low": 1, "high": 3, "secret": 2}} for name in ("one", "two")))
    common = ("play", "--environment", "guess", "--tasks", tasks, "--concurrency", "4")
    slots += ["--slot", "advantage==reward - n"]
    async with serving(tmp_path / "server", job(external_advantages=True)) as served:
        ended, out, err = await run(served, *common, *slots)
        batches = served.backend.learner.batches
        episodes = await served.get("/episodes")
        seen = [bytes(token for token in prompt if token < 256).decode() for prompt, _ in served.backend.engine.seen]
    assert (ended, err) == (0, "")
    assert json.loads(out)["reward_mean"] == 3.0
    assert {episode.advantage for batch in batches for episode in batch.episodes} == {1.0}
    assert {episode["task_id"] for episode in episodes["episodes"]} == {"one"}
    assert all("between 2 and 2" in prompt for prompt in seen)


async def test_a_prompt_is_read_in_place_of_the_opening(tmp_path: Path) -> None:
    prompt = code_file(
        tmp_path, "def prompt(messages):\n    return [{'role': 'system', 'content': 'BRIEF'}, *messages]\n"
    )
    async with serving(tmp_path / "server") as served:
        code, _, err = await run(served, "play", "--environment", "guess", "--slot", f"prompt={prompt}:prompt")
        seen = [bytes(token for token in prompt if token < 256).decode() for prompt, _ in served.backend.engine.seen]
    assert (code, err) == (0, "")
    assert all(text.count("BRIEF") == 1 for text in seen)


@pytest.mark.parametrize(("slot", "body", "said"), [
    ("task_weights", "def task_weights(history):\n    return [1.0]\n", "finite numbers"),
    ("task_weights", "def task_weights(history):\n    return [0.0 for _ in history]\n", "one above 0"),
    ("task_weights", "def task_weights(history):\n    return [-1.0 for _ in history]\n", "0 and more"),
    ("task_weights", "def task_weights(history):\n    return [1e308 for _ in history]\n", "finite numbers"),
    ("task_weights", "def task_weights(history):\n    return 1 / 0\n", "ZeroDivisionError"),
    ("prompt", "def prompt(messages):\n    return 'x'\n", "list of chat messages of prompt()"),
    ("prompt", "def prompt(messages):\n    raise SystemExit\n", "SystemExit"),
    ("agent", "async def agent(episode, game):\n    return 3\n", "list of chat messages of agent()"),
    ("agent", "async def agent(episode, game):\n    return game.opening()\n", "no call"),
    ("advantage", "def advantage(rewards, groups):\n    return rewards[1:]\n", "4 finite numbers"),
])  # fmt: skip
async def test_code_that_gives_what_its_slot_does_not_take_ends_the_player_with_the_reason(
    tmp_path: Path, slot: str, body: str, said: str
) -> None:
    place = code_file(tmp_path, body)
    async with serving(tmp_path / "server", job(external_advantages=slot == "advantage")) as served:
        asked = ("--environment", "guess", "--slot", f"{slot}={place}:{slot}", "--concurrency", "4")
        code, out, err = await run(served, "play", *asked)
        assert served.server.training.step == 0
    assert (code in (2, 3), out) == (True, ""), err
    assert said in err
