"""What needs more than torch and transformers: the tests' own suite, a study to its verdict, and the backend verl."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rig.bare import Bench, end_with

ROOT = Path(__file__).parents[2]
SUITE = "tests/swarm/backends/conformance"
TOPIC = "group size 4 vs 8 on arith with 3 training steps"
STUDY = ("--rounds", "1", "--max-runs", "7", "--effect", "0.3", "--episodes", "64", "--no-prefect")
"""An effect so large that few seeds and episodes see it: this is about the way, not about what is found."""
LAST_S = 20.0
"""Seconds of a part's time that are left for ending what it started."""
_ENDS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def ended(command: Sequence[str], bench: Bench, environment: Mapping[str, str]) -> tuple[int | None, str, str]:
    """Run a command in the repository; return its exit code, what it printed and its errors. A code of None: it did
    not end in time, and was interrupted."""
    parent = os.getpid()
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: end_with(parent),
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=max(1.0, bench.left - LAST_S))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            out, errors = process.communicate(timeout=LAST_S / 2)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
        return None, out, errors
    return process.returncode, out, errors


def suite(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield how many tests of the suite of all backends pass on this device; a dry run takes the quick ones."""
    if find_spec("vllm") is not None:
        yield {"not run": "where vLLM is, the suite is of the backend verl alone, on a CPU"}
        return
    workers = min(4, os.cpu_count() or 1)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE]
    command += ["--quick"] if bench.dry else ["-n", str(workers)] if workers > 1 else []
    begun = time.monotonic()
    code, out, _ = ended(command, bench, {"AJET_TEST_DEVICE": bench.device, "NVIDIA_TF32_OVERRIDE": "0"})
    last = next((line for line in reversed(out.splitlines()) if _ENDS.search(line)), "")
    counts = {name: int(count) for count, name in _ENDS.findall(last)}
    failed = [line.split(" - ")[0] for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    row = {**counts, "seconds": round(time.monotonic() - begun, 1), "tests that failed": failed[:20]}
    yield {"cut": "its time was over", **row} if code is None else {"holds": code == 0, "exit code": code, **row}


def study(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield what a tiny study came to; in a dry run of a backend that learns nothing."""
    from research.installation.home import Home
    from sandboxes import ProcessSandbox
    from studies import EventLog, fold

    with tempfile.TemporaryDirectory(prefix="ajet-gpu-study-") as folder:
        home = Home(Path(folder) / ".ajet", f"sqlite:///{folder}/.ajet/ajet.db")
        variables = {"AJET_HOME": str(home.path), "AJET_SANDBOX": "process", "WANDB_MODE": "offline"}
        command = [sys.executable, "-m", "research", "research", TOPIC, "--json", *STUDY]
        begun = time.monotonic()
        code, _, errors = ended([*command, *(("--backend", "fake") if bench.dry else ())], bench, variables)
        row: dict[str, Any] = {
            "topic": TOPIC,
            "seconds": round(time.monotonic() - begun, 1),
        }
        log = EventLog(home.database)
        if known := log.studies():
            state = fold(log.read(known[0]))
            runs = list(state.every_run.values())
            row |= {
                "status": state.status, "runs": len(runs),
                "collected": sum(run.status == "collected" for run in runs),
                "verdicts": ", ".join(each.verdict for each in state.verdicts),
            }  # fmt: skip
        if code is None:
            row["cut"] = "its time was over"
        else:
            row["holds"] = code == 0 and row.get("status") == "concluded"
        if code:
            row["failed"] = (errors.strip().splitlines() or ["no words"])[-1][:300]
        for handle in ProcessSandbox(home.sandboxes).list():
            handle.stop(grace_s=1.0)
        yield row


def verl(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield what the backend verl's answers, one update and its publication are like, beside a plain forward."""
    from swarm.backends.verl.cluster import set_ray_environment

    set_ray_environment(None)  # before anything imports Ray
    import torch

    from rig.in_process import Player
    from swarm.backends.local.backend import base_model
    from swarm.backends.protocols import Batch
    from swarm.backends.verl.backend import VerlBackend
    from swarm.job import Job, TinyModel
    from swarm.verl_config import VerlFields

    shared = bench.device == "cuda" and torch.cuda.device_count() < 2
    fields: dict[str, Any] = {"device": bench.device, "verl": VerlFields(colocated=True) if shared else None}
    job = Job(
        environment="guess", backend="verl", model=TinyModel(head_size=32, warm_start_steps=0), merging="linear",
        episodes_per_step=16, learning_rate=0.01, **fields,
    )  # fmt: skip
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ajet-gpu-verl-") as folder, asyncio.Runner() as runner:
        backend = VerlBackend(job, models := Path(folder))
        try:
            runner.run(backend.start())
            yield {"what": "boot", "seconds": round(time.monotonic() - begun, 1), "colocated": shared}
            player = Player(job, backend)
            tasks = list(itertools.islice(player.tasks(), job.tasks_per_step))
            for version in range(2):
                played = runner.run(player.played(version, tasks))
                # untrained, it solves nothing: rewards of one kind would move no weight
                episodes = tuple(replace(one.episode, reward=float(n % 2)) for n, one in enumerate(played))
                rows = [row for episode in episodes for row in episode.rows]
                off = _off(backend.learner, base_model(job, models), rows)
                seen = {each for row in rows for each in row.versions} - {-1}
                yield {
                    "what": f"answers of version {version} beside a plain forward", "off": off, "bound": _bound(bench),
                    "holds": off <= _bound(bench) and seen == {version},
                }  # fmt: skip
                if version == 0:
                    yield runner.run(asyncio.to_thread(_update, backend, Batch(0, episodes)))
        finally:
            runner.run(backend.stop())


def _bound(bench: Bench) -> float:
    return 1e-4 if bench.dry else 1e-2


def _update(backend: Any, batch: Any) -> dict[str, Any]:
    begun = time.monotonic()
    metrics = backend.learner.update(batch)
    learned = time.monotonic()
    backend.publish()
    apart, norm = float(metrics["training/rollout_probs_diff_max"]), float(metrics["actor/grad_norm"])
    return {
        "what": "update and publication", "update, s": round(learned - begun, 2),
        "publication, s": round(time.monotonic() - learned, 2), "largest difference of a probability": apart,
        "holds": apart <= backend.probs_tolerance and math.isfinite(norm) and norm > 0,
    }  # fmt: skip


def _off(learner: Any, folder: Path, rows: Sequence[Any]) -> float:
    """Return how far log-probs of sampled ids are off a plain forward of the weights that a learner has now."""
    import ray
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights = {name: tensor.cpu() for bucket in learner.export_weights() for name, tensor in ray.get(bucket).items()}
    model.load_state_dict(weights, strict=False)
    apart = 0.0
    with torch.no_grad():
        for row in rows:
            every = model(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0].float().log_softmax(-1)
            for place, flag in enumerate(row.sampled):
                if flag:
                    apart = max(apart, abs(float(every[place - 1, row.ids[place]]) - row.logprobs[place]))
    return apart
