"""Isolation as studies and agents use it: containers or processes, the client image, and what a container may ask of
the server; what is left in the engine is listed and pruned here.
"""
