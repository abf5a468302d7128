"""The gateway: what a container reaches through the sockets of its exchange folder.

    folder/server.sock    the swarm server, as far as `Upstream.admits` lets a request pass
    folder/plays.sock     another server, where `plays` is given
    folder/egress.sock    the Internet, as far as an allow-list names it (`sandboxes.gateway.egress`)

No secret is needed inside: a client shows the PLACEHOLDER, and the run's token takes its place on the way. Sockets are
writable for every user, as the container's user is not ours, so some folder above them must be its owner's alone; in a
container the folder is mounted by itself.
"""

import os
import resource
import socket
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from sandboxes.gateway.egress import Destination, Egress, Resolve, resolve_here
from sandboxes.gateway.reverse_proxy import QUEUE, ReverseProxy, Upstream
from sandboxes.spec import SandboxError

MOST_PATH_BYTES = 100
"""Kernels take 104 to 108 bytes."""


def prepare(folder: Path) -> None:
    """Make a folder for sockets. Raises SandboxError when other users of this machine could reach into it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    if not any(_is_private(above) for above in folder.absolute().parents):
        raise SandboxError(
            f"expected a folder above {folder} that only its owner may enter; found none, so every user of this "
            f"machine could speak through its sockets; run: chmod 700 {folder.absolute().parent}"
        )


def _is_private(folder: Path) -> bool:
    return not folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)


@contextmanager
def listen(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, in place of whoever did before; inside, and only inside, connections are taken."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        draft.unlink(missing_ok=True)
        with short_name(draft) as name:
            sock.bind(name)
        draft.chmod(0o666)
        sock.listen(QUEUE)
        sock.setblocking(False)
        mine = draft.stat().st_ino
        os.replace(draft, path)  # at no time is there none
        try:
            yield sock
        finally:
            with suppress(FileNotFoundError):
                if path.stat().st_ino == mine:  # else a successor's stands in its place
                    path.unlink()
    finally:
        sock.close()


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Give a name to bind or connect to for a path, which may be longer than kernels take if its last part is not."""
    if len(os.fsencode(path)) <= MOST_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


SERVER_PORT = 8000
EGRESS_PORT = 3128
PORTS: Mapping[int, str] = {SERVER_PORT: "server.sock", EGRESS_PORT: "egress.sock"}
"""The ports of a container's loopback, and the sockets they lead to."""
PLAYS: Mapping[int, str] = {8001: "plays.sock"}
"""The same for `Gateway.plays`."""
NO_REFUSALS = frozenset(
    {"forwarded", "unreachable", "lost", "egress allowed", "egress failed", "egress lost", "egress log lost"}
)
"""What is counted without that anything was refused: it passed, or what it went to failed."""
MOST_CALLS = 512
MOST_WAYS_OUT = 128
"""Connections at once, to the swarm server and to the Internet. Each may take two descriptors."""
DESCRIPTORS = 8192
"""What a process should have for its gateways and all else; many systems begin with 1024, and allow far more."""


@dataclass(eq=False)
class Gateway:
    """Serves the sockets of one exchange folder while its context is entered.

    `upstream` None: no swarm server may be reached. `allow` empty: nothing of the Internet. `log` takes a line of
    JSON for each connection to the Internet that was asked for.
    """

    folder: Path
    _: KW_ONLY
    upstream: Upstream | None
    plays: Upstream | None = None
    allow: Sequence[Destination] = ()
    log: Path
    resolve: Resolve = resolve_here
    counts: Counter[str] = field(default_factory=Counter, init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    @property
    def refused(self) -> Mapping[str, int]:
        return {reason: count for reason, count in self.counts.items() if reason not in NO_REFUSALS}

    async def __aenter__(self) -> Self:
        prepare(self.folder)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        if soft != resource.RLIM_INFINITY and soft < enough:
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        egress = Egress(self.allow, self.log, self._count, MOST_WAYS_OUT, self.resolve)
        async with AsyncExitStack() as stack:
            others = [(name, self.plays) for name in PLAYS.values() if self.plays is not None]
            for name, upstream in ((PORTS[SERVER_PORT], self.upstream), *others):
                sock = stack.enter_context(listen(self.folder / name))
                await stack.enter_async_context(ReverseProxy(upstream, self._count).serve(sock, MOST_CALLS))
            sock = stack.enter_context(listen(self.folder / PORTS[EGRESS_PORT]))
            await stack.enter_async_context(egress.serve(sock))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _count(self, what: str) -> None:
        self.counts[what] += 1
