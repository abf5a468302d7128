"""Dialects: the wire formats of model calls, each an implementation of one protocol.

May enter: in this folder what dialects share, in a package what one of them needs. Routes and keys are in
`swarm.server.http`; sampling is in `swarm.server.calls`. To add one: a package with a `Dialect` (`base.py`), a line in
`swarm/server/http/app.py` (`_model_endpoints`) and one in `swarm/server/http/operations.py`; for containers its path in
`research/isolation/access_policy.py`.
"""

from swarm.server.dialects.base import Ask, Dialect, Reply, StreamWriter, Token, ToolChoice, Wishes

__all__ = ["Ask", "Dialect", "Reply", "StreamWriter", "Token", "ToolChoice", "Wishes"]
