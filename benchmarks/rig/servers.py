"""Servers under test as processes: the swarm server with an instant fake engine, and a bare FastAPI route.

python -m rig.servers swarm DIRECTORY     the real `swarm.server`
python -m rig.servers prose DIRECTORY     the same with a real tokenizer and chat template
python -m rig.servers pieces DIRECTORY    `prose` with longer answers, an id at a time
python -m rig.servers bare DIRECTORY      one route that answers every POST with DIRECTORY/body.json
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response

from rig.load import ANSWER, PROSE, passage
from swarm.backends.fake import FakeBackend, FakeEngine, FakeLearner, FakeRenderer, number_script
from swarm.backends.protocols import Backend, Chunk, GenerationRequest
from swarm.job import Job
from swarm.rendering.messages import Renderer

BOOT_S = 60.0
SAID = passage(7, 240)
"""What the engine of `pieces` answers."""


class InstantEngine(FakeEngine):
    """Answers every prompt with the same few ids at once, so that all the cost is the server's."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(FakeRenderer(), 0, number_script, 8)
        ids = (*renderer.encode(ANSWER), renderer.eos_id)
        self._whole = Chunk(ids, (-0.5,) * len(ids), 0, "stop")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the one answer."""
        yield self._whole


class PiecesEngine(InstantEngine):
    """Answers every prompt with the same passage, an id at a time, as engines do; at once all the same."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer)
        self._ids = (*renderer.encode(SAID), renderer.eos_id)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the passage's ids."""
        for place, token in enumerate(self._ids, 1):
            yield Chunk((token,), (-0.5,), self.version, "stop" if place == len(self._ids) else None)


def instant(job: Job, _: Path, *, kind: str) -> Backend:
    """Return the fake backend with the engine of a kind of server; only `swarm` has no real tokenizer and template."""
    backend: Any = FakeBackend(job)
    if kind != "swarm":
        backend.renderer = prose_renderer()
    backend.engine = (PiecesEngine if kind == "pieces" else InstantEngine)(backend.renderer)
    if kind == "pieces":
        backend.learner = FakeLearner(backend.engine)
    return cast(Backend, backend)


def prose_renderer() -> Renderer:
    """Return Hugging Face's renderer over a ChatML template and a byte-level BPE of 8,000 tokens, made on the spot."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from swarm.backends.tiny_model import CHAT_TEMPLATE, END, PAD, START
    from swarm.rendering.renderer import HFRenderer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([PROSE], trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in (PAD, START, END)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, chat_template=CHAT_TEMPLATE
    )
    return HFRenderer(fast)


def main() -> None:
    """Serve until a signal."""
    kind, directory = sys.argv[1:]
    if kind == "bare":
        _bare(Path(directory))
    else:
        _swarm(directory, kind)


def _swarm(directory: str, kind: str) -> None:
    process: Any = importlib.import_module("swarm.server.__main__")
    backends = functools.partial(instant, kind=kind)
    process.SwarmServer = functools.partial(process.SwarmServer, backends=backends)
    process.main(["--directory", directory])


def _bare(directory: Path) -> None:
    """Serve with the swarm server's own uvicorn settings."""
    app, body = FastAPI(openapi_url=None), (directory / "body.json").read_bytes()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        await request.body()
        return Response(body, media_type="application/json")

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    part = directory / "server.json.part"
    part.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    part.rename(directory / "server.json")
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=75,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[sock])


class ServerProcess:
    """A server that runs: its address, its token, and what it uses."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, url: str) -> None:
        self.pid = process.pid
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self._directory = directory

    @property
    def token(self) -> str:
        """The admin token."""
        return str(json.loads((self._directory / "tokens.json").read_text())["admin"])

    def cpu_s(self) -> float:
        """Return the CPU seconds of all the process's threads, to the nanosecond where the kernel tells (Linux)."""
        return time.clock_gettime((~self.pid << 3) | 2)  # clock_getcpuclockid(3)


@contextlib.contextmanager
def serving(kind: str, directory: Path) -> Iterator[ServerProcess]:
    """Run a server until the block ends; its log goes to DIRECTORY/log."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rig.servers", kind, str(directory)],
            cwd=Path(__file__).parents[1], stderr=log, stdout=log,
        )  # fmt: skip
    try:
        yield ServerProcess(process, directory, _address(process, directory))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _address(process: subprocess.Popen[bytes], directory: Path) -> str:
    path, deadline = directory / "server.json", time.monotonic() + BOOT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{(directory / 'log').read_text()[-2000:]}")
        time.sleep(0.02)
    return str(json.loads(path.read_text())["url"])


JOB = Job(backend="fake", episodes_per_step=65_536, group_size=8, max_context=1_000_000, lease_ttl_s=3600.0)


async def start(server: ServerProcess) -> None:
    """Load the job, start the engine, and wait until episodes can begin."""
    async with session(server) as http:
        await http.post("/job", data=JOB.model_dump_json())
        await http.post("/engine/start")
        while (await (await http.get("/status")).json())["state"] != "ROLLING":  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)


async def begin(server: ServerProcess, episodes: int) -> list[str]:
    """Begin training episodes, 8 of each task; return their model keys."""
    keys = []
    async with session(server) as http:
        for number in range(episodes):
            async with http.post("/episodes", json={"task_id": f"task-{number // 8}"}) as reply:
                keys.append(str((await reply.json())["api_key"]))
    return keys


def session(server: ServerProcess) -> aiohttp.ClientSession:
    """Return a client session as the server's administrator."""
    headers = {"authorization": f"Bearer {server.token}"}
    return aiohttp.ClientSession(server.url, headers=headers, raise_for_status=True)


if __name__ == "__main__":
    main()
