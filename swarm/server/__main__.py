"""`python -m swarm.server`: one swarm server as a process.

Promises that DIR/server.json appears once the address is bound, with tokens.json (owner only) before it; that
SIGTERM and SIGINT end with the tracker finished and exit code 0, or 1 and one line where it could not be; that wrong
arguments, and a store that is not this directory's, are one line and code 2; that a server which ended or was
killed while its engine was on boots it again and goes on with its training, unless it is started `--idle`.

`--read DIR` answers a line of JSON to each question, out of the store of a server that ended, and writes nothing there:
the store is opened where it lies, immutable, so that a read-only disk will do. One whose server was killed, or that an
earlier version wrote, would have to be written first: a copy of it is read.
"""

import argparse
import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import Final, TextIO
from urllib.parse import quote

import uvicorn
from filelock import FileLock, Timeout
from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError

from swarm.client.transport import is_running
from swarm.environments.registry import add_folder
from swarm.errors import InvalidRequest, ServerFailed, SwarmError
from swarm.job import TinyModel
from swarm.models import model_place, tiny_folder
from swarm.plugins import seconds
from swarm.rendering.messages import BackendError, Renderer
from swarm.rollout.keys import Keys, ServerDirectory, write_private
from swarm.server.connections import LimitedHttp, raise_file_limit
from swarm.server.routes import make_app
from swarm.server.service import SwarmServer, default_store
from swarm.server.watching import with_texts
from swarm.store.archive import Archive
from swarm.store.database import check_store, connect, migrate
from swarm.training.loop import collect_new, collect_rarely
from swarm.wire import EpisodeRecord, ServerState

SHORTEST_TOKEN = 32
STORE = "AJET_SWARM_STORE"
"""Names the variable with the store's URL: an argument would show its password to everybody on the machine."""
LOOKED_AT_S = 0.2
"""Clients take a directory's lock for a moment, to see whether a server lives (`swarm.client.transport`)."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
IDLE_S: Final = 300.0
"""After which a reader that nobody asks anything ends."""


class _Uvicorn(uvicorn.Server):
    """uvicorn that stops the swarm server first, so that nobody waits for a reply that will not come."""

    def __init__(self, config: uvicorn.Config, server: SwarmServer, address: Path, *, idle: bool) -> None:
        super().__init__(config)
        self._server = server
        self._address = address
        self._idle = idle

    def stop_soon(self, *_: object) -> None:
        """Take a signal that comes before uvicorn catches them, or that it raises again after a clean stop."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, and go on with what the end of the last server interrupted."""
        await super().startup(sockets)
        if not self._idle:
            self._resuming = asyncio.create_task(self._resume())

    async def on_tick(self, counter: int) -> bool:
        """Look for garbage, and write the tokens of roles anew each day: they live for ROLE_LIFE_S, and a server may
        for longer."""
        collect_new()
        if counter == 0:
            try:
                self._server.keys.write_tokens(self._address.with_name("tokens.json"))
            except OSError as error:  # a full disk: the old ones live for months
                logging.getLogger(__name__).warning("event=tokens_not_written reason=%r", str(error))
        return await super().on_tick(counter)

    async def _resume(self) -> None:
        try:
            await self._server.resume()
        except SwarmError as error:
            logging.getLogger(__name__).error("event=resume_failed reason=%r", str(error))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        booting = self._server.machine.state is ServerState.BOOTING
        try:
            await self._server.stop(to_resume=True)
        finally:
            await super().shutdown(sockets)
            self._address.unlink(missing_ok=True)
        if booting:  # a thread that still makes a model cannot be cancelled, and a usual exit would wait for it
            logging.shutdown()
            os._exit(0)


def main(arguments: list[str] | None = None) -> int:
    os.umask(0o077)  # every token and every hidden outcome is its owner's, whoever made the folder
    parser = argparse.ArgumentParser(prog="python -m swarm.server", description="Run one swarm server.")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--directory", type=Path, help="where server.json, tokens.json, checkpoints go")
    place.add_argument("--read", type=Path, help="answer for the episodes of a server that ended")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to bind (default 0: any free one)")
    parser.add_argument(
        "--store",
        default=os.environ.get(STORE),
        help=f"URL of the database (default: that of {STORE}, which shows no password; else SQLite in DIRECTORY)",
    )
    parser.add_argument(
        "--peer", action="append", default=[], help="address of a server to ask what became of a team; may be repeated"
    )
    parser.add_argument("--environments", type=Path, help="folder of environments that were brought")
    parser.add_argument("--models", type=Path, help="cache of models made on the spot (default DIRECTORY/models)")
    parser.add_argument(
        "--idle", action="store_true", help="do not take up the job whose engine was on when the last server ended"
    )
    parser.add_argument(
        "--checkpoint-after",
        type=seconds,
        metavar="SECONDS",
        help="write a checkpoint also where the last one is older than this, and than 33 times what writing it held "
        "training up for: 3 %% of the time at most (default: by the job's steps alone)",
    )
    parser.add_argument("--token-file", type=Path, help="owner-only file with an admin token of your own choosing")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s", stream=sys.stderr)
    try:
        if options.read is not None:
            answer_lines(options.read, options.models or options.read / "models", sys.stdin, sys.stdout)
        else:
            _run(options)
    except (InvalidRequest, ServerFailed) as error:
        print(f"ajet swarm server: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, InvalidRequest) else 1
    return 0


def _run(options: argparse.Namespace) -> None:
    token = _read_token(options.token_file)
    if options.host not in _LOOPBACK and token is None:
        raise InvalidRequest(f"--host {options.host} is not loopback; give --token-file FILE with an admin token")
    directory: Path = options.directory.absolute()
    lock = _lock_directory(directory)
    try:
        sock = _open_socket(options.host, options.port)
        try:  # its secret is read once it is sure that its server can use the store
            kept = ServerDirectory(directory)
            check_store(options.store or default_store(directory), kept.installation())
            if not options.idle:
                kept.read_interrupted_job()
            keys = Keys(token, secret=kept.secret())
        except ServerFailed as failure:
            raise InvalidRequest(str(failure)) from None
        except OSError as error:
            raise InvalidRequest(f"cannot write to {directory}: {error.strerror or error}") from None
        if options.environments is not None:
            add_folder(options.environments)
        models = (options.models or directory / "models").absolute()
        asked = {"store": options.store, "peers": options.peer, "checkpoint_after_s": options.checkpoint_after}
        server = SwarmServer(directory, models, keys, **asked)
        _serve(server, sock, directory, idle=options.idle)
    finally:
        lock.release()


def _serve(server: SwarmServer, sock: socket.socket, directory: Path, *, idle: bool) -> None:
    config = uvicorn.Config(
        make_app(server), loop="uvloop", http=LimitedHttp, ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=5,
        timeout_keep_alive=75,  # longer than clients keep idle connections, so that none is closed under a request
    )  # fmt: skip
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    address = directory / "server.json"
    http = _Uvicorn(config, server, address, idle=idle)
    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, http.stop_soon)
    collect_rarely()
    raise_file_limit()
    server.keys.write_tokens(directory / "tokens.json")  # before somebody finds the address
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    write_private(address, json.dumps({"url": url, "pid": os.getpid(), "started": time.time()}))
    logging.getLogger(__name__).info("event=listening url=%s pid=%d", url, os.getpid())
    http.run(sockets=[sock])


def _lock_directory(directory: Path) -> FileLock:
    """Return the held lock of a directory: two servers must not write the same files."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / "server.lock")
        lock.acquire(timeout=LOOKED_AT_S)
    except Timeout:
        raise InvalidRequest(f"another server runs in {directory}; stop it or give another --directory") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write to {directory}: {error.strerror or error}") from None
    (directory / "server.json").unlink(missing_ok=True)
    return lock


def _open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket, on a free port where the wanted one is in use."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            sock.bind((host, port))
        except OSError as error:
            if port == 0 or error.errno != errno.EADDRINUSE:
                raise
            sock.bind((host, 0))
            print(f"port {port} is in use; took {sock.getsockname()[1]} instead", file=sys.stderr)  # noqa: T201
    except (OSError, OverflowError) as error:
        raise InvalidRequest(f"cannot bind {host}:{port}: {error}") from None
    sock.listen(2048)  # from here on clients queue instead of being refused
    return sock


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text().strip()
        mode = path.stat().st_mode & 0o077
    except OSError as error:
        raise InvalidRequest(f"cannot read --token-file {path}: {error.strerror}") from None
    if mode:
        raise InvalidRequest(f"--token-file {path} is readable by others; chmod 600 it")
    if len(token) < SHORTEST_TOKEN:
        raise InvalidRequest(f"--token-file {path}: expected a token of at least {SHORTEST_TOKEN} characters")
    return token


@contextmanager
def readable_store(folder: Path) -> Iterator[str]:
    """Yield the URL of what can be read in a server's folder; InvalidRequest where none can, or a server runs there."""
    file = folder / "store.sqlite3"
    if not file.is_file():
        raise InvalidRequest(f"expected the folder of a swarm server, found no {file.name} in {folder}")
    if is_running(folder):
        raise InvalidRequest(f"expected a folder whose server ended; one runs in {folder}: ask it")
    beside = file.with_name(f"{file.name}-wal")
    in_place = f"sqlite:///file:{quote(str(file.absolute()))}?immutable=1&mode=ro&uri=true"
    try:
        with connect(in_place).connect() as connection:
            migrate(connection)
        whole = not (beside.exists() and beside.stat().st_size)
    except SQLAlchemyError:  # of an earlier version, or no database: read, it says which
        whole = False
    if whole:
        yield in_place
        return
    with TemporaryDirectory(prefix="ajet-read-") as scratch:
        for path in (file, *([beside] if beside.exists() else [])):
            shutil.copyfile(path, Path(scratch, path.name))
        yield default_store(Path(scratch))


def answer_lines(folder: Path, models: Path, asked: TextIO, told: TextIO) -> None:
    """Answer `{"limit": N}` with `episodes`, `{"episode": ID}` with its `record` and the `reason` why its ids have no
    texts, or with an `error`, until there is no more to read or nobody asks for a while."""
    with readable_store(folder) as store, redirect_stdout(sys.stderr), ThreadPoolExecutor(1) as thread:
        archive = Archive(store, None)
        loading = thread.submit(load_tokenizer, archive, models)  # which takes seconds, before somebody waits for it
        while select([asked], [], [], IDLE_S)[0] and (line := asked.readline()):
            question = json.loads(line)
            try:
                if "limit" in question:
                    found: object = asyncio.run(archive.episodes(question["limit"]))
                else:
                    found = _with_texts(asyncio.run(archive.episode(question["episode"])), loading)
            except (SwarmError, ValueError) as error:
                found = {"error": str(error)}
            print(to_json(found).decode(), file=told, flush=True)


def _with_texts(record: EpisodeRecord | None, loading: Future[Renderer | None]) -> Mapping[str, object]:
    try:
        renderer = loading.result()
    except (BackendError, ImportError, SwarmError) as error:
        return {"record": record, "reason": " ".join(f"ids without texts: {error}".split())}
    return {"record": record if record is None or renderer is None else with_texts(record, renderer), "reason": ""}


def load_tokenizer(archive: Archive, models: Path) -> Renderer | None:
    """Return what the ids of the newest training are read with; None where there was none."""
    if (newest := asyncio.run(archive.summarize(0))) is None:
        return None
    job = newest.job
    if job.backend == "fake":
        from swarm.backends.fake import FakeRenderer

        return FakeRenderer()
    from swarm.rendering.renderer import load_renderer

    if job.start_from is not None:
        folder = model_place(job.start_from, models)
    elif isinstance(job.model, TinyModel):
        folder = tiny_folder(job.model, job.environment, models)
    else:
        folder = model_place(job.model.path, models)
    if not folder.is_dir():
        raise BackendError(f"the folder of the job's model, {folder}, is gone")
    return load_renderer(folder)


if __name__ == "__main__":
    sys.exit(main())
