"""What Prometheus scrapes says what the server says, in every state, in a form Prometheus reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from swarm.server import Keys, SwarmServer
from swarm.server.prometheus import exposition
from swarm.wire import ServerState
from tests.swarm.server.support import Served, job, serving

JOB = ("ajet_job_info", "ajet_steps")
Samples = dict[tuple[str, str], float]


async def scraped(served: Served, role: Any = "viewer") -> Samples:
    """Return all samples by name and the value of their label ("" without one)."""
    key = {"authorization": f"Bearer {served.server.keys.role(role)}"}
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
        rollout.ledger.fence(next(iter(rollout.leases)), "test")
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
        assert (state(bare), {name for name, _ in bare}) == ("OFFLINE", {"ajet_server_state"})
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


async def test_calls_and_refusals_are_counted_by_what_befell_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.rollout.counts.update(calls_coalesced=2, neutralised_top_p=3, drop_pool_bytes=4)
        for task in "aabb":
            await served.begin(task)
        assert (await served.post("/episodes", served.admin, {"task_id": "c"})).status == 429
        seen = await scraped(served)
        assert seen["ajet_call_events_total", "coalesced"] == 2
        assert seen["ajet_neutralised_total", "top_p"] == 3
        assert seen["ajet_drops_total", "pool_bytes"] == 4
        assert (seen["ajet_throttled_total", ""], seen["ajet_leases", "open"]) == (1, 4)


def test_the_server_state_family_names_every_state(tmp_path: Path) -> None:
    seen = read(exposition(SwarmServer(tmp_path, tmp_path, Keys())).decode())
    assert {label for name, label in seen if name == "ajet_server_state"} == {str(state) for state in ServerState}
