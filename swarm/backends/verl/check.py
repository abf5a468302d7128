"""`python -m swarm.backends.verl.check`: would a job's training find what it needs here, without starting it?

Promises: nothing is trained, loaded or placed; each thing that is looked at is one line, and what is missing says what
to do. Exit code 0 where all is there, 2 where something is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from swarm.backends.protocols import BackendError
from swarm.backends.verl.generating.engines import vllm
from swarm.backends.verl.generating.engines.model_folder import head_size
from swarm.errors import InvalidRequest
from swarm.job import Job, TinyModel
from swarm.models import model_place, require_model_folder
from swarm.verl_fields import VerlFields


@dataclass(frozen=True, slots=True)
class Looked:
    """One thing that was looked at: whether it is there, and what was found or is to be done."""

    what: str
    there: bool
    said: str


def looked(job: Job, models: Path) -> list[Looked]:
    """Return what a training of the job would find here, in the order in which it would ask."""
    checks: Sequence[tuple[str, Callable[[], str]]] = (
        ("python", lambda: f"{sys.version.split()[0]} at {sys.executable}"),
        ("verl", _verl),
        ("vllm", vllm.check),
        ("ray", lambda: f"{version('ray')}, {_where(job)}"),
        ("devices", lambda: _devices(job)),
        ("model", lambda: _model(job, models)),
    )
    return [_tried(what, look) for what, look in checks]


def _tried(what: str, look: Callable[[], str]) -> Looked:
    try:
        return Looked(what, True, look())
    except (BackendError, InvalidRequest) as error:
        return Looked(what, False, str(error))
    except (ImportError, PackageNotFoundError) as error:
        return Looked(what, False, f"{error}; install ajet[verl] as docs/cluster.md says")
    except (OSError, RuntimeError, KeyError) as error:  # what packages raise where a driver or a library is not theirs
        return Looked(what, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _verl() -> str:
    from swarm.backends.verl.learning.adapter import check

    return check()


def _fields(job: Job) -> VerlFields:
    return job.verl or VerlFields()


def _where(job: Job) -> str:
    from swarm.backends.verl.cluster import require_reachable

    address = _fields(job).address
    if address is None:
        return "to be started on this machine"
    require_reachable(address)
    return f"answers at {address}"


def _devices(job: Job) -> str:
    import torch

    from swarm.backends.verl.cluster import device_of, fewer

    fields = _fields(job)
    if fields.address is not None:
        return f"{fields.devices} for {fields.placed}; the cluster is asked for them when the training starts"
    if device_of(job) == "cpu":
        return f"cpu: {fields.placed}, on {job.dtype}; for trying out, not for speed"
    if (found := torch.cuda.device_count()) < fields.devices:
        raise BackendError(f"expected {fields.devices} GPUs for {fields.placed}, found {found} here: {fewer(fields)}")
    return f"{fields.devices} GPUs for {fields.placed}"


def _model(job: Job, models: Path) -> str:
    if isinstance(job.model, TinyModel):
        vllm.require_heads(job.model.head_size, "a tiny model", _device(job))
        return "made on the spot"
    require_model_folder(folder := model_place(job.model.path, models))
    architecture = vllm.require_architecture(folder)
    if _fields(job).named.has_critic:
        _require_critic(folder)
    vllm.require_heads(head_size(folder), str(folder), _device(job))
    return f"{architecture} in {folder}"


def _require_critic(folder: Path) -> None:
    from transformers import AutoConfig

    from swarm.backends.verl.critic.adapter import require_critic

    require_critic(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))


def _device(job: Job) -> str:
    """Return what this machine computes on; a cluster elsewhere says so when it is joined."""
    from swarm.backends.verl.cluster import device_of

    return "cuda" if _fields(job).address is not None else device_of(job)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was looked at; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.verl.check", description=__doc__)
    parser.add_argument("--job", default="{}", help="the job as JSON")
    parser.add_argument("--models", type=Path, required=True, help="folder of models")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args(arguments)
    job = Job.recorded(options.job)
    found = looked(job, options.models)
    if options.json:
        print(json.dumps([asdict(each) for each in found]))  # noqa: T201
    else:
        for each in found:
            print(f"{'ok     ' if each.there else 'missing'}  {each.what:<8} {each.said}")  # noqa: T201
    return 0 if all(each.there for each in found) else 2


if __name__ == "__main__":
    sys.exit(main())
