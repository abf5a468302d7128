"""The swarm server: HTTP, leases, capture, batches and the order of rollout and update around one backend."""

from swarm.server.http.app import make_app
from swarm.server.service.core import SwarmServer
from swarm.server.shared.keys import Keys

__all__ = ["Keys", "SwarmServer", "make_app"]
