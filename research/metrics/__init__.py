"""Which metric a study is judged by: named by a flag, by words of a topic, or by a planner; defined for its jobs.

May enter: how a metric is asked for, and what it is of an environment and its jobs. The kinds themselves, and what they
read off a run, are in `studies.metrics`; what follows for sizes and prices is in `research.design`.
"""
