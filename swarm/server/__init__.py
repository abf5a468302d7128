"""The swarm server: HTTP, leases, capture, batches and the order of rollout and update around one backend."""

from swarm.server.app import make_app
from swarm.server.core import SwarmServer
from swarm.server.keys import Keys

__all__ = ["Keys", "SwarmServer", "make_app"]
