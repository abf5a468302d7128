"""The swarm server: HTTP, leases, capture, batches and the order of rollout and update around one backend.

May enter: a package for each concern of the server; in this folder only the process's entry. What samples and learns
goes to `swarm.backends`, what is written to disk to `swarm.store`, the call tree of an episode to `swarm.timelines`.
"""

from swarm.server.http.app import make_app
from swarm.server.service.core import SwarmServer
from swarm.server.shared.keys import Keys

__all__ = ["Keys", "SwarmServer", "make_app"]
