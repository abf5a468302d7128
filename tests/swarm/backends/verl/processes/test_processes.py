"""What the processes of a training share: buckets of weights, one thread, printed lines, bounds and turns."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from swarm.backends.verl import processes
from swarm.rendering.messages import BackendError

TENSORS = {
    "float": torch.randn(3, 5), "half": torch.randn(7).to(torch.bfloat16), "turned": torch.randn(4, 6).t(),
    "counted": torch.arange(3), "one": torch.tensor(2.5, dtype=torch.bfloat16), "none": torch.zeros(0, 4),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_tensors_come_back_as_they_were_and_their_bytes_lie_beside_the_pickle() -> None:
    beside: list[pickle.PickleBuffer] = []
    written = pickle.dumps(processes.Bucket(TENSORS), protocol=5, buffer_callback=beside.append)
    assert sum(len(buffer.raw()) for buffer in beside) == sum(tensor.nbytes for tensor in TENSORS.values())
    found = pickle.loads(written, buffers=[bytes(buffer.raw()) for buffer in beside])  # read-only, as the store's are
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("error", [ValueError("a line"), KeyboardInterrupt()])
def test_what_is_raised_reaches_the_caller_and_ends_nothing(error: BaseException) -> None:
    thread = processes.OneThread("one")

    def fail() -> None:
        raise error

    before = thread.call(threading.get_ident)
    with pytest.raises(type(error)):
        thread.call(fail)
    assert thread.call(threading.get_ident) == before


def test_it_is_there_for_what_a_library_does_at_exit_and_holds_nobody_up() -> None:
    code = (
        "import atexit; from swarm.backends.verl.processes import OneThread\n"
        "one = OneThread('one'); one.call(int); atexit.register(lambda: print(one.call(lambda: 'there')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout.strip()) == (0, "there"), ran.stderr


def test_what_a_child_prints_later_is_kept_too_and_its_end_is_quoted() -> None:
    """The child prints only after this process has its own output back, as vLLM's do that die in their work."""
    kept, nothing = processes.ChildOutput(), processes.ChildOutput()
    with nothing.capture():
        pass
    assert nothing.quote_last() == "nothing"
    script = "import sys; input(); print('loaded'); sys.stderr.write('ValueError: no more\\n\\n')"
    with kept.capture():
        os.write(1, b"booting\n")
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    child.communicate(b"\n")
    assert kept.lines(wait_s=60) == ["booting", "loaded", "ValueError: no more"]
    assert kept.quote_last() == "booting | loaded | ValueError: no more"


def test_it_holds_the_end_and_no_more() -> None:
    kept = processes.ChildOutput()
    many = 3 * processes.LAST
    script = f"for i in range({many}): print(i)\nprint('x' * 10**6)"
    with kept.capture():
        child = subprocess.Popen([sys.executable, "-c", script])
    child.wait()
    lines = kept.lines(wait_s=60)
    assert lines[:-1] == [str(i) for i in range(many - processes.LAST + 1, many)]
    assert set(lines[-1]) == {"x"}
    assert len(lines[-1]) <= processes.LONGEST
    assert len(kept.quote_last()) < 4000


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "POLL_S", 0.001)


async def test_a_turn_waits_for_all_who_boot_however_that_ends_and_lets_none_begin(hasty: None) -> None:
    turns, up = processes.DeviceScheduler(), asyncio.Event()

    async def boot(*, fails: bool) -> None:
        async with turns.booting(60):
            await up.wait()
            if fails:
                raise BackendError("no memory")

    booting = [asyncio.ensure_future(boot(fails=fails)) for fails in (False, True)]
    await asyncio.sleep(0)
    turn = asyncio.ensure_future(asyncio.to_thread(turns.begin, 60))
    await asyncio.sleep(0.02)
    late = asyncio.ensure_future(boot(fails=False))
    assert not turn.done()
    up.set()
    await asyncio.wait_for(turn, 60)
    assert [type(each) for each in await asyncio.gather(*booting, return_exceptions=True)] == [type(None), BackendError]
    assert not late.done()
    turns.end()
    await asyncio.wait_for(late, 60)


async def test_neither_waits_without_a_bound(hasty: None) -> None:
    turns = processes.DeviceScheduler()
    async with turns.booting(60):
        with pytest.raises(BackendError, match="beside the learner"):
            await asyncio.to_thread(turns.begin, 0.01)
    with pytest.raises(BackendError, match="the learner's turn"):
        async with turns.booting(0.01):
            pass


SECRETS = ("AJET_TOKEN", "AJET_SERVER", "WANDB_API_KEY", "HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_URL")
NEEDED = ("PATH", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "HF_HOME", "LC_ALL",
          "TOKENIZERS_PARALLELISM")  # fmt: skip
ROOT = str(Path(__file__).parents[5])


def test_what_is_needed_is_passed_and_nothing_else_and_a_replica_forgets_ray_s_token_too() -> None:
    everything = dict.fromkeys((*SECRETS, *NEEDED), "x")
    assert set(processes.filter_environment(everything)) == set(NEEDED)
    with patch.dict(os.environ, everything):
        processes.forget_secrets()
        assert {name for name in everything if name not in os.environ} == {
            "AJET_TOKEN",
            "AJET_SERVER",
            "RAY_AUTH_TOKEN",
        }


def test_the_environment_is_as_before_once_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{ROOT}")
    before = dict(os.environ)
    with processes.restrict_environment():
        assert "AJET_TOKEN" not in os.environ
        assert os.environ["PYTHONPATH"] == ROOT
        os.environ["RAY_CLIENT_MODE"] = "0"  # as Ray itself sets some
    assert dict(os.environ) == {**before, "RAY_CLIENT_MODE": "0"}
    monkeypatch.delenv("RAY_CLIENT_MODE")


def _has(*addresses: tuple[int, str]) -> list[SimpleNamespace]:
    return [SimpleNamespace(family=family, address=address) for family, address in addresses]


LINKS = {
    "lo": _has((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "192.0.2.9")),
    "eth0": _has(
        (socket.AF_PACKET, "02:00:00:00:00:01"), (socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "192.0.2.2"),
        (socket.AF_INET6, "2001:db8::1"),
    ),
    "eth1": _has((socket.AF_INET, "192.0.2.9")),
}  # fmt: skip
"""What a machine has of addresses; gloo listens at a link's first one."""


@pytest.mark.parametrize(
    ("told", "address", "link"),
    [
        pytest.param(None, "127.0.0.1", "lo", id="its own"),
        pytest.param(None, "192.0.2.1", "eth0", id="of a link"),
        pytest.param("eth7", "192.0.2.1", "eth7", id="as told"),
        pytest.param(None, "192.0.2.2", None, id="a link's second one"),
        pytest.param(None, "2001:db8::1", None, id="after another family's"),
        pytest.param(None, "192.0.2.9", "eth1", id="of two links"),
        pytest.param(None, "203.0.113.7", None, id="of none"),
    ],
)
def test_ranks_meet_where_a_node_is_reached(
    told: str | None, address: str, link: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.net_if_addrs", lambda: LINKS)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)  # tests of engines set it for their process
    with patch.dict(os.environ, {} if told is None else {"GLOO_SOCKET_IFNAME": told}):
        processes.set_gloo_interface(address)
        assert os.environ.get("GLOO_SOCKET_IFNAME") == link
