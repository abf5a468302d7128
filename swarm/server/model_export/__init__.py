"""The model of a training as a folder of its own, with a card: a process that reads what a server wrote.

May enter: the choice of a checkpoint, and what its card says. How weights become files is in
`swarm.backends.exporting`, the card itself in `swarm.models.card`.
"""
