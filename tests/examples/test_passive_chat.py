"""The example of passive mode on its tiny model, cut short: simulated users chat, pick, and a step is learned of it."""

from __future__ import annotations

import asyncio

import pytest
from powers.passive import used


@pytest.mark.timeout(600)  # a busy machine takes 200
def test_use_alone_makes_training_data_of_those_who_consent() -> None:
    before, after, counts = asyncio.run(used(0, requests=16, asked=4, consent=True))
    assert 0 <= before <= 1
    assert 0 <= after <= 1
    assert counts["group_feedback"] >= 1
    assert counts["group_feedback"] == counts["feedback_counted"]
    assert counts["trained"] >= counts["group_feedback"]
