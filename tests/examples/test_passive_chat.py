"""The example of passive mode on its tiny model, cut short: simulated users chat, pick, and a step is learned of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from powers.passive import job_of, used

pytestmark = pytest.mark.slow

MODEL = {"kind": "tiny", "hidden_size": 32, "layers": 1, "warm_start_steps": 60}
"""Answers with numbers, of which users like one more than another: what it takes for a choice."""


@pytest.mark.timeout(900)  # a busy machine takes 200
def test_use_alone_makes_training_data_of_those_who_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_BENCHMARK_MODELS", str(tmp_path))
    job = job_of(0, model=MODEL)
    before, after, counts = asyncio.run(used(job, requests=16, asked=4, consent=True))
    assert 0 <= before <= 1
    assert 0 <= after <= 1
    assert counts["group_feedback"] >= 1
    assert counts["group_feedback"] == counts["feedback_counted"]
    assert counts["trained"] >= counts["group_feedback"]
