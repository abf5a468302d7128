"""Bringing an environment: its code is loaded, its tasks are drawn and split, and both become one folder with a name.

May enter: what runs, or writes down, the code of an environment that is not ours. What is asked of it without running
anything is `swarm.environments.brought`; who copies code, installs packages and starts this is `research.environments`.
"""
