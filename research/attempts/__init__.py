"""An attempt at one run: its processes and containers, what watches them, and its launch and end.

One attempt knows nothing of the study it is for.

May enter: what starts, watches and ends the processes and containers of one attempt. Its files are checked and measured
in `research.results`; which run is due is decided in `research.scheduling`.
"""
