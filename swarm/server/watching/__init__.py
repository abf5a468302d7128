"""Watching: what a server is doing at a glance, why its step is not done, and the history of its steps.

May enter: what is only shown, made of what others hold; nothing here changes anything. Prometheus' text is in
`swarm.server.http`, episodes and their tokens are in `swarm.server.service`.
"""
