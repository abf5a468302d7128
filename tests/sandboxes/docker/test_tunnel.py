"""The tunnel through a real engine that is treated as one that does not see our files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

from aiohttp import web

from sandboxes import DockerSandbox, Exit, SandboxSpec
from sandboxes.docker.engine import ContainerEngine
from sandboxes.gateway.gateway import PLACEHOLDER, PORTS, SERVER_PORT, Gateway, Upstream
from sandboxes.images import Image

T = TypeVar("T")
ASK = dedent(
    """
    import http.client, json, os, signal, socket, sys, time

    def ask(body, path="/v1/chat/completions"):
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
        connection.request("POST", path, body, {"authorization": "Bearer sandbox", "content-type": "application/json"})
        return connection.getresponse().read()

    def ask_until_answered(body):
        while True:
            try:
                return ask(body)
            except OSError:
                time.sleep(0.02)
    """
)


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


@asynccontextmanager
async def server(handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Serve on loopback; yield the address."""
    made = web.Server(handle, access_log=None)
    listener = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await made.shutdown(0.0)


async def ran(
    engine: ContainerEngine, image: Image, folder: Path, code: str, answer: Callable[[bytes], Awaitable[bytes]]
) -> tuple[Exit | None, str, Any]:
    """Run `code` in a container whose port 8000 leads to a server that answers so; return how it ended and said."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=await answer(await request.read()))

    exchange = folder / ("longer than the name of a socket may be " * 3) / "exchange"
    sandbox = DockerSandbox(folder / "sandboxes", replace(engine, local=False))
    spec = SandboxSpec(
        name="tunnelled",
        command=("python3", "-I", "-c", ASK + dedent(code)),
        directory=folder,
        environment={"AJET_TOKEN": PLACEHOLDER},
        time_limit_s=180.0,
        image=image.id,
        results={"said.json": 1000},
        exchange=exchange,
        ports={SERVER_PORT: PORTS[SERVER_PORT]},
    )
    try:
        async with (
            server(handle) as url,
            Gateway(exchange, upstream=Upstream(url, "token", lambda _: None), log=folder / "egress.jsonl"),
        ):
            handle_of = await in_thread(lambda: sandbox.run(spec))
            ended = await in_thread(lambda: handle_of.wait(200))
        (tunnel,) = sandbox._tunnels.values()
        return ended, handle_of.logs(), (tunnel, handle_of.results())
    finally:
        await in_thread(lambda: sandbox.reap({}))


async def reversed_(body: bytes) -> bytes:
    return body[::-1]


async def test_calls_come_out_of_a_container_that_sees_none_of_our_files_and_its_results_do_too(
    engine: ContainerEngine, image: Image, tmp_path: Path
) -> None:
    ended, said, (tunnel, results) = await ran(
        engine, image, tmp_path,
        """
        print(ask(b"abc").decode(), len(ask(b"x" * 900_000)))
        os.makedirs("/workspace/results", exist_ok=True)
        json.dump("a result", open("/workspace/results/said.json", "w"))
        """,
        reversed_,
    )  # fmt: skip
    assert (ended, said) == (Exit("finished", 0), "cba 900000\n")
    assert json.loads(results["said.json"].path.read_text()) == "a result"
    assert tunnel.reopened == 0


async def test_an_exec_that_is_ended_from_outside_is_opened_anew(
    engine: ContainerEngine, image: Image, tmp_path: Path
) -> None:
    def kill_the_tunnel() -> None:
        own = DockerSandbox(tmp_path / "sandboxes", engine).installation
        (container,) = engine.client.containers.list(filters={"label": f"ajet.installation={own}"})
        container.exec_run(["python3", "-c", "import os; os.kill(-1, 9)"], user="10002:10002")

    async def answer(body: bytes) -> bytes:
        if body == b"kill":
            await in_thread(kill_the_tunnel)
        return body

    ended, said, (tunnel, _) = await ran(
        engine, image, tmp_path,
        """
        try:
            ask(b"kill")
        except (OSError, http.client.HTTPException) as error:
            print("cut")
        print(ask_until_answered(b"and on").decode())
        """,
        answer,
    )  # fmt: skip
    assert (ended, said) == (Exit("finished", 0), "cut\nand on\n")
    assert tunnel.reopened == 1
    (noted,) = (tmp_path / "sandboxes" / "tunnelled" / "tunnel.jsonl").read_text().splitlines()
    assert json.loads(noted)["trouble"].startswith("the far end is gone")


async def test_a_call_that_is_aborted_leaves_the_others_alone(
    engine: ContainerEngine, image: Image, tmp_path: Path
) -> None:
    async def answer(body: bytes) -> bytes:
        await asyncio.sleep(0.2 if body == b"slow" else 0)
        return body

    ended, said, (tunnel, _) = await ran(
        engine, image, tmp_path,
        """
        slow = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
        slow.request("POST", "/v1/chat/completions", b"slow", {"authorization": "Bearer sandbox"})
        for _ in range(5):
            gone = socket.create_connection(("127.0.0.1", 8000))
            gone.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: a\\r\\ncontent-length: 100\\r\\n\\r\\nhalf")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
            gone.close()
        print(slow.getresponse().read().decode(), ask(b"fast").decode())
        """,
        answer,
    )  # fmt: skip
    assert (ended, said, tunnel.reopened) == (Exit("finished", 0), "slow fast\n", 0)


async def test_the_agent_can_neither_end_nor_trace_the_tunnel_nor_take_the_place_of_its_sockets(
    engine: ContainerEngine, image: Image, tmp_path: Path
) -> None:
    ended, said, (tunnel, _) = await ran(
        engine, image, tmp_path,
        """
        def refused(act):
            try:
                act()
            except PermissionError:
                return "refused"
            return "done"

        ask(b"the tunnel is there")
        (pid,) = [int(p) for p in os.listdir("/proc") if p.isdigit() and os.stat("/proc/" + p).st_uid == 10002]
        print(refused(lambda: os.kill(pid, signal.SIGKILL)), refused(lambda: os.listdir(f"/proc/{pid}/fd")))
        print(refused(lambda: open(f"/proc/{pid}/mem", "r+b")), refused(lambda: os.unlink("/run/ajet/server.sock")))
        print(refused(lambda: socket.socket(socket.AF_UNIX).bind("/run/ajet/other.sock")))
        print(ask(b"still there").decode())
        """,
        reversed_,
    )  # fmt: skip
    assert (ended, said) == (Exit("finished", 0), "refused refused\nrefused refused\nrefused\nereht llits\n")
    assert tunnel.reopened == 0


async def test_the_tunnel_ends_with_its_container(engine: ContainerEngine, image: Image, tmp_path: Path) -> None:
    _, _, (tunnel, _) = await ran(engine, image, tmp_path, "ask(b'x')", reversed_)
    await in_thread(lambda: tunnel._thread.join(60))
    assert not tunnel.alive
