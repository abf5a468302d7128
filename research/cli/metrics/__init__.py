"""`ajet metric`: what a study can be judged by.

May enter: a module for each command about metrics. How one is asked for is in `research.metrics`.
"""
