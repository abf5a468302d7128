"""Environments of the field by their addresses. bfcl-eval lies beside the other packages that are adapted; verifiers,
openenv and inspect-evals contradict our pins, and what needs them runs where they are on the path:

    pip install --target DIR 'verifiers==0.4.0'; PYTHONPATH=DIR python -m pytest tests/swarm/environments/test_field_adapters.py
"""  # noqa: E501

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from swarm.environments import Environment, Message, Outcome, Task, said
from swarm.environments.adapters import adapt
from swarm.environments.base import calling
from swarm.environments.openenv_server import show
from swarm.errors import InvalidRequest

TASKSET = '''
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class AdderConfig(vf.SharedToolsetConfig):
    pass

class Adder(vf.Toolset[AdderConfig, vf.State]):
    TOOL_PREFIX = ""

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

class SumTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

class SumsConfig(vf.TasksetConfig):
    tools: bool = False

class Sums(vf.Taskset[SumTask, SumsConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(AdderConfig())] if config.tools else []

    def load(self):
        for a in range(20):
            for b in range(10):
                asked = [vf.UserMessage(content=f"{a} + {b}")]
                data = Data(prompt=asked, system_prompt="Say the sum.", answer=str(a + b))
                yield SumTask(data, self.config.task)

__all__ = ["Sums"]

if __name__ == "__main__":
    Adder.run()
'''
SERVER = """
import random, socket, sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app

class Number(Action):
    guess: int

class Text(Action):
    guess: str

class Seen(Observation):
    text: str = ""

class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, top=100, **_):
        self.secret = random.Random(seed).randint(1, top)
        return Seen(text=f"up to {top}, {self.secret % 10} at its end")

    def step(self, action, timeout_s=None, **_):
        right = int(action.guess) == self.secret
        return Seen(text="right" if right else "wrong", reward=float(right), done=right)

    @property
    def state(self):
        return State(step_count=0)

app = create_app(Guess, Text if sys.argv[1] == "text" else Number, Seen, env_name="guess", max_concurrent_envs=2)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


def reply(message: Mapping[str, Any]) -> web.Response:
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return web.json_response(
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    )


def answer(who: str, body: Mapping[str, Any]) -> web.Response:
    """Answer as the policy of one of these tests, which its address names."""
    messages = body["messages"]
    numbers = re.findall(r"\d+", str(next(each["content"] for each in messages if each["role"] == "user")))
    if who == "broken":
        return web.json_response({"error": {"message": "boom", "type": "x", "code": "x"}}, status=400)
    if who == "customer":
        return reply(said("###STOP###" if any(each["role"] == "assistant" for each in messages) else "Help."))
    if who == "agent":
        return reply(said("No."))
    if messages[-1]["role"] == "tool":
        return reply(said(str(messages[-1]["content"])))
    if body.get("tools"):
        return reply(calling(body["tools"][0]["function"]["name"], a=int(numbers[0]), b=int(numbers[1])))
    return reply(said(str(sum(map(int, numbers)))))


@pytest.fixture
async def asked() -> AsyncIterator[list[tuple[str, str]]]:
    """Serve answers; yield who asked by which key, the address of the server first."""
    heard: list[tuple[str, str]] = []

    async def chat(request: web.Request) -> web.Response:
        heard.append((request.match_info["who"], request.headers["Authorization"].removeprefix("Bearer ")))
        return answer(heard[-1][0], await request.json())

    app = web.Application()
    app.router.add_post("/{who}/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    heard.append(("at", f"http://127.0.0.1:{runner.addresses[0][1]}"))
    yield heard
    await runner.cleanup()


async def play(environment: Environment, seeds: Sequence[int], url: str) -> list[Outcome]:
    tasks = [Task(task.id, json.loads(json.dumps(task.data))) for task in map(environment.generate, seeds)]
    episodes = [SimpleNamespace(task=task, api_key=f"key-{task.id}", base_url=url, model="policy") for task in tasks]
    return await asyncio.gather(*(environment.agent(episode) for episode in episodes))


@pytest.fixture
def taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("verifiers.v1")
    name = f"sums_{tmp_path.name.replace('-', '_').lower()}"
    (tmp_path / f"{name}.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, sys.path)))  # of the tool server, a process
    return name


@pytest.mark.parametrize(("options", "turns"), [("", 1.0), pytest.param("?tools=true", 2.0, marks=pytest.mark.slow)])
async def test_verifiers_plays_each_task_with_its_own_key_its_tools_and_its_rubric(
    options: str, turns: float, taskset: str, asked: list[tuple[str, str]]
) -> None:
    environment = adapt(f"verifiers:{taskset}{options}")
    outcomes = await play(environment, [13, 25, 200 + 13], f"{asked[0][1]}/policy/v1")
    assert outcomes == [Outcome(1.0, facts={"right": 1.0, "turns": turns})] * 3
    assert {key for _, key in asked[1:]} == {"key-13", "key-25"}


async def test_the_policy_plays_the_role_of_verifiers_that_has_no_client_of_its_own(
    taskset: str, asked: list[tuple[str, str]]
) -> None:
    url = asked[0][1]
    user = f"user.client.base_url={url}/customer/v1&user.model=sim&done_marker=%23%23%23STOP%23%23%23"
    (outcome,) = await play(adapt(f"verifiers:{taskset}?id=user-sim&{user}"), [13], f"{url}/agent/v1")
    assert outcome == Outcome(0.0, facts={"right": 0.0, "turns": 1.0, "user_turns": 2.0})
    assert asked[1:] == [("customer", "EMPTY"), ("agent", "key-13"), ("customer", "EMPTY")]


async def test_a_play_that_verifiers_cannot_end_fails_in_one_line(taskset: str, asked: list[tuple[str, str]]) -> None:
    with pytest.raises(RuntimeError, match=r"could not end the play: .*boom"):
        await play(adapt(f"verifiers:{taskset}"), [1], f"{asked[0][1]}/broken/v1")


@pytest.mark.parametrize(("options", "reason"), [
    ("moist=3", "taskset.moist Extra inputs"), ("id=user-sim", "one role, not"), ("reward.low=x", "float"),
])  # fmt: skip
def test_options_that_a_taskset_of_verifiers_has_not_are_refused(options: str, reason: str, taskset: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        adapt(f"verifiers:{taskset}?{options}")
    with pytest.raises(InvalidRequest, match="'no_such' not found"):
        adapt("verifiers:no_such")


@pytest.fixture(scope="module", params=["number", "text"])
def openenv_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    pytest.importorskip("openenv")
    command = [sys.executable, "-c", SERVER, request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield request.param, f"openenv:http://127.0.0.1:{server.stdout.readline().strip()}"
        server.kill()


@pytest.mark.slow
async def test_an_openenv_server_is_played_in_sessions_of_its_own_until_it_says_that_they_are_done(
    openenv_server: tuple[str, str],
) -> None:
    kind, address = openenv_server
    environment = await asyncio.to_thread(adapt, f"{address}?top=10")
    task = await asyncio.to_thread(environment.generate, 7)
    assert re.fullmatch(r"up to 10, \d at its end", task.data["observation"])

    def act(guess: object) -> Message:
        return said(str(guess)) if kind == "text" else calling("act", guess=guess)

    end = int(task.data["observation"][10:11])
    for _ in range(4):  # more than the server has sessions at once: a play gives its own back
        game: Any = environment.game(task)
        assert [message["content"] for message in await game.opening()] == [task.data["observation"]]
        (wrong,), (refused,) = [await game.answer(act(guess)) for guess in (11, "hm")]
        assert (wrong["content"], "ERROR" in refused["content"]) == ("wrong", True)
        assert await game.answer(act(end or 10)) == []
        assert await game.outcome() == Outcome(1.0, facts={"steps": 3.0})
    environment = await asyncio.to_thread(adapt, f"{address}?top=10&steps=2")
    game = environment.game(task)
    await game.opening()
    assert [len(await game.answer(act(11))) for _ in range(2)] == [1, 0]
    assert await game.outcome() == Outcome(0.0, facts={"steps": 2.0})


@pytest.mark.parametrize(("observation", "text"), [
    ({"text": "Hello", "hint": None, "metadata": {"a": 1}}, "Hello"), ({"metadata": {"task": "Say it."}}, "Say it."),
    ({"text": "x", "left": 2}, '{"text": "x", "left": 2}'), ({}, ""),
    ({"tool_name": "say", "result": {"content": [], "data": "x"}}, "x"),
    ({"result": None, "error": {"message": "no"}}, '{"error": {"message": "no"}}'), ({"error": "no"}, "no"),
])  # fmt: skip
def test_an_observation_of_openenv_is_its_one_text_or_json(observation: Mapping[str, Any], text: str) -> None:
    assert show({"observation": observation}) == text


@pytest.mark.parametrize(("address", "reason"), [
    ("openenv:echo_env", "address of a running OpenEnv server.*unknown url type"), ("openenv:1", "Connection refused"),
])  # fmt: skip
def test_what_is_no_running_openenv_server_is_refused(address: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        adapt(address)


def right_calls(written: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> Message:
    """Return the message that makes calls which are written as Python, some by the order of their arguments."""
    orders = {tool["function"]["name"]: [*tool["function"]["parameters"]["properties"]] for tool in tools}
    calls = []
    for index, text in enumerate(written):
        call: Any = ast.parse(text, mode="eval").body
        named = dict(zip(orders[call.func.id], call.args, strict=False)) | {e.arg: e.value for e in call.keywords}
        values = {name: ast.literal_eval(value) for name, value in named.items()}
        calls += calling(call.func.id, f"call-{index}", **values)["tool_calls"]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.usefixtures("adapted_packages")
@pytest.mark.parametrize("category", ["multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context"])
def test_bfcl_s_checker_finds_the_right_calls_right_and_a_play_without_one_of_them_wrong(category: str) -> None:
    from swarm.environments.bfcl_tasks import Bfcl

    environment = adapt(f"bfcl:{category}")
    assert isinstance(environment, Bfcl)
    for left_out, reward in ((0, 1.0), (1, 0.0)):
        for task in map(environment.generate, range(10)):
            game = environment.game(task)
            assert game.opening()[0]["content"] == task.data["question"][0][0]["content"]
            for turn in environment.truth[task.id]:
                if turn[left_out:]:
                    assert len(game.answer(right_calls(turn[left_out:], game.tools))) == len(turn[left_out:])
                following = game.answer(said("Done."))
            assert (following, game.outcome().reward) == ([], reward)


@pytest.mark.usefixtures("adapted_packages")
def test_no_more_of_what_a_policy_writes_is_evaluated_than_calls_of_bfcl_s_tools_and_a_turn_has_twenty_answers() -> (
    None
):
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    environment: Any = adapt("bfcl:multi_turn_base")
    game = environment.game(environment.generate(0))
    game.opening()
    for name, arguments in (("print", {}), ("cd", {"folder=1, x": 1}), ("cd.__init__", {})):
        (result,) = game.answer(calling(name, **arguments))
        assert result["content"].startswith("Error: no tool")
    (result,) = game.answer(calling("cd", folder="') or print('"))
    assert "No such file" in result["content"]
    assert [bool(game.answer(calling("ls"))) for _ in range(17)] == [True] * 16 + [False]
    assert game.outcome() == Outcome(0.0, facts={"turns": 1.0, "calls": 17.0})
    del game
    assert not [name for name in vars(multi_turn_utils) if name.startswith("ajet")]


@pytest.mark.usefixtures("adapted_packages")
@pytest.mark.parametrize("address", ["bfcl:multi_turn_miss_func", "bfcl:multi_turn_base?tool=1", "bfcl:simple"])
def test_what_bfcl_is_not_played_by_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match=r"BFCL|no option"):
        adapt(address)


CUSTOMER = "user.base_url={}/{}/v1&user.model=sim"


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["airline", "telecom"])
async def test_tau2_s_agent_is_the_policy_and_its_customer_a_second_model(
    domain: str, asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("inspect_evals.tau2.tau2")
    url = asked[0][1]
    monkeypatch.setenv("AJET_TAU2_USER_KEY", "secret")
    environment = await asyncio.to_thread(adapt, f"tau2:{domain}?{CUSTOMER.format(url, 'customer')}")
    outcomes = await play(environment, [2, 3], f"{url}/agent/v1")
    assert [(outcome.reward, outcome.facts) for outcome in outcomes] == [(0.0, {"messages": 5.0})] * 2
    keys = {f"key-{environment.generate(seed).id}" for seed in (2, 3)}
    assert set(asked[1:]) == {("customer", "secret")} | {("agent", key) for key in keys}
    with pytest.raises(RuntimeError, match=r"a model of the play failed: .*boom"):
        await play(environment, [2], f"{url}/broken/v1")


@pytest.mark.parametrize(("address", "reason"), [
    ("tau2:airline", "AJET_TAU2_USER_URL"), ("tau2:trains", "a domain of tau2"),
    (f"tau2:retail?{CUSTOMER}&turns=3", "unexpected keyword"),
])  # fmt: skip
def test_tau2_is_refused_without_a_second_model_and_for_what_it_has_not(address: str, reason: str) -> None:
    pytest.importorskip("inspect_evals.tau2.tau2")
    with pytest.raises(InvalidRequest, match=reason):
        adapt(address)
