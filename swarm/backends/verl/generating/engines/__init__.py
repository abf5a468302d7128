"""What generates in a replica: vLLM.

May enter: what is private to it, and the plain data that is exchanged with it. Importing a module of this package does
not import it. Does not know requests, nor who sends them.
"""
