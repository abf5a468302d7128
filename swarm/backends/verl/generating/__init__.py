"""Generation on vLLM: replicas, each an actor of Ray that holds vLLM's engine, behind one `Engine`.

May enter: what sends requests to replicas, brings their tokens back and gives them weights. What is private to vLLM is
in `adapter.py` alone; Ray is in `actor.py` alone. Importing a module of this package imports neither of them.
"""
