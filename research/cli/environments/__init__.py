"""The commands of `ajet env`: what environments there are, what one is, what it is worth.

May enter: arguments, tables and exit codes of these commands. What is listed and measured is `research.environments`.
"""
