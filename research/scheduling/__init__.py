"""Scheduling: which runs a study needs now and what it does next.

Pure functions of its state; nothing here touches a file, a clock or a process.

May enter: functions of a study's state that say what is due. What carries it out is in `research.study`; what it costs
is in `research/design/pricing.py`.
"""
