"""The topic: an English question cut into fields, values, numbers and what is left over. No planner's choices.

May enter: how words are read, and what is said of those that were not understood. What is proposed from them is in
`research.rule_planner`. The words for a field of the job stand at the field (`swarm/job.py`), those for an environment
in `swarm.environments`.
"""
