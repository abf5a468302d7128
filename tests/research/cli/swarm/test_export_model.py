"""`ajet swarm export-model` of a real training, while its server runs and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from research.installation.servers import SwarmProcess, start_swarm, stop_swarm
from swarm.client import SwarmClient, SyncEpisode
from swarm.job import Job, PathModel
from swarm.models import folder_hash
from tests.research.cli.conftest import Ajet
from tests.swarm.backends.exporting.test_folder import base

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Task:
    id: str


def chatty(episode: SyncEpisode[Any]) -> tuple[float, bool]:
    """Call once; half of the plays are worth something, whatever is said."""
    episode.chat([{"role": "user", "content": "hi"}], max_tokens=4)
    won = int(episode.id[-1], 36) % 2 == 0
    return float(won), won


@pytest.fixture
def server(home: Path) -> Iterator[SwarmProcess]:
    found = start_swarm(home / "swarm", models=home / "models", port=0)
    yield found
    stop_swarm(found)


def test_a_trained_model_is_exported_with_its_card(
    ajet: Ajet, home: Path, server: SwarmProcess, tmp_path: Path
) -> None:
    model = base(tmp_path / "base")
    job = Job(
        model=PathModel(path=str(model)), device="cpu", max_context=64, max_tokens=4, steps=2, episodes_per_step=4,
        group_size=2, checkpoints_kept=1, environment="arith",
    )  # fmt: skip
    with SwarmClient(server.url, server.admin_token) as client:
        client.ensure_training(job)
        client.rollout(chatty, [Task("a"), Task("b")], concurrency=2)
        results = client.evaluate(chatty, [Task("x"), Task("y")], samples=2, concurrency=2)
        status = client.status()
    card = ajet("swarm", "export-model", str(tmp_path / "out"), "--json").data
    assert (card["step"], card["adapter"], card["job_digest"]) == (2, "none", job.digest())
    assert card["base_weights"] == status.provenance["weights"]
    assert card["sha256"] == folder_hash(tmp_path / "out")
    assert (set(card["data"]), card["trained_episodes"]) == ({"default"}, 8)
    worth = sum(result.reward for result in results) / 4
    assert card["measured"] == {"episodes": 4, "tasks": 2, "reward": worth, "success": worth}
    assert {**json.loads((tmp_path / "out" / "ajet.json").read_text()), "folder": card["folder"]} == card
    readme = (tmp_path / "out" / "README.md").read_text()
    assert (readme.startswith("---\nlibrary_name: "), f"mean reward {worth:.4g}" in readme) == (True, True)
    ajet("swarm", "export-model", str(tmp_path / "out")).refused("not there yet,")
    ajet("swarm", "export-model", str(tmp_path / "other"), "--step", "1").refused("kept (2), found '1'")
    stop_swarm(server)
    (tmp_path / "empty").mkdir()
    stopped = ajet("swarm", "export-model", str(tmp_path / "empty"), "--step", "2")
    assert (stopped.code, "wrote" in stopped.out) == (0, True), stopped.err
    assert folder_hash(tmp_path / "empty") == card["sha256"]
    ajet("swarm", "export-model", str(tmp_path / "apart"), "--lora", "apart").refused("lora_rank")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "empty", "home", "out"]
