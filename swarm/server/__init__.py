"""The server as a process."""

from swarm.rollout.keys import Keys
from swarm.server.routes import make_app
from swarm.server.service import SwarmServer

__all__ = ["Keys", "SwarmServer", "make_app"]
