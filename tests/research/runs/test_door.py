"""An evaluation whose hidden tasks are played by an arm's own code, which reaches neither task nor judge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from research.design.comparison import StatisticalRequirements
from research.errors import DesignRefused
from research.isolation.access_policy import AccessPolicy, model_calls_alone
from research.proposals.actions import ProposeDesign
from research.proposals.metric_choice import RequestedMetric
from research.proposals.slots import SLOTS
from research.runs import workers as worker_module
from research.runs.files import AttemptFolder, AttemptSpec, Evaluation, Role
from research.runs.workers import ContainerWorkers, container_spec, play_arguments, player_spec, tasks_of
from sandboxes import Exit
from sandboxes.gateway.gateway import PLAYS, PORTS, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream
from sandboxes.inside import relay
from studies.records.design import Design, Metric
from studies.records.runs import ENGINE_GONE, AttemptFailed, confirm_spec
from studies.report.tables import design_facts
from swarm.client.episode import PlayFailed
from swarm.client.rollout import is_server_error
from swarm.client.transport import Transport
from swarm.environments.door import Door, RemoteAgent
from swarm.environments.registry import get_environment
from swarm.wire import EVALUATION_STREAM
from tests.research.design.test_compiler import accepted, compiled, told, wish
from tests.research.factories import make_claim, make_order, with_run
from tests.swarm.server.support import job, serving

HIDDEN = get_environment("guess").tasks("hidden")[:24]
PLAYS_IT = SLOTS["agent"].built_in
BY_AGENT = Metric(meaning="m", episodes=24, evaluate_by="the arm's agent")

SPY = """
import http.client, json, os, urllib.request, gc
def ask(url, path, key, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body is not None else None)
    request.add_header('Authorization', 'Bearer ' + key)
    request.add_header('Content-Type', 'application/json')
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
async def agent(episode, game):
    server, door = episode.base_url.removesuffix('/v1'), game._address.rpartition('/')[0]
    tried = [ask(server, '/status', 'sandbox', None), ask(server, '/v1/models', episode.api_key, None),
             ask(server, '/episodes', 'sandbox', {'task_id': 'x', 'kind': 'eval'}),
             ask(server, f'/episodes/{episode.id}/end', episode.api_key, {'reward': 1.0}),
             ask(door, '/offer', 'sandbox', {'opening': []}), ask(door, '/x', 'sandbox', {'answer': {}}),
             ask(door, '/' + episode.id, 'else', {})]
    seen = [str(vars(episode.lease)), str(episode.task), str(vars(game)), str(game.outcome()), str(dict(os.environ))]
    with open('seen.txt', 'a') as file:
        file.write(json.dumps({'tried': tried, 'seen': seen}) + '\\n')
    raise RuntimeError(str(game.opening()))
"""
ENDS = "import os\nasync def agent(episode, game):\n    os._exit(0)\n"
HANGS = "async def agent(episode, game):\n    import asyncio\n    await asyncio.sleep(600)\n"
SENDS = "async def agent(episode, game):\n    game.answer({'role': 'assistant', 'content': {'no': 'text'}})\n"
HALF = "async def agent(episode, game):\n    game.answer({'role': 'assistant', 'content': '\\ud800'})\n"
PROMPT = "def prompt(messages):\n    return messages + [{'role': 'user', 'content': 'Begin.'}]\n"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def gated(folder: Path, upstream: Upstream, plays: Upstream) -> AsyncIterator[tuple[str, str]]:
    """Yield the two addresses that a container would have behind its gateway."""
    async with Gateway(folder, upstream=upstream, plays=plays, log=folder.parent / "egress.log"):
        ports = {free_port(): str(folder / name) for name in (PORTS[8000], *PLAYS.values())}
        relay.serve(ports)
        server, door = (f"http://127.0.0.1:{port}" for port in ports)
        yield server, door


async def start(folder: Path, *words: str) -> asyncio.subprocess.Process:
    root = str(Path(__file__).parents[3])
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm.environments", *words, cwd=folder, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "AJET_TOKEN": PLACEHOLDER, "PYTHONPATH": root},
    )  # fmt: skip


async def evaluated(tmp_path: Path, code: Mapping[str, str], limit_s: str = "60") -> dict[str, Any]:
    """Return what an evaluator with this code beside it writes, each behind a gateway of its own."""
    own = tmp_path / "player"
    own.mkdir()
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"id": task.id, "data": dict(task.data)} for task in HIDDEN]))
    slots = []
    for slot, source in code.items():
        (own / f"{slot}.py").write_text(source)
        slots += ["--slot", f"{slot}={own / f'{slot}.py'}"]
    wanted = job(environment="guess", max_context=1024, max_tokens=128)
    async with serving(tmp_path / "server", wanted) as served, Door() as door:
        token = served.server.keys.role_key("client")
        policy = AccessPolicy("eval", {task.id for task in HIDDEN}, EVALUATION_STREAM)
        evaluator = Upstream(served.url, token, policy), Upstream(door.url, door.evaluator_key, lambda _: None)
        player = Upstream(served.url, "none", model_calls_alone), Upstream(door.url, door.player_key, lambda _: None)
        async with gated(tmp_path / "e", *evaluator) as (server, plays), gated(tmp_path / "p", *player) as theirs:
            playing = await start(own, "player", "--server", theirs[0], "--door", theirs[1], *slots)
            judging = await start(
                tmp_path, "evaluate", "--environment", "guess", "--server", server, "--door", plays, "--tasks",
                str(tasks), "--out", "out.json", "--episodes", str(len(HIDDEN)), "--transcripts", "2", "--timeout",
                limit_s,
            )  # fmt: skip

            async def watch() -> None:
                await playing.wait()
                door.shut()

            watching = asyncio.create_task(watch())
            try:
                _, err = await asyncio.wait_for(judging.communicate(), 60)
            finally:
                for child in (playing, judging):
                    if child.returncode is None:
                        child.kill()
                await watching
            assert judging.returncode == 0, err.decode()
    return {**json.loads((tmp_path / "out.json").read_text()), "said": err.decode()}


@pytest.mark.slow
@pytest.mark.parametrize("code", [{"agent": PLAYS_IT}, {"prompt": PROMPT}, {"agent": PLAYS_IT, "prompt": PROMPT}])
async def test_hidden_tasks_are_played_through_the_door(code: dict[str, str], tmp_path: Path) -> None:
    found = await evaluated(tmp_path, code)
    assert {play["task_id"] for play in found["episodes"]} == {task.id for task in HIDDEN}
    assert not [play for play in found["episodes"] if "failed" in play]
    assert all(play["tokens"] > 0 for play in found["episodes"])
    assert "Unclosed" not in found["said"]
    roles = [message["role"] for message in found["transcripts"][0]["messages"]]
    assert roles[-1] in ("assistant", "user")
    assert "assistant" in roles


@pytest.mark.slow
async def test_the_arms_code_sees_no_task_and_tells_nobody_what_it_read(tmp_path: Path) -> None:
    found = await evaluated(tmp_path, {"agent": SPY})
    lines = [json.loads(line) for line in (tmp_path / "player/seen.txt").read_text().splitlines()]
    assert len(lines) == len(HIDDEN)
    assert {tuple(line["tried"]) for line in lines} == {(403, 403, 403, 403, 410, 410, 403)}
    shown = json.dumps([line["seen"] for line in lines])
    assert not [task.id for task in HIDDEN if task.id in shown]
    reasons = {play["failed"] for play in found["episodes"]}
    assert reasons == {"PlayFailed: the arm's agent failed the play"}
    assert not any(play["success"] for play in found["episodes"])


@pytest.mark.slow
@pytest.mark.parametrize(("code", "limit_s"), [(ENDS, "60"), (HANGS, "2"), (SENDS, "60")])
async def test_code_that_ends_hangs_or_says_nonsense_loses_its_plays_and_never_its_run(
    code: str, limit_s: str, tmp_path: Path
) -> None:
    found = await evaluated(tmp_path, {"agent": code}, limit_s)
    assert len(found["episodes"]) == len(HIDDEN)
    assert {(play["success"], play["reward"]) for play in found["episodes"]} == {(False, 0.0)}
    assert all("failed" in play for play in found["episodes"])


@pytest.mark.slow
async def test_half_a_character_does_not_make_an_evaluation_unreadable(tmp_path: Path) -> None:
    found = await evaluated(tmp_path, {"agent": HALF})
    assert "?" in [message["content"] for play in found["transcripts"] for message in play["messages"]]
    assert not [play for play in found["episodes"] if "failed" in play]
    assert Evaluation.model_validate_json((tmp_path / "out.json").read_bytes()).episodes


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[Door, Callable[..., Awaitable[tuple[int, Any]]]]]:
    """Yield a door, and what posts to it by a key."""
    async with Door() as door, aiohttp.ClientSession() as http:

        async def post(key: str, name: str, body: Any) -> tuple[int, Any]:
            async with http.post(f"{door.url}/{name}", json=body, headers={"Authorization": f"Bearer {key}"}) as reply:
                return reply.status, await reply.json() if reply.status == 200 else None

        yield door, post


async def test_a_play_passes_the_door_and_is_over_on_both_sides() -> None:
    async with opened() as (door, post):
        judge, player = partial(post, door.evaluator_key), partial(post, door.player_key)
        offered = asyncio.create_task(judge("offer", {"opening": ["go"]}))
        _, offer = await player("next", {})
        name = offer["id"]
        answered = asyncio.create_task(player(name, {"answer": {"content": "7"}}))
        assert await offered == (200, {"id": name, "answer": {"content": "7"}})
        assert await player(name, {"answer": {}}) == (410, None)
        followed = asyncio.create_task(judge(name, {"messages": ["lower"], "over": False}))
        assert await answered == (200, {"messages": ["lower"]})
        assert await player(name, {"failed": False}) == (200, {})
        assert await followed == (200, {"over": True})
        assert await judge(name, {"messages": [], "over": False}) == (200, {"failed": True})
        assert (await player(name, {"failed": False}))[0] == 410


async def test_what_the_evaluator_gives_up_frees_its_player_and_is_offered_no_more() -> None:
    async with opened() as (door, post):
        judge, player = partial(post, door.evaluator_key), partial(post, door.player_key)
        first, second = (asyncio.create_task(judge("offer", {"n": n})) for n in range(2))
        offer = (await player("next", {}))[1]
        given_up, other = (first, second) if offer["n"] == 0 else (second, first)
        other.cancel()  # nobody has taken it
        answering = asyncio.create_task(player(offer["id"], {"answer": "x"}))
        await given_up
        following = asyncio.create_task(judge(offer["id"], {"messages": ["y"], "over": False}))
        assert (await answering)[1] == {"messages": ["y"]}
        following.cancel()
        await asyncio.wait({other, following})
        nothing = asyncio.create_task(player("next", {}))
        assert not (await asyncio.wait({nothing}, timeout=0.5))[0]
        assert (await player(offer["id"], {"answer": "x"}))[0] == 410
        nothing.cancel()


async def test_large_or_malformed_bodies_are_refused_and_the_door_goes_on() -> None:
    async with opened() as (door, post):
        judging = asyncio.create_task(post(door.evaluator_key, "offer", {"opening": ["x" * (1 << 20)]}))
        _, offer = await post(door.player_key, "next", {})
        for body, status in (({"answer": "x" * (1 << 18)}, 413), ([1], 400), (5, 400), ([["a"]], 400)):
            assert (await post(door.player_key, offer["id"], body))[0] == status
        headers = {"Authorization": f"Bearer {door.player_key}", "Content-Type": "application/json; charset=none"}
        async with aiohttp.request("POST", f"{door.url}/{offer['id']}", data=b"{}x", headers=headers) as reply:
            assert reply.status == 400
        assert (await post(door.player_key, offer["id"], {"failed": True}))[0] == 200
        assert await judging == (200, {"failed": True})


async def test_whatever_fails_a_play_is_told_in_fixed_words_and_never_as_the_servers(tmp_path: Path) -> None:
    door = Transport(f"http://127.0.0.1:{free_port()}")
    nobody = RemoteAgent(get_environment("guess"), door, "key", 60, lambda *_: None)
    async with door:
        with pytest.raises(PlayFailed, match=r"^the arm's agent failed the play$") as failed:
            await nobody(SimpleNamespace(task=HIDDEN[0], api_key="k", model="m"))  # type: ignore[arg-type]
    assert (failed.value.__cause__, failed.value.__context__) == (None, None)
    assert not is_server_error(failed.value)


@pytest.mark.parametrize(
    ("batch", "replicas", "plays"), [(512, 0, "128"), (96, 0, "96"), (8, 0, "64"), (1024, 4, "128"), (8, 4, "128")]
)
def test_a_client_plays_up_to_twice_as_many_games_as_all_engines_advance(batch: int, replicas: int, plays: str) -> None:
    spread = {"backend": "verl", "verl": {"replicas": replicas}} if replicas else {}
    order = make_order(episodes_per_step=batch, max_concurrency=64, **spread)
    words = play_arguments(order, "client", server="s", out="o")
    assert words[words.index("--concurrency") + 1] == plays
    assert ("128" in play_arguments(order, "evaluator-final", server="s", out="o")) == (replicas == 4)


async def test_all_plays_of_a_player_end_in_a_quarter_of_the_time_of_its_run() -> None:
    order = with_run(make_order(), slots={"agent": PLAYS_IT}, metric=BY_AGENT).model_copy(
        update={"time_limit_s": 900.0}
    )

    def limit(spec: AttemptSpec, role: Role) -> str:
        words = play_arguments(spec, role, server="s", out="o")
        return words[words.index("--timeout") + 1]

    assert [limit(order, role) for role in ("client", "evaluator-final")] == ["600", "225"]
    assert limit(with_run(order, metric=Metric(meaning="m", episodes=24)), "evaluator-final") == "600"
    async with Door() as door, Transport(door.url) as way:
        slow = RemoteAgent(get_environment("guess"), way, door.evaluator_key, 0.2, lambda *_: None)
        began = asyncio.get_running_loop().time()
        for task in HIDDEN:
            with pytest.raises(PlayFailed, match="out of time"):
                await slow(SimpleNamespace(task=task, api_key="k", model="m"))  # type: ignore[arg-type]
        assert asyncio.get_running_loop().time() - began < 2


async def test_an_engine_that_is_silent_once_fails_no_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "POLL_S", 0)
    shut, found = Door(), [AttemptFailed(ENGINE_GONE, "gone"), None, Exit("finished", 0)]
    shut.shut = lambda: told.append(len(found))  # type: ignore[method-assign]
    told = list[int]()

    async def look(_: Any) -> Any:
        if isinstance(seen := found.pop(0), AttemptFailed):
            raise seen
        return seen

    workers = SimpleNamespace(_thread=SimpleNamespace(do=look))
    await ContainerWorkers._watch_player(workers, SimpleNamespace(poll=None), shut)  # type: ignore[arg-type]
    assert told == [0]


async def test_the_door_asks_for_the_key_of_the_side() -> None:
    async with Door() as door, aiohttp.ClientSession() as http:
        for path, key, status in (
            ("/offer", door.player_key, 410),
            ("/x", "", 403),
            ("/next", door.evaluator_key, 200),
        ):
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(door.url + path, json={}, headers=headers) as reply:
                assert reply.status == status
                assert status != 200 or await reply.json() == {"failed": True}
        door.shut()
        async with http.post(
            f"{door.url}/offer", json={}, headers={"Authorization": f"Bearer {door.evaluator_key}"}
        ) as reply:
            assert await reply.json() == {"failed": True}


def test_a_player_has_the_code_and_no_task_and_its_evaluator_the_tasks_and_no_code() -> None:
    order = with_run(make_order(), slots={"agent": PLAYS_IT, "task_weights": "w"}, metric=BY_AGENT)
    folder = AttemptFolder(Path("/attempt"))
    judge = container_spec(order, "evaluator-final", tasks_of(order, "evaluator-final"), folder)
    player = player_spec(order, "evaluator-final", folder)
    assert (set(judge.files), set(player.files)) == ({"tasks.json"}, {"agent.py"})
    assert (judge.trusted, player.trusted, player.results) == (True, False, {})
    assert ("--door" in judge.command, judge.exchange != player.exchange) == (True, True)
    assert player.environment == {"AJET_TOKEN": PLACEHOLDER}
    assert order.run.player == {"agent": PLAYS_IT}
    usual = with_run(make_order(), slots={"agent": PLAYS_IT})
    spec = container_spec(usual, "evaluator-final", tasks_of(usual, "evaluator-final"), folder)
    assert (usual.run.player, "--door" in spec.command, set(spec.ports)) == ({}, False, {8000})


CLAIM = make_claim("agent", "built-in", "mine", code=PLAYS_IT)


ONCE = StatisticalRequirements(episodes=200)


def agent_design(proposal: ProposeDesign, requirements: StatisticalRequirements = ONCE) -> Design:
    return compiled(hypotheses=accepted(CLAIM), proposal=proposal, code={"mine": PLAYS_IT}, requirements=requirements)


def test_the_lock_says_who_plays() -> None:
    design, usual = agent_design(wish(evaluate_apart="agent")), agent_design(wish())
    assert (design.metric.evaluate_by, usual.metric.evaluate_by) == ("the arm's agent", "")
    assert "evaluate_by" not in usual.metric.model_dump(mode="json", exclude_defaults=True)
    runs = [confirm_spec("s", design, "d", arm, design.seeds[0]) for arm in design.arms]
    assert [sorted(run.player) for run in runs] == [[], ["agent"]]
    assert ("container without tasks" in str(design_facts(design, None))) is True
    assert ("container without tasks" in str(design_facts(usual, None))) is False


def test_what_the_code_could_know_again_or_does_not_play_is_refused() -> None:
    asked = wish(evaluate_apart="agent")
    assert "expected agent or prompt varied" in (told(asked) or "")
    for name in ("area", "gain", "collapse"):
        with pytest.raises(DesignRefused, match="of plays after training alone"):
            agent_design(asked, replace(ONCE, metric=RequestedMetric(name)))
    with pytest.raises(DesignRefused, match="at most 216 episodes"):
        agent_design(asked, replace(ONCE, episodes=300))


def test_code_that_evaluates_cannot_have_its_bad_runs_left_out_as_collapsed() -> None:
    design, usual = agent_design(wish(evaluate_apart="agent")), agent_design(wish())
    assert (design.collapse, design.start) == (None, None)
    assert None not in (usual.collapse, usual.start)


def test_without_a_wish_no_task_is_played_twice() -> None:
    for required in (StatisticalRequirements(), replace(ONCE, episodes=64)):
        assert agent_design(wish(evaluate_apart="agent"), required).metric.episodes == (required.episodes or 216)
