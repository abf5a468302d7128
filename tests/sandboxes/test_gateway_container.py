"""Calls from a real container, behind relay and gateway; whole episodes are the attacks' (attacks/test_doors.py)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from sandboxes import DockerSandbox, Exit, SandboxSpec
from sandboxes.gateway.egress import Destination
from sandboxes.gateway.gateway import PORTS, Gateway
from sandboxes.gateway.reverse_proxy import Upstream
from sandboxes.images.build import Image
from sandboxes.spec import wait_until
from tests.sandboxes.proxies import DEADLINE_S, Seen, serving

ASKER = """
import http.client, os, sys, time

def door():
    try:
        return os.stat("/run/ajet/server.sock").st_ctime_ns
    except FileNotFoundError:
        return None

def ask(port, target):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", target)
    return connection.getresponse().status

first = door()
print(ask(8000, "/health"), *[ask(3128, f"http://127.0.0.1:{port}/x?y") for port in sys.argv[1:]], flush=True)
try:
    ask(int(sys.argv[1]), "/x")
except OSError as error:
    print(type(error).__name__, flush=True)
while door() == first:
    time.sleep(0.01)
print(ask(8000, "/health"))
"""


async def test_the_server_and_a_destination_are_reached_and_nothing_else_and_a_new_gateway_is_not_noticed(
    docker_sandbox: DockerSandbox, image: Image, tmp_path: Path
) -> None:
    seen, beside, exchange, log = Seen(), Seen(), tmp_path / "exchange", tmp_path / "egress.jsonl"
    async with serving(seen) as port, serving(beside) as allowed, serving(beside) as other:
        command = ("python3", "-c", ASKER, str(allowed), str(other))
        spec = SandboxSpec(
            "asker", command, Path("/"), time_limit_s=DEADLINE_S, image=image.id, exchange=exchange, ports=PORTS
        )  # fmt: skip
        upstream = Upstream(f"http://127.0.0.1:{port}", "token", lambda _: None)
        allow = [Destination.parse(f"127.0.0.1:{allowed}")]
        async with Gateway(exchange, upstream=upstream, allow=allow, log=log) as gateway:
            handle = await asyncio.to_thread(docker_sandbox.run, spec)
            assert await asyncio.to_thread(wait_until, lambda: "Error" in handle.logs(), DEADLINE_S), handle.logs()
            counts = dict(gateway.counts)
        async with Gateway(exchange, upstream=None, log=log):
            ended = await asyncio.to_thread(handle.wait, DEADLINE_S)
    assert ended == Exit("finished", 0), handle.logs()
    assert handle.logs().split() == ["200", "200", "403", "ConnectionRefusedError", "403"]
    assert counts == {"forwarded": 1, "egress allowed": 1, "egress refused: not on the list": 1}
    assert (seen.lines, beside.lines) == ([("GET", "/health")], [("GET", "/x?y")])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["port"]: line["verdict"] for line in lines} == {allowed: "allowed", other: "refused"}
