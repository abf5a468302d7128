"""One whole training as processes of its own, with every step's metrics and when it was done.

    python -m rig.training run FOLDER      trains what FOLDER/training.json says; writes FOLDER/trained.json
    python -m rig.training serve FOLDER    the swarm server of `run`, which also writes FOLDER/steps.jsonl

It is the real stack: a `swarm.server` process with the local backend and its durable store, and the built-in agent
behind the HTTP client. Nothing is tracked but the lines this module writes. Booting the server and making the model
are not part of a training's time: it begins when the client asks for its first episode.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from research.installation.home import Home
from studies.records.alpha import AlphaLedgers
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import InterimAnalysis, Prediction
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import judge
from swarm.client import AsyncSwarmClient
from swarm.environments.play import agent_of
from swarm.environments.registry import BUILT_IN
from swarm.job import Job, TinyModel

BOOT_S = 120.0
BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: when it was done (seconds since the training began), and what it measured."""

    at: float
    reward: float
    success: float
    generate_s: float
    update_s: float
    """Seconds of the learner's update; what is neither this nor generation is the rest of the step."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that was carried out."""

    steps: tuple[Step, ...]
    cpu_s: float
    """CPU seconds of all processes that took part, while it trained."""

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))


class TrainingProcess:
    """A training that runs in its own process, or has ended."""

    def __init__(self, kind: str, folder: Path, order: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True)
        (folder / "training.json").write_text(json.dumps(dict(order)))
        self._folder = folder
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"rig.{kind}", "run", str(folder)],
                cwd=BENCHMARKS, stdout=log, stderr=log, env={**os.environ, **ONE_THREAD}, start_new_session=True,
            )  # fmt: skip

    def result(self) -> Trained:
        """Wait for its end and return what it did; raise RuntimeError with its last words when it failed."""
        if self._process.wait():
            raise RuntimeError(f"a training failed:\n{(self._folder / 'log').read_text()[-3000:]}")
        value = json.loads((self._folder / "trained.json").read_text())
        return Trained(tuple(Step(**step) for step in value["steps"]), value["cpu_s"])

    def kill(self) -> None:
        """End it and all processes it started; nothing happens if it is over."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Lines:
    """A tracker that writes each step as a line with the time it came."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step."""
        self._file.write(json.dumps({"time": time.time(), "step": step, "metrics": dict(metrics)}) + "\n")
        self._file.flush()

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


def _serve(folder: Path) -> None:
    process: Any = importlib.import_module("swarm.server.__main__")
    order = json.loads((folder / "training.json").read_text())
    process.SwarmServer = functools.partial(process.SwarmServer, trackers=lambda _: Lines(folder / "steps.jsonl"))
    process.main(["--directory", str(folder / "server"), "--models", order["models"]])


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """Run the swarm server of a folder, which has a `training.json`, while inside; yield it, its URL and admin token.

    It writes to the folder's `log`, beside whoever else does.
    """
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "rig.training", "serve", str(folder)],
            cwd=BENCHMARKS, stdout=log, stderr=log, env={**os.environ, **ONE_THREAD},
        )  # fmt: skip
    try:
        yield server, *_address(server, folder)
    finally:
        server.terminate()
        server.wait(60)


def run(folder: Path) -> Trained:
    """Carry out the training of a folder, played by the built-in agent."""
    with serving(folder) as (server, url, token):
        return asyncio.run(_trained(folder, server, url, token))


async def _trained(folder: Path, server: subprocess.Popen[bytes], url: str, token: str) -> Trained:
    job = Job.model_validate(json.loads((folder / "training.json").read_text())["job"])
    async with AsyncSwarmClient(url, token) as client:
        await client.ensure_training(job)
        began, before = time.time(), _cpu_s(server)
        environment = BUILT_IN[job.environment]
        tasks = list(environment.tasks("train"))
        random.Random(job.seed).shuffle(tasks)
        await client.rollout(agent_of(environment), tasks, concurrency=job.max_concurrency)
        cpu_s = _cpu_s(server) - before
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    names = ("critic/rewards/mean", "critic/success/mean", "timing_s/gen", "timing_s/update_actor")
    steps = (Step(line["time"] - began, *(line["metrics"][name] for name in names)) for line in lines)
    return Trained(tuple(steps), cpu_s)


def _cpu_s(server: subprocess.Popen[bytes]) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return time.process_time() + times.user + times.system


def _address(server: subprocess.Popen[bytes], folder: Path) -> tuple[str, str]:
    path, deadline = folder / "server" / "server.json", time.monotonic() + BOOT_S
    while not path.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the swarm server did not start:\n{(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.02)
    token = json.loads((folder / "server" / "tokens.json").read_text())["admin"]
    return str(json.loads(path.read_text())["url"]), str(token)


def made(environment: str, models: Path, spec: TinyModel | None = None, *, environments: Path | None = None) -> Path:
    """Make a tiny model (the default one) of an environment, in its own process; return the folder of models.

    `environments` is where one lies that is not built in.
    """
    print(f"making the tiny model of {environment}", file=sys.stderr)
    job = Job(environment=environment, model=spec or TinyModel())
    subprocess.run(
        [
            sys.executable, "-m", "swarm.backends.local.warm_start", "--job", job.model_dump_json(),
            "--models", str(models), *(("--environments", str(environments)) if environments else ()),
        ],
        check=True, cwd=BENCHMARKS, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return models


_KEPT = ("verdict", "reason", "estimate", "low", "high", "level", "p", "test", "equivalence")


def judged(
    name: str, arms: Mapping[str, Mapping[int, float]], *, meaning: str, episodes: int,
    test: Literal["welch", "paired"], alpha: float, margin: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the shipped verdict on what trainings of two arms measured, each by its seed; the control comes first.

    A value is a share of `episodes`. The claim is of an increase; seeds are shared where the test is `paired`.
    """
    control, treatment = arms
    claim = Hypothesis(
        id=name, statement=f"{treatment} is better than {control}: {meaning}.", variable="arm", control=control,
        treatment=treatment, direction="increase", prediction=Prediction(low=-margin, high=margin, probability=0.5),
    )  # fmt: skip
    seeds = len(arms[control])
    design = Design(
        question=f"Is {treatment} better than {control}?", environment=name, base_job={}, control_arm=control,
        hypotheses=(claim,), arms=tuple(Arm(name=arm, overrides={"arm": arm}) for arm in arms),
        seeds=tuple(range(1, seeds + 1)), metric=Metric(meaning=meaning, episodes=episodes), test=test, alpha=alpha,
        looks=(InterimAnalysis(seeds=seeds, alpha=alpha),), equivalence_margin=margin, budget=Budget(wall_clock_s=1),
        price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"), multiplicity="none",
        shared_seeds=test == "paired",
    )  # fmt: skip
    data = {
        arm: ArmData(
            {f"{arm}-{seed}": value for seed, value in values.items()}, {f"{arm}-{seed}": seed for seed in values}
        )
        for arm, values in arms.items()
    }
    verdict = judge(JudgeInput(AlphaLedgers.begin(1, design.alpha).allocate(design), name, data, look=1)).model_dump(
        mode="json"
    )
    return {field: verdict[field] for field in _KEPT}


NAME = "smollm2-135m"


def folder() -> Path:
    """Return where it lies once it was fetched."""
    return Home.locate().models / NAME


def missing() -> str | None:
    """Return why nothing can be measured with it, None where it is here."""
    if (folder() / "config.json").is_file():
        return None
    return f"no pretrained model is here: fetch one (ajet model fetch {NAME})"


if __name__ == "__main__":
    action, where = sys.argv[1], Path(sys.argv[2])
    if action == "serve":
        _serve(where)
    else:
        run(where).write(where / "trained.json")
