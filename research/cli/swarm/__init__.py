"""Commands about swarm servers of one's own.

May enter: commands that start, ask and steer a server. What it recorded is shown by `research.cli.swarm.episodes`;
commands about clients are in `research.cli.clients`. To add one: a module here and its line in `app.py`.
"""
