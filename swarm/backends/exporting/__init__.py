"""Exporting: the weights of a checkpoint as a folder that transformers or peft loads.

May enter: how trained weights become files that other tools read. Which checkpoint is exported, and what its card says
of the training, is in `swarm.server.model_export`.
"""
