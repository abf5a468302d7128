"""Passive mode: an OpenAI-compatible front for a chat application, whose use becomes training data of a swarm server.

May enter: what answers an application's requests, and what is kept of its users. It is a client of a swarm server and
no part of one: it knows the server by `swarm.client` alone. How a reward is made of answers goes to `scoring.py` or
`judge.py`; what is stored, to `records.py`.
"""
