"""A small real study under random `kill -9` of whatever works on it ends like the one that was left in peace."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from kills import measured, table

from tests.furnished import furnish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # sized for 3 minutes; a busy machine takes 15


def test_a_study_under_kill_9_of_everything_ends_like_the_undisturbed_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The one left in peace finds its model made; the other makes it, while what makes it is killed."""
    furnish(tmp_path / "calm", tmp_path_factory)
    figures = measured(tmp_path, Namespace(quick=True, seed=1))
    assert figures["missed"] == [], table(figures)
