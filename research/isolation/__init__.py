"""Isolation as studies and agents use it: containers or processes, the client image, and what a container may ask of
the server; what is left in the engine is listed and pruned here.

May enter: what studies and agents choose about containers and ask of them. How a container is made, started and ended
is in `sandboxes`, which knows no studies.
"""
