"""What a study's flow run shows, in words, tables and pictures: of its state and its files, without Prefect.

May enter: what is shown, and what it is made of. How it is told to a server is `research.orchestration`'s.
"""
