"""Scheduling: which runs a study needs now and what it does next.

Pure functions of its state; nothing here touches a file, a clock or a process.
"""
