"""Prefect around the study loop: a local server to look at, and a flow that shows what the loop does.

Prefect holds no truth. The loop runs the same without it, and everything shown can be rebuilt from the
event log.
"""

from research.orchestration.server import PrefectServer, PrefectUnavailable, ensure_server, stop_server

__all__ = ["PrefectServer", "PrefectUnavailable", "ensure_server", "stop_server"]
