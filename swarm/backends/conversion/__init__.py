"""Conversion: a model in a format that is not trained, into a folder that is.

May enter: a module for each format, run as a process of its own. Where such a file comes from is in `research.models`.
"""
