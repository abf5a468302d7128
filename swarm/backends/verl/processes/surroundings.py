"""What the processes of a training have in their environment: an allow-list, for they inherit what started them.

Promises: nothing of the server's own (`AJET_*`, keys of trackers, tokens of hubs) is in the environment of a Ray that
is started here, nor Ray's token in what a replica starts; a PYTHONPATH says where this package is, and nothing else.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

_NAMES: Final = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME", "VIRTUAL_ENV",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "DO_NOT_TRACK", "TOKENIZERS_PARALLELISM", "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED",
    }
)  # fmt: skip
_BEGINNINGS: Final = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "TORCH", "PYTORCH_", "TRITON_", "OMP_", "KMP_", "MKL_",
    "GOMP_", "RAY_", "VLLM_", "VERL_", "HF_", "TRANSFORMERS_",
)  # fmt: skip
_SECRET: Final = re.compile(r"TOKEN$|_KEY|SECRET|PASSWORD|CREDENTIAL")
RAY_TOKEN: Final = "RAY_AUTH_TOKEN"
"""Ray's own processes need it, and nobody else."""
_OURS: Final = "AJET_"
_IP: Final = (socket.AF_INET, socket.AF_INET6)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment a Ray that is started here may inherit."""
    found = {name: value for name, value in environment.items() if _is_needed(name)}
    root = str(Path(__file__).parents[4])
    if root in map(os.path.abspath, filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))):
        found["PYTHONPATH"] = root
    return found


def _is_needed(name: str) -> bool:
    return name == RAY_TOKEN or (
        (name in _NAMES or name.startswith(_BEGINNINGS)) and (not _SECRET.search(name) or name in _NAMES)
    )


@contextmanager
def needed_alone() -> Iterator[None]:
    """Have this process's environment hold no more than what is allowed, while it starts Ray.

    Ray copies the environment of who starts it and takes none in its place.
    """
    before, kept = dict(os.environ), allowed(os.environ)
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
    """Take Ray's token and what is the server's own out of this process's environment: what it starts needs neither.

    Ray, which this process is connected to, has read its token by then.
    """
    for name in [name for name in os.environ if name == RAY_TOKEN or name.startswith(_OURS)]:
        del os.environ[name]


def meet_at(address: str) -> None:
    """Have gloo listen where this machine has an address, by which others reach it, unless it is told where.

    By itself it takes what the machine's own name stands for, which often is an address that no other one reaches. It
    is told of a link alone, and listens at that one's first address: where that is another one, it is left to itself.
    """
    links = psutil.net_if_addrs().items()
    of_ip = {name: [each.address for each in has if each.family in _IP] for name, has in links}
    link = next((name for name, addresses in of_ip.items() if addresses[:1] == [address]), None)
    if link is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", link)
