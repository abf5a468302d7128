"""A server as it trains, on a terminal: a live screen, and twelve lines.

May enter: what is shown of a snapshot and of the steps' history. What they hold is decided by `swarm.server.watching`.
"""
