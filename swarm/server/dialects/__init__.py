"""Dialects: the wire formats of model calls, each an implementation of one protocol."""

from swarm.server.dialects.base import Ask, Dialect, Reply, StreamWriter, Token, ToolChoice, Wishes

__all__ = ["Ask", "Dialect", "Reply", "StreamWriter", "Token", "ToolChoice", "Wishes"]
