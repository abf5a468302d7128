"""The installation: its folder, its machine, its tiny models, its swarm server and its studies.

May enter: what lies in the installation's folder or belongs to its machine, whichever study asks. What one study does
is in `research.study`; containers are in `research.isolation`.
"""
