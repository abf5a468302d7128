"""Anthropic's Messages.

May enter: how this protocol's requests are read and its answers written. What another dialect needs too goes to
`swarm.server.dialects`.
"""
