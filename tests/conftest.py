"""What all tests share: clients and evaluators run as processes unless a test asks for containers by name.

So a test does the same on a machine with a Docker Engine as on one without.
"""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Choose processes for this session and every command that a test starts."""
    os.environ["AJET_SANDBOX"] = "process"
