"""The example of two opponents, cut short, on the fake backend: their game, their ratings, and both trained."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "duel"


@pytest.fixture(scope="module")
def train() -> Any:
    return run_path(str(FOLDER / "train.py"))


def test_the_winning_move_leaves_a_multiple_of_four(train: Any) -> None:
    for stones in range(1, 25):
        winning = [taken for taken in range(1, min(3, stones) + 1) if _loses(stones - taken)]
        assert ([train["best"](stones)] if train["best"](stones) else []) == winning


def _loses(stones: int) -> bool:
    return all(not _loses(stones - taken) for taken in range(1, min(3, stones) + 1))


async def test_two_opponents_train_against_each_other_and_are_rated_on_the_way(
    train: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(train["games"].__globals__, "SAMPLES", 1)
    small = {role: {"backend": "fake", "episodes_per_step": 16} for role in train["MODELS"]}
    jobs = train["jobs_of"](2, 0, **small)
    assert jobs["red"]["evaluate_after"] == [1]
    async with train["served"](tmp_path, jobs) as clients:
        wins = await train["train"](clients, jobs)
        assert {(await client.status()).step for client in clients.values()} == {2}
    games = len(train["NIM"].tasks("hidden"))
    for step in (0, 1, 2):
        assert wins[f"red {step}", f"blue {step}"] + wins[f"blue {step}", f"red {step}"] == games
        assert sum(count for pair, count in wins.items() if "perfect" in pair and f"red {step}" in pair) == games
    rated = train["ratings"](wins, "random")
    train["show"](rated, (0, 1, 2))
    assert "perfect" in capsys.readouterr().out
    assert rated["perfect"] > 1000  # who knows the winning moves is above who moves at random
