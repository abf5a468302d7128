"""Processes of a training on a cluster: environment, output, waiting, threads, turns.

Of the environment an allow-list is inherited: nothing of the server's own (`AJET_*`, keys of trackers, tokens of hubs)
is in a Ray started here, nor Ray's token in what a replica starts. Of devices shared by learner and generation: nobody
begins to boot in a learner's turn, and it begins once nobody boots.
"""

import asyncio
import os
import re
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import psutil
import torch
from torch import Tensor

from swarm.rendering.messages import BackendError


class Bucket(dict[str, Tensor]):
    """Tensors on the CPU by name; what comes out of the store shares its memory, which may only be read. Arrays beside
    the stream (PEP 574) are copied once on the way in, a tensor of two names once, and never on the way out."""

    def __reduce__(self) -> "tuple[Callable[..., Bucket], tuple[dict[str, tuple[Any, torch.dtype]]]]":
        arrays = {}
        for tensor in set(self.values()):
            plain = tensor.detach().contiguous()
            bits = plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain  # which numpy does not have
            arrays[tensor] = bits.numpy(), tensor.dtype
        return _restore_bucket, ({name: arrays[tensor] for name, tensor in self.items()},)


def _restore_bucket(arrays: dict[str, tuple[Any, torch.dtype]]) -> Bucket:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        tensors = {id(pair): torch.from_numpy(pair[0]).view(pair[1]) for pair in arrays.values()}
        return Bucket({name: tensors[id(pair)] for name, pair in arrays.items()})


T = TypeVar("T")


def run_apart(function: Callable[[], T]) -> Future[T]:
    """Call a function on a thread of its own that no end of the interpreter waits for."""
    answer: Future[T] = Future()
    threading.Thread(target=_settle, args=(answer, function), daemon=True).start()
    return answer


def _settle(answer: Future[T], function: Callable[[], T]) -> None:
    answer.set_running_or_notify_cancel()  # from here on it is not cancelled: who waits may be
    try:
        answer.set_result(function())
    except BaseException as error:  # noqa: BLE001 - who waits for it raises it
        answer.set_exception(error)


class OneThread:
    """Calls on one thread that no end of the interpreter waits for; an executor's is gone when libraries exit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()

    def call(self, function: Callable[[], T]) -> T:
        """Return what the function returns on the thread, or raise what it raises. Blocks."""
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        answer: Future[T] = Future()
        self._calls.put(lambda: _settle(answer, function))
        return answer.result()

    def _run(self) -> None:
        while True:
            self._calls.get()()


LAST: Final = 1000
"""Lines that are kept."""
LONGEST: Final = 2000
"""Characters that are kept of a line."""
_QUOTED: Final = 8
_WARNED: Final = re.compile(r"\bWARNING\b")
_READ: Final = 1 << 16


class ChildOutput:
    """A pipe and what came through it."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._lines: deque[str] = deque(maxlen=LAST)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Take what this process prints, and from now on what those print that it starts meanwhile. Once."""
        back = os.dup(1), os.dup(2)
        os.dup2(self._writing, 1)
        os.dup2(self._writing, 2)
        try:
            yield
        finally:
            for place, old in zip((1, 2), back, strict=True):
                with suppress(OSError):
                    os.dup2(old, place)
                os.close(old)
            os.close(self._writing)

    def lines(self, wait_s: float = 0.0) -> list[str]:
        """Return the lines that are kept, oldest first; wait so long for those who print to be gone."""
        self._thread.join(wait_s)
        with self._lock:
            return list(self._lines)

    def quote_last(self) -> str:
        """Return its last lines as one, warnings only where there is nothing else, or that there are none."""
        lines = [line.strip()[:300] for line in self.lines(wait_s=1.0) if line.strip()]
        last = [line for line in lines if not _WARNED.search(line)] or lines
        return " | ".join(last[-_QUOTED:]) or "nothing"

    def _read(self) -> None:
        rest = b""
        with os.fdopen(self._reading, "rb", buffering=0) as pipe:
            while part := pipe.read(_READ):
                *whole, rest = (rest + part).split(b"\n")
                self._keep(whole)
                rest = rest[-4 * LONGEST :]
        self._keep([rest])

    def _keep(self, lines: list[bytes]) -> None:
        with self._lock:
            texts = [line.decode(errors="replace")[:LONGEST] for line in lines]
            self._lines.extend(text for text in texts if text)


LOOK_S: Final = 5.0
"""Seconds after which who waits for Ray looks whether it is there."""
_NAMES: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "DO_NOT_TRACK", "TOKENIZERS_PARALLELISM", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
})  # fmt: skip
_BEGINNINGS: Final = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "TORCH", "PYTORCH_", "TRITON_", "OMP_", "KMP_", "MKL_",
    "GOMP_", "RAY_", "VLLM_", "VERL_", "HF_", "TRANSFORMERS_",
)  # fmt: skip
_SECRET: Final = re.compile(r"TOKEN$|_KEY|SECRET|PASSWORD|CREDENTIAL")
RAY_TOKEN: Final = "RAY_AUTH_TOKEN"
"""Ray's own processes need it, and nobody else."""
_OURS: Final = "AJET_"
_IP: Final = (socket.AF_INET, socket.AF_INET6)


def filter_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment a Ray that is started here may inherit."""
    found = {
        name: value
        for name, value in environment.items()
        if name == RAY_TOKEN or name in _NAMES or (name.startswith(_BEGINNINGS) and not _SECRET.search(name))
    }
    root = str(Path(__file__).parents[3])
    if root in map(os.path.abspath, filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))):
        found["PYTHONPATH"] = root
    return found


@contextmanager
def restrict_environment() -> Iterator[None]:
    """Have the environment, which Ray copies as it starts, hold no more than what is allowed inside."""
    before, kept = dict(os.environ), filter_environment(os.environ)
    taken = {name: value for name, value in before.items() if kept.get(name) != value}
    for name in taken:
        os.environ.pop(name, None)
    if "PYTHONPATH" in kept:
        os.environ["PYTHONPATH"] = kept["PYTHONPATH"]
    try:
        yield
    finally:
        os.environ.update(taken)


def forget_secrets() -> None:
    """Take Ray's token, which it has read by then, and what is the server's own out of this process's environment."""
    for name in [name for name in os.environ if name == RAY_TOKEN or name.startswith(_OURS)]:
        del os.environ[name]


def set_gloo_interface(address: str) -> None:
    """Have gloo listen where others reach this machine, unless it is told where: by its name it often takes another
    address. It is told of a link, and listens at its first address: for another one it is left to itself."""
    links = psutil.net_if_addrs().items()
    of_ip = {name: [each.address for each in has if each.family in _IP] for name, has in links}
    link = next((name for name, addresses in of_ip.items() if addresses[:1] == [address]), None)
    if link is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", link)


POLL_S: Final = 1.0
"""Seconds between two looks at whether the learner's turn is over."""


class DeviceScheduler:
    """The turns of one training; a learner's begins and ends on any thread, and boots are of one event loop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._booting = 0
        self._learning = False

    def begin(self, seconds: float) -> None:
        """Begin the learner's turn; raise BackendError where somebody boots for so long. Blocks."""
        with self._changed:
            self._learning = True  # or boots that follow one another could keep it off for ever
            if not self._changed.wait_for(lambda: not self._booting, seconds):
                raise BackendError(f"expected what boots beside the learner to be up within {seconds:.0f} s")

    def end(self) -> None:
        with self._changed:
            self._learning = False

    @asynccontextmanager
    async def booting(self, seconds: float) -> AsyncIterator[None]:
        """Boot within; BackendError where the learner's turn, which is waited for first, lasts for so long."""
        end = time.monotonic() + seconds
        while True:
            with self._changed:
                if not self._learning:
                    self._booting += 1
                    break
            if time.monotonic() > end:
                raise BackendError(f"expected the learner's turn to end within {seconds:.0f} s")
            await asyncio.sleep(POLL_S)  # it ends on another thread
        try:
            yield
        finally:
            with self._changed:
                self._booting -= 1
                self._changed.notify_all()
