"""One whole training as processes of its own, with every step's metrics and when it was done.

    python -m rig.training run FOLDER      trains what FOLDER/training.json says; writes FOLDER/trained.json
    python -m rig.training serve FOLDER    the swarm server of `run`, which also writes FOLDER/steps.jsonl

`training.json` has the `job`, the folder of `models`, and where a pretrained model trains its `workload`, one of
WORKLOADS, which are no built-in environments: a server needs to know nothing of what clients play.

It is the real stack: a `swarm.server` process with the local backend and its durable store, and the built-in agent
behind the HTTP client. Nothing is tracked but the lines this module writes. Booting the server and making the model
are not part of a training's time: it begins when the client asks for its first episode. Nor is the checkpoint at its
end, whose CPU seconds are counted, though.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from real_model import WORDS

from research.installation.home import Home
from rig.workloads import Step, Trained
from studies.records.alpha import AlphaLedgers
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import InterimAnalysis, Prediction
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import judge
from swarm.client import AsyncSwarmClient
from swarm.environments.base import Message, Outcome, PlainEnvironment, PlainGame, Task, said, text_of
from swarm.environments.play import agent_of
from swarm.environments.registry import BUILT_IN
from swarm.job import Job, TinyModel

BOOT_S = 120.0
BENCHMARKS = Path(__file__).parents[1]


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


class LastWords(PlainGame):
    """Asks one question after another, whatever was answered; an answer counts if it is the right one and no more."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._answers: list[str] = []

    def opening(self) -> list[Message]:
        """Return the examples and the first question."""
        return list(self._task.data["opening"])

    def answer(self, message: Message) -> list[Message]:
        """Take an answer; return the next question, if there is one."""
        self._answers.append(text_of(message).strip())
        return list(self._task.data["further"][len(self._answers) - 1 :][:1])

    def outcome(self) -> Outcome:
        """Return the share of right answers; all of them are a success."""
        solutions = self._task.data["solutions"]
        right = sum(map(str.__eq__, self._answers, solutions)) / len(solutions)
        return Outcome(right, right == 1)


@dataclass
class AskedLastWords(PlainEnvironment):
    """Tasks of `turns` questions for the last of three words, behind examples as turns of the chat: the same for all
    tasks, or each task's `own`."""

    title, measures = "last words", "every answer is the last word of its line, and nothing else"
    examples: int = 6
    turns: int = 1
    own: bool = False
    asked: str = "Last word of: {}"
    before: tuple[Message, ...] = ()

    def problems(self) -> Iterator[tuple[str, Task]]:
        """Yield the tasks."""
        for number in range(400):
            asked = _lines(f"asked {number}", self.turns)
            shown = _lines(f"shown {number * self.own}", self.examples)
            shots = [turn for line in shown for turn in (self._question(line), said(line.split()[-1]))]
            first, *further = map(self._question, asked)
            opening, solutions = [*self.before, *shots, first], [line.split()[-1] for line in asked]
            data = {"opening": opening, "further": further, "solutions": solutions}
            yield str(number), Task(str(number), data)

    def game(self, task: Task) -> LastWords:
        """Return a fresh play of a task."""
        return LastWords(task)

    def _question(self, line: str) -> Message:
        return {"role": "user", "content": self.asked.format(line)}


def _lines(seed: str, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.sample(WORDS, 3)) for _ in range(count)]


ABOUT: Message = {"role": "system", "content": "Call the tool with the last word of each line."}
WORKLOADS: Mapping[str, PlainEnvironment] = {
    "shared": AskedLastWords(),
    "own": AskedLastWords(own=True),
    "tool": AskedLastWords(2, 8, asked="{}", before=(ABOUT,)),
}
"""What a pretrained model of 100 million parameters or more plays: it solves some of it untrained. A `tool` is called
by words, and what it finds is the next line."""


def environment_of(order: Mapping[str, Any]) -> PlainEnvironment:
    """Return what a `training.json` lets its job play."""
    return WORKLOADS[order["workload"]] if order.get("workload") else BUILT_IN[order["job"]["environment"]]


ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Lines:
    """A tracker that writes each step as a line with the time it came, the CPU seconds of this process, and how many
    ids its engine fed the model until then."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._fed = 0
        policy: Any = importlib.import_module("swarm.backends.local.policy").Policy
        decode = policy.decode

        def counted(own: Any, ids: Any, *rest: Any) -> Any:
            self._fed += ids.numel()
            return decode(own, ids, *rest)

        policy.decode = counted

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step."""
        here = {"time": time.time(), "cpu": time.process_time(), "fed": self._fed}
        self._file.write(json.dumps({**here, "step": step, "metrics": dict(metrics)}) + "\n")
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
    order = json.loads((folder / "training.json").read_text())
    job, environment = Job.model_validate(order["job"]), environment_of(order)
    async with AsyncSwarmClient(url, token) as client:
        await client.ensure_training(job)
        began, before = time.time(), _cpu_s(server)
        tasks = list(environment.tasks("train"))
        random.Random(job.seed).shuffle(tasks)
        await client.rollout(agent_of(environment), tasks, concurrency=job.max_concurrency)
        cpu_s = _cpu_s(server) - before
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    names = {
        "reward": "critic/rewards/mean", "success": "critic/success/mean", "generate_s": "timing_s/gen",
        "update_s": "timing_s/update_actor", "update_ids": "tokens/forward",
    }  # fmt: skip
    steps = (
        Step(at=line["time"] - began - line["metrics"].get("timing_s/save_checkpoint", 0.0) * (line is lines[-1]),
             generate_ids=line["fed"] - fed, cpu_s=line["cpu"],
             **{field: line["metrics"][name] for field, name in names.items()})
        for line, fed in zip(lines, [0, *(line["fed"] for line in lines)], strict=False)
    )  # fmt: skip
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


def folder(name: str = NAME) -> Path:
    """Return where it lies once it was fetched; a folder of one's own is what it is."""
    return Path(name).absolute() if (Path(name) / "config.json").is_file() else Home.locate().models / name


def missing(name: str = NAME) -> str | None:
    """Return why nothing can be measured with it, None where it is here."""
    if (folder(name) / "config.json").is_file():
        return None
    return f"no pretrained model is here: fetch one (ajet model fetch {NAME})"


if __name__ == "__main__":
    action, where = sys.argv[1], Path(sys.argv[2])
    if action == "serve":
        _serve(where)
    else:
        run(where).write(where / "trained.json")
