"""Hostile code in each slot, in real containers: walls hold, what hangs or lies fails its run, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from research.errors import DesignRefused
from research.isolation.mode import Isolation, Sandboxing
from research.planners.analysis import try_code
from research.runs.files import Evaluation
from sandboxes import DockerSandbox, Exit
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image
from tests.research.factories import with_run
from tests.research.runs.test_containers import ContainedTrial
from tests.research.runs.trials import DEADLINE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEADS = {
    "reward": "def reward(task, messages, outcome):", "advantage": "def advantage(rewards, groups):",
    "task_weights": "def task_weights(history):", "prompt": "def prompt(messages):",
    "agent": "async def agent(episode, game):",
}  # fmt: skip
HONEST = {
    "reward": "return outcome['reward']", "advantage": "return list(rewards)",
    "task_weights": "return [1.0] * len(history)", "prompt": "return messages",
    "agent": "\n".join((
        "messages = game.opening()", "while True:", "    reply = await episode.chat(messages)",
        "    said = {'role': 'assistant', 'content': reply.content}", "    following = game.answer(said)",
        "    messages = [*messages, said, *following]", "    if not following:", "        return messages",
    )),
}  # fmt: skip
WALLS = """
import os, socket
for place in ("/input/x", "/etc/x", "/usr/x", "/exchange/x"):
    try:
        open(place, "w").close()
    except OSError:
        continue
    raise AssertionError("wrote " + place)
for address in (("1.1.1.1", 53), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, 0.5)
    except OSError:
        continue
    raise AssertionError("reached " + address[0])
assert not [name for name in os.environ if "SECRET" in name or os.environ[name].startswith("sk-")]
assert not any(name.endswith("evaluation.json") for name in os.listdir("/input"))
"""
BOMB = """
import os
for _ in range(10_000):
    try:
        if os.fork() == 0:
            while True:
                pass
    except OSError:
        break
"""
LOUD = "\nfor _ in range(2000):\n    print('x' * 10_000)\n"


def written(slot: str, before: str = "", body: str | None = None) -> str:
    body = HONEST[slot] if body is None else body
    indented = "\n".join(f"    {line}" for line in [*before.splitlines(), *body.splitlines()] if line)
    return f"{HEADS[slot]}\n{indented}\n"


@pytest.fixture
def trial(tmp_path: Path, engine: ContainerEngine, image: Image) -> Iterator[ContainedTrial]:
    trial = ContainedTrial(tmp_path, engine, image)
    yield trial
    trial.end()


def ended(trial: ContainedTrial, **code: str) -> tuple[str, str]:
    """Return how an attempt with code in its slots ended, after nothing of it was left."""
    fields = {"code": code.pop("reward", None), "slots": code}
    order = trial.order(steps=2, backend="fake", environment="arith")
    trial.launch(with_run(order, **fields)).wait(DEADLINE_S)
    assert trial.running() == {}
    outcome = trial.outcome()
    return outcome.code, outcome.reason


@pytest.mark.parametrize("slot", HEADS)
def test_the_walls_hold_in_each_slot_and_honest_code_trains(trial: ContainedTrial, slot: str) -> None:
    code, reason = ended(trial, **{slot: written(slot, WALLS)})
    assert code == "ok", reason


@pytest.mark.parametrize(("slot", "before", "body", "said"), [
    ("advantage", "", "while True:\n    pass", "did not return within"),
    ("advantage", "", "return [float('nan')] * len(rewards)", "finite numbers"),
    ("advantage", "", "return [0.0]", "finite numbers"),
    ("task_weights", "", "return [float('inf')] * len(history)", "finite numbers"),
    ("task_weights", "", "return [-1.0] * len(history)", "0 and more"),
    ("prompt", "", "return 'x'", "chat messages of prompt"),
    ("agent", "", "return game.opening()", "no call"),
    ("reward", "", "return float('inf')", "finite number"),
])  # fmt: skip
def test_what_hangs_or_gives_no_numbers_ends_its_run_with_the_reason(
    trial: ContainedTrial, slot: str, before: str, body: str, said: str
) -> None:
    code, reason = ended(trial, **{slot: written(slot, before, body)})
    assert code in ("client_died", "client_timeout"), reason
    assert re.search(said, reason)
    assert len(reason) < 2000


@pytest.mark.parametrize(("slot", "before"), [("advantage", BOMB), ("task_weights", BOMB), ("prompt", LOUD)])
def test_a_bomb_or_a_flood_stays_within_its_container(trial: ContainedTrial, slot: str, before: str) -> None:
    code, reason = ended(trial, **{slot: written(slot, before)})
    assert code in ("ok", "client_died", "client_timeout", "client_out_of_memory", "client_stopped"), reason
    assert len(reason) < 2000


def test_code_is_tried_in_a_container_before_anything_is_locked(
    docker_sandbox: DockerSandbox, engine: ContainerEngine, image: Image
) -> None:
    found = Sandboxing(kind="docker", image=image.id, base=image.base, engine=engine.version)
    words = [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": "7"}]
    play = {"task_id": "a", "sample": 0, "reward": 0.5, "success": False, "data": {}, "messages": words}
    attempt = partial(try_code, "s1", Isolation(found, docker_sandbox), lambda name: [play])
    assert attempt("reward", written("reward"), "guess").endswith(": rewards 0.5 to 0.5")
    attempt("reward", written("reward", WALLS), "guess")
    attempt("agent", written("agent"), "guess")
    for slot, body, said in (
        ("reward", "return outcome['worth']", "KeyError"), ("advantage", "return [1]", "4 finite numbers"),
        ("task_weights", "while True:\n    pass", "did not return"), ("prompt", "import os\nos._exit(3)", "error"),
    ):  # fmt: skip
        with pytest.raises(DesignRefused, match=said) as refused:
            attempt(slot, written(slot, body=body), "guess")
        assert len(refused.value.message) < 600


FLOOD = """
import http.client, threading, time, urllib.parse
def spam(address, path, size):
    place = urllib.parse.urlsplit(address)
    while True:
        try:
            connection = http.client.HTTPConnection(place.netloc, timeout=5)
            connection.request("POST", path, b"[" * size, {"Authorization": "Bearer " + episode.api_key})
            connection.getresponse().read()
        except Exception:
            time.sleep(0.01)
for address, path in ((game._address, "/next"), (game._address, "/offer"), (episode.base_url, "/v1/chat/completions")):
    for size in (2, 100_000, 100_000_000):
        threading.Thread(target=spam, args=(address, path, size), daemon=True).start()
raise RuntimeError(str(game.opening()))
"""
HELD = """
import asyncio
asyncio.ensure_future(episode.chat(game.opening(), max_tokens=64))
await asyncio.sleep(0)
raise RuntimeError("SECRET")
"""
BOMBS = """
for _ in range(9):
    game.answer({"role": "assistant", "content": "1", "more": [[]] * 60_000})
"""
HALVES = "game.answer({'role': 'assistant', 'content': '\\ud800'})\nraise RuntimeError('SECRET')"


@pytest.mark.parametrize(
    ("body", "fails"),
    [(f"{WALLS}\n{HONEST['agent']}", False), ("import os\nos._exit(0)", True), ("import time\ntime.sleep(600)", True),
     (FLOOD, True), (HELD, True), (BOMBS, False), (HALVES, False), ("a = [0]\nwhile True:\n    a += a", True)],
    ids=["honest", "ends", "hangs", "flood", "held", "bombs", "halves", "memory"],
)  # fmt: skip
def test_what_plays_hidden_tasks_has_none_and_costs_its_plays_and_never_its_run(
    trial: ContainedTrial, body: str, fails: bool
) -> None:
    """It trains honestly: as a player it knows no task, and does this. A game of arith has one answer."""
    hostile = "if not episode.task.id:\n" + "\n".join(f"    {line}" for line in body.splitlines() if line)
    order = trial.order(steps=2, backend="fake", environment="arith")
    metric = order.run.metric.model_copy(update={"evaluate_by": "the arm's agent"})
    trial.launch(with_run(order, slots={"agent": written("agent", hostile)}, metric=metric)).wait(DEADLINE_S)
    assert trial.running() == {}
    outcome = trial.outcome()
    assert outcome.code == "ok", outcome.reason
    for name in ("initial", "final"):
        found = Evaluation.model_validate_json(trial.folder.evaluation(name).read_bytes())
        assert len(found.episodes) == order.run.metric.episodes
        assert {bool(play.failed) for play in found.episodes} == {fails}
        assert "SECRET" not in found.model_dump_json()


def test_a_killed_attempt_takes_its_player_along(trial: ContainedTrial) -> None:
    order = trial.order(steps=2, backend="fake", environment="arith")
    metric = order.run.metric.model_copy(update={"evaluate_by": "the arm's agent"})
    hangs = written("agent", "import time\ntime.sleep(600)")
    handle = trial.launch(with_run(order, slots={"agent": hangs}, metric=metric))
    eventually(lambda: set(trial.running()) >= {"evaluator-initial", "evaluator-initial-player"}, "it is played")
    (pid,) = trial.pids("research.runs.attempt")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: trial.running() == {}, "its containers end")
    assert handle.poll() == Exit("error", -signal.SIGKILL)
