"""Prefect: native flow, task rows projected."""

from research.orchestration.projection import PrefectView
from research.orchestration.server import PrefectServer, PrefectUnavailable, ensure_server, stop_server

__all__ = ["PrefectServer", "PrefectUnavailable", "PrefectView", "ensure_server", "stop_server"]
