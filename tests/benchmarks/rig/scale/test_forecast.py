"""The formulas are what adding up call by call gives, and the page shows what they and the measurement came to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from performance import results
from rig.scale.constants import Constants
from rig.scale.forecast import Plan, call_up, forecast, stored
from rig.scale.weights import tensors
from safetensors.torch import save_file
from scale import goals_missed, text
from torch import bfloat16, zeros

PAGE = Path(__file__).parents[4] / "docs/scale.md"
FOUND = Constants(
    call_up=400.0, message=36.5, call_down=470.0, streamed_token=260.0, episode_up=1000.0, episode_down=800.0,
    beat_up=400.0, beat_down=150.0, beats_per_ttl=3.0, call_row=30.0, episode_row=170.0, step_rows=2000.0,
    written_over_stored=3.0,
)  # fmt: skip
CAPACITY = {
    "CPU ms per call": {"server": 0.5},
    "growth": {"ns per token of history": 100, "ns per new token": 200},
}
plans = st.builds(Plan, turns=st.integers(1, 64), asked=st.integers(0, 5000), sampled=st.integers(1, 5000))


@given(plans)
def test_the_mean_request_is_that_of_all_turns(plan: Plan) -> None:
    texts = [turn * plan.asked + (turn - 1) * plan.sampled for turn in range(1, plan.turns + 1)]
    sizes = [400 + (2 * turn - 1) * 36.5 + 4 * text for turn, text in enumerate(texts, 1)]
    assert call_up(FOUND, plan) == pytest.approx(sum(sizes) / plan.turns)


@given(plans)
def test_an_episode_is_stored_once_token_by_token(plan: Plan) -> None:
    calls = sum(30 + 4 * plan.asked + 16 * plan.sampled for _ in range(plan.turns))
    assert stored(FOUND, plan) == 170 + calls


def test_a_plan_by_hand() -> None:
    found = forecast(FOUND, CAPACITY, {"published": 2.0, "checkpoint": 12.0}, Plan(turns=8))
    assert (found["episodes open"], found["calls/s"], found["heartbeats/s"]) == (1000, 40, 100)
    assert found["seconds to publish to a replica, by Gb/s"] == pytest.approx({"10": 51.2, "100": 5.12, "400": 1.28})
    assert (found["GB published"], found["GB of a checkpoint"], found["GB of checkpoints on disk"]) == (64, 384, 1152)
    assert found["CPU ms a call"] == pytest.approx(0.5 + 3500 * 1e-4 + 500 * 2e-4)
    assert found["seconds to play a batch"] == pytest.approx(1024 / 5)
    assert found["GB of a batch, as pool_bytes counts"] == pytest.approx(1024 * 8 * 500 * 120 / 1e9)


def test_the_bytes_of_a_tensor_file_are_those_of_its_tensors_alone(tmp_path: Path) -> None:
    save_file({"a": zeros(3, 5), "b": zeros(7, dtype=bfloat16)}, tmp_path / "m.safetensors", {"format": "pt"})
    assert tensors(tmp_path / "m.safetensors") == {"elements": 22, "bytes": 74}


def test_the_page_shows_what_was_measured_and_what_follows() -> None:
    figures = json.loads((results.RESULTS / "scale.json").read_text())
    shown = " ".join(PAGE.read_text().split())
    for line in text(figures):
        assert " ".join(line.split()) in shown, "run: python benchmarks/scale.py --json, and copy its tables"
    assert goals_missed(figures) == []


def test_what_the_page_says_in_words_are_the_figures_of_its_tables() -> None:
    figures = json.loads((results.RESULTS / "scale.json").read_text())
    words, (short, long) = " ".join(PAGE.read_text().split()), figures["computed"]
    seconds = short["seconds to publish to a replica, by Gb/s"]
    for phrase in (
        f"{short['tokens/s']:,.0f} sampled tokens per second at each server",
        f"A batch of 32 turns is {long['GB of a batch, as pool_bytes counts']:.2f} GB",
        f"{short['GB of a checkpoint']:.0f} GB each, {short['GB of checkpoints on disk'] / 1e3:.2f} TB on disk",
        f"At 10 Gb/s one replica takes {seconds['10']:.0f} s",
        f"for one and {8 * seconds['100']:.0f} s for eight in turn",
        f"It is {short['Mb/s down, streamed']:.0f} Mb/s at each server",
        f"{100 * short['part of a core']:.0f} % of it with 8 turns and {100 * long['part of a core']:.0f} % with 32",
        f"full at {short['most calls/s']:.0f} and {long['most calls/s']:.0f} calls per second",
        f"{short['GB stored a day']:.0f} GB of tokens a day",
        f"What stays is {1e3 * short['GB a day that stay']:.0f} MB a day at most",
    ):
        assert phrase in words


def test_a_formula_that_does_not_fit_is_told() -> None:
    (told,) = goals_missed({"formula over measured": {"up": 1.2, "down": 0.97, "stored": 1.0}})
    assert "1.200 of the bytes up" in told
