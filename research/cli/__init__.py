"""The command line: a thin shell of typer and rich over the study loop, the swarm and the records.

May enter: what several commands share, and commands about neither studies (`study`) nor swarm servers (`swarm`). A
command reads options, calls a package below and prints; it decides nothing about a study. To add one: a module here and
an entry of `Ajet.lazy` (`app.py`).
"""
