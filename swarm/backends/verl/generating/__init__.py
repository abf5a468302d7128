"""Generation on vLLM: replicas, each an actor of Ray that holds such an engine, behind one `Engine`.

May enter: what sends requests to replicas, brings their tokens back and gives them weights. What is private to vLLM
is in `engines/` alone; Ray is in `actor.py` alone. Importing a module of this package imports neither.
"""
