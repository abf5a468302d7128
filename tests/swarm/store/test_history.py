"""What the store tells of finished steps: of those that were learned, and of so many."""

from __future__ import annotations

import pytest

from swarm.store import Consumed, InStep, Measured
from swarm.store.tables import garbage
from tests.swarm.store.support import ended, job, opened, played


async def test_a_step_that_is_settled_and_not_learned_is_not_told(url: str) -> None:
    async with opened(url) as (store, _):
        for step in (1, 2):
            await store.write(*played(f"e{step}"), ended(f"e{step}"))
            await store.write(InStep(step, (f"e{step}",)), Measured(step, {"timing_s/gen": 1.0}))
        await store.write(Measured(1, {"timing_s/gen": 1.0, "training/global_step": 1.0}))
        assert [step for step, _ in await store.history(0, 10)] == [1]


async def test_what_was_measured_long_ago_is_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MEASURED_KEPT", 2)
    async with opened(url, job(checkpoints_kept=1)) as (store, _):
        for step in range(1, 6):
            await store.write(*played(f"e{step}"), ended(f"e{step}"))
            await store.write(InStep(step, (f"e{step}",)))
            await store.write(Measured(step, {"training/global_step": float(step)}))
            await store.write(Consumed(step, f"step-{step}"))
        await store.write()  # the writer tidies up after each group
    async with opened(url) as (store, _):
        assert [step for step, _ in await store.history(0, 10)] == [4, 5]
