"""Tests of prometheus."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from swarm.server.routes import openapi
from swarm.server.watching import exposition
from swarm.wire import ServerState
from tests.golden import assert_golden
from tests.swarm.server.support import Operation, Served, job, operations, serving
from tests.swarm.server.test_control import routes
from tests.swarm.server.threads import Threaded, threaded

JOB = ("ajet_job_info", "ajet_steps")
Samples = dict[tuple[str, str], float]


async def scraped(served: Served, role: Any = "viewer") -> Samples:
    key = {"authorization": f"Bearer {served.server.keys.role_key(role)}"}
    async with served.http.get(f"{served.url}/metrics", headers=key) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return read(await answer.text())


def read(text: str) -> Samples:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation for family in families)
    found = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
    samples = {(name, next(iter(labels.values()), "")): value for name, labels, value in found}
    assert len(samples) == len(found)
    return samples


def state(samples: Samples) -> str:
    (present,) = [label for (name, label), value in samples.items() if name == "ajet_server_state" and value == 1]
    return present


def adds_up(samples: Samples) -> bool:
    over = sum(value for (name, _), value in samples.items() if name in ("ajet_leases", "ajet_episodes_total"))
    return samples["ajet_episodes_begun_total", ""] == over


async def test_a_training_is_seen_as_its_status_tells_it(tmp_path: Path) -> None:
    async with serving(tmp_path, job(steps=3)) as served:
        await served.play_step()
        await served.until(step=1, state="ROLLING")
        await served.play("c")
        await served.begin("c")
        given_up = await served.begin("d")
        await served.verb(given_up, "abort", {"reason": "why not"})
        evaluated = await served.begin("e", kind="eval")
        await served.chat(evaluated, "hi")
        await served.end(evaluated)
        rollout = served.rollout
        rollout.fence(next(iter(rollout.leases)), "test")
        seen, status = await scraped(served), await served.status()
        assert adds_up(seen)
        assert state(seen) == "ROLLING"
        for name in ("step", "steps", "policy_version", "collected_episodes", "needed_episodes", "finished"):
            assert seen[f"ajet_{name}", ""] == float(status[name]), name
        assert {label: value for (name, label), value in seen.items() if name == "ajet_training"} == status["metrics"]
        assert seen["ajet_pool_bytes", ""] == rollout.groups.bytes > 0
    counted = {
        ("ajet_episodes_begun_total", ""): 8, ("ajet_episodes_total", "ended"): 6,
        ("ajet_episodes_total", "aborted"): 1, ("ajet_episodes_total", "fenced"): 1,
        ("ajet_episodes_trained_total", ""): 4, ("ajet_episodes_evaluated_total", ""): 1,
        ("ajet_drops_total", "test"): 1, ("ajet_calls_total", ""): 6, ("ajet_throttled_total", ""): 0,
        ("ajet_leases", "open"): 0, ("ajet_calls_in_flight", ""): 0, ("ajet_stream_cursor", "default"): 2,
        ("ajet_stream_groups_trained", "default"): 2, ("ajet_stream_groups_open", "default"): 1,
        ("ajet_stream_lacking", "default"): 1,
    }  # fmt: skip
    assert {sample: seen[sample] for sample in counted} == counted


async def test_every_state_can_be_scraped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, start=False) as served:
        bare = await scraped(served)
        assert (state(bare), {*bare}) == ("OFFLINE", {("ajet_server_state", each) for each in ServerState})
        served.server.load(job())
        assert ("ajet_steps", "") in await scraped(served)
        seen, machine = [], served.server.machine
        monkeypatch.setattr(machine, "_listener", lambda _: seen.append(read(exposition(served.server).decode())))
        await served.server.start()
        await served.until(state="ROLLING")
        await served.play_step()
        await served.until(step=1, state="ROLLING")
        served.backend.die("test")
        await served.until(state="FAILED")
        failed = await scraped(served)
        assert (state(failed), failed["ajet_step", ""]) == ("FAILED", 1)
        await served.server.stop()
        assert await scraped(served) == {**bare, **{key: failed[key] for key in failed if key[0] in JOB}}
    lived = ["BOOTING", "ROLLING", "ROLLING_POST", "WEIGHT_SYNCING", "ROLLING", "FAILED", "OFFLINE"]
    assert [state(samples) for samples in seen] == lived
    assert all(adds_up(samples) for samples in seen[1:-1])


async def test_shares_and_whatever_a_name_is_made_of_come_through(tmp_path: Path) -> None:
    odd = 'a "b"\\\n{c="d"} é'
    async with serving(tmp_path, job(streams={odd: 3, "plain": 1})) as served:
        seen = await scraped(served)
        assert {label: value for (name, label), value in seen.items() if name == "ajet_stream_share"} == {
            odd: 0.75,
            "plain": 0.25,
        }
        served.server.training.metrics = {f"stream/{odd}/reward/mean": math.nan, "x": math.inf}
        seen = await scraped(served)
        assert math.isnan(seen["ajet_training", f"stream/{odd}/reward/mean"])
        assert seen["ajet_training", "x"] == math.inf


EXAMPLES = 12
LAST = ("load_job", "start_engine", "stop_engine")
CONFORMS = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    wanted = job(steps=1000, lease_ttl_s=3600, drain_timeout_s=3600, max_context=4096)
    with threaded(tmp_path_factory.mktemp("served"), wanted) as running:
        yield running


def test_every_served_route_is_in_the_document_and_nothing_else(server: Threaded) -> None:
    assert routes(server.served) == {(operation.method, operation.path) for operation in operations()}


def test_the_document_is_served(server: Threaded) -> None:
    answer = requests.get(f"{server.served.url}/openapi.json", headers=key(server.served.admin), timeout=120)
    assert answer.json() == openapi()


def test_the_document_is_the_one_that_clients_were_written_for() -> None:
    assert_golden(json.dumps(openapi(), sort_keys=True))


@pytest.mark.slow
def test_only_the_keys_the_document_names_open_a_door(server: Threaded) -> None:
    served = server.served
    for operation in operations():
        lease = server.run(served.begin("keys", kind="eval"))
        held = {"model": lease["api_key"], "lease": lease["lease_token"]}
        for role in ("admin", "client", "viewer"):
            held[role] = served.server.keys.role_key(role)  # type: ignore[arg-type]
        for kind, token in held.items():
            if operation.name in LAST and kind in operation.keys:
                continue  # they work; the test of the job's life shows it
            path = operation.path.replace("{episode_id}", lease["episode_id"])
            asked: dict[str, Any] = {"headers": key(token), "data": b"", "timeout": 10, "stream": True}
            allowed = not operation.keys or kind in operation.keys
            with requests.request(operation.method, served.url + path, **asked) as found:  # events never end
                assert (found.status_code != 403) == allowed, (operation.name, kind)


def sendings() -> list[Any]:
    """Every operation with right input, and with wrong input where there is any to get wrong; a stop comes last."""
    ordered = sorted(operations(), key=lambda operation: operation.name in LAST)
    return [
        pytest.param(operation, mode, id=f"{operation.name}-{mode.value}")
        for operation in ordered
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or operation.takes_input
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "mode"), sendings())
def test_whatever_is_sent_is_answered_as_the_document_says(
    server: Threaded, operation: Operation, mode: GenerationMode
) -> None:
    document = schemathesis.openapi.from_dict(openapi())
    described = document[operation.path][operation.method]
    lease = server.run(server.served.begin("fuzz", kind="eval"))
    known = {"episode_id": lease["episode_id"]} if "{episode_id}" in operation.path else None
    checks: list[Any] = [*CONFORMS]
    if operation.name != "stop_engine" and not operation.path.startswith("/v1/"):
        checks += [negative_data_rejection]

    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=described.as_strategy(mode, path_parameters=known))
    def send(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), int | float):
            case.body["wait_s"] = 0  # nobody waits here
        if operation.name == "events" and mode is GenerationMode.POSITIVE:
            case.query = {**(case.query or {}), "wait_s": 0}
        answer = case.call(base_url=server.served.url, headers=key(_key(server, operation, lease)), timeout=120)
        case.validate_response(answer, checks=checks)
        if answer.status_code != 503:  # in its place: the engine is off once it was stopped
            case.validate_response(answer, checks=[not_a_server_error])
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["message"]
            assert answer.status_code < 500 or error.get("code") != "server_error"

    send()


def key(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _key(server: Threaded, operation: Operation, lease: dict[str, Any]) -> str:
    held = {"model": lease["api_key"], "lease": lease["lease_token"]}
    return next((str(held[kind]) for kind in held if operation.keys == {kind}), server.served.admin)
