"""`python -m swarm.passive`: one front as a process.

Promises that DIR/front.json appears once the address is bound; that SIGTERM and SIGINT end with every group settled and
exit code 0; that wrong arguments, and a folder that another front has, are one line and code 2. Whatever a front that
was killed left open is erased, and what it was to erase is erased by the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from filelock import FileLock, Timeout
from sqlalchemy.exc import DBAPIError

from swarm.arguments import seconds
from swarm.client import AsyncSwarmClient
from swarm.connections import LimitedHttp, raise_file_limit
from swarm.errors import InvalidRequest
from swarm.passive.app import App
from swarm.passive.erasing import Eraser
from swarm.passive.front import Front, FrontLimits
from swarm.passive.identity import Secrets, kept_secrets, write_private
from swarm.passive.judge import AnswerJudge, endpoint
from swarm.passive.limits import RateLimit
from swarm.passive.records import Records
from swarm.passive.scoring import FileScorer, Scorer
from swarm.wire import fingerprint

JUDGE_KEY = "AJET_JUDGE_KEY"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def main(arguments: list[str] | None = None) -> int:
    """Run a front until a signal ends it; return the exit code."""
    os.umask(0o077)
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s level=%(levelname)s %(message)s", stream=sys.stderr)
    folder: Path = options.directory.absolute()
    raise_file_limit()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / "front.lock").acquire(timeout=0), _bound(options) as sock:
            asyncio.run(_serve(options, folder, kept_secrets(folder), sock))
    except Timeout:
        return _refuse(f"another front runs in {folder}; stop it or give another --directory")
    except InvalidRequest as error:
        return _refuse(error.message)
    except DBAPIError as error:
        return _refuse(f"expected sound records in {folder}; found them broken ({type(error).__name__})")
    except OSError as error:
        return _refuse(f"cannot use {error.filename or folder}: {error.strerror or error}")
    return 0


def _refuse(said: str) -> int:
    print(f"ajet passive: {said}", file=sys.stderr)  # noqa: T201
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m swarm.passive", description="Run one front of a swarm server.")
    parser.add_argument("--directory", type=Path, required=True, help="where its records and secrets go")
    parser.add_argument("--server", required=True, help="address of the swarm server")
    parser.add_argument("--token-file", type=Path, required=True, help="file with a client's token of that server")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to bind (default 0: any free one)")
    parser.add_argument(
        "--behind-tls", action="store_true", help="something before this front speaks TLS: any --host may be bound"
    )
    judged = parser.add_mutually_exclusive_group()
    judged.add_argument("--score", type=Path, help="Python file with score(request, answers) -> list of numbers")
    judged.add_argument("--judge", help="`self`: the served model puts answers in order; or an address ending in /v1")
    parser.add_argument("--judge-model", help="model of the judge's address; its key is read from " + JUDGE_KEY)
    parser.add_argument("--feedback-s", type=seconds, default=0.0, help="seconds a group waits for feedback (0: none)")
    parser.add_argument("--score-s", type=seconds, default=30.0, help="seconds the scorer's file may take")
    parser.add_argument("--most-groups", type=int, default=64, help="groups open at the same time")
    parser.add_argument("--per-user", type=float, default=20.0, help="requests a minute of one user")
    parser.add_argument("--per-application", type=float, default=600.0, help="requests a minute of one application")
    return parser


@contextlib.contextmanager
def _bound(options: argparse.Namespace) -> Iterator[socket.socket]:
    if options.host not in _LOOPBACK and not options.behind_tls:
        raise InvalidRequest(
            f"--host {options.host} is not loopback: keys and conversations would pass unencrypted; put a proxy with "
            "TLS before the front and give --behind-tls"
        )
    if min(options.per_user, options.per_application) < 1 or options.most_groups < 1:
        raise InvalidRequest("expected --per-user, --per-application and --most-groups of at least 1")
    sock = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        _bind(sock, options.host, options.port)
        yield sock
    finally:
        sock.close()


def _bind(sock: socket.socket, host: str, port: int) -> None:
    try:
        sock.bind((host, port))
        sock.listen(512)
    except (OSError, OverflowError) as error:
        raise InvalidRequest(f"cannot bind {host}:{port}: {error}; give another --port") from error


async def _serve(options: argparse.Namespace, folder: Path, secrets: Secrets, sock: socket.socket) -> None:
    token = options.token_file.read_text().strip()
    limits = FrontLimits(feedback_s=options.feedback_s, most_groups=options.most_groups)
    records = Records(folder / "records.sqlite3")
    records.erase_open()
    async with AsyncSwarmClient(options.server, token, owner=f"passive:{fingerprint(secrets.owner)}") as client:
        eraser = Eraser(client, records, secrets.owner)
        front = Front(client, records, eraser, limits)
        front.scorer = _scorer(options, front)
        app = App(
            front, records, secrets,
            applications=RateLimit("application", options.per_application),
            users=RateLimit("user", options.per_user),
        )  # fmt: skip
        config = uvicorn.Config(
            app.starlette(), http=LimitedHttp, lifespan="off", log_config=None, access_log=False, server_header=False,
            ws="none", proxy_headers=False, timeout_graceful_shutdown=5,
        )  # fmt: skip
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        erasing = asyncio.create_task(eraser.run())
        address = folder / "front.json"
        _write_address(address, sock)
        try:
            await _stopping(uvicorn.Server(config)).serve(sockets=[sock])
        finally:
            await front.close()
            erasing.cancel()
            address.unlink(missing_ok=True)
            records.close()


def _stopping(server: uvicorn.Server) -> uvicorn.Server:
    """Have signals stop the server also outside of uvicorn, which raises them again once it has stopped."""

    def stop_soon(*_: object) -> None:
        server.should_exit = True

    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, stop_soon)
    return server


def _scorer(options: argparse.Namespace, front: Front) -> Scorer | None:
    """Return what compares answers; None where feedback alone does."""
    if options.score is not None:
        return FileScorer(options.score, options.score_s)
    if options.judge == "self":
        return AnswerJudge(front.ask_model)
    if options.judge is not None:
        if not options.judge_model:
            raise InvalidRequest("expected --judge-model with the address of a judge, found none")
        return AnswerJudge(endpoint(options.judge, options.judge_model, os.environ.get(JUDGE_KEY, "")))
    if not options.feedback_s:
        raise InvalidRequest(
            "nothing would compare the answers; give --score FILE, --judge self, --judge URL, or --feedback-s SECONDS"
        )
    return None


def _write_address(path: Path, sock: socket.socket) -> None:
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    write_private(path, json.dumps({"url": url, "pid": os.getpid(), "started": time.time()}))
    logging.getLogger(__name__).info("event=listening url=%s pid=%d", url, os.getpid())
    print(f"serving at {url}; let an application in with `ajet passive key NAME`; Ctrl-C stops", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
