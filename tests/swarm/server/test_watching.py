"""The history of finished steps, page by page, and the snapshot of what the server does at a glance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
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

from swarm.client import AsyncSwarmClient
from swarm.job import PathModel, TinyModel, Tracking
from swarm.server.routes import openapi
from swarm.server.watching import MOST_DROPS, MOST_OWNERS, MOST_STREAMS, exposition, model_in_words
from swarm.snapshot import Snapshot
from swarm.store.changes import StepMeasured
from swarm.wire import ServerState
from tests.golden import assert_golden
from tests.swarm.server.support import Clock, Operation, RecordingTracker, Served, eventually, job, operations, serving
from tests.swarm.server.test_control import routes
from tests.swarm.server.threads import Threaded, threaded


async def known(served: Served, step: int) -> dict[str, Any]:
    """Return the history once it has this step: the store may be a moment behind."""
    return dict(await eventually(lambda: served.get("/history", "viewer"), lambda page: steps(page)[-1:] == [step]))


def steps(page: Mapping[str, Any]) -> list[int]:
    return [record["step"] for record in page["steps"]]


async def test_it_says_what_the_tracker_was_told_evaluations_too_before_and_after_a_restart(tmp_path: Path) -> None:
    wanted = job(steps=5, eval_every=2, evaluation_episodes=1, tracking=Tracking(), checkpoint_every=3)
    first, second = RecordingTracker(), RecordingTracker()
    async with serving(tmp_path, wanted, tracker=lambda _: first) as served:
        await served.play_to(2)
        lease = await served.begin("t", kind="eval")
        await served.chat(lease, "hi")
        await served.end(lease, 1.0, success=True)
        await served.play_to(3)
        page = await known(served, 3)
    assert {record["step"]: record["metrics"] for record in page["steps"]} == first.steps
    assert first.steps[2]["eval/success/mean"] == 1.0
    async with serving(tmp_path, wanted, tracker=lambda _: second) as served:
        await served.until(step=3)
        again = await known(served, 3)
        assert {record["step"]: record["metrics"] for record in again["steps"]} == second.steps
        assert again["job_digest"] == wanted.digest()
        await served.server.stop()
        assert await served.get("/history", "viewer") == again, "and while the engine is off"


async def test_a_reader_turns_pages_and_names_what_it_wants(tmp_path: Path) -> None:
    async with serving(tmp_path, job(steps=6)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        await served.play_to(5)
        await known(served, 5)
        first = await served.get("/history?limit=2")
        assert (steps(first), first["next"]) == ([1, 2], 2)
        second = await served.get("/history?limit=3&after=2", "client")
        assert (steps(second), second["next"]) == ([3, 4, 5], None)
        assert steps(await served.get("/history?after=5")) == []
        newest = await client.history(1, ["critic/rewards/mean", "stream/*"], 2, newest=True)
        assert ([record.step for record in newest.steps], newest.next) == ([4, 5], None)
        names = {"critic/rewards/mean", "stream/default/episodes", "stream/default/reward/mean", "stream/default/share"}
        found = newest.steps[0].metrics.keys()
        assert names <= found
        assert all(name.startswith("stream/default/") for name in found - names)


async def test_numbers_that_are_none_are_left_out(served: Served) -> None:
    await served.play_to(1)
    odd = {"actor/odd": math.nan, "actor/far": math.inf, "actor/even": 2.0, "training/global_step": 1.0}
    served.server.training.metrics = odd
    await served.server.training.store.write(StepMeasured(1, odd))
    (record,) = (await served.get("/history", "viewer"))["steps"]
    left = {"actor/even": 2.0, "training/global_step": 1.0}
    assert record["metrics"] == (await served.status())["metrics"] == left


async def seen(served: Served, role: Any = "viewer") -> Snapshot:
    return Snapshot.model_validate(await served.get("/snapshot", role))


async def waited(served: Served) -> list[tuple[str, str | None, int | None]]:
    return [(wait.what, wait.stream, wait.count) for wait in (await seen(served)).waits]


async def ended(served: Served, lease: dict[str, Any]) -> None:
    assert (await served.chat(lease, "hi")).status == 200
    assert (await served.end(lease)).status == 200


async def test_it_tells_who_plays_what_and_since_when(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(tmp_path, job(episodes_per_step=8), clock=clock) as served:
        early = await served.begin("a", owner="one")
        clock.now += 5
        await served.begin("a", owner="two")
        await served.begin("b", owner="two")
        clock.now += 2
        await served.verb(early, "heartbeat")
        await ended(served, await served.begin("b", owner="two"))
        told = await seen(served)
        served.rollout.fence(next(iter(served.rollout.leases)), "test")
        dropped = await seen(served)
    assert [(owner.owner, owner.open, owner.heard_s, owner.oldest_s) for owner in told.owners] == [
        ("two", 2, 2.0, 2.0),
        ("one", 1, 0.0, 7.0),
    ]
    (stream,) = told.streams
    assert (stream.name, stream.groups_open, stream.groups_whole, stream.episodes_open) == ("default", 2, 0, 3)
    assert (told.environment, told.algorithm, told.model) == ("guess", "grpo", "tiny (2 layers of 64)")
    assert told.episodes["begun"] == 4
    assert told.drops == {}
    assert told.sampled_tokens > 0
    assert dropped.drops == {"test": 1}
    assert [(one.owner, one.reason, one.episode) for one in dropped.recent_drops] == [
        ("one", "test", early["episode_id"])
    ]


@pytest.mark.slow
async def test_it_is_bounded_whatever_runs_and_says_how_much_it_leaves_out(tmp_path: Path) -> None:
    many = 300
    async with serving(tmp_path, job(episodes_per_step=2 * many)) as served:
        for number in range(many):
            await served.begin(f"t{number}", owner=f"owner-{number:03d}", stream=f"stream-{number:03d}")
        ledger = served.rollout
        for episode in list(ledger.leases)[:100]:
            ledger.fence(episode, "test")
        answer = await served.call("GET", "/snapshot", served.admin)
        told = Snapshot.model_validate(answer.body)
    assert (len(told.owners), told.owners_left_out) == (MOST_OWNERS, many - 100 - MOST_OWNERS)
    assert (len(told.streams), told.streams_left_out) == (MOST_STREAMS, many - 100 - MOST_STREAMS)
    assert len(told.recent_drops) == MOST_DROPS
    assert told.recent_drops[0].owner == "owner-099", "the newest first"
    assert len(json.dumps(answer.body)) < 40_000


async def test_it_says_why_a_step_is_not_done(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(tmp_path, job(steps=2), clock=clock) as served:
        assert await waited(served) == [("episodes", None, 4)]
        assert "nobody plays" in (await seen(served)).waits[0].text
        late = await served.begin("a", owner="slow")
        clock.now += 20
        for task in "abb":
            await ended(served, await served.begin(task, owner="quick"))
        (wait,) = (await seen(served)).waits
        assert (wait.what, wait.count, wait.age_s) == ("straggler", 1, 20.0)
        assert "the oldest for 20 s (slow, stream default)" in wait.text
        await ended(served, late)
        await served.until(step=1, state="ROLLING")
        await served.play_step()
        await served.until(finished=True)
        assert await waited(served) == [("nothing", None, None)]
        await served.server.stop()
        assert await waited(served) == [("engine", None, None)]


async def test_an_evaluation_that_is_waited_for_comes_first_with_how_to_play_it(tmp_path: Path) -> None:
    async with serving(tmp_path, job(eval_every=1, evaluation_episodes=3)) as served:
        await served.play_step()
        await served.until(step=1, state="ROLLING", awaited_evaluations=3)
        (wait,) = (await seen(served)).waits
        assert (wait.what, wait.count) == ("evaluation", 3)
        assert "ajet client run --evaluations" in wait.text
        await served.begin("t", kind="eval")
        assert "(1 in play)" in (await seen(served)).waits[0].text


async def test_a_failed_server_says_why_and_one_without_a_job_that_it_is_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncSwarmClient(served.url, served.admin) as client:
        served.server.training.fail("its learner broke")
        (wait,) = (await client.snapshot()).waits
        assert (wait.what, wait.text) == ("failed", "its learner broke")
    async with serving(tmp_path / "empty", start=False) as served:
        told = await seen(served)
        assert ([wait.what for wait in told.waits], told.environment) == (["engine"], None)


def test_a_model_is_named_as_a_person_names_it() -> None:
    assert model_in_words(TinyModel()) == "tiny (2 layers of 64)"
    assert model_in_words(PathModel(path="/models/smollm2-135m/")) == "smollm2-135m"


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
        seen, change = [], served.server.machine.transition_to

        def look_after(*to: Any) -> None:
            change(*to)
            seen.append(read(exposition(served.server).decode()))

        monkeypatch.setattr(served.server.machine, "transition_to", look_after)
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
            with requests.request(operation.method, served.url + path, **asked) as found:
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
