"""The example of a team: two models of different size on two servers, cut short."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.client.teams import Team

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "speaker_listener"
ROLES = ("speaker", "listener")


@pytest.fixture(scope="module")
def train() -> Any:
    return SimpleNamespace(**run_path(str(FOLDER / "train.py")))


async def test_two_models_of_different_size_train_in_their_own_time_and_a_frozen_one_stays_as_it_was(
    train: Any, tmp_path: Path
) -> None:
    small = {role: {**train.MODELS[role], "warm_start_steps": 5} for role in ROLES}
    assert small["speaker"]["hidden_size"] != small["listener"]["hidden_size"]
    jobs = train.jobs_of(
        1, 0,
        speaker={"model": small["speaker"], "episodes_per_step": 16, "steps": 2},
        listener={"model": small["listener"], "episodes_per_step": 32, "learning_rate": 0.0},
    )  # fmt: skip
    async with train.served(tmp_path, jobs) as clients:
        summary = await Team.rollout(clients, train.WORLD.tasks("train"), train.play)
        statuses = {role: await client.status() for role, client in clients.items()}
        assert summary.trained == {"speaker": 32, "listener": 32}
        assert {role: status.step for role, status in statuses.items()} == {"speaker": 2, "listener": 1}
        assert statuses["speaker"].provenance["weights"] != statuses["listener"].provenance["weights"]
        still = statuses["listener"].stillness
        assert still is not None
        assert still.before == still.after
        assert statuses["speaker"].stillness is None  # it learned
        hidden = train.WORLD.tasks("hidden")[:8]
        for shuffled in (False, True):
            assert 0.0 <= await train.success(clients, hidden, shuffled) <= 1.0
        assert set(await train.language(clients, hidden)) == {task.data["meant"] for task in hidden}
