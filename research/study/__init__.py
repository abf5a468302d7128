"""A study as it is driven: created, planned, ticked, changed by people, concluded.

What is decided here is decided elsewhere by pure functions.

May enter: what carries out a study's steps and writes its events, and what a person does to a study. What is due next
is in `research.scheduling`; what a command prints is in `research.cli.study`.
"""
