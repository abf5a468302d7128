"""Dialects: the wire formats agents speak, each behind one seam."""

from swarm.server.dialects.base import Ask, Dialect, Reply, Token, ToolChoice, Wishes, Writer

__all__ = ["Ask", "Dialect", "Reply", "Token", "ToolChoice", "Wishes", "Writer"]
