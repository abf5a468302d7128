"""What generates in a replica: vLLM, or SGLang.

May enter: what is private to one of them, a module each, and what both need. Importing a module of this package imports
neither. Does not know requests, nor who sends them.
"""
