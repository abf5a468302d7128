"""What every proxy of an exchange folder shares: an agent's connection, a server's, and what passes between them.

May enter: how requests and replies are carried, whoever asks. What is allowed is decided in `sandboxes.gateway`.
"""

from sandboxes.gateway.proxy.agent import MOST_BODY_BYTES, AgentConnection, Service
from sandboxes.gateway.proxy.connections import BackgroundTasks, Connections
from sandboxes.gateway.proxy.flow import Flow
from sandboxes.gateway.proxy.heads import Head, Header, RequestRejected
from sandboxes.gateway.proxy.server import ServerConnection

__all__ = [
    "MOST_BODY_BYTES",
    "AgentConnection",
    "BackgroundTasks",
    "Connections",
    "Flow",
    "Head",
    "Header",
    "RequestRejected",
    "ServerConnection",
    "Service",
]
