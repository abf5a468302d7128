"""The installation: its folder, its machine, its tiny models, its swarm server and its studies."""
