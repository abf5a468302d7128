"""The gateway: what a container reaches through the sockets of its exchange folder, decided outside of it.

May enter: what decides and carries what a container asks of the world outside. The connections under it are in `proxy`;
which paths of the swarm server a role may ask for is handed in (`research/isolation/access_policy.py`).
"""
