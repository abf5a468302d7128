"""Which planner is asked: chosen by name, and how well each predicted so far.

May enter: the choice of a planner, and the record of all. A planner's own code is a package beside this one, such as
`research.rule_planner`. To add one: a class that fulfils `research.planner.Planner`, its name in `PLANNERS` and a
branch of `make_planner` (`factory.py`).
"""
