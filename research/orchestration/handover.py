"""The way to the worker of an installation, for who has not imported Prefect."""

from __future__ import annotations

import os
from collections.abc import Callable

from research.installation.home import Home
from research.orchestration.server import client_settings, require_prefect


def prepare_prefect(home: Home) -> None:
    """Set what Prefect reads once, when it is first imported; raise PrefectUnavailable where it is not installed."""
    require_prefect()
    os.environ.update(client_settings(home.prefect))


def find_worker(home: Home) -> Callable[[str], str]:
    """Return the way to the worker (`research.orchestration.deployment`); raise NotReady where there is none."""
    prepare_prefect(home)
    from research.orchestration.deployment import worker_scheduler

    return worker_scheduler(home)
