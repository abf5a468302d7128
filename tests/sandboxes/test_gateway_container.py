"""An agent in a real container, behind relay and gateway, with a real swarm server and a list of destinations."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from sandboxes import DockerSandbox, Exit, Handle, SandboxSpec
from sandboxes.docker.archive import pack
from sandboxes.gateway.destinations import Destination
from sandboxes.gateway.gateway import PLACEHOLDER, PORTS, Gateway, Request, Upstream
from sandboxes.images import Image
from tests.sandboxes.proxies import Seen
from tests.sandboxes.proxies import serving as serving_http
from tests.swarm.server.support import serving

AGENT = """
import asyncio, json, os, sys
from dataclasses import dataclass
import aiohttp
from swarm.client import AsyncSwarmClient
from swarm.errors import SwarmError

@dataclass
class Task:
    id: str

async def refused(call):
    try:
        await call
    except SwarmError as error:
        return error.code

async def fetched(port):
    try:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/x?y", proxy="http://127.0.0.1:3128") as reply:
                return reply.status
    except aiohttp.ClientError as error:
        return type(error).__name__

async def direct(port):
    try:
        await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return type(error).__name__

async def main():
    found = {}
    async with AsyncSwarmClient("http://127.0.0.1:8000", os.environ["AJET_TOKEN"]) as client:
        episode = await client.begin(Task("given"), wait_s=10)
        found["base_url"] = episode.base_url
        found["said"] = (await episode.chat([{"role": "user", "content": "hi"}])).content
        asked = [{"role": "user", "content": "and now?"}]
        async with episode.openai() as openai:
            stream = await openai.chat.completions.create(model=episode.model, messages=asked, stream=True)
            found["pieces"] = len([piece async for piece in stream])
        found["key"] = await refused(AsyncSwarmClient.stop(client))
        found["eval"] = await refused(client.begin(Task("given"), kind="eval"))
        found["task"] = await refused(client.begin(Task("other")))
        await episode.end(1.0, success=True)
    found["allowed"], found["not_allowed"], found["direct"] = (
        await fetched(int(sys.argv[1])), await fetched(int(sys.argv[2])), await direct(int(sys.argv[1])))
    print(json.dumps(found))

asyncio.run(main())
"""


ASKER = """
import http.client, os, time

def door():
    try:
        return os.stat("/run/ajet/server.sock").st_ctime_ns
    except FileNotFoundError:
        return None

def ask():
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=20)
    connection.request("GET", "/health")
    return connection.getresponse().status

first = door()
print(ask(), flush=True)
while door() == first:
    time.sleep(0.01)
print(ask())
"""


def training_of_given(request: Request) -> str | None:
    """An example of a judge: training episodes of one task, and the verbs of an episode."""
    if request.path.startswith("/v1/") or request.path.startswith("/episodes/"):
        return None
    if (request.method, request.path) != ("POST", "/episodes"):
        return "control plane"
    if request.body.get("kind") != "train":
        return "kind"
    return None if request.body.get("task_id") == "given" else "task"


def agent_spec(image: Image, exchange: Path, *arguments: int) -> SandboxSpec:
    return SandboxSpec(
        "agent",
        ("python3", "/input/agent.py", *map(str, arguments)),
        Path("/"),
        environment={"AJET_TOKEN": PLACEHOLDER},
        time_limit_s=60.0,
        image=image.id,
        archive=pack({"agent.py": AGENT.encode()}),
        exchange=exchange,
        ports=PORTS,
    )


async def test_an_episode_is_played_in_a_container_with_the_placeholder_and_nothing_else_is_reached(
    docker_sandbox: DockerSandbox, image: Image, tmp_path: Path
) -> None:
    seen, exchange = Seen(), tmp_path / "exchange"
    async with serving(tmp_path / "server") as served, serving_http(seen) as allowed, serving_http(seen) as other:
        upstream = Upstream(served.url, served.server.keys.role("client"), training_of_given)
        allow = [Destination.parse(f"127.0.0.1:{allowed}")]
        async with Gateway(exchange, upstream=upstream, allow=allow, log=tmp_path / "egress.jsonl") as gateway:
            handle = await asyncio.to_thread(docker_sandbox.run, agent_spec(image, exchange, allowed, other))
            ended = await asyncio.to_thread(handle.wait, 90)
            assert ended == Exit("finished", 0), handle.logs()
            counts = dict(gateway.counts)
        assert (await served.status())["collected_episodes"] == 1
    found = json.loads(handle.logs())
    assert found.pop("said")
    assert found.pop("pieces") > 1
    assert found == {
        "base_url": "http://127.0.0.1:8000/v1", "key": "forbidden", "eval": "forbidden", "task": "forbidden",
        "allowed": 200, "not_allowed": 403, "direct": "ConnectionRefusedError",
    }  # fmt: skip
    assert counts == {
        "forwarded": 4, "refused: control plane": 1, "refused: kind": 1, "refused: task": 1,
        "egress allowed": 1, "egress refused: not on the list": 1,
    }  # fmt: skip
    assert seen.lines == [("GET", "/x?y")]
    log = [json.loads(line) for line in (tmp_path / "egress.jsonl").read_text().splitlines()]
    assert [(line["port"], line["verdict"]) for line in log] == [(allowed, "allowed"), (other, "refused")]


async def test_a_gateway_that_is_started_anew_is_not_noticed_between_two_calls(
    docker_sandbox: DockerSandbox, image: Image, tmp_path: Path
) -> None:
    exchange = tmp_path / "exchange"
    spec = SandboxSpec(
        "asker", ("python3", "-c", ASKER), Path("/"), time_limit_s=60.0, image=image.id, exchange=exchange, ports=PORTS
    )
    seen = Seen()
    async with serving_http(seen) as port:
        upstream = Upstream(f"http://127.0.0.1:{port}", "token", lambda _: None)
        async with Gateway(exchange, upstream=upstream, log=tmp_path / "log"):
            handle = await asyncio.to_thread(docker_sandbox.run, spec)
            await asyncio.to_thread(_until_said, handle, "200")
        async with Gateway(exchange, upstream=None, log=tmp_path / "log"):
            ended = await asyncio.to_thread(handle.wait, 60)
    assert ended == Exit("finished", 0), handle.logs()
    assert handle.logs().split() == ["200", "403"]


def _until_said(handle: Handle, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in handle.logs():
        assert time.monotonic() < deadline, handle.logs()
        time.sleep(0.05)
