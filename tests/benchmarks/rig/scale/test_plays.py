"""Episodes that are really played: each request and each row is there once, and the constants say how large."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig.scale.constants import calls_by_turn, delta, traffic
from rig.scale.kinds import BEGIN, CALL, END
from rig.scale.plays import Played, Shape, play
from rig.serving.servers import serving
from scale import JOB

SHAPES = (Shape(3), Shape(3, "openai, streamed"), Shape(3, contained=True))


async def test_an_episode_is_a_beginning_its_calls_and_an_end(tmp_path: Path) -> None:
    with serving("pieces", tmp_path) as server:
        for seed, shape in enumerate(SHAPES):
            job = JOB.model_copy(update={"episodes_per_step": 8, "steps": 1, "seed": seed})
            _check(await play(server, tmp_path, job, shape))


def _check(played: Played) -> None:
    assert [len(played.granted(kind)) for kind in (BEGIN, CALL, END)] == [8, 24, 8]
    assert traffic(played)["requests an episode"] == 5
    stored = delta(played)
    assert stored["rows an episode"] == {"episodes": 1.0, "nodes": 3.0}
    assert stored["rows a step"]["steps"] == 1.0
    first, second, third = calls_by_turn(played)
    assert second - first == pytest.approx(third - second, abs=4)  # the history grows by as much with each turn
    assert len(played.behind) == len(played.passed)
