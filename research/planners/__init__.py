"""Which planner is asked: chosen by name, and how well each predicted so far.

May enter: the choice of a planner, and the record of all. A planner's own code is a package beside this one, such as
`research.rule_planner`. To add one from outside: a package with an entry point in `ajet.planners`, a callable of a
model's name and the environment's variables that returns a `research.planner.Planner` of that name; here: its name in
`BUILT_IN` and a branch of `make_planner` (`factory.py`).
"""
