from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from research.isolation.access_policy import AccessPolicy
from sandboxes.gateway.egress import Destination
from sandboxes.gateway.gateway import PORTS, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream
from sandboxes.spec import Exit, Limits, SandboxSpec
from swarm.environments import get_environment
from swarm.environments.custom import to_json
from tests.sandboxes.attacks.conftest import SECRET, Attackers, attempts, own_addresses
from tests.sandboxes.proxies import serving as serving_web
from tests.swarm.server.support import job, serving

STEPS = 3


@dataclass
class Fight:
    """What became of an attacker and of an honest client that ran at once."""

    report: dict[str, dict[str, Any]]
    seen: bytes
    attacker: Exit
    honest: Exit
    counts: dict[str, int]
    status: dict[str, Any]
    secrets: list[str]
    reached: list[str]
    """Requests that came to a service of this machine that nobody may reach."""
    log: str
    """Of the way out."""


def honest_spec(attackers: Attackers, exchange: Path, tasks: Any) -> SandboxSpec:
    """Return the project's own player of the environment's training tasks."""
    command = ("python3", "-m", "swarm.environments", "play", "--environment", "guess", "--concurrency", "4",
               "--server", "http://127.0.0.1:8000", "--tasks", "/input/tasks.json")  # fmt: skip
    return SandboxSpec(
        "honest", command, Path("/"), environment={"AJET_TOKEN": PLACEHOLDER}, time_limit_s=180.0, limits=Limits(),
        image=attackers.image.id, files={"tasks.json": to_json(tasks).encode()}, exchange=exchange,
        ports={8000: PORTS[8000]},
    )  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fight(attackers: Attackers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fight]:
    """Let an attacker loose at a real server's gateway, and beside it an honest client with a gateway of its own."""
    folder = tmp_path_factory.mktemp("doors")
    tasks = get_environment("guess").tasks("train")
    reached: list[str] = []

    async def forbidden(request: web.BaseRequest) -> web.StreamResponse:
        reached.append(request.raw_path)
        return web.Response(text="forbidden words")

    async def allowed(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="allowed words")

    wanted = job(environment="guess", steps=STEPS, episodes_per_step=8)
    async with (
        serving_web(forbidden) as port,
        serving_web(allowed) as good,
        serving(folder / "server", wanted) as served,
    ):
        token = served.server.keys.role_key("client")
        upstream = Upstream(served.url, token, AccessPolicy("train", {task.id for task in tasks}))
        allow = [Destination.parse(text) for text in ("allowed.example:443", f"127.0.0.1:{good}")]
        doors = Gateway(folder / "attacker", upstream=upstream, allow=allow, log=folder / "egress.jsonl")
        own = Gateway(folder / "honest", upstream=upstream, log=folder / "none.jsonl")
        other = await served.begin(tasks[0].id, kind="eval")
        async with doors, own:
            attackers.facts = {
                "tasks": [task.id for task in tasks[:4]],
                "hidden_task": get_environment("guess").tasks("hidden")[0].id,
                "other_episode": other["episode_id"],
                "port": port,
                "allowed": f"127.0.0.1:{good}",
                "forbidden_words": "forbidden words",
                "addresses": own_addresses(),
                "hold_s": 2.0,
            }
            attack = await asyncio.to_thread(
                attackers.run, "probing.py", "/workspace/results/report.json", "doors",
                exchange=folder / "attacker", ports=dict(PORTS),
                results={"report.json": 1 << 20, "seen": 8 << 20},
            )  # fmt: skip
            player = await asyncio.to_thread(attackers.sandbox.run, honest_spec(attackers, folder / "honest", tasks))
            honest = await asyncio.to_thread(player.wait, 200.0)
            report = await asyncio.to_thread(attack.report)
            status = await served.status()
            assert honest is not None, player.logs()
            assert honest.reason == "finished", player.logs()
            yield Fight(
                report,
                attack.handle.results()["seen"].read_bytes(),
                attack.ended(),
                honest,
                dict(doors.counts),
                status,
                [token, served.admin, served.server.keys.role_key("viewer"), SECRET],
                reached,
                (folder / "egress.jsonl").read_text(),
            )


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("name", list(attempts("doors")))
async def test_an_attacker_gets_nothing_through_its_doors(fight: Fight, name: str) -> None:
    assert fight.report[name] == {"got": None, "said": "nothing"}


async def test_the_training_beside_it_goes_on_to_its_last_step(fight: Fight) -> None:
    assert fight.honest == Exit("finished", 0)
    assert (fight.status["finished"], fight.status["step"]) == (True, STEPS)


async def test_every_refusal_is_counted_by_its_reason(fight: Fight) -> None:
    assert fight.attacker == Exit("finished", 0)
    refused = {why: count for why, count in fight.counts.items() if why != "forwarded"}
    for why in ("refused: a route that no client needs", "refused: a task it was not given", "path", "body",
                "malformed", "pipelined", "head_too_large", "body_too_large", "egress connections",
                "egress refused: not on the list"):  # fmt: skip
        assert refused.get(why, 0) > 0, f"{why}: {refused}"


async def test_no_answer_holds_a_key_of_the_machine(fight: Fight) -> None:
    assert len(fight.seen) > 1000
    for secret in fight.secrets:
        assert secret.encode() not in fight.seen


async def test_nothing_of_this_machine_was_reached(fight: Fight) -> None:
    assert fight.reached == []


async def test_the_log_of_the_way_out_is_whole_lines_of_json(fight: Fight) -> None:
    lines = [json.loads(line) for line in fight.log.splitlines()]
    assert len(lines) > 10
    assert {line["verdict"] for line in lines} >= {"refused"}
    assert {line["host"] for line in lines if line["verdict"] == "allowed"} <= {"127.0.0.1", "allowed.example"}
