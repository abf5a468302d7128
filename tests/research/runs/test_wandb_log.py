"""A second attempt goes on from what the first one's server kept: a real server is killed, no step is lost."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from research.runs.collect import collect
from research.runs.wandb_log import find_log, read_log
from swarm.job import Job, TinyModel
from swarm.rollout.keys import ServerDirectory
from swarm.server.service import default_store, make_backend
from swarm.store.writer import open_store
from swarm.training.metrics import make_batch
from tests.research.runs.trials import STEPS, Tries, eventually

pytestmark = pytest.mark.slow

EVERY = 4
TINY = TinyModel(hidden_size=16, layers=1, warm_start_steps=200)
KEEPS_ALL: dict[str, Any] = {"checkpoint_every": EVERY, "checkpoints_kept": 1000}


@pytest.fixture
def tries(tmp_path: Path) -> Iterator[Tries]:
    tries = Tries(tmp_path, backend="local", model=TINY.model_dump(), epochs=2, **KEEPS_ALL)
    yield tries
    for trial in tries.trials.values():
        trial.end()


def weights_after(server: Path, job: Job, models: Path, step: int) -> dict[str, str]:
    """Return the hashes of the checkpoint that the store's batches lead to when they are learned without a break."""

    async def learned() -> dict[str, str]:
        store, recovered = open_store(default_store(server), job, ServerDirectory(server).installation())
        backend = make_backend(job, models)
        await backend.start()
        try:
            for number in range(1, step + 1):
                backend.learner.update(make_batch(number, recovered.replay[number]))
            backend.learner.save(server / "uninterrupted")
        finally:
            await backend.stop()
            await store.close()
        return hashes_in(server / "uninterrupted")

    return asyncio.run(learned())


def hashes_in(checkpoint: Path) -> dict[str, str]:
    """Return the hashes of weights and optimiser; where sampling stands is no part of what was learned."""
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    return {name: files[name] for name in ("model.safetensors", "optimizer.safetensors")}


def settled_twice(server: Path) -> list[str]:
    """Return what of the store says that an episode is in two steps, or a step is not of one batch."""
    with sa.create_engine(default_store(server)).connect() as connection:
        rows = connection.execute(sa.text("select step, count(*) from episodes where step is not null group by step"))
        return [f"step {step}: {count} episodes" for step, count in rows if count != 8]


def test_a_killed_server_is_gone_on_from_and_the_weights_are_those_of_the_same_batches_without_a_break(
    tries: Tries, tmp_path: Path
) -> None:
    tries.launch()
    eventually(lambda: "event=step step=7/" in tries.log(1), "step 7 is learned")
    tries.kill(1, "swarm.server")
    died = tries.outcome(1)
    assert (died.status, died.code) == ("failed", "server_died")
    assert "killed by signal 9" in died.reason
    assert tries.trial(1).pids("-m") == [], "nothing is left running"
    tries.ended("server_died")
    before = read_log(find_log(tries.folder(1).path, tries.order.tracking_id))

    order = tries.launch()
    outcome = tries.outcome(2)
    assert (outcome.status, outcome.code, order.resumes) == ("finished", "ok", 1), outcome.reason
    assert not tries.folder(1).server.exists()

    found = re.search(r"event=recovered checkpoint=(\d+) step=(\d+)", tries.log(2))
    assert found is not None
    checkpoint, step = map(int, found.groups())
    assert checkpoint >= EVERY
    assert outcome.resumed_at == step >= 7
    learned = [int(number) for number in re.findall(r"event=step step=(\d+)/", tries.log(2))]
    assert learned == list(range(checkpoint + 1, STEPS + 1)), "what the checkpoint holds is not learned again"
    assert settled_twice(tries.folder(2).server) == []

    evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
    assert evidence.snapshot["steps"] == STEPS
    conditions = evidence.conditions
    assert (conditions.checkpoint, conditions.optimiser_steps) == ("last", 2 * STEPS)
    assert {len(found) for found in (conditions.initial_policy or "", conditions.template or "")} == {64}
    history = json.loads((tmp_path / "study" / evidence.snapshot["path"]).read_text())["history"]
    rows = {row["step"]: row["metrics"] for row in history}
    for number, logged in before.history.items():
        if number <= checkpoint:
            assert rows[number] == logged, "every number as it was measured"
        else:
            assert rows[number]["actor/grad_norm"] == logged["actor/grad_norm"]
            assert rows[number]["timing_s/gen"] == logged["timing_s/gen"]
    job, models = order.job, Path(order.models)
    checkpoints = tries.folder(2).server / "checkpoints" / job.digest()[:12]
    reached = hashes_in(checkpoints / f"step-{STEPS:06d}")
    assert reached["model.safetensors"] != hashes_in(checkpoints / f"step-{EVERY:06d}")["model.safetensors"]
    assert reached == weights_after(tries.folder(2).server, job, models, STEPS)
