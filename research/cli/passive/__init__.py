"""`ajet passive`: the front that turns the use of a chat application into training data.

May enter: commands about a front. What a front does is in `swarm/passive/`, which runs as a process of its own.
"""
