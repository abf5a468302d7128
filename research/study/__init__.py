"""A study as it is driven: created, planned, ticked, changed by people, concluded.

What is decided here is decided elsewhere by pure functions.
"""
