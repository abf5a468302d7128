"""Prefect around the study loop: a local server, and a flow run that shows a study and takes what people click.

Prefect holds no truth. The loop runs the same without it, and everything shown can be rebuilt from the
event log.

May enter: what speaks to Prefect and what is shown there. What a study does next is in `research.scheduling`, what a
person may change of it in `research.study`.
"""

from research.orchestration.named import PrefectUnavailable
from research.orchestration.server import PrefectServer, ensure_server, stop_server
from research.orchestration.view import PrefectView

__all__ = ["PrefectServer", "PrefectUnavailable", "PrefectView", "ensure_server", "stop_server"]
