"""The Ray cluster of one training: joined or started, counted before use, left at the end.

Every wait is bounded. A Ray started here ends with the training, one that was joined goes on. No telemetry. GPUs are
reserved together, before anything is loaded; where a rank and a replica share one, Ray counts halves of it and bounds
no memory, so they take turns.

`python -m swarm.backends.verl.cluster` checks whether a job's training finds what it needs, and starts, loads or places
nothing: one line for each thing, exit code 0 where all is there, 2 where something is missing.
"""

import argparse
import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

from swarm.backends.verl import vllm
from swarm.backends.verl.processes import OneThread, restrict_environment
from swarm.errors import InvalidRequest
from swarm.job import Job, TinyModel
from swarm.models import model_place, require_model_folder
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields

FREE_S: Final = 120.0
"""Seconds within which so many GPUs must be free."""


def reserve_gpus(bundles: Sequence[int], seconds: float = FREE_S) -> Any:
    """Return a placement group of Ray's with so many GPUs in each bundle, which is on one node; BackendError where
    these are not free together in time."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"GPU": count} for count in bundles], strategy="PACK")
    if not group.wait(seconds):
        remove_placement_group(group)
        raise BackendError(
            f"expected {sum(bundles)} GPUs that are free in the Ray cluster within {seconds:.0f} s, {max(bundles)} of "
            "them on one node, found too few, or too many taken: join nodes, end what else is on them, or lower "
            "verl.trainers and verl.replicas"
        )
    return group


_RUN: Final = ("verl 0.9.1", "ray 2.60.0", "vllm 0.31.0")


def warn_of_versions() -> str | None:
    """Return a line that names versions here which are taken and were never run, and those that were; None: these."""
    here = (f"verl {version('verl')}", f"ray {version('ray')}", vllm.check().lower())
    odd = ", ".join(name for name in here if name.split("+")[0] not in _RUN)
    return f"warning: {odd} was never run with ajet, which was run on a CPU with {', '.join(_RUN)}" if odd else None


def _check_ray(job: Job) -> str:
    if (address := job.verl_fields.address) is None:
        return f"{version('ray')}, to be started on this machine"
    require_reachable(address)
    return f"{version('ray')}, answers at {address}"


def _check_devices(job: Job) -> str:
    import torch

    fields = job.verl_fields
    if fields.address is not None:
        return f"{fields.devices} for {fields.placed}; the cluster is asked for them when the training starts"
    if find_device(job) == "cpu":
        return f"cpu: {fields.placed}, on {job.dtype}; for trying out, not for speed"
    if (found := torch.cuda.device_count()) < fields.devices:
        raise BackendError(
            f"expected {fields.devices} GPUs for {fields.placed}, found {found} here: {advise_fewer(fields)}"
        )
    return f"{fields.devices} GPUs for {fields.placed}"


def _check_model(job: Job, models: Path) -> str:
    # a cluster elsewhere says what it computes on when it is joined
    device = "cuda" if job.verl_fields.address is not None else find_device(job)
    if isinstance(job.model, TinyModel):
        vllm.require_heads(job.model.head_size, "a tiny model", device)
        return "made on the spot"
    require_model_folder(folder := model_place(job.model.path, models))
    architecture = vllm.require_architecture(folder)
    vllm.require_heads(vllm.head_size(folder), str(folder), device)
    return f"{architecture} in {folder}"


def _check_memory(job: Job, models: Path) -> str:
    if isinstance(job.model, TinyModel):
        return "a tiny model fits"
    require_room = import_module("swarm.backends.verl.memory").require_room  # which imports torch
    device = None if job.verl_fields.address is not None else find_device(job)
    return str(require_room(model_place(job.model.path, models), job, device))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was looked at; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.verl.cluster", description=__doc__)
    parser.add_argument("--job", default="{}", help="the job as JSON")
    parser.add_argument("--models", type=Path, required=True, help="folder of models")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args(arguments)
    job = Job.from_record(options.job)
    checks: Sequence[tuple[str, Callable[[], str]]] = (
        ("python", lambda: f"{sys.version.split()[0]} at {sys.executable}"),
        ("verl", lambda: str(import_module("swarm.backends.verl.adapter").check())),  # which imports torch
        ("vllm", vllm.check),
        ("ray", lambda: _check_ray(job)),
        ("versions", lambda: warn_of_versions() or "those that ajet was run with, on a CPU"),
        ("devices", lambda: _check_devices(job)),
        ("at once", lambda: f"{job.sequences_at_once} sequences, {job.max_concurrency} in each replica"),
        ("model", lambda: _check_model(job, options.models)),
        ("memory", lambda: _check_memory(job, options.models)),
    )
    results: list[dict[str, Any]] = []
    for what, look in checks:
        there = False
        try:
            said, there = look(), True
        except (BackendError, InvalidRequest) as error:
            said = str(error)
        except (ImportError, PackageNotFoundError) as error:
            said = f"{error}; install ajet[verl] as docs/cluster.md says"
        except (OSError, RuntimeError, KeyError) as error:  # from packages where a driver or a library is not theirs
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        results.append({"what": what, "there": there, "said": said})
    if options.json:
        print(json.dumps(results))  # noqa: T201
    else:
        for result in results:
            print(f"{'ok     ' if result['there'] else 'missing'}  {result['what']:<8} {result['said']}")  # noqa: T201
    return 0 if all(result["there"] for result in results) else 2


_log = logging.getLogger(__name__)
REACH_S: Final = 10.0
"""Seconds within which a cluster's address must take a connection."""
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # who waits for an actor while Ray is left would begin another Ray
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What every process of a training has in its environment: no telemetry, nothing that is looked up in a network."""
_ON_A_CPU: Final = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""On a CPU too: threads that spin for one another take its cores from everybody; all is on this machine."""
_SHARE: Final = 0.01
"""Of a core that an actor asks for on a node of several."""
LOOK_S: Final = 2.0
MISSES: Final = 5
"""Looks in a row without an answer after which Ray's head is gone; one may fall into a pause of this machine."""
MISSES_AFAR: Final = 25
"""As many of a Ray that was joined, whose head may come back: Ray's own processes give it a minute."""
_ITS_OWN: Final = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
"""What says nothing of the other side."""


class HeadWatch(threading.Thread):
    """Looks whether Ray's head answers at its address, until `ended`; one of this process ends with its head."""

    def __init__(self, address: str, *, local: bool) -> None:
        super().__init__(name="ray head", daemon=True)
        self.failure: str | None = None
        self.ended = threading.Event()
        self._address, self._local = address, local

    def run(self) -> None:
        host, _, port = self._address.rpartition(":")
        missed, most = 0, MISSES if self._local else MISSES_AFAR
        while missed < most and not self.ended.wait(LOOK_S):
            try:
                socket.create_connection((host, int(port)), LOOK_S).close()
            except OSError as error:
                missed += error.errno not in _ITS_OWN
            else:
                missed = 0
        if missed == most:
            self.failure = (
                f"Ray's head is gone: nothing answered at {self._address}, {most} times in a row; start the server "
                "again, after Ray where it was started by hand"
            )
            if self._local:
                _kill_local_ray()


class Cluster:
    """A Ray cluster that this process drives."""

    def __init__(self, fields: VerlFields, device: str, environment: Mapping[str, str]) -> None:
        self.fields = fields
        self.device = device
        self._environment = environment
        self._places: Any = None
        """Ray's placement group: a bundle for each rank, and for each replica that does not share a rank's."""
        self._nodes: tuple[str, ...] = ()
        self._watch: HeadWatch | None = None

    @classmethod
    def join(cls, job: Job) -> "Cluster":
        """Join the cluster of the job, or start one here; raise BackendError if it lacks what the job asks for."""
        fields = job.verl_fields
        set_ray_environment(fields.address)
        here = find_device(job) if fields.address is None else None
        _connect(fields.address, max(os.cpu_count() or 1, fields.devices + 2) if here == "cpu" else None)
        import ray

        try:
            device = here or _choose_device(  # this machine may have no device of its own
                job,
                ray.cluster_resources().get("GPU", 0) >= 1,
                "expected GPUs in the Ray cluster, as the job's `device` is cuda; found none: join nodes",
            )
            cluster = cls(fields, device, {**_QUIET, **(_ON_A_CPU if device == "cpu" else {})})
            cluster.reserve()
            cluster._watch = HeadWatch(ray.get_runtime_context().gcs_address, local=fields.address is None)
            cluster._watch.start()
        except BaseException:
            _disconnect()
            raise
        return cluster

    def rank_options(self, number: int) -> dict[str, Any]:
        return self._actor_options(number, 1, number)

    def replica_options(self, number: int) -> dict[str, Any]:
        bundle = number if self.fields.colocated else self.fields.trainers + number
        placed = self._actor_options(bundle, self.fields.tensor_parallel, self.fields.trainers + number)
        return {**placed, "runtime_env": {"env_vars": dict(self._environment)}}

    def _actor_options(self, bundle: int, devices: int, turn: int) -> dict[str, Any]:
        """Return options of an actor on so many devices of a bundle, or on half of a shared one. Cores are shared, not
        counted: actors take turns with nodes; where one is gone or full, another takes its turn."""
        if self._places is None and not self._nodes:
            return {"num_cpus": 0}
        from ray.util import scheduling_strategies as strategies

        if self._places is not None:
            place = strategies.PlacementGroupSchedulingStrategy(self._places, placement_group_bundle_index=bundle)
            part = 0.5 if self.fields.colocated else devices
            return {"num_cpus": 0, "num_gpus": part, "scheduling_strategy": place}
        node = self._nodes[turn % len(self._nodes)]
        strategy = strategies.NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
        return {"num_cpus": _SHARE, "scheduling_strategy": strategy}

    def reserve(self) -> None:
        """Have Ray keep the GPUs, which must be enough; on CPUs find the nodes of a Ray that was joined."""
        fields = self.fields
        if self.device == "cpu" and fields.address is None:
            return
        import ray

        if self.device != "cpu":
            found = int(ray.cluster_resources().get("GPU", 0))
            if found < fields.devices and fields.address is None:  # a Ray that was joined may have nodes on their way
                raise BackendError(
                    f"expected {fields.devices} GPUs ({fields.placed}), found {found} in the Ray cluster: "
                    f"{advise_fewer(fields)}, or join a Ray of several nodes (docs/cluster.md)"
                )
            apart = [] if fields.colocated else [fields.tensor_parallel] * fields.replicas
            self._places = reserve_gpus([1] * fields.trainers + apart)
        else:
            there = [node for node in ray.nodes() if node["Alive"]]
            cores = [node["NodeID"] for node in there if node["Resources"].get("CPU", 0) >= _SHARE]
            if not cores:
                raise BackendError(
                    f"expected nodes with processors in the Ray cluster, found none among {len(there)}: join some"
                )
            self._nodes = tuple(sorted(cores))

    def failure(self) -> str | None:
        """Return why there is no Ray any more, None while its head answers."""
        return None if self._watch is None else self._watch.failure

    def leave(self) -> None:
        """Leave the cluster; one that was started here ends with the last training of this process that is on it."""
        places, self._places = self._places, None
        if self._watch is not None:
            self._watch.ended.set()
        try:
            if places is not None and self.failure() is None:  # without its head Ray would wait
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(places)
        finally:
            _disconnect()


def advise_fewer(fields: VerlFields) -> str:
    if fields.colocated:
        return "lower verl.trainers and verl.replicas"
    also = ", or share devices by verl.colocated" if fields.tensor_parallel == 1 else ""
    return f"lower verl.trainers, verl.replicas or verl.tensor_parallel{also}"


def find_device(job: Job) -> str:
    """Return `cuda` or `cpu` of this machine; BackendError where the job wants what is not there."""
    import torch

    return _choose_device(
        job,
        torch.cuda.is_available(),
        "backend `verl`: expected a CUDA device, as the job's `device` is cuda; found none that torch "
        f"{torch.__version__} can use: install the driver and a CUDA build of torch, or set device to cpu",
    )


def _choose_device(job: Job, gpus: bool, missing: str) -> str:
    if job.device == "mps":
        raise BackendError("backend `verl`: expected device cuda, cpu or auto, found mps: the backend `local` knows it")
    if job.device == "cuda" and not gpus:
        raise BackendError(missing)
    return "cuda" if gpus and job.device != "cpu" else "cpu"


_joined = 0
_joined_at: str | None = None
_joining = threading.Lock()
_ray_s: Final = OneThread("ray")
"""Where Ray begins and ends. The thread that began an earlier Ray keeps its task's name: were another one to begin the
next, both would name what they ask an actor for alike, by a count each, and Ray aborts the actor at the first such pair
("Tried to create an owned object that already exists"; seen with Ray 2.60). Ray's processes end with that thread too.
"""


def _disconnect() -> None:
    """Leave Ray, which a process is connected to once, with the last training that is on it."""
    global _joined
    import ray

    with _joining:
        _joined = max(0, _joined - 1)
        if not _joined:
            _ray_s.call(ray.shutdown)


def _connect(address: str | None, cpus: int | None) -> None:
    global _joined, _joined_at
    if address is not None:
        require_reachable(address)  # before Ray is imported: it reads its token then
    with _joining:
        if _joined and address != _joined_at:
            own = "none, a Ray of its own"
            raise BackendError(
                f"verl.address: expected {_joined_at or own}, which this process is on for another training, found "
                f"{address or own}: end that training first, or start another server for this one"
            )
        if not _joined:
            _ray_s.call(lambda: _begin(address, cpus))
        _joined, _joined_at = _joined + 1, address


def _begin(address: str | None, cpus: int | None) -> None:
    if address is None and "RAY_AUTH_MODE" not in os.environ:
        raise BackendError(
            "expected Ray not to be loaded before it has a token, found it loaded: it would answer all who reach "
            "this machine; start the swarm server again, or choose by Ray's own variable RAY_AUTH_MODE"
        )
    common: dict[str, Any] = {
        "address": address or "local",  # without a word Ray would join whichever it finds on this machine
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "runtime_env": {"env_vars": dict(_QUIET)},
        "namespace": f"ajet-{os.getpid()}",
    }
    if address is None and cpus is not None:
        common |= {"num_cpus": cpus, "object_store_memory": 512 << 20}
    if address is None and "RAY_TMPDIR" not in os.environ:
        common["_temp_dir"] = private_folder()
    try:
        with restrict_environment() if address is None else contextlib.nullcontext():
            _start_ray(common, _STARTS if address is None else 1)
    except Exception as error:  # Ray raises many kinds, all of them for "there is no cluster to work on"
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        raise BackendError(f"{where} could not be used: {said}") from error


def private_folder() -> str:
    """Return the folder for our own Rays, below one of this user alone; BackendError where that is another's. Ray opens
    its own to everybody: who puts a socket there has our processes read its objects, which are pickles."""
    place = tempfile.gettempdir()
    folder = Path(place if len(place) <= _LONGEST_PLACE else "/tmp", f"ajet-ray-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise BackendError(f"expected a folder {folder} that can be made for Ray; found {error}; set TMPDIR") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BackendError(f"expected {folder} to be this user's alone, found that it is not; remove it, or set TMPDIR")
    return str(folder / "ray")


_LONGEST_PLACE: Final = 15
"""A kernel takes 107 bytes for the path of a socket, of which Ray's own names take more than half."""
_STARTS: Final = 3
"""Times that a Ray of our own is started: it gives its processes 30 s each time, which a busy machine may exceed."""
_SLOW: Final = "timed out during startup"


def _start_ray(common: Mapping[str, Any], starts: int) -> None:
    import ray

    before = psutil.Process().children()
    for left in reversed(range(starts)):
        try:
            ray.init(**common)
        except Exception as error:
            ray.shutdown()  # which knows nothing of processes that did not come up
            _kill_local_ray(before)
            if not left or _SLOW not in str(error):
                raise
            _log.warning("event=ray_slow left=%d: it did not come up within 30 s and is started again", left)
        else:
            return


def _kill_local_ray(but: Sequence[psutil.Process] = ()) -> None:
    processes: list[psutil.Process] = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may end by itself
            if process not in but and any(f"{os.sep}ray{os.sep}" in part for part in process.cmdline()):
                processes += [process, *process.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, REACH_S)


def set_ray_environment(address: str | None) -> None:
    """Set what Ray and vLLM read when imported: no telemetry, and a token, without which Ray answers all who reach
    this machine. Who set Ray's own variables has chosen; if it was imported before, `_begin` refuses."""
    os.environ.update(_QUIET)
    # without its head and its raylet Ray would end this process, the server's, after a minute and without a word
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would have learners and replicas wait for all clients
    if address is None and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def require_reachable(address: str) -> None:
    """Raise BackendError unless something listens at `HOST:PORT`; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise BackendError(f"verl.address: expected HOST:PORT of a Ray cluster, found {address!r}")
    try:
        with contextlib.closing(socket.create_connection((host, int(port)), REACH_S)):
            return
    except OSError as error:
        raise BackendError(
            f"expected a Ray cluster at {address}, found none that answers ({error.strerror or error}): start it there "
            f"with `ray start --head --port {port}`, or leave verl.address out to start one here"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
