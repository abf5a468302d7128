"""Weights & Biases: whether a study's logs are sent there, and the sending.

Every training logs offline, on this machine, and a result is read from that log. Online, a thread beside the
controller sends a copy of it while it is written, and asks W&B whether its last step has come. So W&B can be down, late
or edited without a training or a verdict noticing, and its key stays in the controller's process and in those that it
starts for W&B's own client.

May enter: what speaks to W&B's server, and what decides whether to. How an offline log is read is in
`research.results.wandb_reader`, how it is written in `swarm.server.training.tracking`.
"""
