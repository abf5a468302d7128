"""The command line: a thin shell of typer and rich over the study loop, the swarm and the records."""
