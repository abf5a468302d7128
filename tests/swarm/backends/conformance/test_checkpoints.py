"""Saving and loading: bit for bit, whole or not at all, and the curve goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import Backend
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.kinds import MINIBATCHES, Kind, played
from tests.swarm.backends.conformance.test_learning import mind

pytestmark = pytest.mark.slow

Start = Callable[..., Any]


async def curve(backend: Backend, steps: range) -> list[dict[str, float]]:
    found = []
    for step in steps:
        metrics = backend.learner.update(await played(backend, step=step, at_once=False))
        await asyncio.to_thread(backend.publish)
        timeless = {name: value for name, value in metrics.items() if not name.startswith(("timing_s/", "perf/"))}
        found.append({name: value for name, value in timeless.items() if not name.endswith("_per_s")})
    return found


@pytest.mark.needs("model", "learns")
async def test_weights_come_back_bit_for_bit_and_serve_at_once(kind: Kind, start: Start, tmp_path: Path) -> None:
    backend: Backend = await start(**MINIBATCHES)
    await curve(backend, range(1))
    known = mind(kind, backend)
    backend.learner.save(tmp_path / "c")
    await curve(backend, range(1, 2))
    assert mind(kind, backend) != known
    backend.learner.load(tmp_path / "c")
    await asyncio.to_thread(backend.publish)
    assert mind(kind, backend) == known
    batch = await played(backend, step=5)
    for episode in batch.episodes:
        row = episode.rows[0]
        given = row.sampled.index(1)
        expected = kind.ask(backend).logprobs(row.ids[:given], row.ids[given:])
        assert row.logprobs[given:] == pytest.approx(expected, abs=kind.tolerance)
        assert set(row.versions[given:]) == {1}


@pytest.mark.needs("learns")
async def test_a_run_that_is_resumed_has_the_same_curve(kind: Kind, start: Start, tmp_path: Path) -> None:
    """Answers, and so the generators that draw them, are part of it."""
    whole: Backend = await start(**MINIBATCHES)
    await curve(whole, range(2))
    whole.learner.save(tmp_path / "c")
    expected = await curve(whole, range(2, 4))
    resumed: Backend = await start(**MINIBATCHES)
    resumed.learner.load(tmp_path / "c")
    await asyncio.to_thread(resumed.publish)
    assert await curve(resumed, range(2, 4)) == expected


@pytest.mark.needs("hashes")
async def test_a_damaged_checkpoint_is_refused_and_changes_nothing(kind: Kind, start: Start, tmp_path: Path) -> None:
    backend: Backend = await start(**MINIBATCHES)
    await curve(backend, range(1))
    backend.learner.save(tmp_path / "c")
    await curve(backend, range(1, 2))
    known = mind(kind, backend)
    files = sorted(path for path in (tmp_path / "c").rglob("*") if path.is_file())
    for path, damage in product(files, ("flipped", "cut", "missing")):
        whole = path.read_bytes()
        hurt(path, damage)
        with pytest.raises(BackendError):
            backend.learner.load(tmp_path / "c")
        assert (mind(kind, backend), backend.learner.version) == (known, 2), (path.name, damage)
        path.write_bytes(whole)
    backend.learner.load(tmp_path / "c")
    await asyncio.to_thread(backend.publish)
    assert backend.learner.version == 1


def hurt(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    middle = len(whole) // 2
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:middle])
    else:
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
