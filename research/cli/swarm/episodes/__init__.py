"""`ajet swarm episodes|inspect|export`: what a server recorded, on a terminal, as a page, as files.

May enter: how episodes and their tokens are shown or written. What is recorded is decided in `swarm.server`.
"""
