"""The kinds of metric that ajet has itself, a module each, and what kinds have in common.

May enter: one kind, all of which follows from the stored files of one run.
"""
