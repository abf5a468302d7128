"""`ajet client`: agents of one's own on a swarm server.

May enter: commands about clients and what they say at their end. Running an agent is in `research.agents`. To add one:
a function in `client.py`, or a module here and its line there.
"""
