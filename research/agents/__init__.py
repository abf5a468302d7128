"""Agents of a user's own, run in the foreground on a swarm server: `ajet client run`.

May enter: what runs an agent of the user against a swarm server and returns its result. Runs of a study are started in
`research.attempts`; the command's options are in `research/cli/clients/client.py`.
"""
