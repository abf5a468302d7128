"""A small real study under random `kill -9` of whatever works on it ends like the one that was left in peace."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from kills import measured, table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]  # sized for 3 minutes; a busy machine takes 15


def test_a_study_under_kill_9_of_everything_ends_like_the_undisturbed_one(tmp_path: Path) -> None:
    figures = measured(tmp_path, Namespace(quick=True, seed=1))
    assert figures["missed"] == [], table(figures)
