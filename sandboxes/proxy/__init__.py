"""What every proxy of an exchange folder shares: an agent's connection, a server's, and what passes between them."""

from sandboxes.proxy.agent import MOST_BODY_BYTES, Agent
from sandboxes.proxy.errands import Errands
from sandboxes.proxy.flow import Flow
from sandboxes.proxy.heads import Head, Header, Refused
from sandboxes.proxy.server import Server
from sandboxes.proxy.service import Service
from sandboxes.proxy.watch import Connections

__all__ = [
    "MOST_BODY_BYTES",
    "Agent",
    "Connections",
    "Errands",
    "Flow",
    "Head",
    "Header",
    "Refused",
    "Server",
    "Service",
]
