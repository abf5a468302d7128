"""States, gate, served clock, keys and a server directory's own files."""

from __future__ import annotations

import asyncio
import itertools
import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidKey, ServerFailed
from swarm.rollout.keys import EPISODE_LIFE_S, ROLE_LIFE_S, Keys, ServerDirectory
from swarm.rollout.state import MOST_S, TRANSITIONS, GenerationGate, LeaseClock, StateMachine
from swarm.server.__main__ import _Uvicorn
from swarm.wire import BeginRequest
from swarm.wire import ServerState as S
from tests.swarm.server.support import Clock, job

LIFE = [S.BOOTING, S.ROLLING, S.ROLLING_POST, S.WEIGHT_SYNCING, S.ROLLING, S.OFFLINE]


def walk(machine: StateMachine, *states: S) -> StateMachine:
    for state in states:
        machine.transition_to(state, "broke" if state is S.FAILED else None)
    return machine


def reached(state: S) -> StateMachine:
    paths = {S.OFFLINE: [], S.FAILED: [S.BOOTING, S.FAILED]}
    return walk(StateMachine(), *paths.get(state, LIFE[: LIFE.index(state) + 1] if state in LIFE else []))


@pytest.mark.parametrize(("source", "target"), [p for p in itertools.product(S, S) if p[1] not in TRANSITIONS[p[0]]])
def test_what_is_not_in_the_table_raises_and_changes_nothing(source: S, target: S) -> None:
    machine = reached(source)
    with pytest.raises(RuntimeError, match=f"{source} -> {target}"):
        machine.transition_to(target, "why" if target is S.FAILED else None)
    assert machine.state is source


@pytest.mark.parametrize("source", [S.BOOTING, S.ROLLING, S.ROLLING_POST, S.WEIGHT_SYNCING])
def test_every_running_state_can_fail_with_a_reason_that_can_be_told_and_be_stopped(source: S) -> None:
    machine = reached(source)
    with pytest.raises(RuntimeError, match="reason"):
        machine.transition_to(S.FAILED)
    machine.transition_to(S.FAILED, "no file b\udcff.safetensors")
    assert machine.reason == r"no file b\udcff.safetensors"
    machine.transition_to(S.OFFLINE)
    assert machine.reason is None


async def test_a_gate_holds_calls_while_shut_tells_when_it_is_empty_and_refuses_all_once_broken() -> None:
    gate = GenerationGate()
    entering = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    assert gate.in_flight == 0
    gate.open()
    await entering
    assert gate.in_flight == 1
    gate.shut()
    assert not await gate.wait_until_empty(0.01)
    gate.leave()
    assert await gate.wait_until_empty(0.01)
    entering = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.fail(ServerFailed("broke"))
    for late in (entering, gate.enter()):
        with pytest.raises(ServerFailed):
            await late


@given(st.lists(st.tuples(st.floats(0, 1000), st.booleans()), max_size=50))
def test_it_never_goes_back_nor_faster_than_time_and_at_most_one_beat_of_a_stall_counts(
    passing: list[tuple[float, bool]],
) -> None:
    below = Clock()
    clock = LeaseClock(below)
    began, counted, since = clock(), 0.0, 0.0
    for seconds, beats in passing:
        before = clock()
        below.now += seconds
        since += seconds
        assert before <= clock() <= before + seconds + 1e-6
        if beats:
            clock.beat()
            counted, since = counted + min(since, MOST_S), 0.0
    assert abs(clock() - began - counted - min(since, MOST_S)) < 1e-6


def test_a_directory_keeps_its_files_for_its_owner_alone(tmp_path: Path) -> None:
    first, again = ServerDirectory(tmp_path / "deep" / "er"), ServerDirectory(tmp_path / "deep" / "er")
    other = ServerDirectory(tmp_path / "other")
    assert (first.secret(), first.installation()) == (again.secret(), again.installation())
    assert len({first.secret(), other.secret(), *map(bytes.fromhex, (first.installation(), other.installation()))}) == 4
    assert first.read_interrupted_job() is None
    wanted = job(streams={"math": 1.5}, tracking={"run_id": "r"})
    first.record_engine_on(wanted)
    assert again.read_interrupted_job() == wanted
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in first.path.iterdir()}
    assert modes == {"secret": 0o600, "installation": 0o600, "engine.json": 0o600}
    for _ in range(2):
        first.record_engine_off()
    assert again.read_interrupted_job() is None


def test_damaged_files_are_said_in_one_line(tmp_path: Path) -> None:
    kept = ServerDirectory(tmp_path)
    (tmp_path / "secret").write_text("not hex")
    with pytest.raises(ServerFailed, match="64 hex digits"):
        kept.secret()
    (tmp_path / "engine.json").write_text('{"steps": 3, "of_a_newer_version": 1}')
    with pytest.raises(ServerFailed, match=r"engine\.json.*delete it"):
        kept.read_interrupted_job()


def bearer(key: str) -> str:
    return f"Bearer {key}"


def test_a_name_stands_behind_an_episodes_key_alone() -> None:
    keys = Keys("an/admin/token" * 3)
    model = keys.model_key("e", 3)
    named = [keys.read_header(bearer(f"{model}/{name}")).agent for name in ("solver", "a%2Fb", "a/b", "")]
    assert named == ["solver", "a/b", "a/b", ""]
    assert keys.read_header(bearer(model)).agent == "", "a name is no part of what is remembered of a key"
    assert keys.read_header(bearer("an/admin/token" * 3)).role == "admin"
    for key in (keys.role_key("admin"), keys.lease_key("e", 3)):
        with pytest.raises(InvalidKey, match="episode's key alone"):
            keys.read_header(bearer(f"{key}/solver"))
    with pytest.raises(InvalidKey):
        keys.read_header(bearer(f"{model[:-2]}xx/solver"))


def test_a_key_outlives_the_longest_play_and_expires_even_when_it_was_read_before(clock: Clock) -> None:
    keys = Keys(clock=clock)
    key, began = keys.lease_key("e", 1), clock.now
    clock.now += BeginRequest(task_id="t", timeout_s=604_800).timeout_s or 0.0
    assert keys.read(key).episode == "e"
    clock.now = began + EPISODE_LIFE_S + 1
    with pytest.raises(InvalidKey, match="expired"):
        keys.read(key)


async def test_a_long_lived_server_writes_the_tokens_of_roles_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def on_tick(_: object, counter: int) -> bool:
        return False

    monkeypatch.setattr("uvicorn.Server.on_tick", on_tick)
    clock = Clock()
    server: Any = SimpleNamespace(keys=Keys(clock=clock))
    http = _Uvicorn(uvicorn.Config(lambda: None), server, tmp_path / "server.json", idle=True)
    clock.now += ROLE_LIFE_S
    path = tmp_path / "tokens.json"
    path.write_text("old")
    await http.on_tick(0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    roles = {server.keys.read(token).role for token in json.loads(path.read_text()).values()}
    assert roles == {"admin", "client", "viewer"}


def test_keys_carry_no_address_and_no_secret() -> None:
    key = Keys().model_key("e7", 1)
    assert set(jwt.decode(key, options={"verify_signature": False})) == {"use", "ep", "epoch", "exp"}
