"""An attempt at one run: its processes and containers, what watches them, and its launch and end.

One attempt knows nothing of the study it is for.
"""
