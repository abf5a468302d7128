"""Trackers: where the metrics of a training are logged.

`TrackerThread` makes a tracker's calls from one thread of its own, in order, so that a slow disk never holds up a
generation. W&B, Trackio and MLflow are imported only when a job asks for them, and told to collect nothing but the
metrics; the last two write to this machine alone, and what fails in them stops nothing.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from swarm.errors import InvalidRequest
from swarm.job import Job, Tracking

log = logging.getLogger(__name__)

FLUSH_S = 2.0
"""Seconds between flushes of the run's log to disk; a killed server loses no more."""
_OF_A_RUN: Final = re.compile(r"WANDB_(SWEEP|LAUNCH|RUN|JOB|CONFIG(?!_DIR)|PROJECT|NAME|NOTES|TAGS|RESUME|FORK)")
"""Variables that say which run a process logs, as sweeps and launches set them; some win over what it says itself."""
INIT_S = 30.0
"""For W&B's server to know a run, where it is sent there at once."""
_QUIET: Final[Mapping[str, Any]] = {
    "console": "off", "disable_code": True, "disable_git": True, "disable_job_creation": True, "save_code": False,
    "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True, "x_save_requirements": False,
    "x_transaction_log_flush_interval": FLUSH_S, "silent": True, "init_timeout": INIT_S, "sync_tensorboard": False,
    "reinit": "create_new",
}  # fmt: skip


class Tracker(Protocol):
    """Receives the metrics of each step, in order."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def finish(self) -> None:
        """Make everything durable; safe to call twice."""


class WandbTracker:
    """A Weights & Biases run; offline it is a `.wandb` file, complete once `finish` returned."""

    def __init__(self, job: Job, tracking: Tracking) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported, as are:
        for name in sorted(filter(_OF_A_RUN.match, os.environ)):
            log.warning("event=wandb_left_out variable=%s: the job says which run this is", name)
            del os.environ[name]
        import wandb

        Path(tracking.directory).mkdir(parents=True, exist_ok=True)
        fields = job.model_dump(mode="json", exclude={"tracking"})  # they go before the harness's own entries
        given: dict[str, Any] = {
            "project": tracking.project, "group": tracking.group, "name": tracking.name, "id": tracking.run_id,
            "tags": list(tracking.tags), "dir": tracking.directory, "settings": wandb.Settings(**_QUIET),
            "config": {**tracking.config, **fields, "job_digest": job.digest()},
        }  # fmt: skip
        if tracking.mode == "online":
            try:  # a restarted server goes on with the same run
                self._run: Any = wandb.init(mode="online", resume="allow", **given)
                return
            except (ValueError, wandb.errors.Error) as error:  # it does not answer
                log.warning("event=wandb_offline error=%r", str(error))
        try:
            self._run = wandb.init(mode="offline", **given)
        except (ValueError, wandb.errors.Error) as error:  # what the environment tells it stops no training
            names = sorted(n for n in os.environ if n.startswith("WANDB_") and n != "WANDB_ERROR_REPORTING")
            log.warning("event=wandb_left_out variables=%s error=%r", ",".join(names), str(error))
            for name in names:
                del os.environ[name]
            self._run = wandb.init(mode="offline", **given)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


def _open_other(name: str, tracking: Tracking, fields: dict[str, Any]) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return what logs metrics and what finishes; the variables are read when the package is imported."""
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "MLFLOW_RUN_ID"):  # with the first two it sends
        os.environ.pop(variable, None)
    folder = Path(tracking.directory).absolute()
    os.environ |= {"TRACKIO_DIR": str(folder / "trackio"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    if name == "trackio":
        import trackio

        quiet: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        run = trackio.init(tracking.project, tracking.name, tracking.group, config=fields, **quiet)
        return run.log, run.finish
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment(tracking.project)
    mlflow.start_run(run_name=tracking.name, log_system_metrics=False)  # that of this thread
    mlflow.log_params(fields)
    return mlflow.log_metrics, mlflow.end_run


class _Trackers:
    """W&B, and others whose faults are logged and counted."""

    def __init__(self, job: Job, tracking: Tracking) -> None:
        self._first, self.faults, fields = WandbTracker(job, tracking), 0, job.model_dump(mode="json")
        opened = ((name, self._try(name, _open_other, name, tracking, fields)) for name in tracking.also)
        self._others = {name: calls for name, calls in opened if calls is not None}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._first.log(step, metrics)
        named = {re.sub(r"[^\w\-. :/]", "_", name): metrics[name] for name in metrics}  # as MLflow takes them
        for name, (log_metrics, _) in self._others.items():
            self._try(name, partial(log_metrics, step=step), named)

    def finish(self) -> None:
        self._first.finish()
        for name, (_, finish) in self._others.items():
            self._try(name, finish)

    def _try(self, name: str, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except Exception as error:  # noqa: BLE001  -- of somebody's package
            self.faults += 1
            log.warning("event=tracker_failed tracker=%s faults=%d error=%r", name, self.faults, error)


def make_tracker(job: Job) -> Tracker | None:
    return None if job.tracking is None else _Trackers(job, job.tracking)


def require_trackers(job: Job) -> None:
    """Raise InvalidRequest where a tracker that a job names is not installed."""
    for name in job.tracking.also if job.tracking else ():
        if find_spec(name) is None:
            raise InvalidRequest(f"tracking.also: expected {name} beside the server; found none: pip install {name}")


class TrackerThread:
    """A tracker behind one thread: the calls are awaited, made in order, and never on the event loop's thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracker")
        self._tracker: Tracker | None = None

    async def open(self, make: Callable[[], Tracker | None]) -> None:
        def open_tracker() -> None:  # there for `finish`, though nobody waits for it any more
            self._tracker = make()

        await self._call(open_tracker)

    async def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._tracker is not None:
            await self._call(partial(self._tracker.log, step, metrics))

    async def finish(self) -> None:
        """Make everything durable; what `open` still does is waited for."""

        def finish_tracker() -> None:
            if self._tracker is not None:
                self._tracker.finish()

        await self._call(finish_tracker)

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
